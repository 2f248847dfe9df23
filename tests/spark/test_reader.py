"""The stream reader in mode commit, called as by Spark, with both brokers and no JVM."""

from __future__ import annotations

import asyncio
import pickle
import sys
from contextlib import suppress

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gateway.errors import NoBroker, SettingsError
from gateway.pipeline.datasource import NsqDataSource, read_settings
from gateway.pipeline.reader import CommitReader, RefusedReader
from tests.support.brokers.killable_broker import KillableBroker, free_port
from tests.support.brokers.nsqd import real_nsqd
from tests.support.gateways.gateway import poll_until
from tests.support.spark.stream_reader import call, open_stream

_WAIT_S = 60.0
NAMES = ("topic", "nsqd", "id", "ts", "attempts", "received", "body")


async def test_a_batch_is_finished_when_the_next_one_is_asked_for(broker: KillableBroker) -> None:
    """Not earlier: only then Spark's log has it. Reading the batch again gives the same rows."""
    async with open_stream(broker) as stream:
        await stream.publish(1)
        end = await stream.latest()
        rows = [await stream.rows(stream.offset, end) for _ in range(2)]
        held = await stream.counts()
        await call(stream.reader.latestOffset, end, ReadMaxRows(10))

        assert ([[b"0"], [b"0"]], (0, 1)) == (rows, held)
        assert (0, 0) == await poll_until(stream.counts, (0, 0))


def test_no_secret_goes_to_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task contains the pickled reader, which has nothing but the decoder."""
    monkeypatch.setenv("NSQ_GATEWAY_AUTH_SECRET", "open sesame")
    settings = read_settings({"topic": "t", "nsqdTcpAddress": "a:1"})
    sent = pickle.dumps(CommitReader(settings))

    assert settings.auth_secret is not None
    assert b"sesame" not in sent


async def test_no_batch_is_larger_than_spark_allows(broker: KillableBroker) -> None:
    """The rest is in the next batches; no message is missing."""
    bodies: list[bytes] = []
    async with open_stream(broker) as stream:
        await stream.publish(100)
        while len(bodies) < 100:
            end = await stream.latest(7)
            rows = await stream.rows(stream.offset, end)
            assert 0 < len(rows) <= 7
            bodies += rows
            stream.offset = end
        await call(stream.reader.commit, end)
        assert (0, 0) == await poll_until(stream.counts, (0, 0))

    assert sorted(bodies, key=int) == [b"%d" % number for number in range(100)]


async def test_ranges_of_another_process_hold_nothing(broker: KillableBroker) -> None:
    """None of their messages was finished, so nsqd delivers them again."""
    async with open_stream(broker) as stream:
        await stream.publish(1)
        end = await stream.latest()
        foreign = end | {"epoch": "somebody else"}
        await call(stream.reader.commit, foreign)

        assert [] == await call(stream.reader.partitions, stream.offset, foreign)
        assert (0, 1) == await poll_until(stream.counts, (0, 1))


async def test_unfinished_messages_are_requeued_at_the_end(broker: KillableBroker) -> None:
    """At once, whether they are in batches or not."""
    async with open_stream(broker) as stream:
        await stream.publish(20)
        await stream.latest(5)
        await call(stream.reader.stop)
        assert (20, 0) == await poll_until(stream.counts, (20, 0))


SIGNALLED_WHILE_IT_STOPS = """
import os, signal, sys
from pyspark.sql.streaming.datasource import ReadMaxRows
from gateway.pipeline.datasource import NsqDataSource

reader = NsqDataSource({"topic": "t", "nsqdTcpAddress": sys.argv[1]}).streamReader(None)
offset = reader.initialOffset()
while reader.latestOffset(offset, ReadMaxRows(5)) == offset:
    pass
consumer = reader._consumer
call = consumer.call

