"""Messages that have had more attempts than the client wants to see."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.protocol.frames import Message
from gateway.session.actions import Action, PutOff
from gateway.session.options import SessionOptions

_STEP_MS = 90_000
"""Delay for each attempt above the limit."""


def put_off(
    source: int, messages: Sequence[Message], options: SessionOptions
) -> tuple[list[Action], list[Message]]:
    """
    Give back what has had more than max_attempts, later each time, as far as nsqd allows it.

    Returns what does it, and the others.
    """
    max_attempts, longest_ms = options.max_attempts, options.limits.max_req_timeout_ms
    later: dict[int, list[bytes]] = {}
    others = []
    for message in messages:
        if message.attempts > max_attempts:
            later.setdefault(message.attempts - max_attempts, []).append(message.id)
        else:
            others.append(message)
    return [
        PutOff(source, ids, min(_STEP_MS * above, longest_ms)) for above, ids in later.items()
    ], others
