"""The sinks: planning by Spark, and publishing by tasks, with both brokers."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import httpx
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from gateway.errors import NoBroker, RowRefused, SettingsError
from gateway.pipeline.datasource import NsqDataSource
from gateway.pipeline.sink import (
    NsqBatchWriter,
    NsqStreamWriter,
    Published,
    batch_writer,
    sum_published,
)
from tests.support.brokers.killable_broker import KillableBroker, killable_broker
from tests.support.brokers.nsqd import real_nsqd, real_nsqlookupd
from tests.support.brokers.restartable_nsqd import restartable_nsqd
from tests.support.brokers.stored_messages import stored_messages
from tests.support.gateways.gateway import poll_until
from tests.support.spark.sink_calls import (
    messages_of,
    numbered,
    record_batch,
    spark_worker,
    write,
    write_from,
)

AT = {"nsqdTcpAddress": "a:1"}


def columns(**types: str) -> StructType:
    schema = StructType()
    for name, kind in types.items():
        schema.add(name, kind)
    return schema


TEXTS = columns(topic="string", body="binary")


@pytest.fixture(params=["embedded", pytest.param("nsqd", marks=pytest.mark.nsqd)])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[KillableBroker]:
    async with killable_broker(request.param) as running, spark_worker():
        yield running


def to(broker: KillableBroker, **options: str) -> dict[str, str]:
    return {"nsqdTcpAddress": broker.tcp_address, "topic": "t"} | options


# Planned


@pytest.mark.parametrize(
    "options, schema, told",
    [
        ({}, columns(text="string"), "column body: missing.*text string"),
        ({}, columns(body="integer"), "column body is 'int'; allowed: string or binary"),
        ({}, columns(body="string"), "column topic: missing.*toTopic"),
        ({}, columns(topic="integer", body="string"), "column topic is 'int'"),
        ({"deferColumn": "later"}, TEXTS, "column later: missing"),
        ({"keyColumn": "name"}, TEXTS, "column name: missing"),
        (
            {},
            columns(topic="string", body="binary", defer_ms="double"),
            "defer_ms is 'double'; allowed: tinyint or",
        ),
        ({"topic": "no topic"}, TEXTS, "^topic is 'no topic'"),
        ({"toTopic": "no topic"}, TEXTS, "^toTopic is 'no topic'"),
        ({"topic": "a", "toTopic": "b"}, TEXTS, "alias of toTopic"),
        (
            {"badRows": "dead-letter"},
            TEXTS,
            "^badRows: the value 'dead-letter' needs the setting deadLetterTopic",
        ),
        ({"deadLetterTopic": "dead"}, TEXTS, "^deadLetterTopic: .*without badRows dead-letter"),
        (
            {"lookupdHttpAddress": "b:1"},
            TEXTS,
            "^lookupdHttpAddress: it cannot be combined with nsqdTcpAddress",
        ),
        ({"kafka.batch.size": "9"}, TEXTS, r"^kafka\.batch\.size: use batchBytes"),
        ({"topics": "t"}, TEXTS, r"^topics: .*; did you mean topic\?"),
        ({"badRows": "drop"}, TEXTS, "badRows .*'drop'; allowed: fail, dead-letter"),
        ({"rate": "10"}, TEXTS, "set rateTasks to the number of tasks that run"),
        ({"authSecret": "s"}, TEXTS, "use authSecretFile"),
        ({"path": "/tmp"}, TEXTS, "path: nsq has no paths"),  # noqa: S108
    ],
)
def test_invalid_options_are_refused_when_a_query_is_planned(
    options: dict[str, str], schema: StructType, told: str
) -> None:
    """Before a task runs; the error has the value and what is allowed."""
    with pytest.raises(SettingsError, match=told):
        batch_writer(AT | options, schema, overwrite=False)


def test_rows_of_the_source_are_not_published_to_their_own_topic() -> None:
    """By their column topic a stream would feed itself; with toTopic it is allowed."""
    texts = dict.fromkeys(("topic", "nsqd", "id", "body"), "string")
    schema = columns(**texts, attempts="integer")

    with pytest.raises(SettingsError, match=r"toTopic: .*would loop"):
        batch_writer(AT, schema, overwrite=False)
    batch_writer(AT | {"topic": "other"}, schema, overwrite=False)


def test_the_format_has_both_sinks_and_no_batch_read() -> None:
    """Reading removes messages from a queue, so a batch read is refused."""
    source = NsqDataSource(AT | {"checkpointLocation": "/c", "queryName": "q"})

    assert isinstance(source.streamWriter(TEXTS, overwrite=False), NsqStreamWriter)
    assert isinstance(source.writer(TEXTS, overwrite=False), NsqBatchWriter)
    with pytest.raises(SettingsError, match=r"readStream.*availableNow=True"):
        source.reader(TEXTS)
    with pytest.raises(SettingsError, match=r"cannot be overwritten.*append"):
        source.writer(TEXTS, overwrite=True)
    with pytest.raises(SettingsError, match=r"outputMode complete: .*append"):
        source.streamWriter(TEXTS, overwrite=True)


def test_no_secret_goes_to_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors read it from the file or their own environment."""
    monkeypatch.setenv("NSQ_GATEWAY_AUTH_SECRET", "open sesame")

    assert b"sesame" not in pickle.dumps(batch_writer(AT, TEXTS, overwrite=False))


