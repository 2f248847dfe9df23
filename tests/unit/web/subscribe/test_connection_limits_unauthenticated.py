"""How many sockets may be open that have not said who they are."""

from __future__ import annotations

import pytest

from gateway.errors import LimitReached
from gateway.web.subscribe.connection_limits import UnauthenticatedLimit


@pytest.mark.parametrize("limit,text", [(1, "^1 socket waits"), (2, "^2 sockets wait")])
def test_one_too_many_is_refused(limit: int, text: str) -> None:
    room = UnauthenticatedLimit(limit)
    for number in range(limit):
        room.acquire(number)

    with pytest.raises(LimitReached, match=f"{text} for AUTH, which is the limit; try again"):
        room.acquire(limit)


def test_who_leaves_makes_room() -> None:
    """To leave twice, or without having waited, is nothing."""
    room = UnauthenticatedLimit(1)
    room.acquire("a")
    room.release("a")
    room.release("a")
    room.release("b")

    room.acquire("c")

    assert 1 == len(room)
