"""Channels are looked at when they have something to do, and only then."""

from __future__ import annotations

import math

from gateway.broker.agenda import Agenda, Delivery


class Note:
    """Something on the agenda."""

    def __init__(self) -> None:
        self.next_moment = math.inf

    def deliver(self, now: float) -> list[Delivery]:
        """Send nothing."""
        del now
        return []

    def expire(self, now: float) -> None:
        """Take nothing back."""


def test_what_can_deliver_is_taken_once() -> None:
    """Several notes of one channel are one."""
    agenda, note = Agenda(), Note()
    agenda.add_deliverable(note)
    agenda.add_deliverable(note)

    assert agenda.has_deliverable
    assert [note] == agenda.take_deliverable()
    assert not agenda.has_deliverable


def test_the_next_moment_is_the_earliest_of_all() -> None:
    """In whatever order they were scheduled."""
    agenda = Agenda()
    for moment in (3.0, 1.0, 2.0):
        agenda.schedule(Note(), moment)

    assert 1.0 == agenda.next_moment


def test_without_anything_scheduled_there_is_no_next_moment() -> None:
    """Nobody has to wake up."""
    assert Agenda().next_moment is None


def test_an_earlier_moment_takes_the_place_of_a_later_one() -> None:
    """The channel is looked at once, at the earlier moment."""
    agenda, note = Agenda(), Note()
    agenda.schedule(note, 5.0)
    agenda.schedule(note, 2.0)

    assert [note] == agenda.take_due(2.0)
    assert agenda.next_moment is None
    assert [] == agenda.take_due(9.0)


def test_a_later_moment_changes_nothing() -> None:
    """The channel looks itself for what comes after."""
    agenda, note = Agenda(), Note()
    agenda.schedule(note, 2.0)
    agenda.schedule(note, 5.0)

    assert 2.0 == agenda.next_moment


def test_what_is_due_is_taken_in_order_of_time() -> None:
    """A moment that is exactly now is due, a later one is not."""
    agenda, first, second, third = Agenda(), Note(), Note(), Note()
    agenda.schedule(third, 3.1)
    agenda.schedule(second, 3.0)
    agenda.schedule(first, 1.0)

    assert [first, second] == agenda.take_due(3.0)
    assert 3.1 == agenda.next_moment


def test_what_was_due_can_be_scheduled_again() -> None:
    """Also for the moment that it had before."""
    agenda, note = Agenda(), Note()
    agenda.schedule(note, 1.0)
    agenda.take_due(1.0)

    agenda.schedule(note, 1.0)

    assert 1.0 == agenda.next_moment
