"""What becomes of batches at an nsqd that does what a test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path

import pytest

from gateway.errors import AuthRequired, BrokerRefused, OutcomeUnknown, SettingsError
from gateway.pipeline.outlet import Outlet, discard, outlet_of
from gateway.pipeline.publishing import Published
from gateway.pipeline.sink import read_sink_settings
from gateway.protocol.commands import Auth, Command, DeferredPublish, MultiPublish, Nop
from gateway.protocol.frames import OK, Response
from gateway.protocol.identify import Answer
from tests.support.scripted_broker import (
    Peer,
    Rule,
    ScriptedBroker,
    close,
    refuse,
    say,
    silence,
)
from tests.support.sinking import a_worker, numbered, record_batch, write


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """Return a broker that answers OK so far."""
    scripted = ScriptedBroker()
    await scripted.start()
    async with a_worker():
        try:
            yield scripted
        finally:
            await scripted.stop()


def to(broker: ScriptedBroker, **options: str) -> dict[str, str]:
    """Return *options* for topic t at *broker*, ten rows a batch."""
    return {"nsqdTcpAddress": broker.address, "topic": "t", "batchRows": "10"} | options


def in_turn(first: Rule, then: Rule) -> Rule:
    """Return the rule that does *first* once, and *then* from there on."""
    rules = chain([first], repeat(then))

    def rule(peer: Peer, command: Command) -> None:
        next(rules)(peer, command)

    return rule


def bodies_of(commands: Sequence[MultiPublish]) -> list[int]:
    """Return the numbers that were published, in order."""
    return [int(body) for command in commands for body in command.bodies]


async def test_a_task_ends_with_the_last_ok_and_has_four_batches_without_one(
    broker: ScriptedBroker,
) -> None:
    """An OK that is withheld holds the task, and what is behind the fourth batch."""
    broker.on(MultiPublish, silence)
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
    """Twice rather than never; the task tells how many rows that may be."""
    broker.on(MultiPublish, in_turn(close, say(OK)))
    told = await write(to(broker, maxUnanswered="1"), numbered(30))

    assert [*range(10), *range(30)] == bodies_of(broker.all(MultiPublish))
    assert Published(30, 50, 0, 10) == told


async def test_an_nsqd_that_is_exiting_leaves_a_batch_to_another(broker: ScriptedBroker) -> None:
    """It says so, and a part may be there."""
    broker.on(MultiPublish, refuse("E_MPUB_FAILED", "MPUB failed exiting"))
    other = ScriptedBroker()
    await other.start()
    where = f"{broker.address},{other.address}"
    told = await write(to(broker, nsqdTcpAddress=where), numbered(30))
    await other.stop()

    assert set(range(30)) == set(bodies_of(other.all(MultiPublish)))
    assert 30 == told.rows


async def test_an_nsqd_that_falls_silent_leaves_its_batches_to_another(
    broker: ScriptedBroker,
) -> None:
    """Before the time for an answer is over, for each try has a part of it."""
    broker.on(MultiPublish, silence)
    other = ScriptedBroker()
    await other.start()
    where = f"{broker.address},{other.address}"
    told = await write(to(broker, nsqdTcpAddress=where, answerTimeoutMs="6000"), numbered(60))
    await other.stop()

    assert set(range(60)) == set(bodies_of(other.all(MultiPublish)))
    assert (60, len(bodies_of(broker.all(MultiPublish)))) == (told.rows, told.repeated_rows)


async def test_batches_are_spread_over_nsqds(broker: ScriptedBroker) -> None:
    """Evenly, where each answers."""
    other = ScriptedBroker()
    await other.start()
    where = f"{broker.address},{other.address}"
    await write(to(broker, nsqdTcpAddress=where, maxUnanswered="2"), numbered(400))
    await other.stop()

    counts = [len(each.all(MultiPublish)) for each in (broker, other)]
    assert 40 == sum(counts)
    assert min(counts) >= 10


async def test_an_nsqd_that_never_answers_ends_a_task_in_time(broker: ScriptedBroker) -> None:
    """Each try has a third of the time; the error has nsqd, topic, and how far the task came."""
    broker.on(MultiPublish, in_turn(say(OK), silence))
    told = (
        r"no OK to 10 rows for topic t within 2400 ms \(nsqd at 127.0.0.1:\d+: no answer to a "
        r"publish within .* s\); they may or may not be published; partition 0: 10 rows have "
        r"their OK, 10 were on their way"
    )
    with pytest.raises(OutcomeUnknown, match=told):
        await write(to(broker, answerTimeoutMs="2400", maxUnanswered="1"), numbered(30))

    assert 2 <= len(broker.peers) <= 3


@pytest.mark.parametrize("code", ["E_UNAUTHORIZED", "E_BAD_TOPIC", "E_BAD_MESSAGE"])
async def test_what_no_other_try_would_change_is_not_tried_again(
    broker: ScriptedBroker, code: str
) -> None:
    """The error is nsqd's, with its address and the topic."""
    broker.on(MultiPublish, refuse(code, "for a reason"))
    told = rf"{code} for a reason \(nsqd at {broker.address}, topic t\); partition 0: 0 rows"
    with pytest.raises(BrokerRefused, match=told):
        await write(to(broker, maxUnanswered="1"), numbered(30))

    assert 1 == len(broker.all(MultiPublish))


