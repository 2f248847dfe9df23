"""The contract with one subscriber, as dialogues: docs/websocket.md is what is held here."""

from __future__ import annotations

import pytest

from gateway.protocol.frames import ErrorFrame
from gateway.protocol.identify import IdentifyResponse
from gateway.session.command_runner import MAX_ERRORS
from gateway.session.session import Session
from gateway.session.types import (
    Action,
    CloseReason,
    CloseSocket,
    FinishDeliveries,
    RequeueCause,
    RequeueDeliveries,
    SessionOptions,
    SetReady,
    TouchDeliveries,
)
from gateway.session.window import MARGIN_S, REFUSAL_S
from tests.support.websocket.session_messages import (
    ANSWER,
    Json,
    command,
    delivery_ids,
    holding,
    lines,
    message,
    message_id,
    messages,
    read,
    subscribed,
)

A, B, C = message_id(0xA), message_id(0xB), message_id(0xC)
TIMEOUT_S = 60.0


def error_of(session: Session, now: float = 0.0) -> Json:
    (error,) = read(session, now)
    assert "error" == error["type"]
    return error


# Subscribing


def test_the_first_source_is_the_answer_to_the_subscription() -> None:
    """The SUB response names what holds, and RDY is the window."""
    session = Session(SessionOptions(topic="t", channel="c", max_in_flight=7), now=0.0)

    actions = session.on_source_opened(1, IdentifyResponse(msg_timeout=30_000))

    assert [SetReady(7)] == actions
    data = {"topic": "t", "channel": "c", "max_in_flight": 7, "msg_timeout_ms": 30_000}
    assert [{"type": "response", "cmd": "SUB", "ref": None, "data": data}] == read(session, 0.0)


def test_another_source_is_a_change_of_state() -> None:
    """The client learns how many nsqd there are; RDY stays, the sources share it."""
    session = subscribed()

    actions = session.on_source_opened(2, ANSWER)

    assert [] == actions
    data = {"state": "connected", "nsqds": 2, "lost_ids": []}
    assert [{"type": "response", "cmd": "NOP", "ref": None, "data": data}] == read(session, 0.0)


def test_a_delivery_is_a_message_frame() -> None:
    """Everything that the contract shows is there, and what is left of the timeout."""
    session = subscribed()

    session.on_messages(1, [message(0xA, b"text", attempts=3)], 10.0)

    assert [
        {
            "type": "message",
            "id": "000000000000000a-1",
            "topic": "t",
            "channel": "c",
            "timestamp_ns": "1790000000000000000",
            "attempts": 3,
            "deadline_ms": 59_000,
            "body": "text",
        }
    ] == read(session, 11.0)
    assert 1 == session.delivered


def test_a_lone_message_waits_for_nothing() -> None:
    """Its frame is there at the moment at which it came; no timer gathers others."""
    session = subscribed()

    session.on_messages(1, messages(0xA), 5.0)

    assert session.has_frame
    assert [60_000] == [each["deadline_ms"] for each in lines(session.next_frame(5.0))]


def test_what_is_there_goes_in_one_frame() -> None:
    """Messages of one read, of several reads and answers share a frame."""
    session = subscribed()
    session.on_messages(1, messages(0xA, 0xB), 0.0)
    session.on_messages(1, messages(0xC), 0.0)
    session.receive(command("NOP", ref=1), 0.0)
    waits = session.has_frame

    frame = session.next_frame(0.0)

    assert ["response", "message", "message", "message"] == [each["type"] for each in lines(frame)]
    assert (True, False, 0) == (waits, session.has_frame, session._outbox.size_bytes)


def test_no_frame_is_made_of_nothing() -> None:
    """Neither at first nor when all that waited has expired."""
    session = subscribed()
    before = session.next_frame(0.0)
    session.on_messages(1, messages(0xA), 0.0)

    assert (None, None) == (before, session.next_frame(TIMEOUT_S))


# FIN, REQ, TOUCH


