"""`SinkProducer` with a scripted nsqd: retries, refusals, silence and shared connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.errors import AuthRequired, BrokerRefused, OutcomeUnknown, SettingsError
from gateway.pipeline.sink import Published, read_sink_settings
from gateway.pipeline.sink_producer import SinkProducer, discard_producer, producer_for
from gateway.protocol.commands import Auth, Command, DeferredPublish, MultiPublish, Nop
from gateway.protocol.frames import OK, Response
from gateway.protocol.identify import IdentifyResponse
from tests.support.brokers.scripted_broker import (
    Peer,
    Rule,
    ScriptedBroker,
    close,
    no_response,
    refuse,
    respond,
)
from tests.support.spark.sink_calls import numbered, record_batch, spark_worker, write


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """Return a scripted broker that answers OK by default."""
    scripted = ScriptedBroker()
    await scripted.start()
    async with spark_worker():
        try:
            yield scripted
        finally:
            await scripted.stop()


def to(broker: ScriptedBroker, **options: str) -> dict[str, str]:
    """Return *options* for topic t at *broker*, ten rows a batch."""
    return {"nsqdTcpAddress": broker.address, "topic": "t", "batchRows": "10"} | options


def in_turn(first: Rule, then: Rule) -> Rule:
    rules = chain([first], repeat(then))

    def rule(peer: Peer, command: Command) -> None:
        next(rules)(peer, command)

    return rule


def bodies_of(commands: Sequence[MultiPublish]) -> list[int]:
    return [int(body) for command in commands for body in command.bodies]


async def test_a_task_ends_with_the_last_ok_and_has_four_batches_without_one(
    broker: ScriptedBroker,
) -> None:
    """A missing OK blocks the task, and batches after the fourth are not sent."""
    broker.on(MultiPublish, no_response)
    writing = asyncio.ensure_future(write(to(broker), numbered(60)))
    peer = await broker.peer()
    for _ in range(4):
        await peer.next(MultiPublish)
    first = bodies_of(peer.all(MultiPublish))
    for _ in range(2):
        peer.send(OK)
        await peer.next(MultiPublish)
    peer.send(OK, OK, OK)
    peer.beat()
    before_the_last = writing.done()
    peer.send(OK)
    told = await writing

    assert list(range(40)) == first
    assert list(range(60)) == bodies_of(peer.all(MultiPublish))
    assert (False, Published(60, 110)) == (before_the_last, told)


async def test_a_batch_whose_ok_is_lost_is_published_again(broker: ScriptedBroker) -> None:
    """Possible duplicates are preferred to loss; the task reports their number."""
    broker.on(MultiPublish, in_turn(close, respond(OK)))
    told = await write(to(broker, maxUnanswered="1"), numbered(30))

    assert [*range(10), *range(30)] == bodies_of(broker.all(MultiPublish))
    assert Published(30, 50, 0, 10) == told


async def test_an_nsqd_that_is_exiting_leaves_a_batch_to_another(broker: ScriptedBroker) -> None:
    """nsqd answers with an error, and part of the batch may be published."""
    broker.on(MultiPublish, refuse("E_MPUB_FAILED", "MPUB failed exiting"))
    other = ScriptedBroker()
    await other.start()
    where = f"{broker.address},{other.address}"
    with capture_logs() as lines:
        told = await write(to(broker, nsqdTcpAddress=where), numbered(30))
    await other.stop()

    assert set(range(30)) == set(bodies_of(other.all(MultiPublish)))
    assert 30 == told.rows
    assert {
        "event": "republishing batch",
        "log_level": "warning",
        "nsqd": other.address,
        "topic": "t",
        "rows": 10,
        "reason": "E_MPUB_FAILED MPUB failed exiting",
    } in lines


async def test_an_nsqd_that_falls_silent_leaves_its_batches_to_another(
    broker: ScriptedBroker,
) -> None:
    """Within the answer timeout, because each attempt has a part of it."""
    broker.on(MultiPublish, no_response)
    other = ScriptedBroker()
    await other.start()
    where = f"{broker.address},{other.address}"
    told = await write(to(broker, nsqdTcpAddress=where, answerTimeoutMs="6000"), numbered(60))
    await other.stop()

    assert set(range(60)) == set(bodies_of(other.all(MultiPublish)))
    assert (60, len(bodies_of(broker.all(MultiPublish)))) == (told.rows, told.repeated_rows)


async def test_batches_are_spread_over_nsqds(broker: ScriptedBroker) -> None:
    other = ScriptedBroker()
    await other.start()
    where = f"{broker.address},{other.address}"
    await write(to(broker, nsqdTcpAddress=where, maxUnanswered="2"), numbered(400))
    await other.stop()

    counts = [len(each.all(MultiPublish)) for each in (broker, other)]
    assert 40 == sum(counts)
    assert min(counts) >= 10


async def test_an_nsqd_that_never_answers_ends_a_task_in_time(broker: ScriptedBroker) -> None:
    """Each attempt has a third of the timeout; the error has nsqd, topic and progress."""
    broker.on(MultiPublish, in_turn(respond(OK), no_response))
    told = (
        r"no OK to 10 rows for topic t within 2400 ms \(nsqd at 127.0.0.1:\d+: no answer to a "
        r"publish within .* s\); they may or may not be published; partition 0: 10 rows were "
        r"answered OK, 10 were sent and not answered"
    )
    with pytest.raises(OutcomeUnknown, match=told):
        await write(to(broker, answerTimeoutMs="2400", maxUnanswered="1"), numbered(30))

    assert 2 <= len(broker.peers) <= 3


@pytest.mark.parametrize("code", ["E_UNAUTHORIZED", "E_BAD_TOPIC", "E_BAD_MESSAGE"])
async def test_a_permanent_refusal_is_not_retried(broker: ScriptedBroker, code: str) -> None:
    """The error is that of nsqd, with its address and the topic."""
    broker.on(MultiPublish, refuse(code, "for a reason"))
    told = rf"{code} for a reason \(nsqd at {broker.address}, topic t\); partition 0: 0 rows"
    with pytest.raises(BrokerRefused, match=told):
        await write(to(broker, maxUnanswered="1"), numbered(30))

    assert 1 == len(broker.all(MultiPublish))


async def test_a_secret_is_sent_to_an_nsqd_that_requires_auth(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret is from the task's environment; without one the task fails with that reason."""
    broker.identifies_as(IdentifyResponse(auth_required=True))
    with pytest.raises(AuthRequired, match="requires AUTH and there is no secret"):
        await write(to(broker), numbered(10))
    assert [] == broker.all(MultiPublish)

    monkeypatch.setenv("NSQ_GATEWAY_AUTH_SECRET", "sesame")
    broker.on(Auth, respond(Response(b'{"identity":"i","permission_count":1}')))
    assert 10 == (await write(to(broker), numbered(10))).rows
    assert [b"sesame"] == [command.secret for command in broker.all(Auth)]