async def test_an_nsqd_that_asks_for_a_secret_is_told_one(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one of the environment where the task runs; without one the task says so."""
    broker.identifies_as(Answer(auth_required=True))
    with pytest.raises(AuthRequired, match="asks for AUTH and there is no secret"):
        await write(to(broker), numbered(10))
    assert [] == broker.all(MultiPublish)

    monkeypatch.setenv("NSQ_GATEWAY_AUTH_SECRET", "sesame")
    broker.on(Auth, say(Response(b'{"identity":"i","permission_count":1}')))
    assert 10 == (await write(to(broker), numbered(10))).rows
    assert [b"sesame"] == [command.secret for command in broker.all(Auth)]


async def test_a_secret_is_read_from_its_file_where_the_task_runs(
    broker: ScriptedBroker, tmp_path: Path
) -> None:
    """Options have the path only; a file that is not there is said there."""
    broker.identifies_as(Answer(auth_required=True))
    broker.on(Auth, say(Response(b'{"identity":"i","permission_count":1}')))
    file = tmp_path / "secret"
    options = to(broker, authSecretFile=str(file))
    with pytest.raises(SettingsError, match="No such file"):
        await write(options, numbered(10))
    file.write_text("sesame\n")
    await write(options, numbered(10))

    assert [b"sesame"] == [command.secret for command in broker.all(Auth)]


async def test_tasks_of_a_worker_share_a_connection(broker: ScriptedBroker) -> None:
    """Heartbeats are answered between them; one that has ended is replaced."""
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
    """All OKs of a batch are awaited, and the batch is one of those that may have none."""
    broker.on(DeferredPublish, silence)
    rows = record_batch(body=[b"%d" % number for number in range(30)], defer_ms=[5] * 30)
    writing = asyncio.ensure_future(write(to(broker, maxUnanswered="1"), [rows]))
    peer = await broker.peer()
    for count in (10, 20, 30):
        for _ in range(10):
            await peer.next(DeferredPublish)
        assert count == len(peer.all(DeferredPublish))
        peer.send(*[OK] * 10)

    assert 30 == (await writing).rows


def outlet(options: Mapping[str, str]) -> Outlet:
    """Return the outlet of this process for *options*."""
    return outlet_of(options, lambda: Outlet(read_sink_settings(options)))


async def test_an_outlet_with_which_something_was_wrong_is_replaced() -> None:
    """So that files and secrets are read anew."""
    options = {"nsqdTcpAddress": "127.0.0.1:1", "topic": "t"}
    async with a_worker():
        first, again = outlet(options), outlet(options)
        other = outlet(options | {"topic": "u"})
        await asyncio.to_thread(discard, first)

        assert first is again
        assert first is not other
        assert first is not outlet(options)


async def test_a_worker_keeps_the_outlets_that_were_used_last() -> None:
    """A new topic for each batch does not leave a thread and its connections behind for ever."""
    options = {"nsqdTcpAddress": "127.0.0.1:1"}
    async with a_worker():
        first, second = outlet(options | {"topic": "a"}), outlet(options | {"topic": "b"})
        for number in range(7):
            await asyncio.to_thread(outlet, options | {"topic": f"c{number}"})
            assert first is outlet(options | {"topic": "a"})

        assert first.is_open
        assert not second.is_open
