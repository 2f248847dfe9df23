"""The second dashboard: rollouts, what runs short, who is slow, what comes back."""

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
"""The supervisor of workers has no sockets of its own."""
_PHASES = {1: "starting", 2: "ready", 3: "draining", 4: "stopped"}


def _phase_number() -> str:
    """Return the phase of each process as a number, of which the panel makes a word again."""
    each = (
        f"{number} * " + series("state", f'state="{phase}"') for number, phase in _PHASES.items()
    )
    return f"sum by ({PROCESS}) ({' or '.join(each)})"


def _share(part: str, whole: str) -> str:
    """Return one gauge over another, by process."""
    return f"{series(part, _WORKING)} / {series(whole, _WORKING)}"


_ROLLOUTS = Row(
    title="Rollouts",
    panels=(
        Panel(
            title="Phase of each process",
            description="Starting, ready, draining, stopped. A process that goes from ready to "
            "nothing was killed, or drained between two scrapes.",
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
            description="A rollout is well when each line falls as a ramp over --drain-window-s. "
            "A cliff: it was killed before its drain was over; look at the grace period.",
            unit="short",
            queries=by_process(series("sockets_open", _WORKING)),
            is_stacked=True,
        ),
        Panel(
            title="Sockets opened",
            description="By process. After a rollout each socket comes back once, spread over its "
            "reconnect_after_ms; a line that stays high is a storm.",
            unit="cps",
            queries=by_process(rate("sockets_opened_total", _WORKING)),
        ),
        Panel(
            title="Sockets told to come back",
            description="Closed with 1012: by a drain, or for their age (--socket-max-age-s).",
            unit="cps",
            queries=by_process(
                total(rate("sockets_closed_total", 'code="1012"'), PROCESS),
            ),
        ),
        Panel(
            title="Time of the last drain",
            description="Of processes that have drained and were read before they ended; 0 "
            "before. At the most --drain-in-flight-s and --drain-window-s, and a little.",
            unit="s",
            queries=by_process(series("drain_duration_seconds")),
        ),
        Panel(
            title="Cut at the end of a drain",
            description="Sockets, messages and requests that a drain did not wait for. Any is too "
            "many; what is cut after the last scrape is in the log only.",
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
            title="Restarts of workers",
            description="Workers that their supervisor has put another one in the place of, and "
            "questions that a worker left unanswered.",
            unit="cps",
            queries=(
                Query(expression=total(rate("worker_restarts_total")), legend="restarts"),
                Query(expression=total(rate("worker_silences_total")), legend="silences"),
            ),
        ),
    ),
)

