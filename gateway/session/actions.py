"""What a session wants done: each action is an imperative that the shell carries out in order."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from gateway.secret import Secret


class Finish(msgspec.Struct, gc=False):
    """FIN for *ids* on *source*."""

    source: int
    ids: list[bytes]


class Requeue(msgspec.Struct, gc=False):
    """REQ for *ids* on *source*."""

    source: int
    ids: list[bytes]
    delay_ms: int


class Touch(msgspec.Struct, gc=False):
    """TOUCH for *ids* on *source*."""

    source: int
    ids: list[bytes]


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


class EndReason(enum.Enum):
    """Why a session wants its socket closed."""

    DONE = "the client said CLS"
    DRAINED = "the gateway drains"
    SLOW = "the client does not read fast enough"
    NO_BROKER = "no nsqd could be reached for too long"
    TOO_MANY_ERRORS = "the client sent too much that is no command"
    FULL = "NSQ takes no further subscriber"
    NO_AUTH = "AUTH did not come, or not as the first command"
    FORBIDDEN = "NSQ refused the secret"
    SECRET_REFUSED = "NSQ refuses the secret now"
    FAILED = "the gateway failed"


class EndSocket(msgspec.Struct, gc=False):
    """Close the socket, once what waits for it is sent."""

    reason: EndReason


Action: TypeAlias = (
    Finish | Requeue | Touch | Ready | PauseReading | ResumeReading | Authenticate | EndSocket
)


class Acks:
    """Answers of one verb that stand in a row, by source: each source gets one write."""

    def __init__(self, actions: list[Action]) -> None:
        self._actions = actions
        self._key: tuple[str, int] = ("", 0)
        self._ids: dict[int, list[bytes]] = {}

    def add(self, verb: str, source: int, message_id: bytes, delay_ms: int = 0) -> None:
        """Add one answer behind those that came before."""
        if self._key != (verb, delay_ms):
            self.flush()
            self._key = (verb, delay_ms)
        self._ids.setdefault(source, []).append(message_id)

    def then(self, action: Action) -> None:
        """Add an action that is no answer behind those that came before."""
        self.flush()
        self._actions.append(action)

    def flush(self) -> None:
        """Turn what has been added into actions."""
        verb, delay_ms = self._key
        for source, ids in self._ids.items():
            if verb == "FIN":
                self._actions.append(Finish(source, ids))
            elif verb == "REQ":
                self._actions.append(Requeue(source, ids, delay_ms))
            else:
                self._actions.append(Touch(source, ids))
        self._ids = {}
