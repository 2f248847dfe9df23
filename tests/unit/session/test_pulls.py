"""Pulls and leases, by example; `test_pulls_model` has random histories."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest

from gateway.protocol.frames import ErrorFrame, Message
from gateway.protocol.identify import IdentifyResponse
from gateway.session.pulls import (
    LEASE_LOST,
    AnswerPull,
    Pull,
    PullAction,
    PullOptions,
    PullSession,
)
from gateway.session.types import (
    FinishDeliveries,
    PauseReading,
    RequeueCause,
    RequeueDeliveries,
    ResumeReading,
    SetReady,
    TouchDeliveries,
)

ANSWER = IdentifyResponse(msg_timeout=60_000, max_msg_timeout=900_000)
IDS = [b"%016x" % number for number in range(10)]


def messages(count: int, body: bytes = b"x") -> list[Message]:
    return [Message(7, 1, IDS[number], body) for number in range(count)]


def session(**options: float) -> PullSession:
    found = PullSession(PullOptions(**{"gather_s": 0.0} | options))  # type: ignore[arg-type]
    found.on_source_opened(1, ANSWER)
    return found


def leased(found: PullSession, count: int, lease_s: float = 5.0) -> list[str]:
    """Lease messages at 0 s, and return their delivery ids."""
    pull = Pull(10, lease_s, 1.0)
    found.begin(pull, 0.0)
    found.on_messages(1, messages(count), 0.0, 0.0)
    [answer] = [each for each in found.serve(0.0) if isinstance(each, AnswerPull)]
    return [delivery_id for batch in answer.batches for delivery_id in batch.delivery_ids]


def answers(actions: list[PullAction]) -> list[list[Message]]:
    """Return the messages of each answer."""
    found = [each.batches for each in actions if isinstance(each, AnswerPull)]
    return [[message for batch in batches for message in batch.messages] for batches in found]


def test_rdy_is_what_waiting_pulls_have_room_for() -> None:
    """And what is in flight already: RDY is no credit, but the most that nsqd has in flight."""
    found = session()
    assert [SetReady(3)] == found.begin(Pull(3, 0.0, 9.0), 0.0)
    assert [SetReady(5)] == found.begin(Pull(2, 0.0, 9.0), 0.0)
    found.on_messages(1, messages(4), 0.0, 0.0)
    ready, first, second = found.serve(0.0)
    assert SetReady(0) == ready
    assert [3, 1] == [len(each) for each in answers([first, second])]
    assert [SetReady(14)] == found.begin(Pull(10, 0.0, 9.0), 0.0)


def test_rdy_falls_before_messages_go_back() -> None:
    """Else nsqd would deliver them again at once."""
    found = session()
    ids = leased(found, 2)
    found.begin(Pull(3, 0.0, 9.0), 0.0)
    actions, refused = found.requeue(ids, 0, 0.0)

    assert [SetReady(3), RequeueDeliveries(1, IDS[:2], 0, RequeueCause.CLIENT)] == actions
    assert {} == refused


@pytest.mark.parametrize("now,is_taken", [(4.9, True), (5.0, False), (5.1, False)])
def test_a_lease_is_answered_until_it_ends(now: float, *, is_taken: bool) -> None:
    """Whether or not the timer has noticed its end."""
    found = session()
    ids = leased(found, 1)
    actions, refused = found.finish(ids, now)

    assert is_taken is (actions == [FinishDeliveries(1, IDS[:1])])
    assert is_taken is not bool(refused)
    if not is_taken:
        assert "E_FIN_FAILED" == refused[ids[0]]


def test_a_lease_that_ends_gives_its_message_back_at_once() -> None:
    """Not after nsqd's timeout of 60 s."""
    found = session()
    leased(found, 2)
    assert 5.0 == found.next_wake()
    assert [RequeueDeliveries(1, IDS[:2], 0, RequeueCause.LEASE_ENDED)] == found.wake(5.0)
    assert found.is_idle


