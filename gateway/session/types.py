"""
Options, actions and the observer of a session.

A *source* is the number of one nsqd connection of the subscription; every connection gets a new
number. Actions are what the session asks its caller to do.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from gateway.credentials import Secret
from gateway.protocol.frames import Message
from gateway.protocol.wire import Limits


class SessionStats(NamedTuple):
    """Counts of one session."""

    held: int
    """Deliveries that the client has not acknowledged."""
    unsent_bytes: int
    """Bytes that wait in the session to be sent to the client."""
    timed_out: int
    """Deliveries that nsqd has timed out since the session began, or is about to."""


class SessionObserver:
    """Observe sessions, for metrics; this base class does nothing."""

    def on_written(self, messages: Sequence[Message]) -> None:
        """Called when *messages* are put into a frame for the client; the list is not empty."""

    def on_timed_out(self, count: int) -> None:
        """Called when nsqd has timed out *count* unacknowledged messages, or is about to."""

    def on_commands(self, verb: str, count: int = 1) -> None:
        """Called for *count* commands of one *verb*; an invalid command has the verb ""."""


NO_OBSERVER = SessionObserver()


_MIN_MAX_IDS = 10_000
"""Minimum of `SessionOptions.max_ids`, even if `max_in_flight_limit` is small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOptions:
    """The parameters of one subscription, and the limits of its session."""

    topic: str
    channel: str
    max_in_flight: int = 10
    max_in_flight_limit: int = 2_500
    """Maximum window, in messages, that the client may set by RDY."""
    is_auto_ack: bool = False
    """ack=auto: the gateway sends FIN for each message once it is written to the client."""
    requeue_on_close_ms: int = 0
    """Delay of the REQ for unacknowledged deliveries when the socket closes."""
    buffer_bytes: int = 8 * 1_048_576
    """Maximum bytes that wait for the client; above it, its nsqd connections are not read."""
    slow_consumer_s: float = 30.0
    """Time for which more than `buffer_bytes` may wait before the socket is closed."""
    broker_outage_s: float = 300.0
    """Time without any nsqd connection before the socket is closed."""
    has_secret: bool = False
    """True if it began with a secret, the upgrade's or --auth-anonymous; AUTH is refused then."""
    renews_secret: bool = False
    """True if the client may send AUTH again, with a fresher token of the access file."""
    is_viewer: bool = False
    """True for a socket that only watches; its client's FIN, REQ, TOUCH and RDY are refused."""
    max_attempts: int = 0
    """A message with more attempts is requeued with a delay, not delivered; 0 is no limit."""
    limits: Limits = field(default_factory=Limits)
    """nsqd's limits on a publish."""
    publish_bytes: int = 1_048_576
    """Maximum bytes of publishes without a response; above it, the client's commands wait."""
    command_rate_limit: int = 10_000
    """Maximum commands per second; FIN and REQ of deliveries that the client holds are free."""
    observer: SessionObserver = field(default=NO_OBSERVER, compare=False, repr=False)
    """All sessions may share one observer."""

    @property
    def max_ids(self) -> int:
        """Maximum number of ids in one FIN, REQ or TOUCH; more than a client can have in flight."""
        return max(_MIN_MAX_IDS, 4 * self.max_in_flight_limit)


class FinishDeliveries(msgspec.Struct, gc=False):
    """Send FIN to nsqd for the message ids *ids*, on the connection *source*."""

    source: int
    ids: list[bytes]


class RequeueCause(enum.Enum):
    """Why messages are requeued."""

    CLIENT = "client"
    """The client sent REQ."""
    DISCONNECT = "disconnect"
    """The socket has closed, or closes for another reason than a drain or its age."""
    DRAIN = "drain"
    """The gateway closes the socket, because it drains or the socket reached its maximum age."""
    MAX_ATTEMPTS = "max_attempts"
    """The messages have had more than max_attempts attempts."""
    LEASE_ENDED = "lease_ended"
    """A pulled message was not answered until its lease ended."""
    NOT_PULLED = "not_pulled"
    """The message came too late for a pull, and no other pull followed in time."""
    RESUBSCRIBE = "resubscribe"
    """The gateway subscribes again, and drops the nsqd connection that the messages came from."""