@pytest.mark.parametrize(
    "verb, members, expected",
    [
        ("FIN", {}, FinishDeliveries(1, [A])),
        ("REQ", {}, RequeueDeliveries(1, [A], 0, RequeueCause.CLIENT)),
        ("REQ", {"timeout_ms": 5_000}, RequeueDeliveries(1, [A], 5_000, RequeueCause.CLIENT)),
        ("REQ", {"timeout_ms": 10**30}, RequeueDeliveries(1, [A], 2**40, RequeueCause.CLIENT)),
        ("TOUCH", {}, TouchDeliveries(1, [A])),
    ],
)
def test_an_answer_goes_to_nsq_and_is_silent(verb: str, members: Json, expected: Action) -> None:
    """On success without a ref there is nothing to say, as in NSQ."""
    session = subscribed()
    (delivery_id,) = holding(session, 0xA)

    actions = session.receive(command(verb, id=delivery_id, **members), 1.0)

    assert [expected] == actions
    assert not session.has_frame


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
@pytest.mark.parametrize("ref", ["r", 7, 1.5, True, 0, ""])
def test_a_ref_has_exactly_one_answer(verb: str, ref: object) -> None:
    """It comes back as it was, with OK for all ids together."""
    session = subscribed()
    ids = holding(session, 0xA, 0xB)

    session.receive(command(verb, ids=ids, ref=ref), 1.0)

    assert [{"type": "response", "cmd": verb, "ref": ref, "data": "OK"}] == read(session, 1.0)


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
def test_an_unknown_id_is_refused_and_the_socket_stays(verb: str) -> None:
    """NSQ's code, the id, and nothing for nsqd."""
    session = subscribed()
    holding(session, 0xA)

    actions = session.receive(command(verb, id="0123456789abcdef-1", ref=7), 1.0)

    error = error_of(session)
    assert [] == actions
    told = (error["cmd"], error["ref"], error["code"], error["id"], error["retryable"])
    assert (verb, 7, f"E_{verb}_FAILED", "0123456789abcdef-1", False) == told


def test_a_second_answer_is_refused() -> None:
    """The first FIN counts; the same id twice in one command is refused once."""
    session = subscribed()
    (delivery_id,) = holding(session, 0xA)

    actions = session.receive(command("FIN", ids=[delivery_id, delivery_id]), 1.0)

    assert [FinishDeliveries(1, [A])] == actions
    assert [delivery_id] == error_of(session)["ids"]


def test_of_several_ids_those_that_can_be_are_answered() -> None:
    """One error lists what was refused; the others hold, and the ref has its one answer."""
    session = subscribed()
    ids = holding(session, 0xA, 0xB)

    actions = session.receive(command("REQ", ids=[ids[0], "x", ids[1], "y"], ref=1), 1.0)

    assert [RequeueDeliveries(1, [A, B], 0, RequeueCause.CLIENT)] == actions
    error = error_of(session)
    assert (1, "E_REQ_FAILED", ["x", "y"]) == (error["ref"], error["code"], error["ids"])


def test_answers_go_to_the_source_that_delivered() -> None:
    session = subscribed(sources=2)
    ids = holding(session, 0xA, source=1) + holding(session, 0xB, source=2)

    actions = session.receive(command("FIN", ids=ids), 1.0)

    assert [FinishDeliveries(1, [A]), FinishDeliveries(2, [B])] == actions


def test_commands_of_a_frame_are_carried_out_in_order() -> None:
    """A row of one verb is one action; another verb begins another."""
    session = subscribed()
    ids = holding(session, 0xA, 0xB, 0xC)
    frame = [command("FIN", id=ids[0]), command("FIN", id=ids[1]), command("TOUCH", id=ids[2])]

    actions = session.receive("\n".join(frame), 1.0)

    assert [FinishDeliveries(1, [A, B]), TouchDeliveries(1, [C])] == actions


def test_an_answer_after_the_deadline_is_refused() -> None:
    """The message is somebody else's by now; the place in the window is free."""
    session = subscribed(max_in_flight=1)
    (delivery_id,) = holding(session, 0xA)
    session.wake(TIMEOUT_S - MARGIN_S)

    actions = session.receive(command("FIN", id=delivery_id), TIMEOUT_S)

    assert [SetReady(1)] == actions
    assert "E_FIN_FAILED" == error_of(session)["code"]


def test_touch_puts_the_deadline_off() -> None:
    """FIN after the first deadline and before the new one counts."""
    session = subscribed()
    (delivery_id,) = holding(session, 0xA)
    session.receive(command("TOUCH", id=delivery_id), 50.0)

    actions = session.receive(command("FIN", id=delivery_id), 100.0)

    assert [FinishDeliveries(1, [A])] == actions


