"""Channels are looked at when they have something to do, and only then."""

from __future__ import annotations

import math

from gateway.broker.scheduler import ConsumerBatch, Scheduler


class Note:
    """Something scheduled."""

    def __init__(self) -> None:
        self.next_due = math.inf

    def deliver(self, now: float) -> list[ConsumerBatch]:
        """Send nothing."""
        del now
        return []

    def expire(self, now: float) -> None:
        """Take nothing back."""


def test_deliverable_entries_are_returned_once() -> None:
    """Several notes of one channel are one."""
    scheduler, note = Scheduler(), Note()
    scheduler.add_deliverable(note)
    scheduler.add_deliverable(note)

    assert scheduler.has_deliverable
    assert [note] == scheduler.pop_deliverable()
    assert not scheduler.has_deliverable


def test_the_next_moment_is_the_earliest_of_all() -> None:
    """The order of scheduling does not matter."""
    scheduler = Scheduler()
    for read_clocks in (3.0, 1.0, 2.0):
        scheduler.schedule(Note(), read_clocks)

    assert 1.0 == scheduler.next_due


def test_without_anything_scheduled_there_is_no_next_moment() -> None:
    """Nobody has to wake up."""
    assert Scheduler().next_due is None


def test_an_earlier_moment_takes_the_place_of_a_later_one() -> None:
    """The channel is looked at once, at the earlier moment."""
    scheduler, note = Scheduler(), Note()
    scheduler.schedule(note, 5.0)
    scheduler.schedule(note, 2.0)

    assert [note] == scheduler.pop_due(2.0)
    assert scheduler.next_due is None
    assert [] == scheduler.pop_due(9.0)


def test_a_later_moment_changes_nothing() -> None:
    """The channel looks itself for what comes after."""
    scheduler, note = Scheduler(), Note()
    scheduler.schedule(note, 2.0)
    scheduler.schedule(note, 5.0)

    assert 2.0 == scheduler.next_due


def test_due_channels_are_in_order_of_time() -> None:
    """A moment that is exactly now is due, a later one is not."""
    scheduler, first, second, third = Scheduler(), Note(), Note(), Note()
    scheduler.schedule(third, 3.1)
    scheduler.schedule(second, 3.0)
    scheduler.schedule(first, 1.0)

    assert [first, second] == scheduler.pop_due(3.0)
    assert 3.1 == scheduler.next_due


def test_a_due_channel_can_be_scheduled_again() -> None:
    """Also for the moment that it had before."""
    scheduler, note = Scheduler(), Note()
    scheduler.schedule(note, 1.0)
    scheduler.pop_due(1.0)

    scheduler.schedule(note, 1.0)

    assert 1.0 == scheduler.next_due