class RequeueDeliveries(msgspec.Struct, gc=False):
    """Send REQ to nsqd for the message ids *ids*, on the connection *source*."""

    source: int
    ids: list[bytes]
    delay_ms: int
    cause: RequeueCause

    @property
    def is_socket_ending(self) -> bool:
        """True if the messages are requeued because the socket or the gateway closes."""
        return self.cause is RequeueCause.DISCONNECT or self.cause is RequeueCause.DRAIN


class TouchDeliveries(msgspec.Struct, gc=False):
    """Send TOUCH to nsqd for the message ids *ids*, on the connection *source*."""

    source: int
    ids: list[bytes]


class DelayedRequeue(msgspec.Struct, gc=False):
    """Send a delayed REQ for messages of *source* that were sent more than max_attempts times."""

    source: int
    ids: list[bytes]
    delay_ms: int


class SetReady(msgspec.Struct, gc=False):
    """Allow nsqds to have *count* messages in flight; the caller divides it over RDY of each."""

    count: int


class PauseReading(msgspec.Struct, gc=False):
    """Stop reading from all nsqd connections of the subscription: the client's buffer is full."""


class ResumeReading(msgspec.Struct, gc=False):
    """Read from all nsqd connections of the subscription again."""


class ResubscribeWithSecret(msgspec.Struct, gc=False):
    """End the subscription, and subscribe again with the client's *secret*."""

    secret: Secret


class RenewSecret(msgspec.Struct, gc=False):
    """
    Go on with the client's *secret*, a fresher token, instead of its earlier one.

    The caller calls `Session.on_renewed` or `Session.on_renewal_refused` once with *ref*.
    """

    secret: Secret
    ref: str | int | float | bool | None


class PublishBodies(msgspec.Struct, gc=False):
    """
    Publish *bodies* to *topic*, all or none; topic and sizes are checked already.

    The caller calls `Session.on_published` once with this object and the outcome.
    """

    cmd: str
    """PUB, DPUB or MPUB."""
    ref: str | int | float | bool | None
    topic: str
    bodies: list[bytes]
    """At least one; exactly one for PUB and DPUB."""
    defer_ms: int = 0


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a publish failed, as the client gets it."""

    code: str
    """nsqd's code (``E_BAD_TOPIC``) or the gateway's (``OVERLOADED``, ``OUTCOME_UNKNOWN``)."""
    message: str
    retryable: bool


class CloseReason(enum.Enum):
    """Why a session closes its socket; sent as the reason in the close frame."""

    DONE = "the client sent CLS"
    DRAINED = "the gateway is draining"
    AGED = "the socket has reached its maximum age"
    SLOW = "the client reads too slowly"
    NO_BROKER = "no nsqd was reachable for too long"
    TOO_MANY_ERRORS = "the client sent too many invalid commands"
    TOO_FAST = "the client sent commands too fast"
    CHANNEL_GONE = "the channel was deleted"
    FULL = "a limit of consumers or sockets is reached; try again later"
    NO_AUTH = "AUTH did not come in time, or not as the first command"
    FORBIDDEN = "the secret does not grant this"
    SECRET_REFUSED = "the secret is not valid, or no longer allows this"
    FAILED = "the gateway failed"


DrainReason: TypeAlias = Literal[CloseReason.DRAINED, CloseReason.AGED]
"""The reasons for which the gateway asks a client to reconnect."""


class CloseSocket(msgspec.Struct, gc=False):
    """Send the client the frames that wait, then close its WebSocket for *reason*."""

    reason: CloseReason


Action: TypeAlias = (
    FinishDeliveries
    | RequeueDeliveries
    | TouchDeliveries
    | DelayedRequeue
    | SetReady
    | PauseReading
    | ResumeReading
    | ResubscribeWithSecret
    | RenewSecret
    | PublishBodies
    | CloseSocket
)


def requeue_actions(
    ids: dict[int, list[bytes]], delay_ms: int, cause: RequeueCause
) -> list[Action]:
    """
    Return the REQ actions for *ids*, message ids by source; each message gets one REQ.

    An id may be in *ids* twice: while its nsqd connection was not read, the message timed out, and
    nsqd sent it again. nsqd cannot tell the two deliveries apart, and would refuse a second REQ.
    """
    return [
        RequeueDeliveries(source, list(dict.fromkeys(those)), delay_ms, cause)
        for source, those in ids.items()
        if those
    ]
