"""The rate limit of a task, with a clock that only waiting advances."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import cast

import pyarrow as pa
import pytest

from gateway.pipeline.sink import Published, PublishTask, PublishThrottle, read_sink_settings
from gateway.pipeline.sink_producer import LimitLearned, SinkProducer
from gateway.pipeline.sink_rows import RowLayout, RowLimits, Rows
from gateway.protocol.commands import MultiPublish, Publish
from tests.support.brokers.scripted_broker import ScriptedBroker
from tests.support.spark.sink_calls import numbered, record_batch, spark_worker


class Clock:
    """A clock in seconds, advanced by waits."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.longest_s = 0.0

    def __call__(self) -> float:
        """Return the current time."""
        return self.now_s

    def wait(self, duration_s: float) -> None:
        """Advance the clock by a wait."""
        self.longest_s = max(self.longest_s, duration_s)
        self.now_s += duration_s


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    await scripted.start()
    async with spark_worker():
        try:
            yield scripted
        finally:
            await scripted.stop()


async def test_a_task_takes_its_share_of_the_rate(broker: ScriptedBroker) -> None:
    """A quarter of 400 rows/s takes 10 s for 1 000 rows, with four commands a second."""
    clock = Clock()
    options = {"nsqdTcpAddress": broker.address, "topic": "t", "rate": "400", "rateTasks": "4"}
    producer = SinkProducer(read_sink_settings(options))
    task = PublishTask(producer, RowLayout(topic="t"), 0, PublishThrottle(100, clock, clock.wait))
    told = await asyncio.to_thread(task.run, iter(numbered(1_000)))
    await asyncio.to_thread(producer.close)

    assert 1_000 == told.rows
    assert 10.0 == pytest.approx(clock.now_s)
    assert [25] * 40 == [len(command.bodies) for command in broker.all(MultiPublish)]


async def test_a_share_below_one_a_second_publishes_row_by_row(broker: ScriptedBroker) -> None:
    """No single wait is longer than a second, so that a task can be stopped."""
    clock = Clock()
    options = {"nsqdTcpAddress": broker.address, "topic": "t", "rate": "1", "rateTasks": "4"}
    producer = SinkProducer(read_sink_settings(options))
    task = PublishTask(producer, RowLayout(topic="t"), 0, PublishThrottle(0.25, clock, clock.wait))
    await asyncio.to_thread(task.run, iter(numbered(3)))
    await asyncio.to_thread(producer.close)

    assert (12.0, 1.0) == pytest.approx((clock.now_s, clock.longest_s))
    assert 3 == len(broker.all(Publish))


def test_idle_time_is_not_saved_up() -> None:
    """A task does not publish faster after a pause."""
    clock = Clock()
    throttle = PublishThrottle(10, clock, clock.wait)
    throttle.wait(10)
    clock.wait(100)
    throttle.wait(10)

    assert 102.0 == pytest.approx(clock.now_s)


async def test_dead_letters_are_counted_apart(broker: ScriptedBroker) -> None:
    """They are not among the published rows that a task reports."""
    options = {
        "nsqdTcpAddress": broker.address,
        "topic": "t",
        "badRows": "dead-letter",
        "deadLetterTopic": "dead",
    }
    producer = SinkProducer(read_sink_settings(options))
    task = PublishTask(producer, RowLayout(topic="t"), 0, PublishThrottle(0))
    rows = [record_batch(body=[b"abc", b""]), record_batch(body=[None, b"d"])]
    told = await asyncio.to_thread(task.run, iter(rows))
    await asyncio.to_thread(producer.close)

    assert Published(2, 4, bad_rows=2) == told


class Learning:
    """A producer that reports a lower limit for each batch, until batches have one row."""

    def __init__(self) -> None:
        options = {"nsqdTcpAddress": "127.0.0.1:1", "topic": "t", "maxUnanswered": "256"}
        self.settings = read_sink_settings(options | {"batchRows": "2"})
        self.limits = RowLimits(100, 100, 0, 2, 100)
        self.repeated_rows = 0
        self.published: list[bytes] = []

    def publish(self, rows: Rows) -> Future[None]:
        """Refuse two rows once the window is full, and accept one."""
        told: Future[None] = Future()
        if len(rows.bodies) == 1:
            self.published += rows.bodies.to_pylist()
            told.set_result(None)
        else:
            told.set_exception(LimitLearned("two are too many"))
        return told

    def learn(self) -> None:
        """Lower the limit from now on."""
        self.limits = self.limits._replace(batch_rows=1)


def test_a_whole_window_of_batches_may_turn_out_to_be_too_long() -> None:
    """All are split again, even 256, the maximum of --max-unanswered."""
    producer = Learning()
    task = PublishTask(cast("SinkProducer", producer), RowLayout(topic="t"), 0, PublishThrottle(0))

    def rows() -> Iterator[pa.RecordBatch]:
        yield from numbered(512)
        producer.learn()

    told = task.run(rows())

    assert 512 == told.rows
    assert 512 == len(set(producer.published))
