"""What one subscriber asked for, and the bounds that are kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.protocol.wire import Limits
from gateway.session.account import NOBODY, Account

_MIN_MAX_IDS = 10_000
"""So many ids may be named at once where few messages may be in flight, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
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
    is_viewer: bool = False
    """Whether it shares a consumer with others: FIN, REQ, TOUCH and RDY are not for it."""
    max_attempts: int = 0
    """Deliveries of a message before it is put off, and not shown; 0: as many as it takes."""
    limits: Limits = field(default_factory=Limits)
    """What nsqd takes of a publish."""
    publish_bytes: int = 1_048_576
    """What the client may have on its way to NSQ before it is no longer listened to."""
    command_rate_limit: int = 10_000
    """Commands a second, all but the FIN and REQ of deliveries that it holds."""
    account: Account = field(default=NOBODY, compare=False, repr=False)
    """Who counts what happens here, for all sessions."""

    @property
    def max_ids(self) -> int:
        """The most ids that one FIN, REQ or TOUCH names: more than can be in flight."""
        return max(_MIN_MAX_IDS, 4 * self.max_in_flight_limit)