def test_the_sums_leave_out_a_task_that_failed() -> None:
    messages = [Published(1, 10, 1, 0), None, Published(2, 20, 0, 3)]

    assert Published(3, 30, 1, 3) == sum_published(messages)


# In a task


async def test_every_row_is_published_with_its_ok(broker: KillableBroker) -> None:
    """Thousands of rows, binary or text, in order; the task's commit message has their number."""
    rows = numbered(5_000)
    told = await write(to(broker), rows)
    texts = [record_batch(body=["x" * 100] * 1_000)]
    again = await write(to(broker, topic="texts", batchBytes="2000"), texts)

    assert Published(5_000, sum(len(str(number)) for number in range(5_000))) == told
    assert [b"%d" % number for number in range(5_000)] == await messages_of(
        broker.tcp_address, "t", 5_000
    )
    assert Published(1_000, 100_000) == again
    assert [b"x" * 100] * 1_000 == await messages_of(broker.tcp_address, "texts", 1_000)


async def test_each_row_goes_to_the_topic_of_its_column(broker: KillableBroker) -> None:
    rows = record_batch(topic=["a", "b"] * 50, body=[b"%d" % number for number in range(100)])
    await write({"nsqdTcpAddress": broker.tcp_address}, [rows])

    for start, topic in enumerate(["a", "b"]):
        expected = [b"%d" % number for number in range(start, 100, 2)]
        assert expected == await messages_of(broker.tcp_address, topic, 50)


async def test_a_row_is_delivered_later_by_its_column(broker: KillableBroker) -> None:
    """Rows without a delay are published first, wherever they are in the batch."""
    rows = record_batch(body=[b"later", b"now", b"at once"], defer_ms=[60_000, 0, None])
    told = await write(to(broker), [rows])
    found = await messages_of(broker.tcp_address, "t", 2)

    async def deferred() -> int:
        async with httpx.AsyncClient(trust_env=False) as http:
            url = f"http://{broker.http_address}/stats?format=json&topic=t"
            [topic] = (await http.get(url)).json()["topics"]
        [channel] = topic["channels"]
        count: int = channel["deferred_count"]
        return count

    assert (3, [b"now", b"at once"]) == (told.rows, found)
    assert 1 == await poll_until(deferred, 1)


async def test_a_bad_row_ends_the_task_before_anything_behind_it(broker: KillableBroker) -> None:
    """The error has its key, the reason and the limit."""
    rows = [
        record_batch(key=["one", "two"], body=[b"1", b"2"]),
        record_batch(key=["three", "four"], body=[b"3", bytes(1_048_577)]),
        record_batch(key=["five", "six"], body=[b"5", b"6"]),
    ]
    with pytest.raises(
        RowRefused, match=r"row four .*1048577 bytes, nsqd accepts at most 1048576 bytes"
    ):
        await write(to(broker), rows)
    await write(to(broker), [record_batch(body=[b"the next task"])])

    assert [b"1", b"2", b"the next task"] == await messages_of(broker.tcp_address, "t", 3)


