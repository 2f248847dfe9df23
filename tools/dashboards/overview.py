"""The overview dashboard: publishing, subscribing, NSQ and Spark jobs."""

from __future__ import annotations

from tools.dashboards.panels import (
    BY_PROCESS,
    PROCESS,
    Dashboard,
    Panel,
    Query,
    Row,
    by_process,
    per,
    quantiles,
    rate,
    series,
    total,
)

_PUBLISHES = 'route=~"/pub|/mpub"'
_FAILED = f'{_PUBLISHES}, code=~"5.."'
_COUNTED = f'{_PUBLISHES}, code!~"4.."'
_BUDGET = 0.001
_WORKING = 'worker!="supervisor"'
"""Excludes the supervisor process of `--workers`, which serves no sockets."""


def _failed_share(window: str) -> str:
    """Return a query for the share of publishes that failed; no data without publishes."""
    failed = f"sum(increase({series('http_requests_total', _FAILED)}[{window}]))"
    counted = f"sum(increase({series('http_requests_total', _COUNTED)}[{window}]))"
    return f"({failed} or 0 * {counted}) / {counted}"


def _stat(title: str, unit: str, expression: str, description: str) -> Panel:
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=(Query(expression=expression),),
        kind="stat",
        width=4,
        height=4,
    )


_GLANCE = Row(
    title="At a glance",
    panels=(
        _stat(
            "Ready",
            "short",
            total(series("state", f'state="ready", {_WORKING}')),
            "Processes that accept traffic.",
        ),
        _stat(
            "Failed publishes",
            "percentunit",
            _failed_share("$__range"),
            "Share of publishes over HTTP answered 5xx, in the time range shown. Responses with "
            "4xx, the caller's errors, are excluded.",
        ),
        _stat(
            "Error budget left",
            "percentunit",
            f"1 - {_failed_share('$__range')} / {_BUDGET}",
            "Remaining part of the error budget, 0.1 % of publishes, over the time range shown. "
            "Negative: overspent. The alerts use a budget of 30 days.",
        ),
        _stat(
            "Published",
            "cps",
            total(rate("publish_messages_total", 'result="ok"')),
            "Messages per second that nsqd answered with OK, published over HTTP or sockets.",
        ),
        _stat(
            "Delivered",
            "cps",
            total(rate("messages_delivered_total")),
            "Messages per second written to WebSocket clients.",
        ),
        _stat(
            "Open sockets",
            "short",
            f"sum({series('sockets_open')})",
            "Connected WebSocket clients, viewers included.",
        ),
    ),
)

_PUBLISHING = Row(
    title="Publishing",
    panels=(
        Panel(
            title="Requests by status",
            description="POST /pub and /mpub by HTTP status. 503: not published. 504: the outcome"
            " is unknown.",
            unit="reqps",
            queries=per("http_requests_total", "code", _PUBLISHES),
            is_stacked=True,
        ),
        Panel(
            title="Failure ratio",
            description="5xx responses divided by all responses but 4xx. Above the line the error"
            " budget of 0.1 % is spent too fast.",
            unit="percentunit",
            queries=(Query(expression=_failed_share("$__rate_interval"), legend="failed"),),
            warn_at=_BUDGET,
        ),
        Panel(
            title="Request duration",
            description="POST /pub and /mpub, from the first byte of the request to the response,"
            " over all gateways.",
            unit="s",
            queries=quantiles("http_request_duration_seconds", _PUBLISHES),
        ),
        Panel(
            title="Messages by result",
            description="ok: nsqd answered OK. rejected: the request was invalid, or nsqd refused "
            "it. unavailable: not published. unknown: sent, but no answer came.",
            unit="cps",
            queries=per("publish_messages_total", "result"),
            is_stacked=True,
        ),
        Panel(
            title="Bytes published",
            description="Bodies that nsqd acknowledged with OK.",
            unit="Bps",
            queries=per("publish_message_bytes_total", "result", 'result="ok"'),
        ),
        Panel(
            title="nsqd publish duration",
            description="From writing a publish command to nsqd's response. If the request "
            "duration follows it, nsqd or the network is slow; p99 by nsqd shows "
            "which nsqd.",
            unit="s",
            queries=(
                *quantiles("publish_duration_seconds"),
                Query(
                    expression="histogram_quantile(0.99, sum by (nsqd, le) "
                    f"({rate('publish_duration_seconds_bucket')}))",
                    legend="p99 {{nsqd}}",
                ),
            ),
        ),
        Panel(
            title="Busiest topics",
            description="The ten topics with the most messages published; topics beyond "
            "--metrics-topics-limit count as other.",
            unit="cps",
            queries=(
                Query(
                    expression="topk(10, "
                    + total(rate("publish_messages_total", 'result="ok"'), "topic")
                    + ")",
                    legend="{{topic}}",
                ),
            ),
        ),
        Panel(
            title="Errors by token",
            description="Responses to POST /pub and /mpub other than OK, by the error token in "
            "their body.",
            unit="reqps",
            queries=per("publish_requests_total", "result", 'result!="OK"'),
        ),
        Panel(
            title="Publishes over sockets",
            description="Responses to PUB, DPUB and MPUB over WebSockets, by result.",
            unit="cps",
            queries=per("socket_publishes_total", "result"),
        ),
    ),
)

