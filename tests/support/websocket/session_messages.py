"""Messages for a session, and the frames that its client reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from gateway.protocol.frames import Message
from gateway.protocol.identify import IdentifyResponse
from gateway.session.session import Session
from gateway.session.types import Action, FinishDeliveries, RequeueDeliveries, SessionOptions

Json: TypeAlias = dict[str, Any]

TIMESTAMP_NS = 1_790_000_000_000_000_000
ANSWER = IdentifyResponse()


def message_id(number: int) -> bytes:
    """Return the 16-digit id of message *number*."""
    return b"%016x" % number


def message(number: int, body: bytes = b"body", *, attempts: int = 1) -> Message:
    return Message(TIMESTAMP_NS, attempts, message_id(number), body)


def messages(*numbers: int) -> list[Message]:
    return [message(number) for number in numbers]


def lines(frame: bytes | str | None) -> list[Json]:
    """Return the JSON objects of a text frame; none for no frame."""
    if frame is None:
        return []
    text = frame if isinstance(frame, str) else frame.decode()
    return [json.loads(line) for line in text.split("\n")]


def read(session: Session, now: float) -> list[Json]:
    """Return all objects that wait for the client at *now*, over all frames."""
    read: list[Json] = []
    while (frame := session.next_frame(now)) is not None:
        read += lines(frame)
        session.on_writable(now)
    return read


def delivery_ids(objects: Iterable[Json]) -> list[str]:
    return [each["id"] for each in objects if each["type"] == "message"]


def command(cmd: str, **members: object) -> str:
    return json.dumps({"cmd": cmd, **members})


def acknowledged(actions: Sequence[Action]) -> list[tuple[str, int, bytes]]:
    """Return (verb, source, message id) for each FIN and REQ in *actions*, in order."""
    return [
        ("FIN" if isinstance(action, FinishDeliveries) else "REQ", action.source, each)
        for action in actions
        if isinstance(action, FinishDeliveries | RequeueDeliveries)
        for each in action.ids
    ]


def subscribed(*, sources: int = 1, **options: Any) -> Session:  # noqa: ANN401 - any option
    """Return a session with that number of sources; its client has read the SUB frame."""
    session = Session(SessionOptions(topic="t", channel="c", **options), now=0.0)
    for source in range(1, sources + 1):
        session.on_source_opened(source, ANSWER)
    read(session, 0.0)
    return session


def holding(session: Session, *numbers: int, source: int = 1, now: float = 0.0) -> list[str]:
    """Deliver messages *numbers* to the client of *session*; return the delivery ids."""
    session.on_messages(source, messages(*numbers), now)
    return delivery_ids(read(session, now))