def test_a_redelivery_is_answered_by_its_own_id() -> None:
    """The old id is refused once it is late, whatever happens to the new one."""
    session = subscribed()
    (old,) = holding(session, 0xA)
    (new,) = holding(session, 0xA, now=TIMEOUT_S)

    actions = session.receive(command("FIN", ids=[old, new]), TIMEOUT_S + 1)

    assert old != new
    assert [FinishDeliveries(1, [A])] == actions
    assert [old] == error_of(session, 61.0)["ids"]


def test_what_nsqd_sends_again_a_little_early_is_not_answered_by_the_old_id() -> None:
    """Its clock runs before ours: a FIN of the first delivery would count for the second."""
    session = subscribed()
    (old,) = holding(session, 0xA)
    session.wake(TIMEOUT_S - MARGIN_S)
    (new,) = holding(session, 0xA, now=59.8)

    late = session.receive(command("FIN", id=old), 59.9)
    right = session.receive(command("FIN", id=new), 59.9)

    assert [FinishDeliveries(1, [A])] == [
        each for each in late + right if isinstance(each, FinishDeliveries)
    ]
    assert old == error_of(session, 59.9)["id"]


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
def test_a_late_refusal_names_the_delivery(verb: str) -> None:
    """It has no ref, and the id that the client knows."""
    session = subscribed()
    (delivery_id,) = holding(session, 0xA)
    session.receive(command(verb, id=delivery_id, ref=1), 1.0)
    read(session, 1.0)

    text = f"{verb} {A.decode()} failed ID not in flight"
    session.on_ack_refused(ErrorFrame(f"E_{verb}_FAILED", text))

    error = error_of(session)
    assert (verb, None, f"E_{verb}_FAILED") == (error["cmd"], error["ref"], error["code"])
    assert (delivery_id, f"nsqd: {text}") == (error["id"], error["message"])


def test_a_late_refusal_of_something_unknown_names_what_nsqd_said() -> None:
    """Made-up ids of a client are not remembered, so they match nothing."""
    session = subscribed()
    session.receive(command("FIN", id=f"{A.decode()}-made-up"), 1.0)
    read(session, 1.0)

    session.on_ack_refused(ErrorFrame("E_FIN_FAILED", f"FIN {A.decode()} failed"))

    assert A.decode() == error_of(session)["id"]


def refused_touch(session: Session, number: int = 0xA, source: int = 1) -> list[Action]:
    """Let nsqd refuse a TOUCH of message *number*."""
    text = f"TOUCH {message_id(number).decode()} failed ID not in flight"
    return session.on_ack_refused(ErrorFrame("E_TOUCH_FAILED", text), source)


@pytest.mark.parametrize("is_overdue", [False, True])
@pytest.mark.parametrize("form", ["id", "ids"])
def test_a_late_touch_frees_its_place_in_the_window(
    form: str,
    is_overdue: bool,  # noqa: FBT001 - one column of the table
) -> None:
    """The client drops what it may not touch: RDY follows at once, and a FIN of it is refused."""
    session = subscribed(max_in_flight=1)
    (delivery_id,) = holding(session, 0xA)
    if is_overdue:
        session.wake(TIMEOUT_S - MARGIN_S)
    named: object = delivery_id if form == "id" else [delivery_id]

    actions = session.receive(command("TOUCH", ref=1, **{form: named}), TIMEOUT_S)

    assert [SetReady(1)] * is_overdue == actions
    error = error_of(session)
    assert ("E_TOUCH_FAILED", 1) == (error["code"], error["ref"])
    assert 0 == session.stats.held
    assert [] == session.receive(command("FIN", id=delivery_id), TIMEOUT_S)
    assert "E_FIN_FAILED" == error_of(session)["code"]


def test_a_touch_that_nsqd_refuses_frees_its_place_in_the_window() -> None:
    """Its channel was emptied, or nsqd timed it out before the TOUCH; told once, by its own id."""
    session = subscribed(max_in_flight=1)
    (delivery_id,) = holding(session, 0xA)
    session.receive(command("TOUCH", id=delivery_id), TIMEOUT_S - MARGIN_S / 2)

    actions = refused_touch(session)

    assert ([], 0) == (actions, session.stats.held)
    error = error_of(session)
    assert ("E_TOUCH_FAILED", delivery_id) == (error["code"], error["id"])
    assert [] == session.wake(TIMEOUT_S * 2)
    assert [] == session.receive(command("FIN", id=delivery_id), TIMEOUT_S * 2)
    assert "E_FIN_FAILED" == error_of(session)["code"]


