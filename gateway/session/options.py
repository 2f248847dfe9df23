"""What one subscriber asked for, and the bounds that are kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """What the client asked for, and the bounds that are kept."""

    topic: str
    channel: str
    max_in_flight: int = 10
    max_in_flight_limit: int = 2_500
    """The highest count that the client's RDY may ask for."""
    finishes_by_itself: bool = False
    """ack=auto: FIN once a message is written, and no answers from the client."""
    requeue_on_close_ms: int = 0
    buffer_bytes: int = 8 * 1_048_576
    """What may wait for the client before its sources are no longer read."""
    slow_consumer_s: float = 30.0
    """How long more than that may wait before the socket is closed."""
    broker_outage_s: float = 300.0
    """How long there may be no source before the socket is closed."""
    has_secret: bool = False
    """Whether a secret came before the socket was accepted, so that no AUTH is taken."""
