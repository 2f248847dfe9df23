"""Tests of `SendTime`: the earliest time at which nsqd may have sent a message."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.send_time import SendTime

TICK_S = 0.25


def read(
    send_time: SendTime, now: float, polled_at: float, *, count: int = 1, is_full: bool = False
) -> float:
    """Read *count* messages at RDY 10."""
    since = send_time.on_read(now, polled_at, 10, is_full=is_full)
    send_time.count(count)
    return since


def test_what_is_read_was_sent_after_the_read_before() -> None:
    """The last read left nothing behind."""
    send_time = SendTime(0.0)

    assert [0.0, 0.1] == [read(send_time, now, 0.0) for now in (0.1, 0.2)]


def test_an_idle_connection_knows_when_it_was_polled_last() -> None:
    """Nothing waited at the last poll, however long ago the last read was."""
    send_time = SendTime(0.0)

    assert 29.8 == read(send_time, 30.0, 29.8)


def test_a_read_that_fills_its_buffer_may_have_left_something() -> None:
    """The next read may contain messages sent before this one."""
    send_time = SendTime(0.0)

    assert [0.0, 0.0] == [read(send_time, now, 0.0, is_full=True) for now in (0.1, 0.2)]
    assert 0.0 == read(send_time, 0.3, 0.0)
    assert 0.3 == read(send_time, 0.4, 0.0)


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "stood still"])
def test_what_comes_behind_a_pause_may_be_as_old_as_the_pause(*, is_paused: bool) -> None:
    """Later reads as well: nsqd's own socket buffer may be full of earlier messages."""
    send_time = SendTime(0.0)
    read(send_time, 1.0, 0.9)
    if is_paused:
        send_time.pause(1.1)
        send_time.on_reading_resumed(9.0, 10)
    begin = 1.1

    assert begin == read(send_time, 9.0, begin if not is_paused else 8.9, count=4)
    assert begin == read(send_time, 9.01, 9.0, count=4)


def test_a_moment_of_silence_ends_what_was_before_the_pause() -> None:
    """A poll 50 ms after the last read found nothing."""
    send_time = SendTime(0.0)
    send_time.pause(1.0)
    send_time.on_reading_resumed(9.0, 2_500)
    read(send_time, 9.01, 8.9)

    assert 1.0 == read(send_time, 9.05, 9.04)
    assert 9.2 == read(send_time, 9.3, 9.2)


def test_as_many_messages_as_may_have_been_sent_end_it() -> None:
    """At RDY 10, nsqd cannot have sent an eleventh message before the end of the pause."""
    send_time = SendTime(0.0)
    send_time.pause(1.0)
    send_time.on_reading_resumed(9.0, 10)
    first = read(send_time, 9.01, 0.9, count=10)

    assert [1.0, 9.0, 9.02] == [first, read(send_time, 9.02, 0.9), read(send_time, 9.03, 0.9)]


def test_a_second_of_reading_ends_it() -> None:
    """Steady reading has no moment of silence, and may stay below RDY."""
    send_time = SendTime(0.0)
    send_time.pause(1.0)
    send_time.on_reading_resumed(9.0, 2_500)
    since = [send_time.on_read(9.0 + 0.01 * n, 0.0, 2_500, is_full=False) for n in range(1, 103)]

    assert [1.0] * 99 == since[:99]
    assert 9.0 == since[99]
    assert since[-1] >= 9.0


def test_pauses_in_a_row_do_not_hold_it_back_for_ever() -> None:
    """With a pause after each read, messages sent before an earlier pause arrive first."""
    send_time = SendTime(0.0)
    since = -math.inf
    for cycle in range(1, 100):
        send_time.pause(0.0)
        send_time.on_reading_resumed(cycle * 0.5, 10)
        since = read(send_time, cycle * 0.5 + 0.01, 0.0, count=2)

    assert since >= 49.5 - 0.5 * 11


@given(
    pauses=st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 5.0)), min_size=1, max_size=8),
    gap_s=st.sampled_from([0.001, 0.02, 0.2, 2.0]),
    most=st.sampled_from([1, 10, 2_500]),
    per_read=st.integers(1, 50),
)
def test_it_is_never_later_than_the_broker_has_sent(
    pauses: list[tuple[float, float]], gap_s: float, most: int, per_read: int
) -> None:
    """
    And soon after a pause it is close to it again.

    A broker sends every *gap_s*, up to *most* that were not read; a reader polls each 10 ms, reads
    *per_read* of what is there, and pauses.
    """
    now, next_sent, send_time = 0.0, 0.0, SendTime(0.0)
    unread: list[float] = []
    for reads_s, pause_s in pauses:
        until = now + reads_s
        while now < until:
            now += 0.01
            next_sent = _sent(unread, next_sent, gap_s, now, most)
            polled_at = TICK_S * math.floor(max(0.0, now - 0.011) / TICK_S)
            if unread:
                taken, unread[:] = unread[:per_read], unread[per_read:]
                since = send_time.on_read(now, polled_at, most, is_full=bool(unread))
                send_time.count(len(taken))
                assert since <= taken[0] + 1e-9
        polled_at = TICK_S * math.floor(max(0.0, now - 0.011) / TICK_S)
        send_time.pause(polled_at)
        now += pause_s
        next_sent = _sent(unread, next_sent, gap_s, now, most)
        send_time.on_reading_resumed(now, most)


def _sent(unread: list[float], moment: float, gap_s: float, now: float, most: int) -> float:
    """Send until *now*; return the time of the next message."""
    while moment <= now:
        if len(unread) < most:
            unread.append(moment)
        moment += gap_s
    return moment