def test_rdy_follows_a_touch_that_nsqd_refuses_when_it_was_down() -> None:
    """The delivery was overdue when it was touched, so it kept its place until now."""
    session = subscribed(max_in_flight=1)
    (delivery_id,) = holding(session, 0xA)
    session.wake(TIMEOUT_S - MARGIN_S)

    touched = session.receive(command("TOUCH", id=delivery_id), TIMEOUT_S - MARGIN_S / 2)

    assert [TouchDeliveries(1, [A])] == touched
    assert [SetReady(1)] == refused_touch(session)


def test_rdy_rises_again_when_nsqd_has_not_refused_a_late_touch() -> None:
    """V2 does not answer a TOUCH that succeeds, so this takes REFUSAL_S."""
    session = subscribed(max_in_flight=1)
    (delivery_id,) = holding(session, 0xA)
    session.wake(TIMEOUT_S - MARGIN_S)
    session.receive(command("TOUCH", id=delivery_id), TIMEOUT_S - 0.1)

    assert TIMEOUT_S - 0.1 + REFUSAL_S == session.next_wake()
    assert [SetReady(1)] == session.wake(TIMEOUT_S - 0.1 + REFUSAL_S)
    assert 1 == session.stats.held


@pytest.mark.parametrize("verb", ["FIN", "REQ"])
def test_a_refused_touch_of_what_was_answered_since_is_told_and_frees_nothing(verb: str) -> None:
    session = subscribed(max_in_flight=2)
    one, _ = holding(session, 0xA, 0xB)
    session.receive(command("TOUCH", id=one), 1.0)
    session.receive(command(verb, id=one), 2.0)

    assert [] == refused_touch(session)
    assert (one, 1) == (error_of(session)["id"], session.stats.held)


def test_a_refused_touch_frees_the_delivery_of_its_own_source() -> None:
    """Two nsqd may give the same id: it holds a time and the number of a node."""
    session = subscribed(sources=2)
    (one,) = holding(session, 0xA, source=1)
    (two,) = holding(session, 0xA, source=2)
    session.receive(command("TOUCH", ids=[one, two]), 1.0)

    refused_touch(session, source=1)

    assert one == error_of(session)["id"]
    assert [FinishDeliveries(2, [A])] == session.receive(command("FIN", id=two), 2.0)


def test_each_of_several_refused_touches_is_told() -> None:
    """The first frees the place; the others change nothing."""
    session = subscribed(max_in_flight=3)
    one, two = holding(session, 0xA, 0xB)
    for _ in range(2):
        session.receive(command("TOUCH", ids=[one, two]), 1.0)

    for number in (0xA, 0xB, 0xA, 0xB):
        refused_touch(session, number)

    assert [one, two, one, two] == [each["id"] for each in read(session, 1.0)]
    assert 0 == session.stats.held


def test_a_message_that_comes_again_after_its_touch_lowers_rdy() -> None:
    """
    The TOUCH was too late at nsqd.

    The first delivery still occupies a place, and an answer to it does not count for the second.
    """
    session = subscribed(max_in_flight=3)
    (old,) = holding(session, 0xA)
    session.receive(command("TOUCH", id=old), 1.0)

    again = session.on_messages(1, messages(0xA), 2.0)
    (new,) = delivery_ids(read(session, 2.0))
    refused = refused_touch(session)
    finished = session.receive(command("FIN", id=new), 3.0)

    assert ([SetReady(2)], [SetReady(3)], [FinishDeliveries(1, [A])]) == (again, refused, finished)
    assert old == error_of(session)["id"]


# RDY and NOP


@pytest.mark.parametrize("count", [0, 1, 2_500])
def test_rdy_changes_the_window(count: int) -> None:
    """Within its range it becomes the window, silently."""
    session = subscribed()

    actions = session.receive(command("RDY", count=count), 0.0)

    assert [SetReady(count)] == actions
    assert not session.has_frame


def test_rdy_that_changes_nothing_says_nothing_to_nsqd() -> None:
    """The same count once more is answered and not sent."""
    session = subscribed(max_in_flight=5)

    actions = session.receive(command("RDY", count=5, ref=1), 0.0)

    assert [] == actions
    assert ["OK"] == [each["data"] for each in read(session, 0.0)]


