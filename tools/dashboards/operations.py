"""The operations dashboard: rollouts, saturation, slow consumers, requeues and certificates."""

from __future__ import annotations

from tools.dashboards.panels import (
    PROCESS,
    Dashboard,
    Panel,
    Query,
    Row,
    by_process,
    per,
    rate,
    series,
    total,
)

_WORKING = 'worker!="supervisor"'
"""Excludes the supervisor process of `--workers`, which serves no sockets."""
_PHASES = {1: "starting", 2: "ready", 3: "draining", 4: "stopped"}


def _phase_number() -> str:
    """Return a query for each process's phase as a number; the panel maps numbers to names."""
    each = (
        f"{number} * " + series("state", f'state="{phase}"') for number, phase in _PHASES.items()
    )
    return f"sum by ({PROCESS}) ({' or '.join(each)})"


def _share(part: str, whole: str) -> str:
    """Return a query for the ratio of two gauges, by process."""
    return f"{series(part, _WORKING)} / {series(whole, _WORKING)}"


_ROLLOUTS = Row(
    title="Rollouts",
    panels=(
        Panel(
            title="Phase of each process",
            description="Starting, ready, draining or stopped. A process whose line ends while "
            "it is ready was killed, or drained between two scrapes.",
            unit="short",
            queries=by_process(_phase_number()),
            kind="state-timeline",
            width=16,
            words=_PHASES,
        ),
        Panel(
            title="Versions",
            description="Processes by version of the gateway.",
            unit="short",
            queries=(
                Query(
                    expression=f"count by (version) ({series('build_info')})",
                    legend="{{version}}",
                ),
            ),
            is_stacked=True,
        ),
        Panel(
            title="Open sockets of each process",
            description="In a healthy rollout each line falls as a ramp over --drain-window-s. A "
            "cliff means that the process was killed before its drain had ended: "
            "check the grace period.",
            unit="short",
            queries=by_process(series("sockets_open", _WORKING)),
            is_stacked=True,
        ),
        Panel(
            title="Sockets opened",
            description="By process. After a rollout each socket reconnects once, spread over its"
            " reconnect_after_ms. A line that stays high is a reconnect storm.",
            unit="cps",
            queries=by_process(rate("sockets_opened_total", _WORKING)),
        ),
        Panel(
            title="Sockets asked to reconnect",
            description="Sockets closed with 1012: by a drain, or at their maximum age (--socket-"
            "max-age-s).",
            unit="cps",
            queries=by_process(
                total(rate("sockets_closed_total", 'code="1012"'), PROCESS),
            ),
        ),
        Panel(
            title="Last drain duration",
            description="Of processes that were scraped after their drain; 0 before it. The "
            "maximum is --drain-in-flight-s plus --drain-window-s, and a small "
            "margin.",
            unit="s",
            queries=by_process(series("drain_duration_seconds")),
        ),
        Panel(
            title="Aborted at the end of a drain",
            description="Sockets, messages and requests that were aborted when the drain timed "
            "out. The target is 0. What is aborted after the last scrape is in the "
            "log only.",
            unit="short",
            queries=(
                Query(
                    expression=total(
                        f"increase({series('drain_cut_total')}[$__rate_interval])", "kind"
                    ),
                    legend="{{kind}}",
                ),
            ),
        ),
        Panel(
            title="Worker restarts",
            description="Workers that the supervisor replaced, and its pings that a worker did "
            "not answer.",
            unit="cps",
            queries=(
                Query(expression=total(rate("worker_restarts_total")), legend="restarts"),
                Query(expression=total(rate("worker_silences_total")), legend="unanswered pings"),
            ),
        ),
    ),
)

_SATURATION = Row(
    title="Resources near their limit",
    panels=(
        Panel(
            title="Event loop lag, p99",
            description="Delay of a timer of the event loop, by process; every client waits as "
            "long. The alert fires above 0.1 s for five minutes.",
            unit="s",
            queries=by_process(
                "histogram_quantile(0.99, "
                + total(rate("event_loop_lag_seconds_bucket"), f"{PROCESS}, le")
                + ")"
            ),
            warn_at=0.1,
        ),
        Panel(
            title="CPU",
            description="Cores used, by process. A process uses one core at most: close to it, "
            "add gateways or workers.",
            unit="short",
            queries=by_process(rate("process_cpu_seconds_total")),
            warn_at=1,
        ),
        Panel(
            title="Memory",
            description="Resident memory, by process.",
            unit="bytes",
            queries=by_process(series("process_resident_memory_bytes")),
        ),
        Panel(
            title="Memory for each open socket",
            description="Resident memory divided by open sockets, where 100 or more are open: "
            "below that the process itself dominates.",
            unit="bytes",
            queries=by_process(
                f"{series('process_resident_memory_bytes', _WORKING)}"
                f" / ({series('sockets_open', _WORKING)} >= 100)"
            ),
        ),
        Panel(
            title="Open files, of the limit",
            description="At the limit no connection is accepted. Each socket needs one file, and "
            "one more for each nsqd that it consumes from.",
            unit="percentunit",
            queries=by_process(f"{series('process_open_fds')} / {series('process_max_fds')}"),
            most=1,
            warn_at=0.85,
        ),
        Panel(
            title="Open files needed, of the limit",
            description="Files that --max-sockets may need, divided by the limit. Above 1 the "
            "gateway warns when it starts.",
            unit="percentunit",
            queries=by_process(
                f"{series('open_files_needed', _WORKING)} / {series('process_max_fds', _WORKING)}"
            ),
            warn_at=1,
        ),
        Panel(
            title="Sockets, of the limit",
            description="Open sockets divided by --max-sockets. Beyond it upgrades get 503 FULL.",
            unit="percentunit",
            queries=by_process(_share("sockets_open", "sockets_limit")),
            most=1,
            warn_at=0.85,
        ),
        Panel(
            title="Publish buffer, of the limit",
            description="Bytes queued for publishing, divided by --publish-buffer-bytes. Beyond "
            "it publishes get 503.",
            unit="percentunit",
            queries=by_process(_share("publish_buffer_bytes", "publish_buffer_limit_bytes")),
            most=1,
            warn_at=0.8,
        ),
        Panel(
            title="Garbage collections",
            description="Collections by Python's garbage collector, by generation. Those of the "
            "oldest generation pause longest.",
            unit="cps",
            queries=per("python_gc_collections_total", "generation"),
        ),
    ),
)

