"""What a session wants done: each action is an imperative that the shell carries out in order."""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

import msgspec

from gateway.secret import Secret


class Finish(msgspec.Struct, gc=False):
    """FIN for *ids* on *source*."""

    source: int
    ids: list[bytes]


class Cause(enum.Enum):
    """Why messages go back to NSQ."""

    CLIENT = "client"
    """The client said REQ."""
    DISCONNECT = "disconnect"
    """The socket ends, or is about to."""
    DRAIN = "drain"
    """The gateway wants it to end: it drains, or the socket has reached its age."""
    MAX_ATTEMPTS = "max_attempts"
    """They have had more attempts than the client wants to see."""
    RESUBSCRIBE = "resubscribe"
    """Their source is left, to be subscribed to anew."""


class Requeue(msgspec.Struct, gc=False):
    """REQ for *ids* on *source*."""

    source: int
    ids: list[bytes]
    delay_ms: int
    cause: Cause

    @property
    def is_handed_back(self) -> bool:
        """Whether they go back because the socket, or the gateway, ends."""
        return self.cause is Cause.DISCONNECT or self.cause is Cause.DRAIN


class Touch(msgspec.Struct, gc=False):
    """TOUCH for *ids* on *source*."""

    source: int
    ids: list[bytes]


class PutOff(msgspec.Struct, gc=False):
    """REQ for *ids* on *source*, which have had more attempts than the client wants to see."""

    source: int
    ids: list[bytes]
    delay_ms: int


class Ready(msgspec.Struct, gc=False):
    """Let *count* messages be in flight over all sources."""

    count: int


class PauseReading(msgspec.Struct, gc=False):
    """Read no more from the sources: the socket does not take what is there."""


class ResumeReading(msgspec.Struct, gc=False):
    """Read from the sources again."""


class Authenticate(msgspec.Struct, gc=False):
    """Subscribe with the client's *secret*, in place of what is subscribed without it."""

    secret: Secret


class Publish(msgspec.Struct, gc=False):
    """
    Publish *bodies* to *topic*, all or none, and tell the session of the outcome.

    Names and sizes are right; `Session.published` wants this object back, once.
    """

    cmd: str
    """PUB, DPUB or MPUB."""
    ref: str | int | float | bool | None
    topic: str
    bodies: list[bytes]
    """At least one; one alone for PUB and DPUB."""
    defer_ms: int = 0


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a publish was not answered with OK."""

    code: str
    """NSQ's (``E_BAD_TOPIC``), or a token of the gateway (``OVERLOADED``, ``OUTCOME_UNKNOWN``)."""
    message: str
    retryable: bool


class EndReason(enum.Enum):
    """Why a session wants its socket closed."""

    DONE = "the client said CLS"
    DRAINED = "the gateway drains"
    AGED = "the socket has reached its age"
    SLOW = "the client does not read fast enough"
    NO_BROKER = "no nsqd could be reached for too long"
    TOO_MANY_ERRORS = "the client sent too much that is no command"
    TOO_FAST = "the client sent more commands than it may"
    CHANNEL_GONE = "the channel was deleted"
    FULL = "NSQ takes no further subscriber"
    NO_AUTH = "AUTH did not come, or not as the first command"
    FORBIDDEN = "NSQ refused the secret"
    SECRET_REFUSED = "NSQ refuses the secret now"
    FAILED = "the gateway failed"


LeaveReason: TypeAlias = Literal[EndReason.DRAINED, EndReason.AGED]
"""Why the gateway wants a client to come back, on another socket."""


class EndSocket(msgspec.Struct, gc=False):
    """Close the socket, once what waits for it is sent."""

    reason: EndReason


Action: TypeAlias = (
    Finish
    | Requeue
    | Touch
    | PutOff
    | Ready
    | PauseReading
    | ResumeReading
    | Authenticate
    | Publish
    | EndSocket
)


def requeues(ids: dict[int, list[bytes]], delay_ms: int, cause: Cause) -> list[Action]:
    """Return REQ for *ids*, by source."""
    return [Requeue(source, those, delay_ms, cause) for source, those in ids.items() if those]


class Acks:
    """Answers of one verb that stand in a row, by source: each source gets one write."""

    __slots__ = ("_actions", "_ids", "_key")

    def __init__(self, actions: list[Action]) -> None:
        self._actions = actions
        self._key: tuple[str, int] = ("", 0)
        self._ids: dict[int, list[bytes]] = {}

    def add(self, verb: str, ids: dict[int, list[bytes]], delay_ms: int = 0) -> None:
        """Add answers, message ids by source, behind those that came before."""
        if self._key != (verb, delay_ms):
            self.flush()
            self._key = (verb, delay_ms)
        for source, those in ids.items():
            self._ids.setdefault(source, []).extend(those)

    def then(self, action: Action) -> None:
        """Add an action that is no answer behind those that came before."""
        self.flush()
        self._actions.append(action)

    def flush(self) -> None:
        """Turn what has been added into actions."""
        if not self._ids:
            return
        verb, delay_ms = self._key
        for source, ids in self._ids.items():
            if verb == "FIN":
                self._actions.append(Finish(source, ids))
            elif verb == "REQ":
                self._actions.append(Requeue(source, ids, delay_ms, Cause.CLIENT))
            else:
                self._actions.append(Touch(source, ids))
        self._ids = {}