@pytest.mark.parametrize("count", [None, -1, 51, 10**30])
def test_rdy_out_of_range_is_refused(count: int | None) -> None:
    """The range is said, the window stays."""
    session = subscribed(max_in_flight_limit=50)

    actions = session.receive(command("RDY", count=count, ref=1), 0.0)

    error = error_of(session)
    given = "missing" if count is None else count
    assert [] == actions
    assert ("RDY", 1, "E_INVALID") == (error["cmd"], error["ref"], error["code"])
    assert f"RDY count is {given}; allowed: 0 to 50 messages" == error["message"]


def test_rdy_goes_before_what_is_requeued_in_the_same_frame() -> None:
    """Or the message would come straight back."""
    session = subscribed()
    (delivery_id,) = holding(session, 0xA)

    actions = session.receive(command("REQ", id=delivery_id) + "\n" + command("RDY", count=0), 1.0)

    assert [SetReady(0), RequeueDeliveries(1, [A], 0, RequeueCause.CLIENT)] == actions


def test_nop_is_silent_without_a_ref() -> None:
    session = subscribed()

    actions = session.receive(command("NOP") + "\n" + command("NOP", ref="alive"), 0.0)

    assert [] == actions
    assert ["alive"] == [each["ref"] for each in read(session, 0.0)]


# What is no command