def test_a_long_lease_is_kept_by_touches() -> None:
    """At half of nsqd's timeout, until its end or nsqd's limit."""
    found = session()
    [delivery_id] = leased(found, 1, lease_s=70.0)
    assert 30.0 == found.next_wake()
    assert [TouchDeliveries(1, IDS[:1])] == found.wake(30.0)
    assert 70.0 == found.next_wake()
    actions, refused = found.touch([delivery_id], 800.0, 65.0)
    assert ([TouchDeliveries(1, IDS[:1])], {}) == (actions, refused)
    moments = []
    while (due := found.next_wake()) is not None and not found.is_idle:
        moments.append(due)
        found.wake(due)
    assert 865.0 == moments[-1]
    assert all(later - earlier < 60.0 for earlier, later in pairwise(moments))


def test_a_lease_ends_before_nsqd_takes_no_more_touch() -> None:
    """--max-msg-timeout after the delivery."""
    found = session()
    pull = Pull(1, 899.9, 1.0)
    found.begin(pull, 10.0)
    found.on_messages(1, messages(1), 10.0, 9.0)
    _, answer = found.serve(10.0)
    assert isinstance(answer, AnswerPull)

    assert [pytest.approx(898.75)] == [batch.lease_s for batch in answer.batches]


def test_a_late_message_waits_for_the_next_pull() -> None:
    found = session(linger_s=0.5)
    found.begin(Pull(1, 0.0, 9.0), 0.0)
    found.on_messages(1, messages(3), 0.0, 0.0)
    assert [1] == [len(each) for each in answers(found.serve(0.0))]
    assert [1] == [len(each) for each in answers(found.begin(Pull(1, 0.0, 9.0), 0.4))]
    assert 0.5 == found.next_wake()
    assert [RequeueDeliveries(1, IDS[2:3], 0, RequeueCause.NOT_PULLED)] == found.wake(0.5)


def test_a_pull_waits_for_what_is_about_to_arrive() -> None:
    """nsqd sends what RDY allows in several writes; a pull that is full waits for nothing."""
    found = session(gather_s=0.5)
    found.begin(Pull(5, 0.0, 100.0), 0.0)
    found.on_messages(1, messages(2), 1.0, 1.0)
    assert ([], 1.5) == (answers(found.serve(1.0)), found.next_wake())
    found.on_messages(1, messages(4)[2:], 1.25, 1.25)
    assert ([], 1.75) == (answers(found.serve(1.5)), found.next_wake())
    assert [4] == [len(each) for each in answers(found.wake(1.75))]

    found.begin(Pull(2, 0.0, 100.0), 2.0)
    found.on_messages(1, messages(6)[4:], 2.0, 2.0)
    assert [2] == [len(each) for each in answers(found.serve(2.0))]


def test_a_pull_waits_no_longer_than_ten_times_as_long() -> None:
    """However fast single messages arrive; at its deadline it gets what there is."""
    found = session(gather_s=0.25)
    found.begin(Pull(9, 0.0, 100.0), 0.0)
    for number in range(6):
        found.on_messages(1, messages(number + 1)[number:], number * 0.4375, 0.0)
    assert 2.4375 == found.next_wake()
    found.on_messages(1, messages(7)[6:], 2.375, 0.0)
    assert 2.5 == found.next_wake()
    assert [7] == [len(each) for each in answers(found.wake(2.5))]

    found.begin(Pull(9, 0.0, 6.25), 6.0)
    found.on_messages(1, messages(9)[8:], 6.0, 6.0)
    assert [1] == [len(each) for each in answers(found.wake(6.25))]


def test_a_pull_waits_for_nothing_that_nsqd_may_not_send() -> None:
    found = session(gather_s=0.5, max_leases=3)
    found.begin(Pull(5, 0.0, 100.0), 0.0)
    found.on_messages(1, messages(3), 1.0, 1.0)
    assert [3] == [len(each) for each in answers(found.serve(1.0))]


def test_a_pull_ends_without_messages() -> None:
    found = session()
    found.begin(Pull(1, 0.0, 2.0), 0.0)
    assert 2.0 == found.next_wake()
    ready, answer = found.wake(2.0)
    assert SetReady(0) == ready
    assert [[]] == answers([answer])
    assert found.next_wake() is None


