"""Viewers, messages that are put off, and a channel that is named late, paused or deleted."""

from __future__ import annotations

import pytest

from gateway.protocol.wire import Limits
from gateway.session.session import Session
from gateway.session.types import (
    CloseReason,
    CloseSocket,
    DelayedRequeue,
    RequeueCause,
    RequeueDeliveries,
    SessionOptions,
    SetReady,
)
from tests.support.websocket.session_messages import (
    ANSWER,
    Json,
    command,
    delivery_ids,
    message,
    message_id,
    messages,
    read,
    subscribed,
)

A, B, C = message_id(0xA), message_id(0xB), message_id(0xC)


def state(name: str, nsqds: int = 1, lost_ids: list[str] | None = None) -> Json:
    data = {"state": name, "nsqds": nsqds, "lost_ids": lost_ids or []}
    return {"type": "response", "cmd": "NOP", "ref": None, "data": data}


# Viewers


def test_a_viewer_asks_nsq_for_nothing() -> None:
    """The consumer that it shares has its own window and its own ends."""
    session = Session(SessionOptions(topic="t", channel="c", is_viewer=True), now=0.0)

    actions = [
        session.on_source_opened(1, ANSWER),
        session.on_source_opened(2, ANSWER),
        session.on_source_lost(2, 1.0),
        session.wake(2.0),
        session.drain(CloseReason.DRAINED, close_at=20.0, reconnect_after_ms=1),
        session.close(3.0),
    ]

    assert [[]] * 6 == actions


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH", "RDY"])
def test_a_viewer_has_nothing_to_answer(verb: str) -> None:
    """What is for deliveries is E_INVALID, and says why."""
    session = subscribed(is_viewer=True)

    actions = session.receive(command(verb, id="x", count=1, ref=7), 0.0)

    (error,) = read(session, 0.0)
    assert [] == actions
    assert (verb, 7, "E_INVALID") == (error["cmd"], error["ref"], error["code"])
    assert f"so {verb} is not allowed" in error["message"]


def test_a_viewer_may_ask_and_leave() -> None:
    """NOP and CLS are as everywhere; nothing is in flight, so CLS ends it at once."""
    session = subscribed(is_viewer=True)

    actions = session.receive(command("NOP", ref=1) + "\n" + command("CLS", ref=2), 0.0)

    assert [CloseSocket(CloseReason.DONE)] == actions
    assert [1, 2] == [each["ref"] for each in read(session, 0.0)]


def test_a_viewer_that_does_not_read_its_answers_is_slow() -> None:
    """The sources are not its own to pause; it ends like others."""
    session = subscribed(is_viewer=True, buffer_bytes=1_000, slow_consumer_s=30.0)

    actions = session.receive("\n".join([command("NOP", ref=1)] * 10), 0.0)

    assert ([], False, 30.0) == (actions, session.wants_commands, session.next_wake())
    assert [CloseSocket(CloseReason.SLOW)] == session.wake(30.0)


def test_a_channel_may_be_named_late() -> None:
    """A viewer's is known when it has joined: the subscription and every frame name it."""
    session = Session(SessionOptions(topic="t", channel=""), now=0.0)

    session.channel = "gw.x#ephemeral"
    session.on_source_opened(1, ANSWER)
    session.on_messages(1, messages(0xA), 0.0)

    answer, delivery = read(session, 0.0)
    names = (answer["data"]["channel"], delivery["channel"], session.channel)
    assert ("gw.x#ephemeral",) * 3 == names


# Too many attempts


def test_above_max_attempts_a_message_is_put_off() -> None:
    """It goes back, later with each attempt, and is neither shown nor finished."""
    session = subscribed(max_attempts=2)
    arrived = [message(0xA, attempts=2), message(0xB, attempts=3), message(0xC, attempts=5)]

    actions = session.on_messages(1, arrived, 0.0)

    assert [DelayedRequeue(1, [B], 90_000), DelayedRequeue(1, [C], 270_000)] == actions
    assert [f"{A.decode()}-1"] == delivery_ids(read(session, 0.0))


def test_messages_with_as_many_attempts_go_back_together() -> None:
    session = subscribed(max_attempts=1)

    actions = session.on_messages(1, [message(0xA, attempts=3), message(0xB, attempts=3)], 0.0)

    assert [DelayedRequeue(1, [A, B], 180_000)] == actions
    assert not session.has_frame


def test_a_message_is_put_off_no_longer_than_nsqd_allows() -> None:
    session = subscribed(max_attempts=1, limits=Limits(max_req_timeout_ms=100_000))

    actions = session.on_messages(1, [message(0xA, attempts=65_535)], 0.0)

    assert [DelayedRequeue(1, [A], 100_000)] == actions


def test_without_max_attempts_every_message_is_shown() -> None:
    """However often it has been delivered."""
    session = subscribed()

    assert [] == session.on_messages(1, [message(0xA, attempts=65_535)], 0.0)
    assert [65_535] == [each["attempts"] for each in read(session, 0.0)]


def test_a_socket_that_closes_puts_nothing_off() -> None:
    """Somebody else may take it at once."""
    session = subscribed(max_attempts=1)
    session.drain(CloseReason.DRAINED, close_at=9.0, reconnect_after_ms=1)

    assert [RequeueDeliveries(1, [A], 0, RequeueCause.DRAIN)] == session.on_messages(
        1, [message(0xA, attempts=9)], 0.0
    )


# A channel that is paused, or gone


def test_a_paused_channel_is_told() -> None:
    """Both changes, once each; nothing else changes."""
    session = subscribed(sources=2)

    actions = [session.on_paused(is_paused) for is_paused in (True, True, False, False)]

    assert [[]] * 4 == actions
    assert [state("channel_paused", 2), state("connected", 2)] == read(session, 0.0)


def test_a_paused_channel_stays_so_over_changes_of_sources() -> None:
    """While one is there; with none there is nothing that could be paused."""
    session = subscribed()
    session.on_paused(True)
    session.on_source_opened(2, ANSWER)
    session.on_source_lost(2, 0.0)
    session.on_source_lost(1, 0.0)
    session.on_source_opened(3, ANSWER)

    assert [
        state("channel_paused", 1),
        state("channel_paused", 2),
        state("channel_paused", 1),
        state("disconnected", 0),
        state("channel_paused", 1),
    ] == read(session, 0.0)


def test_a_channel_that_was_paused_before_is_told_after_the_subscription() -> None:
    """The subscription is the first frame in any case."""
    session = Session(SessionOptions(topic="t", channel="c"), now=0.0)
    session.on_paused(True)

    session.on_source_opened(1, ANSWER)

    assert ["SUB", "NOP"] == [each["cmd"] for each in read(session, 0.0)]


def test_a_channel_that_is_gone_ends_the_socket() -> None:
    """Not asked for by a command, with a word on what to do; once."""
    session = subscribed()

    actions = [session.on_channel_gone(), session.on_channel_gone()]

    (error,) = read(session, 0.0)
    assert [[CloseSocket(CloseReason.CHANNEL_GONE)], []] == actions
    told = (error["type"], error["cmd"], error["ref"], error["code"], error["retryable"])
    assert ("error", "SUB", None, "CHANNEL_GONE", True) == told
    assert "channel c of topic t was deleted" in error["message"]


def test_what_is_unfinished_goes_back_when_the_channel_is_gone() -> None:
    session = subscribed()
    session.on_messages(1, messages(0xA), 0.0)
    session.on_channel_gone()

    assert [SetReady(0), RequeueDeliveries(1, [A], 0, RequeueCause.DISCONNECT)] == session.close(
        0.0
    )