_SATURATION = Row(
    title="What runs short",
    panels=(
        Panel(
            title="Lag of the event loop, p99",
            description="How late a turn of the event loop comes, by process: everything that it "
            "does is as late. Above 0.1 s for five minutes it is an alert.",
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
            description="Cores used, by process. One process uses one at the most: near it, add "
            "gateways or workers.",
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
            description="Resident memory over open sockets, where there are a hundred or more: "
            "with fewer the process itself is most of it.",
            unit="bytes",
            queries=by_process(
                f"{series('process_resident_memory_bytes', _WORKING)}"
                f" / ({series('sockets_open', _WORKING)} >= 100)"
            ),
        ),
        Panel(
            title="Open files, of the limit",
            description="Beyond the limit no connection is taken. Each socket is one file, and "
            "one more for every nsqd that it consumes from.",
            unit="percentunit",
            queries=by_process(f"{series('process_open_fds')} / {series('process_max_fds')}"),
            most=1,
            warn_at=0.85,
        ),
        Panel(
            title="Open files needed, of the limit",
            description="What --max-sockets may come to need, over what the system allows; above "
            "1 the gateway says so when it starts.",
            unit="percentunit",
            queries=by_process(
                f"{series('open_files_needed', _WORKING)} / {series('process_max_fds', _WORKING)}"
            ),
            warn_at=1,
        ),
        Panel(
            title="Sockets, of the limit",
            description="Open ones of --max-sockets; beyond it they are refused, 503 FULL.",
            unit="percentunit",
            queries=by_process(_share("sockets_open", "sockets_limit")),
            most=1,
            warn_at=0.85,
        ),
        Panel(
            title="Publish buffer, of the limit",
            description="What waits to be published, of --publish-buffer-bytes; beyond it "
            "publishes are answered 503.",
            unit="percentunit",
            queries=by_process(_share("publish_buffer_bytes", "publish_buffer_limit_bytes")),
            most=1,
            warn_at=0.8,
        ),
        Panel(
            title="Garbage collections",
            description="Of Python's garbage collector, by generation; the oldest one pauses "
            "longest.",
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
            description="paused: nsqd is read no more for a socket, for more than "
            "--socket-buffer-bytes waits for it; closed: so for --slow-consumer-s, code 4001.",
            unit="cps",
            queries=per("slow_consumers_total", "action"),
        ),
        Panel(
            title="Waiting to be sent to sockets",
            description="What clients have not taken yet: all sockets together, and the one with "
            "most.",
            unit="bytes",
            queries=(
                Query(expression=f"sum({series('socket_unsent_bytes')})", legend="all"),
                Query(expression=f"max({series('socket_unsent_max_bytes')})", legend="the largest"),
            ),
        ),
        Panel(
            title="Closed by the gateway",
            description="4000: no pong. 4001: too slow. 4500 to 4508: what the client said was "
            "wrong, or too much.",
            unit="cps",
            queries=per("sockets_closed_total", "code", 'code=~"4..."'),
        ),
        Panel(
            title="Held back by rate limits",
            description="By which limit: publish, command, socket and what else is limited.",
            unit="cps",
            queries=per("rate_limited_total", "scope"),
        ),
        Panel(
            title="Commands of sockets",
            description="By command.",
            unit="cps",
            queries=per("socket_commands_total", "command"),
            is_stacked=True,
        ),
        Panel(
            title="Secrets",
            description="AUTH by result, and looks at whether a secret still holds.",
            unit="cps",
            queries=(
                Query(expression=total(rate("auth_total"), "result"), legend="AUTH: {{result}}"),
                Query(
                    expression=total(rate("secret_checks_total"), "result"),
                    legend="look: {{result}}",
                ),
            ),
        ),
    ),
)

_REQUEUED = total(rate("messages_requeued_total", 'cause!="drain"'))
_TIMED_OUT = total(rate("messages_timed_out_total"))
_RETURNED = f"({_REQUEUED} or vector(0)) + ({_TIMED_OUT} or vector(0))"

_REQUEUES = Row(
    title="What comes back to nsqd",
    panels=(
        Panel(
            title="Given back, by cause",
            description="client: REQ. disconnect: the client went with messages in hand. drain: "
            "the gateway did. max_attempts: tried too often for this subscription.",
            unit="cps",
            queries=per("messages_requeued_total", "cause"),
            is_stacked=True,
        ),
        Panel(
            title="Share of deliveries that come back",
            description="Given back or timed out, without what drains give back. Above a quarter "
            "for ten minutes it is an alert.",
            unit="percentunit",
            queries=(
                Query(
                    expression=f"({_RETURNED}) / ({total(rate('messages_delivered_total'))} > 0)",
                    legend="come back",
                ),
            ),
            warn_at=0.25,
        ),
        Panel(
            title="Timed out, and put off",
            description="Not answered within msg_timeout_ms; and given back unseen, for having "
            "been tried more often than max_attempts.",
            unit="cps",
            queries=(
                Query(expression=total(rate("messages_timed_out_total")), legend="timed out"),
                Query(expression=total(rate("messages_put_off_total")), legend="put off"),
            ),
        ),
    ),
)

_CERTIFICATES = Row(
    title="Certificates",
    panels=(
        Panel(
            title="Until certificates expire",
            description="By use, the first of all processes; nothing where TLS is not spoken. An "
            "alert comes 14 days before, and again 3 days before.",
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
    description="Rollouts, what runs short, slow consumers, what comes back to nsqd, certificates.",
    rows=(_ROLLOUTS, _SATURATION, _SLOW, _REQUEUES, _CERTIFICATES),
)
