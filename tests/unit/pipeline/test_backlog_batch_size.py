"""`BatchSizer`: how many rows a batch has if no option sets the number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.backlog import BatchSizer
from gateway.settings.loader import load
from gateway.settings.pipeline import FIRST_ROWS, MAX_ROWS, SourceSettings

MIB = 1_048_576
TARGET_S = 2.0


class Stream:
    """A stream with an endless backlog, and a Spark whose batches take a simulated time."""

    def __init__(self, *, fixed_s: float, row_s: float, row_bytes: int = 0) -> None:
        self.sizer = BatchSizer(FIRST_ROWS, target_s=TARGET_S, batch_bytes=64 * MIB)
        self.now = 100.0
        self._fixed_s = fixed_s
        self._row_s = row_s
        self._row_bytes = row_bytes

    def batch(self, *, part: float = 1.0, waiting: int = MAX_ROWS) -> float:
        """Process a batch with *part* of its row limit; return its duration."""
        rows = int(self.sizer.rows * part)
        took_s = self._fixed_s + rows * self._row_s
        self.sizer.batch_started(rows, rows * self._row_bytes, self.now)
        self.now += took_s
        full_rows = self.sizer.rows
        self.sizer.batch_finished(self.now, waiting=waiting, full_rows=full_rows, max_rows=MAX_ROWS)
        return took_s


def test_batches_grow_under_a_backlog_up_to_the_target_time() -> None:
    """With measured times: 0.15 s for a batch and 12 µs for a row."""
    stream = Stream(fixed_s=0.15, row_s=12e-6)
    limits = []
    for _ in range(10):
        stream.batch()
        limits.append(stream.sizer.rows)

    assert [40_000, 80_000] == limits[:2]
    assert limits[-1] == limits[-2], "it swings"
    assert 0.8 * TARGET_S <= stream.batch() <= TARGET_S


def test_batches_stay_where_less_waits_than_the_last_one_had() -> None:
    """Spark keeps up, so larger batches would only add latency."""
    stream = Stream(fixed_s=0.15, row_s=12e-6)
    for _ in range(5):
        stream.batch(waiting=FIRST_ROWS // 2)

    assert FIRST_ROWS == stream.sizer.rows


def test_the_time_of_a_batch_that_was_not_full_tells_nothing() -> None:
    """The first batch of a session takes seconds, and small ones of an idle topic are fast."""
    slow, fast = Stream(fixed_s=10, row_s=0), Stream(fixed_s=0.01, row_s=0)
    slow.sizer.rows = 100_000
    for stream in (slow, fast):
        stream.batch(part=0.4)

    assert [100_000, FIRST_ROWS] == [slow.sizer.rows, fast.sizer.rows]


def test_batches_shrink_where_they_take_too_long_and_not_below_the_first() -> None:
    """The limit is at most halved at once, because one slow batch may be an accident."""
    stream = Stream(fixed_s=0.15, row_s=200e-6)
    stream.sizer.rows = 100_000
    limits = []
    for _ in range(4):
        stream.batch()
        limits.append(stream.sizer.rows)

    assert [50_000, 25_000, FIRST_ROWS, FIRST_ROWS] == limits


def test_batches_do_not_grow_beyond_their_bytes() -> None:
    """With messages of 2 KiB, the limit is as many as fill 64 MiB, however fast Spark is."""
    stream = Stream(fixed_s=0.1, row_s=1e-6, row_bytes=2_048)
    for _ in range(5):
        stream.batch()

    assert 64 * MIB // 2_048 == stream.sizer.rows


def test_batches_do_not_grow_beyond_what_can_be_in_flight() -> None:
    """A batch with a limit above that would wait for rows that cannot arrive."""
    sizer = BatchSizer(FIRST_ROWS, target_s=TARGET_S, batch_bytes=64 * MIB)
    changes = []
    for now in (1.0, 2.0):
        sizer.batch_started(sizer.rows, 0, now)
        changes.append(
            sizer.batch_finished(now + 0.1, waiting=MAX_ROWS, full_rows=sizer.rows, max_rows=30_000)
        )

    assert ([True, False], 30_000) == (changes, sizer.rows)


def test_a_number_that_is_given_never_changes() -> None:
    """A user's maxRowsPerBatch is not adapted."""
    sizer = BatchSizer(5_000, target_s=None, batch_bytes=MIB)
    sizer.batch_started(5_000, 0, 0.0)

    assert not sizer.batch_finished(0.1, waiting=MAX_ROWS, full_rows=5_000, max_rows=MAX_ROWS)
    assert 5_000 == sizer.rows


@given(
    fixed_s=st.floats(0, 5),
    row_us=st.floats(0, 500),
    steps=st.lists(st.tuples(st.floats(0, 1), st.integers(0, MAX_ROWS)), max_size=30),
)
def test_the_limit_stays_within_its_bounds(
    fixed_s: float, row_us: float, steps: list[tuple[float, int]]
) -> None:
    """The limit at most doubles from one batch to the next."""
    stream = Stream(fixed_s=fixed_s, row_s=row_us / 1e6)
    for part, waiting in steps:
        before = stream.sizer.rows
        stream.batch(part=part, waiting=waiting)
        assert FIRST_ROWS <= stream.sizer.rows <= MAX_ROWS
        assert before // 2 <= stream.sizer.rows <= 2 * before


@pytest.mark.parametrize(
    "given,expected",
    [
        ({}, (FIRST_ROWS, 2 * FIRST_ROWS, 64 * MIB)),
        ({"max_rows_per_batch": "500"}, (500, 1_000, 256 * MIB)),
        ({"max_in_flight": "7", "max_buffer_bytes": "4194304"}, (FIRST_ROWS, 7, MIB)),
        ({"ack_mode": "spool"}, (FIRST_ROWS, 10_000, 64 * MIB)),
    ],
)
def test_a_batch_that_is_chosen_begins_as_it_was_before(
    given: dict[str, str], expected: tuple[int, int, int]
) -> None:
    """The defaults of rows, window and bytes are unchanged; four batches fit into the buffer."""
    settings = load(SourceSettings, given).settings

    assert expected == (settings.first_rows, settings.window, settings.batch_bytes)