_SLOW = Row(
    title="Slow consumers and limits",
    panels=(
        Panel(
            title="Slow consumers",
            description="paused: more than --socket-buffer-bytes were unsent to a client, so the "
            "gateway stopped reading its nsqd connections. closed: that lasted for "
            "--slow-consumer-s (4001).",
            unit="cps",
            queries=per("slow_consumers_total", "action"),
        ),
        Panel(
            title="Bytes unsent to sockets",
            description="Bytes that clients have not read yet: the sum over all sockets, and the "
            "largest of them.",
            unit="bytes",
            queries=(
                Query(expression=f"sum({series('socket_unsent_bytes')})", legend="all"),
                Query(expression=f"max({series('socket_unsent_max_bytes')})", legend="largest"),
            ),
        ),
        Panel(
            title="Closed by the gateway",
            description="4000: no pong. 4001: too slow. 4500 to 4508: the client sent something "
            "invalid, or too much.",
            unit="cps",
            queries=per("sockets_closed_total", "code", 'code=~"4..."'),
        ),
        Panel(
            title="Refused by limits of one caller",
            description="Requests, commands and sockets refused by a limit of one caller.",
            unit="cps",
            queries=per("rate_limited_total", "scope"),
        ),
        Panel(
            title="Socket commands",
            description="Commands of WebSocket clients, by command.",
            unit="cps",
            queries=per("socket_commands_total", "command"),
            is_stacked=True,
        ),
        Panel(
            title="Secrets",
            description="AUTH by result, and re-checks of secrets by result.",
            unit="cps",
            queries=(
                Query(expression=total(rate("auth_total"), "result"), legend="AUTH: {{result}}"),
                Query(
                    expression=total(rate("secret_checks_total"), "result"),
                    legend="recheck: {{result}}",
                ),
            ),
        ),
    ),
)

_REQUEUED = total(rate("messages_requeued_total", 'cause!="drain"'))
_TIMED_OUT = total(rate("messages_timed_out_total"))
_RETURNED = f"({_REQUEUED} or vector(0)) + ({_TIMED_OUT} or vector(0))"

_REQUEUES = Row(
    title="Requeues and timeouts",
    panels=(
        Panel(
            title="Requeued by cause",
            description="client: REQ. disconnect: the client disconnected with messages in "
            "flight. drain: the gateway drained. max_attempts: more attempts than the"
            " subscription allows.",
            unit="cps",
            queries=per("messages_requeued_total", "cause"),
            is_stacked=True,
        ),
        Panel(
            title="Share of deliveries requeued or timed out",
            description="Messages requeued or timed out, divided by deliveries, drains excluded. "
            "The alert fires above a quarter for ten minutes.",
            unit="percentunit",
            queries=(
                Query(
                    expression=f"({_RETURNED}) / ({total(rate('messages_delivered_total'))} > 0)",
                    legend="returned",
                ),
            ),
            warn_at=0.25,
        ),
        Panel(
            title="Timed out and delayed",
            description="Timed out: no answer within msg_timeout_ms. Delayed: requeued without a "
            "delivery, because of more attempts than max_attempts.",
            unit="cps",
            queries=(
                Query(expression=total(rate("messages_timed_out_total")), legend="timed out"),
                Query(expression=total(rate("messages_put_off_total")), legend="delayed"),
            ),
        ),
    ),
)

_CERTIFICATES = Row(
    title="Certificates",
    panels=(
        Panel(
            title="Time until certificates expire",
            description="Earliest expiry by use; empty without TLS. Alerts fire 14 days and 3 "
            "days before.",
            unit="s",
            queries=(
                Query(
                    expression="min by (use) ("
                    + series("certificate_expiry_timestamp_seconds")
                    + " > 0) - time()",
                    legend="{{use}}",
                ),
            ),
            width=24,
            height=6,
        ),
    ),
)

OPERATIONS = Dashboard(
    uid="nsq-gateway-operations",
    title="NSQ gateway: operations",
    description="Rollouts, resources near their limit, slow consumers, requeues, certificates.",
    rows=(_ROLLOUTS, _SATURATION, _SLOW, _REQUEUES, _CERTIFICATES),
)
