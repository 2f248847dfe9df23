"""One budget for all sockets of an event loop, new in each of its turns."""

from __future__ import annotations

import asyncio

import pytest

from gateway.web.loop_budget import UNITS_PER_TURN, FrameBudget, frame_budget_of, frame_cost
from tests.support.manual_clock import turn


class Visitor:
    """Spends what it is given, until it has had as much as it wants."""

    def __init__(self, turns: FrameBudget, wanted: int) -> None:
        self._turns = turns
        self.left = wanted
        self.shares: list[int] = []
        turns.wait(self.visit)

    def visit(self, share: int) -> None:
        """Spend it, and wait for more."""
        self.shares.append(share)
        self._turns.spend(min(share, self.left))
        self.left -= share
        if self.left > 0:
            self._turns.wait(self.visit)


async def test_a_turn_has_so_much_for_all() -> None:
    """Who comes behind is to wait, and in the next turn there is as much again."""
    turns = FrameBudget()
    turns.spend(UNITS_PER_TURN - 1)
    before = turns.is_exhausted
    turns.spend(100)
    behind = turns.is_exhausted
    await turn()

    assert (False, True, False) == (before, behind, turns.is_exhausted)
    assert turns.left == UNITS_PER_TURN


async def test_who_waits_has_a_share_in_every_turn() -> None:
    turns = FrameBudget()
    flood, *others = [Visitor(turns, wanted) for wanted in (10_000, 10, 10, 10)]
    await turn()

    assert flood.shares[0] == UNITS_PER_TURN // 4
    assert [1, 1, 1] == [len(other.shares) for other in others]
    assert all(other.left <= 0 for other in others)


async def test_of_many_nobody_is_passed_over() -> None:
    """Where a turn is too short for all, the next one goes on with those who had none."""
    turns = FrameBudget()
    visitors = [Visitor(turns, 40) for _ in range(1_000)]
    visits = []
    while visitors[-1].left > 0:
        await turn()
        visits.append([len(visitor.shares) for visitor in visitors])

    assert all(max(counts) - min(counts) <= 1 for counts in visits)
    assert len(visits) > 40 * 1_000 / UNITS_PER_TURN / 4


async def test_a_visit_that_fails_takes_no_turn_from_others() -> None:
    """It is the event loop's to log; the others come in the next turn."""
    turns = FrameBudget()

    def fail(share: int) -> None:
        raise ValueError(share)

    failures: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    turns.wait(fail)
    visitor = Visitor(turns, 1)
    await turn(3)
    loop.set_exception_handler(None)

    assert (1, 1) == (len(failures), len(visitor.shares))


@pytest.mark.parametrize("size_bytes, units", [(0, 1), (127, 1), (128, 2), (65_536, 513)])
def test_what_is_long_costs_more(size_bytes: int, units: int) -> None:
    """A frame is one, and every 128 bytes one more."""
    assert units == frame_cost(size_bytes)


async def test_a_loop_has_one_budget() -> None:
    loop = asyncio.get_running_loop()

    assert frame_budget_of(loop) is frame_budget_of(loop)
