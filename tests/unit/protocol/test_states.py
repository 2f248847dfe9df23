"""The table of states is the one that nsqd's handlers make together."""

from __future__ import annotations

from typing import Final

import pytest

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
from gateway.protocol.states import ALLOWED, State, advance

INIT, SUBSCRIBED, CLOSING = State.INIT, State.SUBSCRIBED, State.CLOSING
ERROR: Final = None

# What each command leads to in INIT, SUBSCRIBED and CLOSING (nsqd/protocol_v2.go).
TABLE: dict[type[Command], tuple[State | None, State | None, State | None]] = {
    Identify: (INIT, ERROR, ERROR),
    Auth: (INIT, ERROR, ERROR),
    Subscribe: (SUBSCRIBED, ERROR, ERROR),
    Ready: (ERROR, SUBSCRIBED, CLOSING),
    Finish: (ERROR, SUBSCRIBED, CLOSING),
    Requeue: (ERROR, SUBSCRIBED, CLOSING),
    Touch: (ERROR, SUBSCRIBED, CLOSING),
    StartClose: (ERROR, CLOSING, ERROR),
    Publish: (INIT, SUBSCRIBED, CLOSING),
    MultiPublishStart: (INIT, SUBSCRIBED, CLOSING),
    MultiPublish: (INIT, SUBSCRIBED, CLOSING),
    DeferredPublish: (INIT, SUBSCRIBED, CLOSING),
    Nop: (INIT, SUBSCRIBED, CLOSING),
}
ROWS = [
    (state, kind, after)
    for kind, row in TABLE.items()
    for state, after in zip(State, row, strict=True)
]


def test_allowed_is_the_table() -> None:
    """No pair is missing, and none is there too much."""
    expected = {(state, kind): after for state, kind, after in ROWS if after is not ERROR}

    assert expected == ALLOWED


@pytest.mark.parametrize("state,kind,after", [row for row in ROWS if row[2] is not ERROR])
def test_allowed_command_leads_to_its_state(
    state: State, kind: type[Command], after: State
) -> None:
    """A pair of the table is answered with the state after it."""
    assert after is advance(state, kind)


@pytest.mark.parametrize("state,kind", [row[:2] for row in ROWS if row[2] is ERROR])
def test_command_in_a_wrong_state_is_a_local_error(state: State, kind: type[Command]) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        advance(state, kind)

    assert f"{kind.verb.decode()} is not allowed in state {state.name}" == str(caught.value)


def test_states_have_the_numbers_of_stats() -> None:
    """nsqd's /stats shows 0, 3 and 4."""
    assert {"INIT": 0, "SUBSCRIBED": 3, "CLOSING": 4} == {
        state.name: state.value for state in State
    }