async def test_bad_rows_go_to_the_dead_letter_topic(broker: KillableBroker) -> None:
    """All other rows are published; the task reports the number of bad ones."""
    rows = [
        record_batch(id=[1, 2, 3], body=[b"good", None, b""]),
        record_batch(id=[4, 5], body=[bytes(1_048_577), b"good too"]),
    ]
    told = await write(to(broker, badRows="dead-letter", deadLetterTopic="dead"), rows)
    letters = await messages_of(broker.tcp_address, "dead", 3)

    assert Published(2, 12, 3) == told
    assert [b"good", b"good too"] == await messages_of(broker.tcp_address, "t", 2)
    assert [("2", "null body"), ("3", "empty body"), ("4", "body too big")] == [
        (letter["key"], letter["reason"]) for letter in map(json.loads, letters)
    ]


@pytest.mark.nsqd
async def test_nothing_is_lost_with_an_nsqd_that_is_killed() -> None:
    """Its unanswered batches are published to another nsqd, perhaps as duplicates."""
    flags = ("--mem-queue-size=0", "--sync-every=1")
    async with (
        spark_worker(),
        restartable_nsqd(*flags) as first,
        restartable_nsqd(*flags) as second,
    ):
        loop = asyncio.get_running_loop()
        rows = numbered(1_200, size=100)

        def all_of_them() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(rows):
                if number == len(rows) // 2:
                    asyncio.run_coroutine_threadsafe(first.kill(), loop).result()
                yield batch

        where = f"{first.tcp_address},{second.tcp_address}"
        options = {"nsqdTcpAddress": where, "topic": "t", "batchRows": "20"}
        told = await write_from(options, rows[0], all_of_them())
        await first.settle()
        await first.start()
        found = await stored_messages(first.nsqd, second.nsqd)

    assert 1_200 == told.rows
    assert {b"%d" % number for number in range(1_200)} == found.keys()
    assert found.total() - 1_200 <= told.repeated_rows <= 80


@pytest.mark.nsqd
async def test_an_nsqd_is_found_by_nsqlookupd() -> None:
    async with spark_worker(), real_nsqlookupd() as lookupd:
        options = {"lookupdHttpAddress": lookupd.http_address, "topic": "t"}
        writing = asyncio.ensure_future(write(options, numbered(10)))
        async with real_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}"):
            told = await writing

    assert 10 == told.rows


@pytest.mark.nsqd
@pytest.mark.parametrize("column", ["binary", "string"])
async def test_a_lower_limit_of_nsqd_is_learned_from_its_refusal(column: str) -> None:
    """The refused row is reported, and all other rows of its command are published."""
    bodies = ["x" * 100] * 500 + ["y" * 2_001] + ["z" * 100] * 500
    body = pa.array(bodies, pa.string()).cast(getattr(pa, column)())
    rows = [record_batch(id=range(1_001), body=body)]
    async with spark_worker(), real_nsqd("--max-msg-size=2000", "--max-body-size=50000") as nsqd:
        options = {"nsqdTcpAddress": nsqd.tcp_address, "topic": "t"}
        with pytest.raises(
            RowRefused, match=r"row 500 .*2001 bytes, nsqd accepts at most 2000 bytes"
        ):
            await write(options, rows)
        letters = {"topic": "u", "badRows": "dead-letter", "deadLetterTopic": "dead"}
        told = await write(options | letters, rows)
        found = Counter(await messages_of(nsqd.tcp_address, "u", 1_000))

    assert (1_000, 1) == (told.rows, told.bad_rows)
    assert {b"x" * 100: 500, b"z" * 100: 500} == found


@pytest.mark.nsqd
async def test_a_lower_maximum_delay_is_learned_too() -> None:
    """nsqd's refusal of a DPUB states the maximum delay."""
    rows = [record_batch(id=[1, 2], body=[b"a", b"b"], defer_ms=[900, 2_001])]
    async with spark_worker(), real_nsqd("--max-req-timeout=2s") as nsqd:
        with pytest.raises(RowRefused, match=r"row 2 .*delay is 2001 ms, nsqd accepts 0 to 2000"):
            await write({"nsqdTcpAddress": nsqd.tcp_address, "topic": "t"}, rows)


async def test_without_any_nsqd_a_task_ends_in_time() -> None:
    """The error has the address, the topic and the progress."""
    options = {"nsqdTcpAddress": "127.0.0.1:1", "topic": "t", "answerTimeoutMs": "300"}
    told = (
        r"no nsqd could take 2 rows for topic t within 300 ms \(nsqd at 127\.0\.0\.1:1: Connection "
        r"refused\); they are not published; partition 0: 0 rows were answered OK, 2 were sent"
    )
    async with spark_worker():
        with pytest.raises(NoBroker, match=told):
            await write(options, numbered(2))