_SOCKETS = Row(
    title="Sockets",
    panels=(
        Panel(
            title="Open sockets",
            description="WebSocket clients by process, and viewers in total, which "
            "share a consumer.",
            unit="short",
            queries=(
                Query(
                    expression=f"sum by ({PROCESS}) ({series('sockets_open', _WORKING)})",
                    legend=BY_PROCESS,
                ),
                Query(expression=f"sum({series('viewers_open')})", legend="viewers, all"),
            ),
        ),
        Panel(
            title="Opened and refused",
            description="WebSocket upgrades: accepted, and refused by reason.",
            unit="cps",
            queries=(
                Query(expression=total(rate("sockets_opened_total")), legend="opened"),
                Query(
                    expression=total(rate("sockets_refused_total"), "reason"),
                    legend="refused: {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Closed by code",
            description="1000 and 1001: closed by the client. 1012: drain, or maximum age. 4000: "
            "no pong. 4001: too slow. 4003: the secret is no longer valid. "
            "docs/websocket.md lists all codes.",
            unit="cps",
            queries=per("sockets_closed_total", "code"),
            is_stacked=True,
        ),
    ),
)

_DELIVERIES = Row(
    title="Deliveries",
    panels=(
        Panel(
            title="Delivered",
            description="Messages written to clients. own: from the socket's dedicated "
            "consumer. shared: to viewers.",
            unit="cps",
            queries=per("messages_delivered_total", "consumer"),
            is_stacked=True,
        ),
        Panel(
            title="Answered",
            description="FIN, REQ and TOUCH forwarded to nsqd.",
            unit="cps",
            queries=per("messages_answered_total", "verb"),
        ),
        Panel(
            title="Age of messages",
            description="From nsqd's timestamp of a message to its write to a socket: the latency"
            " that consumers see. It includes the time in nsqd's queue and of earlier"
            " deliveries.",
            unit="s",
            queries=quantiles("message_age_seconds"),
        ),
        Panel(
            title="In flight and RDY",
            description="Messages that clients hold unanswered, and the RDY of all nsqd "
            "connections. If both are equal, clients are the bottleneck.",
            unit="short",
            queries=(
                Query(expression=f"sum({series('messages_in_flight')})", legend="in flight"),
                Query(expression=f"sum({series('ready_messages')})", legend="RDY"),
            ),
        ),
        Panel(
            title="Requeued by cause",
            description="Messages that nsqd delivers again: requeued by clients, by disconnects "
            "or by a drain, or timed out.",
            unit="cps",
            queries=(
                *per("messages_requeued_total", "cause"),
                Query(expression=total(rate("messages_timed_out_total")), legend="timed out"),
            ),
        ),
        Panel(
            title="Shared consumers",
            description="Consumers shared by viewers: one for each topic, secret and sample rate.",
            unit="short",
            queries=(Query(expression=f"sum({series('fanouts_open')})", legend="open"),),
        ),
    ),
)

_NSQ = Row(
    title="NSQ",
    panels=(
        Panel(
            title="Connections to nsqd",
            description="Open TCP connections by role and nsqd: one for each subscription, a few "
            "for publishing. Without publisher connections publishes get 503.",
            unit="short",
            queries=(
                Query(
                    expression=f"sum by (role, nsqd) ({series('nsqd_connections')})",
                    legend="{{role}} {{nsqd}}",
                ),
            ),
        ),
        Panel(
            title="Connections opened and lost",
            description="Connections opened and lost. Lost: closed by nsqd or by the network.",
            unit="cps",
            queries=(
                Query(
                    expression=total(rate("nsqd_connections_opened_total"), "role"),
                    legend="opened: {{role}}",
                ),
                Query(
                    expression=total(rate("nsqd_connections_lost_total"), "role"),
                    legend="lost: {{role}}",
                ),
            ),
        ),
        Panel(
            title="nsqd errors",
            description="Error frames from nsqd, by NSQ's error code.",
            unit="cps",
            queries=per("nsqd_errors_total", "code"),
        ),
        Panel(
            title="nsqlookupd queries",
            description="Queries to nsqlookupd, by result.",
            unit="cps",
            queries=per("lookup_requests_total", "result"),
        ),
        Panel(
            title="nsqlookupd failures",
            description="Queries without a usable answer, by address and reason.",
            unit="cps",
            queries=(
                Query(
                    expression=total(rate("lookup_failures_total"), "lookupd, reason"),
                    legend="{{lookupd}} {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Age of the last nsqlookupd answer",
            description="Time since the last usable answer of any nsqlookupd, by process. The "
            "gateway uses the nsqds of that answer.",
            unit="s",
            queries=by_process(f"time() - ({series('lookup_last_success_timestamp_seconds')} > 0)"),
        ),
    ),
)

_JOBS = Row(
    title="Jobs on Spark",
    panels=(
        Panel(
            title="Rows read",
            description="Rows of completed batches, by query.",
            unit="cps",
            queries=per("pipeline_input_rows_total", "query"),
            is_stacked=True,
        ),
        Panel(
            title="Backlog of a stream in nsqd",
            description="By query, where nsqd's HTTP address is known. The alert fires when it "
            "grows for half an hour.",
            unit="short",
            queries=(
                Query(
                    expression=total(series("pipeline_source_depth_messages"), "query"),
                    legend="{{query}}",
                ),
            ),
        ),
        Panel(
            title="Batch duration",
            description="Whole duration of a batch, over all queries. Above --trigger-s the "
            "stream falls behind.",
            unit="s",
            queries=quantiles("pipeline_batch_duration_seconds", 'phase="triggerExecution"'),
        ),
        Panel(
            title="Stream messages in progress",
            description="In flight from nsqd, and those of them that are in no batch yet. At "
            "--max-in-flight nsqd sends no more.",
            unit="short",
            queries=(
                Query(
                    expression=total(series("pipeline_source_in_flight_messages"), "query"),
                    legend="in flight: {{query}}",
                ),
                Query(
                    expression=total(series("pipeline_source_buffered_messages"), "query"),
                    legend="in no batch: {{query}}",
                ),
            ),
        ),
        Panel(
            title="Time since last progress",
            description="Spark reports progress after each batch, and every 10 s while idle. The "
            "alert fires above 900 s.",
            unit="s",
            queries=(
                Query(
                    expression=f"time() - {series('pipeline_last_progress_timestamp_seconds')}",
                    legend="{{query}} {{pod}} {{instance}}",
                ),
            ),
            warn_at=900,
        ),
        Panel(
            title="Query restarts",
            description="Restarts after a failure, by error class.",
            unit="cps",
            queries=per("pipeline_query_restarts_total", "error"),
        ),
        Panel(
            title="Last runs of finite jobs",
            description="By job, pushed at the end of a run (--metrics-push-url, --metrics-"
            "textfile).",
            unit="short",
            queries=(
                Query(
                    expression=f"max by (job_name) ({series('pipeline_job_failed')})",
                    legend="{{job_name}}",
                ),
            ),
            kind="state-timeline",
            words={0: "succeeded", 1: "failed"},
        ),
        Panel(
            title="Time since last successful run",
            description="By finite job. Longer than its schedule: runs fail or do not start.",
            unit="s",
            queries=(
                Query(
                    expression="time() - max by (job_name) ("
                    + series("pipeline_job_last_success_timestamp_seconds")
                    + ")",
                    legend="{{job_name}}",
                ),
            ),
        ),
        Panel(
            title="Rows of the last run",
            description="Rows written or published by the last run, by finite job.",
            unit="short",
            queries=(
                Query(
                    expression=f"max by (job_name) ({series('pipeline_job_rows')})",
                    legend="{{job_name}}",
                ),
            ),
        ),
    ),
)

OVERVIEW = Dashboard(
    uid="nsq-gateway-overview",
    title="NSQ gateway: overview",
    description="Publishing, subscribing, the NSQ behind them, and jobs on Spark.",
    rows=(_GLANCE, _PUBLISHING, _SOCKETS, _DELIVERIES, _NSQ, _JOBS),
)
