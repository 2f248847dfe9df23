"""The reader of a stream, called as Spark calls it, on either broker and without a JVM."""

from __future__ import annotations

import asyncio
import pickle
import sys

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from gateway.errors import NoBroker, SettingsError
from gateway.pipeline.reader import CommitReader
from gateway.pipeline.source import NsqDataSource, read_settings
from tests.support.gateway import become
from tests.support.mortal_broker import MortalBroker, free_port
from tests.support.nsqd import real_nsqd
from tests.support.streams import call, streaming

_WAIT_S = 60.0


async def test_a_batch_is_finished_when_the_next_one_is_asked_for(broker: MortalBroker) -> None:
    """Not before: Spark's log holds it only then. A second look at the batch shows the same."""
    async with streaming(broker) as stream:
        await stream.publish(1)
        end = await stream.latest()
        rows = [await stream.rows(stream.offset, end) for _ in range(2)]
        held = await stream.counts()
        await call(stream.reader.latestOffset, end, ReadMaxRows(10))

        assert ([[b"0"], [b"0"]], (0, 1)) == (rows, held)
        assert (0, 0) == await become(stream.counts, (0, 0))


def test_no_secret_goes_to_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does anything else but what decodes: the reader is a part of each task."""
    monkeypatch.setenv("NSQ_GATEWAY_AUTH_SECRET", "open sesame")
    settings = read_settings({"topic": "t", "nsqdTcpAddress": "a:1"})
    sent = pickle.dumps(CommitReader(settings))

    assert settings.auth_secret is not None
    assert b"sesame" not in sent


async def test_no_batch_is_larger_than_spark_allows(broker: MortalBroker) -> None:
    """What is left comes in the next ones; all of it comes."""
    bodies: list[bytes] = []
    async with streaming(broker) as stream:
        await stream.publish(100)
        while len(bodies) < 100:
            end = await stream.latest(7)
            rows = await stream.rows(stream.offset, end)
            assert 0 < len(rows) <= 7
            bodies += rows
            stream.offset = end
        await call(stream.reader.commit, end)
        assert (0, 0) == await become(stream.counts, (0, 0))

    assert sorted(bodies, key=int) == [b"%d" % number for number in range(100)]


async def test_ranges_of_another_process_hold_nothing(broker: MortalBroker) -> None:
    """Nothing of them was finished, so nsqd sends it again."""
    async with streaming(broker) as stream:
        await stream.publish(1)
        end = await stream.latest()
        foreign = end | {"epoch": "somebody else"}
        await call(stream.reader.commit, foreign)

        assert [] == await call(stream.reader.partitions, stream.offset, foreign)
        assert (0, 1) == await become(stream.counts, (0, 1))


async def test_what_is_not_finished_goes_back_at_the_end(broker: MortalBroker) -> None:
    """At once, in batches or not."""
    async with streaming(broker) as stream:
        await stream.publish(20)
        await stream.latest(5)
        await call(stream.reader.stop)
        assert (20, 0) == await become(stream.counts, (20, 0))


SIGNALLED_WHILE_IT_STOPS = """
import os, signal, sys
from pyspark.sql.streaming.datasource import ReadMaxRows
from gateway.pipeline.source import NsqDataSource

reader = NsqDataSource({"topic": "t", "nsqdTcpAddress": sys.argv[1]}).streamReader(None)
offset = reader.initialOffset()
while reader.latestOffset(offset, ReadMaxRows(5)) == offset:
    pass
ingest = reader._ingest
call = ingest.call

def call_and_signal(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return call(*arguments)

ingest.call = call_and_signal
reader.stop()
"""


async def test_a_signal_does_not_cut_the_end_short(broker: MortalBroker) -> None:
    """Spark's program stops the reader when the driver is gone, and is signalled meanwhile."""
    program = (sys.executable, "-c", SIGNALLED_WHILE_IT_STOPS)
    async with streaming(broker) as stream:
        await stream.publish(20)
        process = await asyncio.create_subprocess_exec(*program, broker.tcp_address)
        async with asyncio.timeout(_WAIT_S):
            code = await process.wait()

        assert 0 == code
        assert (20, 0) == await become(stream.counts, (20, 0))


@pytest.mark.nsqd
async def test_no_message_waits_for_its_batch_until_nsqd_takes_it_back() -> None:
    """However long batchS is: what has waited for half of nsqd's longest time makes a batch."""
    options = {"batchS": "3600", "msgTimeoutMs": "3000"}
    async with real_nsqd("--max-msg-timeout=6s") as nsqd, streaming(nsqd, **options) as stream:
        await stream.publish(1)
        await stream.next_rows()
        await stream.publish([1])
        rows = await stream.full_rows(stream.offset, await stream.latest())

    assert [(b"1", 1)] == [(row["body"], row["attempts"]) for row in rows]


async def test_what_takes_longer_than_the_timeout_is_touched(broker: MortalBroker) -> None:
    """So nobody else is given it: it comes once."""
    async with streaming(broker, msgTimeoutMs="1000", pollMs="2500") as stream:
        await stream.publish(3)
        held = 0
        while held < 3:
            end = await stream.latest()
            held = len(await stream.rows(stream.offset, end))
        # Spark asks, and nothing more has come for two and a half timeouts.
        again = await call(stream.reader.latestOffset, stream.offset, ReadMaxRows(10))

        assert (stream.offset, (0, 3)) == (again, await stream.counts())
        assert 0 == (await stream.channel())["timeout_count"]


async def test_nobody_at_the_address_is_told() -> None:
    """With the address, and what was tried."""
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
        ({"topic": "t, u", "nsqdTcpAddress": "a:1", "maxInFlight": "1"}, "maxInFlight: 1 .* 2"),
        ({"topic": "t", "nsqdTcpAddress": "a:1", "ackMode": "seal"}, "commit, spool"),
        ({"topic": "t", "nsqdTcpAddress": "a:1", "chanel": "x"}, "chanel"),
        ({"topic": "t", "nsqdTcpAddress": "a:1", "authSecret": "x"}, "authSecretFile"),
        ({"topic": "t", "nsqdTcpAddress": "a:1", "pollMs": "0"}, r"pollMs \(option\) .* 60 000 ms"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options: dict[str, str], said: str) -> None:
    """With what is allowed."""
    with pytest.raises(SettingsError, match=said):
        read_settings(options)


def test_the_format_has_a_name_and_columns() -> None:
    """Spark asks for both before anything is read."""
    options = {"topic": "t", "nsqdTcpAddress": "a:1"}
    source = NsqDataSource(options)

    assert ("nsq", True) == (source.name(), "body binary" in source.schema())
