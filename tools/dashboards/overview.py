"""The first dashboard: how it goes for those who publish and those who subscribe."""

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
"""The supervisor of workers has no sockets of its own."""


def _failed_share(window: str) -> str:
    """Return the share of publishes that failed; nothing where there were none."""
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
            "Processes that take traffic now.",
        ),
        _stat(
            "Publishes that failed",
            "percentunit",
            _failed_share("$__range"),
            "Of the publishes over HTTP in the time shown, the share answered 5xx; 4xx, the "
            "caller's own fault, is left out of both.",
        ),
        _stat(
            "Error budget left",
            "percentunit",
            f"1 - {_failed_share('$__range')} / {_BUDGET}",
            "What is left of the 0.1 % of publishes that may fail, over the time shown. Below "
            "zero more have failed; choose 30 days for the budget that the alerts are about.",
        ),
        _stat(
            "Published",
            "cps",
            total(rate("publish_messages_total", 'result="ok"')),
            "Messages a second that an nsqd has said OK to, over HTTP and over sockets.",
        ),
        _stat(
            "Delivered",
            "cps",
            total(rate("messages_delivered_total")),
            "Messages a second written to WebSocket clients.",
        ),
        _stat(
            "Open sockets",
            "short",
            f"sum({series('sockets_open')})",
            "WebSocket subscribers that are connected, viewers among them.",
        ),
    ),
)

_PUBLISHING = Row(
    title="Publishing",
    panels=(
        Panel(
            title="Requests by status",
            description="POST /pub and /mpub by their HTTP status. 503: it is not published; 504: "
            "nobody knows.",
            unit="reqps",
            queries=per("http_requests_total", "code", _PUBLISHES),
            is_stacked=True,
        ),
        Panel(
            title="Share that failed",
            description="5xx of all but 4xx. Above the line the error budget of 0.1 % shrinks "
            "faster than it may.",
            unit="percentunit",
            queries=(Query(expression=_failed_share("$__rate_interval"), legend="failed"),),
            warn_at=_BUDGET,
        ),
        Panel(
            title="Time of a request",
            description="POST /pub and /mpub from their first byte to their answer, over all "
            "gateways.",
            unit="s",
            queries=quantiles("http_request_duration_seconds", _PUBLISHES),
        ),
        Panel(
            title="Messages by result",
            description="ok: an nsqd said OK. rejected: the caller's fault, or nsqd refused it. "
            "unavailable: certainly not published. unknown: written, and no answer came.",
            unit="cps",
            queries=per("publish_messages_total", "result"),
            is_stacked=True,
        ),
        Panel(
            title="Bytes published",
            description="Bodies that an nsqd has said OK to.",
            unit="Bps",
            queries=per("publish_message_bytes_total", "result", 'result="ok"'),
        ),
        Panel(
            title="Time of nsqd",
            description="From a publish written to nsqd to nsqd's answer. Where it follows the "
            "time of a request, nsqd or the way to it is slow, not the gateway.",
            unit="s",
            queries=quantiles("publish_duration_seconds"),
        ),
        Panel(
            title="Busiest topics",
            description="The ten topics with most messages published; other is all beyond "
            "--metrics-topics-limit.",
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
            title="Errors by name",
            description="Answers to POST /pub and /mpub that were not OK, by the token in their "
            "body.",
            unit="reqps",
            queries=per("publish_requests_total", "result", 'result!="OK"'),
        ),
        Panel(
            title="Publishes of sockets",
            description="Answers to PUB, DPUB and MPUB over WebSockets, by result.",
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
            description="WebSocket subscribers, by process; and how many of all are viewers, who "
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
            description="Upgrades a second: taken, and refused by reason.",
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
            description="1000 and 1001: the client went. 1012: a drain, or its age. 4000: no "
            "pong. 4001: too slow. 4003: its secret does not hold any more. docs/websocket.md has "
            "all codes.",
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
            description="Messages written to clients: own, to a consumer of its own; shared, to "
            "viewers.",
            unit="cps",
            queries=per("messages_delivered_total", "consumer"),
            is_stacked=True,
        ),
        Panel(
            title="Answered",
            description="FIN, REQ and TOUCH passed on to nsqd.",
            unit="cps",
            queries=per("messages_answered_total", "verb"),
        ),
        Panel(
            title="Age of messages",
            description="From nsqd's timestamp of a message to its being written to a socket: "
            "what consumers feel. It holds the time in nsqd's queue, and of earlier deliveries.",
            unit="s",
            queries=quantiles("message_age_seconds"),
        ),
        Panel(
            title="In flight, and asked for",
            description="Messages that clients have and have not answered, beside the RDY of all "
            "connections to nsqd. Where both are equal, clients are what it waits for.",
            unit="short",
            queries=(
                Query(expression=f"sum({series('messages_in_flight')})", legend="in flight"),
                Query(expression=f"sum({series('ready_messages')})", legend="RDY"),
            ),
        ),
        Panel(
            title="Given back, by cause",
            description="Messages that nsqd delivers once more: asked for by clients, left behind "
            "by those that went, by a drain, or timed out.",
            unit="cps",
            queries=(
                *per("messages_requeued_total", "cause"),
                Query(expression=total(rate("messages_timed_out_total")), legend="timed out"),
            ),
        ),
        Panel(
            title="Shared consumers",
            description="Consumers that viewers share: one for each topic, secret and sample rate.",
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
            description="Open TCP connections by role; one for each subscription and nsqd, a few "
            "for publishing. No publisher at all: publishes are answered 503.",
            unit="short",
            queries=(
                Query(
                    expression=f"sum by (role) ({series('nsqd_connections')})", legend="{{role}}"
                ),
            ),
        ),
        Panel(
            title="Connections opened and lost",
            description="Lost: ended by nsqd or by the network, not by us.",
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
            title="Errors of nsqd",
            description="Error frames, by NSQ's code.",
            unit="cps",
            queries=per("nsqd_errors_total", "code"),
        ),
        Panel(
            title="Questions to nsqlookupd",
            description="By result, where nsqlookupd is asked.",
            unit="cps",
            queries=per("lookup_requests_total", "result"),
        ),
        Panel(
            title="Failures of nsqlookupd",
            description="Questions without a usable answer, by address and reason.",
            unit="cps",
            queries=(
                Query(
                    expression=total(rate("lookup_failures_total"), "lookupd, reason"),
                    legend="{{lookupd}} {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Age of what nsqlookupd said",
            description="Time since its last usable answer, where there has been one; nsqds are "
            "known as they were then.",
            unit="s",
            queries=by_process(f"time() - ({series('lookup_last_success_timestamp_seconds')} > 0)"),
        ),
    ),
)

OVERVIEW = Dashboard(
    uid="nsq-gateway-overview",
    title="NSQ gateway: overview",
    description="What those see who publish and who subscribe, and NSQ behind it.",
    rows=(_GLANCE, _PUBLISHING, _SOCKETS, _DELIVERIES, _NSQ),
)
