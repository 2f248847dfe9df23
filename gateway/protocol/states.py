"""
The state machine of a V2 connection: which command is allowed in which state.

::

             SUB                CLS
    INIT ----------> SUBSCRIBED -----> CLOSING

    INIT:        IDENTIFY, AUTH, SUB
    SUBSCRIBED:  RDY, FIN, REQ, TOUCH, CLS
    CLOSING:     RDY (ignored), FIN, REQ, TOUCH
    any state:   PUB, MPUB, DPUB, NOP

Source: the first check of each command in nsqd/protocol_v2.go.
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
    MultiPublishStart,
    Nop,
    Publish,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)


class State(enum.IntEnum):
    """The state of a connection; the values are those in nsqd's /stats."""

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
    # After CLS, a client may still acknowledge its messages in flight. RDY is not an error either,
    # but `CommandParser` replaces it by NOP.
    (State.CLOSING, Ready): State.CLOSING,
    (State.CLOSING, Finish): State.CLOSING,
    (State.CLOSING, Requeue): State.CLOSING,
    (State.CLOSING, Touch): State.CLOSING,
    **{
        (state, kind): state
        for state in State
        for kind in (Publish, MultiPublishStart, MultiPublish, DeferredPublish, Nop)
    },
}


def advance(state: State, kind: type[Command]) -> State:
    """
    Return the state of the connection after a command of type *kind* in *state*.

    Raises:
        LocalProtocolError: The command is not allowed in *state*.
    """
    try:
        return ALLOWED[state, kind]
    except KeyError:
        msg = f"{kind.verb.decode()} is not allowed in state {state.name}"
        raise LocalProtocolError(msg) from None
