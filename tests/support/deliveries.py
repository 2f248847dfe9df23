"""Messages for a session, and what its client reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from gateway.protocol.frames import Message
from gateway.protocol.identify import Answer
from gateway.session.actions import Action, Finish, Requeue
from gateway.session.options import SessionOptions
from gateway.session.session import Session

Json: TypeAlias = dict[str, Any]

TIMESTAMP_NS = 1_790_000_000_000_000_000
ANSWER = Answer()


def message_id(number: int) -> bytes:
    """Return the 16 digits of message *number*."""
    return b"%016x" % number


def message(number: int, body: bytes = b"body", *, attempts: int = 1) -> Message:
    """Return message *number*."""
    return Message(TIMESTAMP_NS, attempts, message_id(number), body)


def messages(*numbers: int) -> list[Message]:
    """Return messages *numbers*."""
    return [message(number) for number in numbers]


def lines(frame: bytes | str | None) -> list[Json]:
    """Return the objects of a text frame; none for no frame."""
    if frame is None:
        return []
    text = frame if isinstance(frame, str) else frame.decode()
    return [json.loads(line) for line in text.split("\n")]


def read(session: Session, now: float) -> list[Json]:
    """Return everything that waits for the client at *now*, over as many frames as it takes."""
    read: list[Json] = []
    while (frame := session.next_frame(now)) is not None:
        read += lines(frame)
        session.frame_written(now)
    return read


def delivery_ids(objects: Iterable[Json]) -> list[str]:
    """Return the ids of the messages among *objects*."""
    return [each["id"] for each in objects if each["type"] == "message"]


def command(cmd: str, **members: object) -> str:
    """Return a command as a client writes it."""
    return json.dumps({"cmd": cmd, **members})


def answered(actions: Sequence[Action]) -> list[tuple[str, int, bytes]]:
    """Return each (verb, source, message id) that *actions* finish or requeue, in order."""
    return [
        ("FIN" if isinstance(action, Finish) else "REQ", action.source, each)
        for action in actions
        if isinstance(action, Finish | Requeue)
        for each in action.ids
    ]


def subscribed(*, sources: int = 1, **options: Any) -> Session:  # noqa: ANN401 - any option
    """Return a session on that many sources whose client has read that it is subscribed."""
    session = Session(SessionOptions(topic="t", channel="c", **options), now=0.0)
    for source in range(1, sources + 1):
        session.source_opened(source, ANSWER)
    read(session, 0.0)
    return session


def holding(session: Session, *numbers: int, source: int = 1, now: float = 0.0) -> list[str]:
    """Deliver messages *numbers* to the client of *session*; return the delivery ids."""
    session.arrived(source, messages(*numbers), now)
    return delivery_ids(read(session, now))
