"""What waits for all clients together: those that hold the most are limited first."""

from __future__ import annotations

import random
import time

import pytest

from gateway.web.subscribe.connection_limits import READ_BYTES, SocketsBuffer

MIB = 1_048_576


class Reader:
    """A socket that stops when it is told to; *buffer* counts it."""

    def __init__(self, buffer: SocketsBuffer) -> None:
        self.unsent_bytes = 0
        self.is_paused = False
        self._buffer = buffer

    def on_buffer_limit(self) -> None:
        """Be read no more."""
        self.is_paused = True

    def holds(self, unsent_bytes: int) -> None:
        """Let so much wait."""
        self.unsent_bytes = unsent_bytes
        self._buffer.update(self, unsent_bytes, is_paused=self.is_paused)

    def looks(self, shared: str, unsent_bytes: int) -> None:
        """Let so much wait as a viewer."""
        self._buffer.update_viewer(shared, self, unsent_bytes)


def test_one_alone_may_hold_half_of_it() -> None:
    """Then no more is left for everybody else than it has."""
    buffer = SocketsBuffer(10 * MIB)
    reader = Reader(buffer)

    reader.holds(5 * MIB)
    assert not reader.is_paused
    reader.holds(5 * MIB + 1)
    assert reader.is_paused


def test_who_holds_the_most_stops_first() -> None:
    """Also when somebody else crosses the line; who holds little goes on."""
    buffer = SocketsBuffer(10 * MIB)
    worst, second, least = Reader(buffer), Reader(buffer), Reader(buffer)

    worst.holds(4 * MIB)
    least.holds(MIB)
    second.holds(3 * MIB)

    assert [True, True, False] == [each.is_paused for each in (worst, second, least)]


def test_what_was_taken_may_be_held_again() -> None:
    buffer = SocketsBuffer(10 * MIB)
    first, second = Reader(buffer), Reader(buffer)

    first.holds(6 * MIB)
    first.holds(0)
    second.holds(4 * MIB)

    assert (4 * MIB, False) == (buffer.total_bytes, second.is_paused)


@pytest.mark.parametrize("readers", [1, 7, 100])
def test_the_sum_stays_below_the_bound_however_many_there_are(readers: int) -> None:
    """None of them takes anything; each stops at the read that is too much."""
    limit_bytes = readers * READ_BYTES + 8 * MIB
    buffer = SocketsBuffer(limit_bytes, lambda: readers)
    crowd = [Reader(buffer) for _ in range(readers)]
    chance = random.Random(readers)

    while reading := [each for each in crowd if not each.is_paused]:
        reader = chance.choice(reading)
        reader.holds(reader.unsent_bytes + chance.randrange(READ_BYTES))
        assert buffer.total_bytes == sum(each.unsent_bytes for each in crowd)

    assert limit_bytes / 4 < buffer.total_bytes <= limit_bytes


def test_viewers_of_one_topic_hold_the_same_bytes() -> None:
    """They are counted once, as the one with the most; each of them may go."""
    buffer = SocketsBuffer(10 * MIB)
    one, two, other = Reader(buffer), Reader(buffer), Reader(buffer)
    totals = []

    for reader, shared, unsent_mib in (
        (one, "t", 2),
        (two, "t", 3),
        (other, "u", 4),
        (two, "t", 1),
        (one, "t", 0),
        (two, "t", 0),
        (other, "u", 0),
    ):
        reader.looks(shared, unsent_mib * MIB)
        totals.append(buffer.total_bytes // MIB)

    assert [2, 3, 7, 6, 5, 4, 0] == totals


def test_a_viewer_that_has_changed_what_it_looks_at_is_counted_where_it_was() -> None:
    """Until it has taken everything; nothing stays counted."""
    buffer = SocketsBuffer(10 * MIB)
    viewer, other = Reader(buffer), Reader(buffer)

    viewer.looks("t", MIB)
    viewer.looks("u", 2 * MIB)
    other.looks("u", MIB)
    assert 3 * MIB == buffer.total_bytes
    viewer.looks("u", 0)
    other.looks("u", 0)

    assert 0 == buffer.total_bytes


def test_viewers_that_hold_too_much_together_end() -> None:
    """Only those that hold more than a read, and only above the bound."""
    buffer = SocketsBuffer(4 * MIB)
    large, small = Reader(buffer), Reader(buffer)

    large.looks("t", 4 * MIB)
    assert not large.is_paused
    small.looks("u", READ_BYTES)
    large.looks("t", 4 * MIB + 1)

    assert [True, False] == [large.is_paused, small.is_paused]


def test_the_count_of_viewers_is_that_of_a_look_at_all_of_them() -> None:
    """Whatever they hold one after the other, and whoever holds the most; nothing is kept."""
    buffer = SocketsBuffer(10 * MIB)
    random.seed(7)
    viewers = [Reader(buffer) for _ in range(5)]
    held = dict.fromkeys(viewers, 0)
    for _ in range(2_000):
        viewer = random.choice(viewers)
        held[viewer] = random.choice((0, 1, 2, random.randrange(1_000)))

        viewer.looks("t", held[viewer])

        assert max(held.values()) == buffer.total_bytes
    sizes = [
        len(shared) for each in buffer._viewers.values() for shared in (each._sizes, each._counts)
    ]
    assert max(sizes, default=0) < 100


def test_ten_thousand_viewers_that_lag_are_counted_one_by_one() -> None:
    """
    In proportion to their number, and not to its square: a message goes to all in a few turns.

    Ten times as many took a hundred times as long, two seconds for one message to all.
    """

    def seconds(count: int) -> float:
        buffer = SocketsBuffer(10 * MIB)
        viewers = [Reader(buffer) for _ in range(count)]
        began_at = time.thread_time()
        for unsent_bytes in (1, 2, 3, 0):
            for viewer in viewers:
                viewer.looks("t", unsent_bytes)
        return time.thread_time() - began_at

    few = min(seconds(1_000) for _ in range(3))

    assert min(seconds(10_000) for _ in range(3)) < 40 * few