def test_what_a_lost_connection_had_leased_is_lost() -> None:
    """Until the lease would have ended, the answer says so."""
    found = session()
    ids = leased(found, 2)
    found.on_source_lost(1)
    for answer in (found.finish, lambda each, now: found.touch(each, 5.0, now)):
        actions, refused = answer(ids[:1], 2.0)
        assert [] == actions
        assert LEASE_LOST == refused[ids[0]]
    assert [] == found.wake(5.0)
    assert found.is_idle


def test_a_refused_touch_loses_the_lease() -> None:
    """nsqd has timed the message out."""
    found = session()
    [delivery_id] = leased(found, 1)
    found.touch([delivery_id], 5.0, 1.0)
    text = f"TOUCH {IDS[0].decode()} failed ID not in flight"
    found.on_ack_refused(1, ErrorFrame("E_TOUCH_FAILED", text))

    assert LEASE_LOST == found.finish([delivery_id], 1.2)[1][delivery_id]


def test_an_answer_has_a_limit_in_bytes() -> None:
    """The first message is in it, however large it is."""
    found = session(answer_bytes=100)
    found.begin(Pull(10, 0.0, 9.0), 0.0)
    found.on_messages(1, messages(3, b"x" * 60), 0.0, 0.0)
    assert [2] == [len(each) for each in answers(found.serve(0.0))]
    assert [1] == [len(each) for each in answers(found.begin(Pull(10, 0.0, 9.0), 0.1))]


def test_nsqd_is_not_read_while_too_much_waits() -> None:
    found = session(buffer_bytes=1_000, answer_bytes=500)
    found.begin(Pull(1, 0.0, 9.0), 0.0)
    assert [PauseReading()] == found.on_messages(1, messages(3, b"x" * 500), 0.0, 0.0)
    found.serve(0.0)
    assert ResumeReading() in found.begin(Pull(1, 0.0, 9.0), 0.1)


def test_no_more_is_leased_than_may_be_in_flight() -> None:
    found = session(max_leases=2)
    ids = leased(found, 2)
    assert found.is_full
    assert [SetReady(2)] == found.begin(Pull(5, 0.0, 9.0), 0.0)
    assert [FinishDeliveries(1, IDS[:1])] == found.finish(ids[:1], 0.1)[0]


def test_a_lease_is_answered_once() -> None:
    found = session()
    [delivery_id] = leased(found, 1)
    assert {} == found.finish([delivery_id], 1.0)[1]
    assert "E_REQ_FAILED" == found.requeue([delivery_id], 0, 1.0)[1][delivery_id]
    assert "E_TOUCH_FAILED" == found.touch([delivery_id], 5.0, 1.0)[1][delivery_id]


def test_a_drain_answers_pulls_and_a_close_hands_leases_back() -> None:
    found = session()
    ids = leased(found, 2)
    found.begin(Pull(1, 0.0, 9.0), 0.0)
    ready, answer = found.drain(1.0)
    assert SetReady(0) == ready
    assert [[]] == answers([answer])
    late = messages(4)[2:]
    assert [RequeueDeliveries(1, IDS[2:4], 0, RequeueCause.DRAIN)] == found.on_messages(
        1, late, 1.0, 1.0
    )
    assert [FinishDeliveries(1, IDS[:1])] == found.finish(ids[:1], 1.0)[0]
    assert [RequeueDeliveries(1, IDS[1:2], 0, RequeueCause.DRAIN)] == found.close(1.1)
    assert [] == found.close(1.2)


def test_answered_leases_take_no_memory_while_others_of_their_pull_are_open() -> None:
    """Leases that begin together share a group, which forgets those that have left it."""
    found = session(max_leases=2_000)
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        for number in range(1_000):
            ids = [b"%016x" % (100 * number + place) for place in range(100)]
            found.begin(Pull(100, 5.0, 1.0), 0.0)
            found.on_messages(1, [Message(7, 1, each, b"x") for each in ids], 0.0, 0.0)
            [answer] = [each for each in found.serve(0.0) if isinstance(each, AnswerPull)]
            [batch] = answer.batches
            found.finish(batch.delivery_ids[1:], 0.0)
        after_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 1_000 == found.lease_count
    assert after_bytes - before_bytes < 2_000_000
