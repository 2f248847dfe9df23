"""ack=auto, slow clients, CLS, drain, the end."""

from __future__ import annotations

import pytest

from gateway.protocol.frames import ErrorFrame
from gateway.session.session import Session
from gateway.session.types import (
    CloseReason,
    CloseSocket,
    FinishDeliveries,
    PauseReading,
    PublishBodies,
    RequeueCause,
    RequeueDeliveries,
    ResumeReading,
    SessionOptions,
    SetReady,
)
from gateway.session.window import MARGIN_S
from tests.support.websocket.session_messages import (
    ANSWER,
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


# The gateway finishes


def test_ack_auto_finishes_once_the_frame_is_written() -> None:
    session = subscribed(sources=2, is_auto_ack=True)
    session.on_messages(1, messages(0xA), 0.0)
    session.on_messages(2, messages(0xB), 0.0)
    session.next_frame(0.0)
    woken = session.wake(1.0)

    written = session.on_writable(2.0)

    assert ([], [FinishDeliveries(1, [A]), FinishDeliveries(2, [B])]) == (woken, written)
    assert [] == session.on_writable(3.0)


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH", "RDY"])
def test_ack_auto_takes_no_answers(verb: str) -> None:
    """They are E_INVALID: nothing waits for them."""
    session = subscribed(is_auto_ack=True)
    (delivery_id,) = holding(session, 0xA)

    actions = session.receive(command(verb, id=delivery_id, count=1, ref=1), 0.0)

    (error,) = read(session, 0.0)
    assert [] == actions
    assert (verb, 1, "E_INVALID") == (error["cmd"], error["ref"], error["code"])


def test_ack_auto_does_not_finish_what_was_written_too_late() -> None:
    """The broker gives it to somebody again; meanwhile it occupied the window."""
    session = subscribed(is_auto_ack=True, max_in_flight=2)
    session.on_messages(1, messages(0xA), 0.0)
    session.next_frame(0.0)

    lowered = session.wake(TIMEOUT_S - MARGIN_S)
    written = session.on_writable(TIMEOUT_S)

    assert ([SetReady(1)], [SetReady(2)]) == (lowered, written)


def test_ack_auto_tells_what_was_lost_while_it_was_written() -> None:
    """It is not finished on a source that is gone."""
    session = subscribed(is_auto_ack=True)
    session.on_messages(1, messages(0xA), 0.0)
    ids = delivery_ids(lines(session.next_frame(0.0)))

    session.on_source_lost(1, 1.0)

    assert [] == session.on_writable(2.0)
    assert [ids] == [each["data"]["lost_ids"] for each in read(session, 2.0)]


def test_ack_auto_hands_back_what_was_not_written() -> None:
    """The frame that is being written and what waits behind it, oldest first."""
    session = subscribed(is_auto_ack=True)
    session.on_messages(1, messages(0xA), 0.0)
    session.next_frame(0.0)
    session.on_messages(1, messages(0xB), 1.0)

    actions = session.close(2.0)

    assert [SetReady(0), RequeueDeliveries(1, [A, B], 0, RequeueCause.DISCONNECT)] == actions
    assert [] == session.on_writable(3.0)


def test_ack_auto_names_the_delivery_of_a_late_refusal() -> None:
    """The gateway's FIN came too late: the client may see the message again."""
    session = subscribed(is_auto_ack=True)
    (delivery_id,) = holding(session, 0xA)

    session.on_ack_refused(ErrorFrame("E_FIN_FAILED", f"FIN {A.decode()} failed"))

    assert [delivery_id] == [each["id"] for each in read(session, 0.0)]


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_message_that_waits_twice_is_handed_back_once(has_ended: bool) -> None:  # noqa: FBT001
    """It timed out while nothing was read and was sent again; nsqd would refuse a second REQ."""
    session = subscribed()
    ended = session.close(0.0) if has_ended else []
    arrived = session.on_messages(1, messages(0xA, 0xB, 0xA), 0.0)
    closed = [] if has_ended else session.close(1.0)

    handed_back = RequeueDeliveries(1, [A, B], 0, RequeueCause.DISCONNECT)
    assert [handed_back] == [
        action for action in ended + arrived + closed if isinstance(action, RequeueDeliveries)
    ]


def test_nothing_is_told_after_the_end() -> None:
    """What happens while NSQ is left goes to nobody, and takes no memory."""
    session = subscribed(sources=2)
    session.close(0.0)

    session.on_source_lost(1, 1.0)
    session.on_paused(True)
    session.on_ack_refused(ErrorFrame("E_FIN_FAILED", f"FIN {A.decode()} failed"), 2)
    session.on_source_opened(3, ANSWER)
    session.receive(command("NOP", ref=1), 1.0)

    assert (False, 0) == (session.has_frame, session.stats.unsent_bytes)


# Slow clients


def test_above_the_bound_nothing_more_is_read() -> None:
    """One pause, and one end of it when enough has been written."""
    session = subscribed(buffer_bytes=100_000)
    body = b"x" * 60_000

    actions = [
        session.on_messages(1, [message(number, body)], float(number)) for number in range(4)
    ]
    writes = []
    while session.next_frame(10.0) is not None:
        writes.append(session.on_writable(10.0))

    assert [[], [PauseReading()], [], []] == actions
    assert [[], [], [ResumeReading()], []] == writes


def test_a_client_that_stays_slow_is_ended() -> None:
    """After the bound in seconds, counted from the pause."""
    session = subscribed(buffer_bytes=100, slow_consumer_s=30.0)
    session.on_messages(1, messages(0xA), 10.0)

    before = session.wake(39.9)

    assert ([], 40.0) == (before, session.next_wake())
    assert [CloseSocket(CloseReason.SLOW)] == session.wake(40.0)


def test_a_client_that_catches_up_is_not_slow() -> None:
    """The clock of slowness starts anew with the next pause."""
    session = subscribed(buffer_bytes=100, slow_consumer_s=30.0)
    session.on_messages(1, messages(0xA), 0.0)
    read(session, 29.0)
    session.on_messages(1, messages(0xB), 29.0)

    assert [] == session.wake(30.0)
    assert [CloseSocket(CloseReason.SLOW)] == session.wake(59.0)


def test_a_client_may_be_held_to_less_than_its_own_bound() -> None:
    """Where all together have too much: until it has taken half; then its own bound holds again."""
    session = subscribed(buffer_bytes=1_000_000, slow_consumer_s=30.0)
    body = b"x" * 60_000
    for number in range(4):
        session.on_messages(1, [message(number, body)], 0.0)

    limited = session.on_buffer_limit(1.0)
    is_slow = session.is_slow
    writes = []
    while session.next_frame(2.0) is not None:
        writes.append(session.on_writable(2.0))
    more = [session.on_messages(1, [message(number, body)], 3.0) for number in range(4, 8)]

    assert ([PauseReading()], True, False) == (limited, is_slow, session.is_slow)
    assert [[], [ResumeReading()], [], []] == writes
    assert [[], [], [], []] == more


def test_a_client_whose_socket_holds_everything_goes_on_once_it_has_taken_something() -> None:
    """Nothing waits in the session then; and where it takes nothing it is ended as a slow one."""
    session, stuck = subscribed(slow_consumer_s=30.0), subscribed(slow_consumer_s=30.0)

    limited = [each.on_buffer_limit(1.0) for each in (session, stuck)]
    written = session.on_writable(2.0)

    assert ([[PauseReading()]] * 2, [ResumeReading()]) == (limited, written)
    assert [CloseSocket(CloseReason.SLOW)] == stuck.wake(31.0)
    assert [] == session.wake(31.0)


def test_what_goes_with_its_source_waits_no_more() -> None:
    """A pause ends when a lost source or a timeout has emptied the buffer."""
    lost, expired = subscribed(buffer_bytes=300), subscribed(buffer_bytes=300, slow_consumer_s=90.0)
    for session in (lost, expired):
        session.on_messages(1, messages(0xA, 0xB), 0.0)

    actions = [lost.on_source_lost(1, 1.0), expired.wake(TIMEOUT_S - MARGIN_S)]

    assert [[ResumeReading()], [SetReady(8), ResumeReading()]] == actions


def test_answers_count_as_waiting() -> None:
    """A client that asks and does not read fills its own buffer."""
    session = subscribed(buffer_bytes=1_000)

    actions = session.receive("\n".join([command("NOP", ref=1)] * 10), 0.0)

    assert [PauseReading()] == actions
    assert session._outbox.size_bytes > 1_000


def test_room_comes_back_when_only_an_answer_was_being_written() -> None:
    """Three messages expire behind a frame that the socket has not taken; then it takes it."""
    session = subscribed(max_in_flight=3)
    session.receive(command("NOP", ref=1), 0.0)
    session.next_frame(0.0)
    session.on_messages(1, messages(0xA, 0xB, 0xC), 0.0)

    expired = session.wake(TIMEOUT_S - MARGIN_S)

    assert ([SetReady(0)], False) == (expired, session.has_frame)
    assert [SetReady(3)] == session.on_writable(70.0)


# CLS


def test_cls_stops_the_messages_and_waits_for_the_answers() -> None:
    """RDY 0, what was not sent goes back, answers count, and the last one ends the socket."""
    session = subscribed()
    (delivery_id,) = holding(session, 0xA)
    session.on_messages(1, messages(0xB), 0.0)

    closing = session.receive(command("CLS", ref=7), 1.0)
    late = session.on_messages(1, messages(0xC), 2.0)
    ended = session.receive(command("FIN", id=delivery_id), 3.0)

    assert [SetReady(0), RequeueDeliveries(1, [B], 0, RequeueCause.DISCONNECT)] == closing
    assert [RequeueDeliveries(1, [C], 0, RequeueCause.DISCONNECT)] == late
    assert [FinishDeliveries(1, [A]), CloseSocket(CloseReason.DONE)] == ended
    (answer,) = read(session, 3.0)
    data = {"state": "CLOSE_WAIT", "reason": "client", "reconnect_after_ms": None}
    assert {"type": "response", "cmd": "CLS", "ref": 7, "data": data} == answer


def test_cls_ends_at_once_when_nothing_is_in_flight() -> None:
    actions = subscribed().receive(command("CLS"), 0.0)

    assert [SetReady(0), CloseSocket(CloseReason.DONE)] == actions


def test_cls_ends_at_the_latest_after_the_message_timeout() -> None:
    """What is unanswered then belongs to somebody else."""
    session = subscribed()
    holding(session, 0xA)
    session.receive(command("CLS"), 10.0)
    session.wake(TIMEOUT_S - MARGIN_S)

    before = session.wake(69.9)

    assert ([], 70.0) == (before, session.next_wake())
    assert [CloseSocket(CloseReason.DONE)] == session.wake(70.0)


def test_cls_ends_when_the_last_source_is_lost() -> None:
    session = subscribed()
    holding(session, 0xA)
    session.receive(command("CLS"), 1.0)

    assert [CloseSocket(CloseReason.DONE)] == session.on_source_lost(1, 2.0)


def test_cls_with_ack_auto_ends_when_the_frame_is_written() -> None:
    session = subscribed(is_auto_ack=True)
    session.on_messages(1, messages(0xA), 0.0)
    session.next_frame(0.0)

    closing = session.receive(command("CLS"), 1.0)

    assert [SetReady(0)] == closing
    assert [FinishDeliveries(1, [A]), CloseSocket(CloseReason.DONE)] == session.on_writable(2.0)


def test_cls_ends_when_nsqd_refuses_the_touch_of_the_last_delivery() -> None:
    """Nothing is in flight any more."""
    session = subscribed()
    (delivery_id,) = holding(session, 0xA)
    session.receive(command("TOUCH", id=delivery_id), 1.0)
    session.receive(command("CLS"), 1.0)

    text = f"TOUCH {A.decode()} failed ID not in flight"
    actions = session.on_ack_refused(ErrorFrame("E_TOUCH_FAILED", text), 1)

    assert [CloseSocket(CloseReason.DONE)] == actions


def test_a_second_cls_is_refused() -> None:
    """As in NSQ; RDY is taken and without effect, as in NSQ."""
    session = subscribed()
    holding(session, 0xA)
    session.receive(command("CLS"), 1.0)
    read(session, 1.0)

    actions = session.receive(command("CLS", ref=1) + "\n" + command("RDY", count=5, ref=2), 2.0)

    error, answer = read(session, 2.0)
    assert [] == actions
    assert ("E_INVALID", 1, 2, "OK") == (
        error["code"],
        error["ref"],
        answer["ref"],
        answer["data"],
    )


# Drain


def test_a_drain_tells_when_to_come_back() -> None:
    """RDY 0, CLOSE_WAIT, answers until the moment comes, then 1012."""
    session = subscribed()
    ids = holding(session, 0xA, 0xB)
    session.on_messages(1, messages(0xC), 0.0)

    told = session.drain(CloseReason.DRAINED, close_at=20.0, reconnect_after_ms=1_234)
    answers = session.receive(command("FIN", ids=ids), 10.0)
    ended = session.wake(20.0)

    assert [SetReady(0), RequeueDeliveries(1, [C], 0, RequeueCause.DRAIN)] == told
    assert [FinishDeliveries(1, [A, B])] == answers
    assert [CloseSocket(CloseReason.DRAINED)] == ended
    data = {"state": "CLOSE_WAIT", "reason": "drain", "reconnect_after_ms": 1_234}
    assert [{"type": "response", "cmd": "CLS", "ref": None, "data": data}] == read(session, 20.0)


def test_a_drain_spreads_its_closes() -> None:
    """An idle socket waits for its moment too."""
    session = subscribed()

    session.drain(CloseReason.DRAINED, close_at=20.0, reconnect_after_ms=1)

    assert ([], 20.0) == (session.wake(19.9), session.next_wake())


def test_a_client_may_leave_a_drain_before() -> None:
    """Its CLS is taken, and ends the socket when all is answered, at the drain's moment at last."""
    idle, busy = subscribed(), subscribed()
    holding(busy, 0xA)
    for session in (idle, busy):
        session.drain(CloseReason.DRAINED, close_at=20.0, reconnect_after_ms=1)

    actions = [session.receive(command("CLS"), 1.0) for session in (idle, busy)]

    assert [[CloseSocket(CloseReason.DONE)], []] == actions
    assert [CloseSocket(CloseReason.DONE)] == busy.wake(20.0)


@pytest.mark.parametrize("close_at, ends_at", [(20.0, 20.0), (100.0, 61.0)])
def test_a_drain_only_shortens_a_cls(close_at: float, ends_at: float) -> None:
    """The earlier of the two moments counts, and it stays the client's own close."""
    session = subscribed()
    holding(session, 0xA)
    session.receive(command("CLS"), 1.0)

    session.drain(CloseReason.DRAINED, close_at=close_at, reconnect_after_ms=1)
    session.wake(ends_at - 0.5)

    assert ends_at == session.next_wake()
    assert [CloseSocket(CloseReason.DONE)] == session.wake(ends_at)


def test_the_moment_of_a_drain_may_become_sooner() -> None:
    """Said again, it is told once, and the sooner moment counts; later ones do not."""
    session = subscribed()

    session.drain(CloseReason.DRAINED, close_at=20.0, reconnect_after_ms=1)
    session.drain(CloseReason.DRAINED, close_at=5.0, reconnect_after_ms=2)
    session.drain(CloseReason.DRAINED, close_at=9.0, reconnect_after_ms=3)

    assert [1] == [each["data"]["reconnect_after_ms"] for each in read(session, 0.0)]
    assert ([], 5.0) == (session.wake(4.9), session.next_wake())
    assert [CloseSocket(CloseReason.DRAINED)] == session.wake(5.0)


def test_an_old_socket_that_holds_nothing_ends_at_once() -> None:
    """RDY 0, CLOSE_WAIT, the end."""
    session = subscribed()

    told = session.drain(CloseReason.AGED, close_at=20.0, reconnect_after_ms=7)

    assert [SetReady(0), CloseSocket(CloseReason.AGED)] == told
    data = {"state": "CLOSE_WAIT", "reason": "age", "reconnect_after_ms": 7}
    assert [data] == [each["data"] for each in read(session, 0.0)]


def test_an_old_socket_ends_with_its_last_answer_or_at_its_moment() -> None:
    """What had not been sent goes back; answers are taken until the end."""
    prompt, stuck = subscribed(), subscribed()
    ids = holding(prompt, 0xA)
    holding(stuck, 0xA)
    stuck.on_messages(1, messages(0xC), 0.0)

    told = [
        session.drain(CloseReason.AGED, close_at=20.0, reconnect_after_ms=1)
        for session in (prompt, stuck)
    ]
    answered = prompt.receive(command("FIN", ids=ids), 3.0)

    assert [[SetReady(0)], [SetReady(0), RequeueDeliveries(1, [C], 0, RequeueCause.DRAIN)]] == told
    assert [FinishDeliveries(1, [A]), CloseSocket(CloseReason.AGED)] == answered
    assert ([], 20.0) == (stuck.wake(19.9), stuck.next_wake())
    assert [CloseSocket(CloseReason.AGED)] == stuck.wake(20.0)


def test_an_old_socket_in_a_drain_stays_old() -> None:
    """It was told, and need not wait for the moment that the drain has for it."""
    session = subscribed()
    ids = holding(session, 0xA)

    session.drain(CloseReason.AGED, close_at=20.0, reconnect_after_ms=1)
    session.drain(CloseReason.DRAINED, close_at=15.0, reconnect_after_ms=2)
    answered = session.receive(command("FIN", ids=ids), 3.0)

    assert ["age"] == [each["data"]["reason"] for each in read(session, 0.0)]
    assert [FinishDeliveries(1, [A]), CloseSocket(CloseReason.AGED)] == answered


def test_a_session_tells_whether_it_is_open() -> None:
    """While a delivery has no answer, and while a publish has none."""
    session = subscribed()
    (held,) = holding(session, 0xA)
    seen = [(session.stats.held, session.is_open)]
    session.receive(command("FIN", id=held), 1.0)
    seen.append((session.stats.held, session.is_open))
    (publish,) = session.receive(command("PUB", topic="t", body="b", ref=1), 1.0)
    seen.append((session.stats.held, session.is_open))
    assert isinstance(publish, PublishBodies)
    session.on_published(publish, None)
    seen.append((session.stats.held, session.is_open))

    assert [(1, True), (0, False), (0, True), (0, False)] == seen


def test_a_drain_before_the_first_source_says_nothing_to_nsqd() -> None:
    """There is no RDY to lower yet, and none is raised when the source comes."""
    session = Session(SessionOptions(topic="t", channel="c"), now=0.0)

    told = session.drain(CloseReason.DRAINED, close_at=20.0, reconnect_after_ms=1)

    assert ([], [SetReady(0)]) == (told, session.on_source_opened(1, ANSWER))


# The end


def test_the_end_hands_back_what_is_unfinished() -> None:
    """On the source that delivered, oldest first: overdue, held, not sent."""
    session = subscribed(sources=2, requeue_on_close_ms=500)
    holding(session, 1)
    session.wake(TIMEOUT_S - MARGIN_S)
    ids = holding(session, 2, 3, now=59.8)
    session.on_messages(1, messages(4), 59.9)
    session.on_messages(2, messages(5), 59.9)
    session.receive(command("FIN", id=ids[0]), 59.9)

    actions = session.close(59.9)

    assert [
        SetReady(0),
        RequeueDeliveries(
            1, [message_id(1), message_id(3), message_id(4)], 500, RequeueCause.DISCONNECT
        ),
        RequeueDeliveries(2, [message_id(5)], 500, RequeueCause.DISCONNECT),
    ] == actions


def test_the_end_does_not_answer_what_is_too_late() -> None:
    """The broker would refuse it."""
    session = subscribed()
    holding(session, 0xA)

    assert [SetReady(0)] == session.close(TIMEOUT_S)


def test_the_end_is_said_once() -> None:
    """A second end hands nothing back, and what still comes goes back at once."""
    session = subscribed()
    holding(session, 0xA)
    session.close(1.0)

    again = session.close(2.0)

    assert [SetReady(0)] == again
    assert [RequeueDeliveries(1, [B], 0, RequeueCause.DISCONNECT)] == session.on_messages(
        1, messages(0xB), 3.0
    )


def test_what_a_drain_leaves_goes_back_because_of_it() -> None:
    """What the client holds at its end, and what comes late, before and after; REQ is its own."""
    session = subscribed()
    ids = holding(session, 0xA, 0xB)

    actions = [
        session.drain(CloseReason.DRAINED, close_at=20.0, reconnect_after_ms=1),
        session.on_messages(1, messages(0xC), 1.0),
        session.receive(command("REQ", id=ids[0]), 2.0),
        session.close(3.0),
        session.on_messages(1, messages(0xC), 4.0),
    ]

    assert [
        [SetReady(0)],
        [RequeueDeliveries(1, [C], 0, RequeueCause.DRAIN)],
        [RequeueDeliveries(1, [A], 0, RequeueCause.CLIENT)],
        [SetReady(0), RequeueDeliveries(1, [B], 0, RequeueCause.DRAIN)],
        [RequeueDeliveries(1, [C], 0, RequeueCause.DRAIN)],
    ] == actions


def test_a_cls_in_a_drain_is_still_a_drain() -> None:
    """The gateway was first; without it what is left goes back because the client ends."""
    causes = []
    for is_drained in (True, False):
        session = subscribed()
        holding(session, 0xA)
        if is_drained:
            session.drain(CloseReason.DRAINED, close_at=20.0, reconnect_after_ms=1)
        session.receive(command("CLS"), 1.0)
        causes += [each.cause for each in session.close(2.0) if isinstance(each, RequeueDeliveries)]

    assert [RequeueCause.DRAIN, RequeueCause.DISCONNECT] == causes


def test_nothing_is_drawn_in_after_the_end() -> None:
    """Neither a source that comes, nor a command, nor a timer raises RDY again."""
    session = subscribed()
    (delivery_id,) = holding(session, 0xA)
    session.close(1.0)

    actions = [
        session.on_source_opened(2, ANSWER),
        session.on_source_lost(2, 2.0),
        session.receive(command("RDY", count=5) + "\n" + command("FIN", id=delivery_id), 3.0),
        session.wake(1_000.0),
        session.drain(CloseReason.DRAINED, close_at=20.0, reconnect_after_ms=1),
    ]

    assert [[]] * 5 == actions


def test_rdy_in_the_frame_that_ends_the_socket_draws_nothing_in() -> None:
    """The end comes last, and RDY is not raised before it."""
    session = subscribed()

    actions = session.receive("\n".join([command("RDY", count=50), *["x"] * 200]), 0.0)

    assert [CloseSocket(CloseReason.TOO_MANY_ERRORS)] == actions


def test_sources_that_are_left_get_back_what_they_delivered() -> None:
    """What was read and what was not; what has timed out is theirs already."""
    session = subscribed(sources=2)
    early = holding(session, 0xA)
    read_ids = holding(session, 0xB, source=2, now=50.0)
    session.on_messages(2, messages(0xC), 50.0)

    actions = session.drop_sources(61.0)

    assert [SetReady(0), RequeueDeliveries(2, [B, C], 0, RequeueCause.RESUBSCRIBE)] == actions
    assert [RequeueDeliveries(2, [B], 0, RequeueCause.RESUBSCRIBE)] == session.on_messages(
        2, messages(0xB), 61.0
    )
    assert [SetReady(10)] == session.on_source_opened(3, ANSWER)
    lost = [each["data"]["lost_ids"] for each in read(session, 61.0)]
    assert [early, read_ids, []] == lost
