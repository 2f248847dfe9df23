"""How many sockets may be open that have not said who they are."""

from __future__ import annotations

import pytest

from gateway.errors import LimitReached
from gateway.web.subscribe.connection_limits import UnauthenticatedLimit


def test_one_too_many_is_refused() -> None:
    """The text says how many there are."""
    room = UnauthenticatedLimit(2)
    room.acquire("a")
    room.acquire("b")

    with pytest.raises(LimitReached, match="2 sockets wait for AUTH"):
        room.acquire("c")


def test_who_leaves_makes_room() -> None:
    """To leave twice, or without having waited, is nothing."""
    room = UnauthenticatedLimit(1)
    room.acquire("a")
    room.release("a")
    room.release("a")
    room.release("b")

    room.acquire("c")

    assert 1 == len(room)
