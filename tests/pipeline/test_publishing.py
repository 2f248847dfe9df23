"""The pace of a task, by a clock that only its waiting moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import cast

import pyarrow as pa
import pytest

from gateway.pipeline.outlet import LimitLearned, Outlet
from gateway.pipeline.publishing import Pace, Published, Task
from gateway.pipeline.sink import read_sink_settings
from gateway.pipeline.sink_rows import Layout, RowLimits, Rows
from gateway.protocol.commands import MultiPublish, Publish
from tests.support.scripted_broker import ScriptedBroker
from tests.support.sinking import a_worker, numbered, record_batch


class Clock:
    """Seconds, and who waits for them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.longest_s = 0.0

    def __call__(self) -> float:
        """Return what it shows."""
        return self.now_s

    def wait(self, duration_s: float) -> None:
        """Let it show so much more."""
        self.longest_s = max(self.longest_s, duration_s)
        self.now_s += duration_s


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """Return a broker that answers OK."""
    scripted = ScriptedBroker()
    await scripted.start()
    async with a_worker():
        try:
            yield scripted
        finally:
            await scripted.stop()


async def test_a_task_takes_its_share_of_the_rate(broker: ScriptedBroker) -> None:
    """A quarter of 400 a second is 10 s for 1 000 rows, in commands of a quarter of a second."""
    clock = Clock()
    options = {"nsqdTcpAddress": broker.address, "topic": "t", "rate": "400", "rateTasks": "4"}
    outlet = Outlet(read_sink_settings(options))
    task = Task(outlet, Layout(topic="t"), 0, Pace(100, clock, clock.wait))
    told = await asyncio.to_thread(task.run, iter(numbered(1_000)))
    await asyncio.to_thread(outlet.close)

    assert 1_000 == told.rows
    assert 10.0 == pytest.approx(clock.now_s)
    assert [25] * 40 == [len(command.bodies) for command in broker.all(MultiPublish)]


async def test_a_share_below_one_a_second_publishes_row_by_row(broker: ScriptedBroker) -> None:
    """And no single wait is longer than a second, so that a task can be ended."""
    clock = Clock()
    options = {"nsqdTcpAddress": broker.address, "topic": "t", "rate": "1", "rateTasks": "4"}
    outlet = Outlet(read_sink_settings(options))
    task = Task(outlet, Layout(topic="t"), 0, Pace(0.25, clock, clock.wait))
    await asyncio.to_thread(task.run, iter(numbered(3)))
    await asyncio.to_thread(outlet.close)

    assert (12.0, 1.0) == pytest.approx((clock.now_s, clock.longest_s))
    assert 3 == len(broker.all(Publish))


def test_time_in_which_nothing_came_is_not_saved_up() -> None:
    """A pause is no leave to go faster behind it."""
    clock = Clock()
    pace = Pace(10, clock, clock.wait)
    pace.published(10)
    clock.wait(100)
    pace.published(10)

    assert 102.0 == pytest.approx(clock.now_s)


async def test_what_tells_of_bad_rows_counts_for_itself(broker: ScriptedBroker) -> None:
    """The sums of a task are of its rows."""
    options = {
        "nsqdTcpAddress": broker.address,
        "topic": "t",
        "badRows": "dead-letter",
        "deadLetterTopic": "dead",
    }
    outlet = Outlet(read_sink_settings(options))
    task = Task(outlet, Layout(topic="t"), 0, Pace(0))
    rows = [record_batch(body=[b"abc", b""]), record_batch(body=[None, b"d"])]
    told = await asyncio.to_thread(task.run, iter(rows))
    await asyncio.to_thread(outlet.close)

    assert Published(2, 4, bad_rows=2) == told


class Learning:
    """An outlet that learns for each batch that it is too long, until batches have one row."""

    def __init__(self) -> None:
        options = {"nsqdTcpAddress": "127.0.0.1:1", "topic": "t", "maxUnanswered": "256"}
        self.settings = read_sink_settings(options | {"batchRows": "2"})
        self.limits = RowLimits(100, 100, 0, 2, 100)
        self.repeated_rows = 0
        self.published: list[bytes] = []

    def publish(self, rows: Rows) -> Future[None]:
        """Refuse two rows once the window is full, and take one."""
        told: Future[None] = Future()
        if len(rows.bodies) == 1:
            self.published += rows.bodies.to_pylist()
            told.set_result(None)
        else:
            told.set_exception(LimitLearned("two are too many"))
        return told

    def learn(self) -> None:
        """Know what a batch may be from here on."""
        self.limits = self.limits._replace(batch_rows=1)


def test_a_whole_window_of_batches_may_turn_out_to_be_too_long() -> None:
    """Each is cut anew, however many there are: 256 is what --max-unanswered may be."""
    outlet = Learning()
    task = Task(cast("Outlet", outlet), Layout(topic="t"), 0, Pace(0))

    def rows() -> Iterator[pa.RecordBatch]:
        yield from numbered(512)
        outlet.learn()

    told = task.run(rows())

    assert 512 == told.rows
    assert 512 == len(set(outlet.published))