@pytest.mark.parametrize(
    "text, cmd, ref",
    [
        ("garbage", None, None),
        ("[]", None, None),
        ('{"ref":1}', None, 1),
        ('{"cmd":"JUMP","ref":1}', "JUMP", 1),
        ('{"cmd":"nop","ref":1}', "nop", 1),
        ('{"cmd":"FIN","ref":1}', "FIN", 1),
        ('{"cmd":"FIN","ref":1,"ids":[]}', "FIN", 1),
        ('{"cmd":"TOUCH","ref":1,"id":"a","ids":["a"]}', "TOUCH", 1),
        ('{"cmd":"REQ","ref":1,"id":"a","timeout_ms":-1}', "REQ", 1),
        ('{"cmd":"' + "x" * 10_000 + '","ref":1}', "x" * 32, 1),
        ('{"cmd":"' + "x" * 10_000 + '","id":1}', "x" * 32, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_command_is_refused(text: str, cmd: str | None, ref: object) -> None:
    """One E_INVALID with as much as could be read; its neighbours in the frame hold."""
    session = subscribed()

    actions = session.receive(f"{text}\n" + command("NOP", ref="next"), 0.0)

    error, answer = read(session, 0.0)
    assert [] == actions
    assert (cmd, ref, "E_INVALID") == (error["cmd"], error["ref"], error["code"])
    assert len(error["message"]) < 200
    assert "next" == answer["ref"]


def test_too_many_misuses_end_the_socket() -> None:
    """What was right before them is carried out, what comes behind is not read any more."""
    session = subscribed()
    ids = holding(session, 0xA, 0xB)
    frame = [command("FIN", id=ids[0]), *["x"] * 10_000, command("FIN", id=ids[1])]

    actions = session.receive("\n".join(frame), 0.0)

    assert [FinishDeliveries(1, [A]), CloseSocket(CloseReason.TOO_MANY_ERRORS)] == actions
    assert MAX_ERRORS + 1 == len(read(session, 0.0))
    assert ([], None) == (session.receive(command("FIN", id=ids[1]), 0.0), session.next_wake())


def test_refused_answers_are_no_misuse() -> None:
    """A client that is late ten thousand times is told so ten thousand times."""
    session = subscribed()
    frame = "\n".join(command("FIN", id=f"{number}") for number in range(10_000))

    actions = session.receive(frame, 0.0)
    while (due := session.next_wake()) is not None:
        actions += session.wake(due)

    assert [] == actions
    assert [f"{number}" for number in range(10_000)] == [each["id"] for each in read(session, 0.0)]


# The window


def test_an_overdue_delivery_lowers_rdy_and_its_answer_raises_it() -> None:
    """The broker no longer counts it, the client still holds it."""
    session = subscribed(max_in_flight=2)
    (delivery_id,) = holding(session, 0xA)
    due = session.next_wake()

    lowered = session.wake(TIMEOUT_S - MARGIN_S)
    raised = session.receive(command("FIN", id=delivery_id), TIMEOUT_S)

    assert TIMEOUT_S - MARGIN_S == due
    assert ([SetReady(1)], [SetReady(2)]) == (lowered, raised)


def test_a_frozen_client_draws_in_one_window_only() -> None:
    """Once all it holds is overdue, RDY is 0 until it answers."""
    session = subscribed(max_in_flight=3)
    holding(session, 1, 2, 3)

    assert [SetReady(0)] == session.wake(TIMEOUT_S - MARGIN_S)
    assert [] == session.wake(10 * TIMEOUT_S)


def test_a_client_that_takes_no_frame_draws_in_one_window_only() -> None:
    """What expires before it is sent is dropped, and its room comes back with the next frame."""
    session = subscribed(max_in_flight=3)
    session.on_messages(1, messages(1, 2), 0.0)
    due = session.next_wake()

    lowered = session.wake(TIMEOUT_S - MARGIN_S)
    frame = session.next_frame(100.0)
    raised = session.on_writable(100.0)

    assert (TIMEOUT_S - MARGIN_S, None) == (due, frame)
    assert ([SetReady(1)], [SetReady(3)]) == (lowered, raised)
    assert (0, 0) == (session.delivered, session._outbox.size_bytes)


def test_each_source_has_its_own_timeout() -> None:
    """The deadline is that of the broker that delivered."""
    session = subscribed()
    session.on_source_opened(2, IdentifyResponse(msg_timeout=5_000))
    holding(session, 0xA, source=1)
    holding(session, 0xB, source=2)

    assert 5.0 - MARGIN_S == session.next_wake()
    assert [SetReady(9)] == session.wake(5.0 - MARGIN_S)


# Sources that go


def test_a_lost_source_tells_its_deliveries() -> None:
    """They are refused from then on, count no more, and what was not sent is dropped."""
    session = subscribed(sources=2, max_in_flight=3)
    (old,) = holding(session, 0xA)
    session.wake(TIMEOUT_S - MARGIN_S)
    (lost,) = holding(session, 0xB, now=60.0)
    (kept,) = holding(session, 0xC, source=2, now=60.0)
    session.on_messages(1, messages(0xD), 60.0)

    actions = session.on_source_lost(1, 61.0)

    (told,) = read(session, 61.0)
    assert [SetReady(3)] == actions
    assert ("connected", 1) == (told["data"]["state"], told["data"]["nsqds"])
    assert sorted([old, lost]) == sorted(told["data"]["lost_ids"])
    frame = command("FIN", ids=[lost, kept])
    assert [FinishDeliveries(2, [C])] == session.receive(frame, 62.0)


def test_losing_the_last_source_leaves_the_socket_open() -> None:
    """The client is told; the outage has its own bound, and ends with a source."""
    session = subscribed(broker_outage_s=300.0)

    actions = session.on_source_lost(1, 100.0)

    assert ([], 400.0) == (actions, session.next_wake())
    assert {"state": "disconnected", "nsqds": 0, "lost_ids": []} == read(session, 100.0)[0]["data"]
    session.on_source_opened(2, ANSWER)
    assert (None, []) == (session.next_wake(), session.wake(400.0))


def test_an_outage_that_is_too_long_ends_the_socket() -> None:
    session = subscribed(broker_outage_s=300.0)
    session.on_source_lost(1, 100.0)

    before = session.wake(399.9)

    assert ([], [CloseSocket(CloseReason.NO_BROKER)]) == (before, session.wake(400.0))
    assert ([], None) == (session.wake(401.0), session.next_wake())


def test_a_source_that_never_came_is_an_outage_too() -> None:
    """It counts from the start of the session."""
    session = Session(SessionOptions(topic="t", channel="c"), now=50.0)

    assert 350.0 == session.next_wake()
    assert [CloseSocket(CloseReason.NO_BROKER)] == session.wake(350.0)


def test_messages_of_a_source_that_is_not_known_go_back() -> None:
    """Nobody could answer them later."""
    session = subscribed()

    assert [RequeueDeliveries(9, [A, B], 0, RequeueCause.RESUBSCRIBE)] == session.on_messages(
        9, messages(0xA, 0xB), 0.0
    )
    assert not session.has_frame