def call_and_signal(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return call(*arguments)

consumer.call = call_and_signal
reader.stop()
"""


async def test_a_signal_does_not_cut_the_end_short(broker: KillableBroker) -> None:
    """Spark's worker calls `stop` when the driver is gone, and gets SIGTERM while it runs."""
    program = (sys.executable, "-c", SIGNALLED_WHILE_IT_STOPS)
    async with open_stream(broker) as stream:
        await stream.publish(20)
        process = await asyncio.create_subprocess_exec(*program, broker.tcp_address)
        async with asyncio.timeout(_WAIT_S):
            code = await process.wait()

        assert 0 == code
        assert (20, 0) == await poll_until(stream.counts, (20, 0))


@pytest.mark.nsqd
async def test_no_message_waits_for_its_batch_until_nsqd_takes_it_back() -> None:
    """After half of nsqd's maximum timeout a batch is cut, however long batchS is."""
    options = {"batchS": "3600", "msgTimeoutMs": "3000"}
    async with real_nsqd("--max-msg-timeout=6s") as nsqd, open_stream(nsqd, **options) as stream:
        await stream.publish(1)
        await stream.next_rows()
        await stream.publish([1])
        rows = await stream.full_rows(stream.offset, await stream.latest())

    assert [(b"1", 1)] == [(row["body"], row["attempts"]) for row in rows]


async def test_messages_of_a_long_batch_are_touched(broker: KillableBroker) -> None:
    """So nsqd does not redeliver them: each arrives once."""
    async with open_stream(broker, msgTimeoutMs="1000", pollMs="2500") as stream:
        await stream.publish(3)
        held = 0
        while held < 3:
            end = await stream.latest()
            held = len(await stream.rows(stream.offset, end))
        # Spark asks, and nothing more has come for two and a half timeouts.
        again = await call(stream.reader.latestOffset, stream.offset, ReadMaxRows(10))

        assert (stream.offset, (0, 3)) == (again, await stream.counts())
        assert 0 == (await stream.channel())["timeout_count"]


async def test_an_address_without_a_server_is_reported() -> None:
    port = free_port()
    reader = CommitReader(read_settings({"topic": "t", "nsqdTcpAddress": f"127.0.0.1:{port}"}))
    with pytest.raises(NoBroker, match=str(port)):
        await call(reader.latestOffset, reader.initialOffset(), ReadMaxRows(1))
    await call(reader.stop)


@pytest.mark.parametrize(
    "options,said",
    [
        ({"nsqdTcpAddress": "a:1"}, "topic"),
        ({"topic": "t"}, "nsqdTcpAddress"),
        ({"topic": "a b", "nsqdTcpAddress": "a:1"}, "a b"),
        ({"topic": "t", "nsqdTcpAddress": "a:1", "channel": "x#ephemeral"}, "ephemeral"),
        ({"topic": "t", "nsqdTcpAddress": "a:1", "ackMode": "spool"}, "spoolDir"),
        (
            {"topic": "t", "nsqdTcpAddress": "a:1", "spoolDir": "/x"},
            "^spoolDir: only used with ackMode=spool",
        ),
        ({"topic": "t, u", "nsqdTcpAddress": "a:1", "maxInFlight": "1"}, "maxInFlight: 1 .* 2"),
        ({"topic": "t", "nsqdTcpAddress": "a:1", "ackMode": "seal"}, "commit, spool"),
        ({"topic": "t", "nsqdTcpAddress": "a:1", "chanel": "x"}, "chanel"),
        ({"topic": "t", "nsqdTcpAddress": "a:1", "authSecret": "x"}, "authSecretFile"),
        ({"topic": "t", "nsqdTcpAddress": "a:1", "pollMs": "0"}, r"pollMs \(option\) .* 60 000 ms"),
        (
            {"topic": "t", "nsqdTcpAddress": "a:1", "lookupdHttpAddress": "b:1"},
            "^lookupdHttpAddress: it cannot be combined with nsqdTcpAddress",
        ),
        (
            {"topic": "t", "nsqdTcpAddress": "a:1", "nsqdTlsCert": "c"},
            "^nsqdTlsCert: it has no effect without nsqdTlsV1$",
        ),
        ({"topic": "t", "nsqdTcpAddress": "a:1", "authsecret": "x"}, "^authSecret: "),
        (
            {"topic": "t", "nsqdTcpAddress": "a:1", "maxrowperbatch": "9"},
            r"did you mean maxRowsPerBatch\?",
        ),
        ({"topic": "t", "nsqd-tcp-address": "a:1"}, r"did you mean nsqdTcpAddress\?"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options: dict[str, str], said: str) -> None:
    """The error has the allowed values."""
    with pytest.raises(SettingsError, match=said):
        read_settings(options)


@pytest.mark.parametrize(
    "option,said",
    [
        ("maxOffsetsPerTrigger", "maxRowsPerBatch"),
        ("startingOffsets", "a channel holds every message"),
        ("subscribe", "topic"),
        ("subscribePattern", "topic"),
        ("kafka.bootstrap.servers", "nsqdTcpAddress instead, or lookupdHttpAddress"),
        ("kafka.group.id", "channel"),
        ("kafka.sasl.jaas.config", "authSecretFile"),
        ("kafka.fetch.min.bytes", "omit it"),
        ("path", "topic"),
    ],
)
def test_an_option_of_kafka_is_refused_with_its_replacement(option: str, said: str) -> None:
    """Spark may change the case of the name; the error has Kafka's spelling."""
    options = {"topic": "t", "nsqdTcpAddress": "a:1", option.lower(): "x"}
    with pytest.raises(SettingsError, match=f"^{option}: .*{said}"):
        read_settings(options)


def test_every_option_that_is_named_as_one_may_be_given() -> None:
    """Each option that an error lists as known is accepted."""
    options = {"topic": "t", "nsqdTcpAddress": "a:1"}
    with pytest.raises(SettingsError) as refused:
        read_settings(options | {"xyzzy": "1"})
    listed = str(refused.value).rpartition("known options: ")[2].split(", ")

    assert {"topic", "maxRowsPerBatch", "authSecretFile"} <= set(listed)
    for option in listed:
        with suppress(SettingsError):  # of its value, or of what stands beside it
            read_settings(options | {option: "1"})
            continue
        with pytest.raises(SettingsError) as refused:
            read_settings(options | {option: "1"})
        assert "no such option" not in str(refused.value)
        assert "options appear in plans" not in str(refused.value)


def test_an_unusable_file_is_refused_before_a_query_starts() -> None:
    """At load(), with the name of its option."""
    options = {"topic": "t", "nsqdTcpAddress": "a:1", "authSecretFile": "/there/is/none"}

    with pytest.raises(SettingsError, match=r"^authSecretFile") as refused:
        NsqDataSource(options).schema()

    assert "--" not in str(refused.value)


def test_options_that_cannot_be_meant_are_refused_before_a_query_is_started() -> None:
    """Also with a user's schema, for which load() does not call `schema`."""
    source = NsqDataSource({"topic": "t"})
    reader = source.streamReader(StructType())
    refusal = "nsqdTcpAddress: the address of nsqd is required"

    with pytest.raises(SettingsError, match=refusal):
        source.schema()
    with pytest.raises(SettingsError, match=refusal):
        reader.initialOffset()
    with pytest.raises(SettingsError, match=refusal):
        reader.latestOffset({}, ReadMaxRows(1))
    reader.stop()


def test_other_columns_than_the_formats_own_are_refused() -> None:
    """Otherwise a Spark worker would fail with a long traceback at the first message."""
    text, time = StringType(), TimestampType()
    kinds: list[DataType] = [text, text, text, time, IntegerType(), time, BinaryType()]
    own = StructType([StructField(*column) for column in zip(NAMES, kinds, strict=True)])
    source = NsqDataSource({"topic": "t", "nsqdTcpAddress": "a:1"})
    reader = source.streamReader(StructType([StructField("a", IntegerType())]))
    refusal = r"^schema\(struct<a:int>\): rows of the format nsq have the columns topic string"

    with pytest.raises(SettingsError, match=refusal):
        reader.initialOffset()
    assert not isinstance(source.streamReader(own), RefusedReader)


def test_the_format_has_a_name_and_columns() -> None:
    """Spark requests both before it reads."""
    options = {"topic": "t", "nsqdTcpAddress": "a:1"}
    source = NsqDataSource(options)

    assert ("nsq", True) == (source.name(), "body binary" in source.schema())
