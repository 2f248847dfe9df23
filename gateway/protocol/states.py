"""
The states of a V2 connection as a table: what a client may say when.

IDENTIFY and AUTH do not change the state. RDY after CLS is allowed and without effect; publishing
is allowed in every state. Source: each command's first check in nsqd/protocol_v2.go.
"""

from __future__ import annotations

import enum

from gateway.errors import LocalProtocolError
from gateway.protocol.commands import (
    Auth,
    Command,
    DeferredPublish,
    Finish,
    Identify,
    MultiPublish,
    Nop,
    Publish,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)


class State(enum.IntEnum):
    """Where a connection stands; the numbers are those of nsqd's /stats."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


ALLOWED: dict[tuple[State, type[Command]], State] = {
    (State.INIT, Identify): State.INIT,
    (State.INIT, Auth): State.INIT,
    (State.INIT, Subscribe): State.SUBSCRIBED,
    (State.SUBSCRIBED, Ready): State.SUBSCRIBED,
    (State.SUBSCRIBED, Finish): State.SUBSCRIBED,
    (State.SUBSCRIBED, Requeue): State.SUBSCRIBED,
    (State.SUBSCRIBED, Touch): State.SUBSCRIBED,
    (State.SUBSCRIBED, StartClose): State.CLOSING,
    (State.CLOSING, Ready): State.CLOSING,
    (State.CLOSING, Finish): State.CLOSING,
    (State.CLOSING, Requeue): State.CLOSING,
    (State.CLOSING, Touch): State.CLOSING,
    **{
        (state, kind): state
        for state in State
        for kind in (Publish, MultiPublish, DeferredPublish, Nop)
    },
}


def advance(state: State, kind: type[Command]) -> State:
    """
    Return the state after a command of *kind*.

    Raises:
        LocalProtocolError: The pair is not in ALLOWED.
    """
    try:
        return ALLOWED[state, kind]
    except KeyError:
        msg = f"{kind.verb.decode()} is not allowed in state {state.name}"
        raise LocalProtocolError(msg) from None