async def test_a_secret_is_read_from_its_file_where_the_task_runs(
    broker: ScriptedBroker, tmp_path: Path
) -> None:
    """Options have the path only; a missing file is an error of the task."""
    broker.identifies_as(IdentifyResponse(auth_required=True))
    broker.on(Auth, respond(Response(b'{"identity":"i","permission_count":1}')))
    file = tmp_path / "secret"
    options = to(broker, authSecretFile=str(file))
    with pytest.raises(SettingsError, match="No such file"):
        await write(options, numbered(10))
    file.write_text("sesame\n")
    await write(options, numbered(10))

    assert [b"sesame"] == [command.secret for command in broker.all(Auth)]


async def test_tasks_of_a_worker_share_a_connection(broker: ScriptedBroker) -> None:
    """Heartbeats are answered between tasks; a closed connection is replaced."""
    await write(to(broker), numbered(20))
    await write(to(broker), numbered(20))
    [peer] = broker.peers
    peer.beat()
    await peer.next(Nop)
    peer.close()
    await peer.gone()
    told = await write(to(broker), numbered(20))

    assert (2, 20, 0) == (len(broker.peers), told.rows, told.repeated_rows)


async def test_deferred_rows_have_a_command_each_and_go_together(broker: ScriptedBroker) -> None:
    """The task awaits all OKs of a batch, which counts as one unanswered batch."""
    broker.on(DeferredPublish, no_response)
    rows = record_batch(body=[b"%d" % number for number in range(30)], defer_ms=[5] * 30)
    writing = asyncio.ensure_future(write(to(broker, maxUnanswered="1"), [rows]))
    peer = await broker.peer()
    for count in (10, 20, 30):
        for _ in range(10):
            await peer.next(DeferredPublish)
        assert count == len(peer.all(DeferredPublish))
        peer.send(*[OK] * 10)

    assert 30 == (await writing).rows


def producer(options: Mapping[str, str]) -> SinkProducer:
    return producer_for(options, lambda: SinkProducer(read_sink_settings(options)))


async def test_a_producer_that_failed_is_replaced() -> None:
    """So that files and secrets are read again."""
    options = {"nsqdTcpAddress": "127.0.0.1:1", "topic": "t"}
    async with spark_worker():
        first, again = producer(options), producer(options)
        other = producer(options | {"topic": "u"})
        await asyncio.to_thread(discard_producer, first)

        assert first is again
        assert first is not other
        assert first is not producer(options)


async def test_a_worker_keeps_the_most_recently_used_producers() -> None:
    """So a new topic for each batch does not leak threads and connections."""
    options = {"nsqdTcpAddress": "127.0.0.1:1"}
    async with spark_worker():
        first, second = producer(options | {"topic": "a"}), producer(options | {"topic": "b"})
        for number in range(7):
            await asyncio.to_thread(producer, options | {"topic": f"c{number}"})
            assert first is producer(options | {"topic": "a"})

        assert first.is_open
        assert not second.is_open
