"""How many sockets may be open that have not said who they are."""

from __future__ import annotations

import pytest

from gateway.errors import Full
from gateway.web.waiting_room import WaitingRoom


def test_one_too_many_is_refused() -> None:
    """The text says how many there are."""
    room = WaitingRoom(2)
    room.enter("a")
    room.enter("b")

    with pytest.raises(Full, match="2 sockets wait for their AUTH"):
        room.enter("c")


def test_who_leaves_makes_room() -> None:
    """To leave twice, or without having waited, is nothing."""
    room = WaitingRoom(1)
    room.enter("a")
    room.leave("a")
    room.leave("a")
    room.leave("b")

    room.enter("c")

    assert 1 == len(room)
