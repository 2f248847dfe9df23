"""A mark: what has happened lets those go on who wait for it, and costs nothing before."""

from __future__ import annotations

import asyncio

import pytest

from gateway.aio import LazyEvent
from tests.support.manual_clock import turn


async def test_whoever_waits_goes_on_when_it_is_set() -> None:
    """All of them, and those who come later at once."""
    mark = LazyEvent()
    waiting = [asyncio.ensure_future(mark.wait()) for _ in range(3)]
    await turn()
    before = [each.done() for each in waiting]

    mark.set()
    await asyncio.gather(*waiting)
    await mark.wait()

    assert [False] * 3 == before
    assert mark.is_set()


async def test_setting_it_twice_is_setting_it_once() -> None:
    mark = LazyEvent()
    mark.set()
    mark.set()

    assert mark.is_set()


async def test_what_is_cleared_is_waited_for_again() -> None:
    """It may happen more than once."""
    mark = LazyEvent()
    mark.set()
    mark.clear()
    waiting = asyncio.ensure_future(mark.wait())
    await turn()

    assert not mark.is_set()
    assert not waiting.done()
    mark.set()
    await waiting


async def test_one_who_is_cancelled_cancels_no_other() -> None:
    mark = LazyEvent()
    gone, other = (asyncio.ensure_future(mark.wait()) for _ in range(2))
    await turn()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone

    mark.set()

    await other
