"""What can be told to the embedded broker; names and defaults are nsqd's (nsqd/options.go)."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.protocol.wire import Limits

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """Where a broker listens and what it takes."""

    tcp_address: str = "127.0.0.1:4150"
    """host:port for clients; port 0 lets the system choose."""
    http_address: str = "127.0.0.1:4151"
    """host:port for the HTTP API; port 0 lets the system choose, an empty text is no HTTP."""
    broadcast_address: str | None = None
    """Host that /info tells; None is the name of this machine."""
    limits: Limits = field(default_factory=Limits)
    mem_queue_size: int = 10_000
    """Messages in the queue of an ephemeral topic or channel; what is above it is dropped."""
    max_memory_bytes: int = 1_073_741_824
    """
    Bytes of all messages, counted once for each channel; above it every publish is refused.

    Takes the place of nsqd's disk: E_PUB_FAILED, E_MPUB_FAILED, E_DPUB_FAILED, and 503 EXITING.
    What is still arriving or not written yet is bounded for each connection, beside this.
    """
    max_connections: int = 10_000
    """
    Connections at a time, TCP and HTTP each.

    One more is closed without a word, or answered 503 (nsqd has no bound).
    """
    max_channel_consumers: int = 0
    """Consumers of one channel; 0 is any number."""
    node_id: int | None = None
    """0 to 1023, a part of every message id; None is reckoned from the name of this machine."""


def as_nsqd_names(options: BrokerOptions) -> dict[str, str | int]:
    """Return the options that GET /config/:opt knows, as nsqd writes them: durations in ns."""
    limits = options.limits
    return {
        "tcp_address": options.tcp_address,
        "http_address": options.http_address,
        "broadcast_address": options.broadcast_address or "",
        "node_id": options.node_id or 0,
        "mem_queue_size": options.mem_queue_size,
        "max_channel_consumers": options.max_channel_consumers,
        "max_msg_size": limits.max_msg_size_bytes,
        "max_body_size": limits.max_body_size_bytes,
        "max_req_timeout": limits.max_req_timeout_ms * _NS_PER_MS,
        "max_rdy_count": limits.max_rdy_count,
        "msg_timeout": limits.msg_timeout_ms * _NS_PER_MS,
        "max_msg_timeout": limits.max_msg_timeout_ms * _NS_PER_MS,
        "max_heartbeat_interval": limits.max_heartbeat_interval_ms * _NS_PER_MS,
        "max_output_buffer_size": limits.max_output_buffer_size_bytes,
        "output_buffer_timeout": limits.output_buffer_timeout_ms * _NS_PER_MS,
        "min_output_buffer_timeout": limits.min_output_buffer_timeout_ms * _NS_PER_MS,
        "max_output_buffer_timeout": limits.max_output_buffer_timeout_ms * _NS_PER_MS,
    }
