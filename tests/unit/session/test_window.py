"""What occupies the window of a client, and for how long."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.identify import IdentifyResponse
from gateway.session.session import Session
from gateway.session.types import SessionOptions
from gateway.session.window import MARGIN_S, REFUSAL_S, DeliveryBatch, Window, message_id
from tests.support.websocket.session_messages import command, delivery_ids, messages, read
from tests.support.websocket.session_messages import message_id as digits

A = digits(0xA).decode()


def batch(source: int = 1, *, now: float = 0.0, timeout_s: float = 60.0) -> DeliveryBatch:
    """Return a batch that TOUCH can keep for 900 s."""
    return DeliveryBatch(source, timeout_s, now + timeout_s, ceiling=now + 900.0)


def test_an_id_is_the_messages_id_and_the_number_of_its_batch() -> None:
    """Deliveries of one batch share the number, the next batch has the next one."""
    window = Window(10)

    ids = window.add(batch(), messages(0xA, 0xB)) + window.add(batch(), messages(0xC))

    assert [f"{A}-1", f"{digits(0xB).decode()}-1", f"{digits(0xC).decode()}-2"] == ids


def test_a_redelivery_has_a_new_id() -> None:
    """The same message in a later batch is another delivery, and both are held."""
    window = Window(10)

    ids = window.add(batch(1), messages(0xA)) + window.add(batch(2), messages(0xA))

    assert [f"{A}-1", f"{A}-2"] == ids
    assert (1, 2) == (window.take(ids[0], 1.0), window.take(ids[1], 1.0))


def test_a_message_twice_in_one_batch_has_two_ids() -> None:
    """Timed out and delivered again before the first was read: one number each."""
    window = Window(10)

    ids = window.add(batch(), messages(0xA, 0xA, 0xA))

    assert [f"{A}-1", f"{A}-2", f"{A}-3"] == ids


def test_an_answer_lets_go_once() -> None:
    """The first answer finds the source, the second finds nothing."""
    window = Window(10)
    (delivery_id,) = window.add(batch(7), messages(0xA))

    taken = [window.take(delivery_id, 1.0), window.take(delivery_id, 1.0)]

    assert [7, None] == taken
    assert 0 == len(window)


def test_an_answer_at_the_deadline_comes_too_late() -> None:
    """It is refused, and frees the place all the same."""
    window = Window(10)
    (delivery_id,) = window.add(batch(), messages(0xA))

    assert None is window.take(delivery_id, 60.0)
    assert 0 == len(window)


def test_what_is_overdue_lowers_the_room_until_it_is_answered() -> None:
    """The broker no longer counts it, so RDY must; its late answer gives the room back."""
    window = Window(2)
    (delivery_id,) = window.add(batch(), messages(0xA))
    window.expire(60.0)
    overdue = window.room

    window.take(delivery_id, 61.0)

    assert (1, 2) == (overdue, window.room)


def test_a_delivery_is_overdue_a_little_before_its_deadline() -> None:
    """The broker's clock started before ours."""
    window = Window(1)
    window.add(batch(), messages(0xA))
    due = 60.0 - MARGIN_S

    window.expire(due - 0.001)
    before = window.room
    window.expire(due)

    assert (1, 0, math.inf) == (before, window.room, window.due)


def test_an_overdue_delivery_is_answered_until_its_deadline() -> None:
    """The margin belongs to RDY only: FIN within it still counts."""
    window = Window(1)
    (delivery_id,) = window.add(batch(), messages(0xA))
    window.expire(60.0 - MARGIN_S)

    assert 1 == window.take(delivery_id, 60.0 - MARGIN_S / 2)


def test_more_overdue_than_the_size_leaves_no_room() -> None:
    """The room never goes below zero, also when RDY has shrunk the window since."""
    window = Window(3)
    window.add(batch(), messages(1, 2, 3))
    window.expire(60.0)

    window.size = 1

    assert 0 == window.room


def test_deadlines_may_come_in_any_order() -> None:
    """A broker with a shorter timeout does not wait behind one with a longer."""
    window = Window(10)
    window.add(batch(1, timeout_s=60.0), messages(1))
    window.add(batch(2, timeout_s=5.0), messages(2))
    first = window.due

    window.expire(5.0)

    assert (5.0 - MARGIN_S, 9) == (first, window.room)
    assert 60.0 - MARGIN_S == window.due


def test_what_its_source_sends_again_can_no_longer_be_answered() -> None:
    """The broker's clock is a little ahead: the earlier delivery is late, and still in the way."""
    window = Window(10)
    (first,) = window.add(batch(1), messages(0xA))
    (other,) = window.add(batch(2), messages(0xA))
    window.expire(59.9)

    window.refuse_earlier_deliveries(1, messages(0xA, 0xB))
    (second,) = window.add(batch(1, now=59.9), messages(0xA))

    assert (3, 8) == (len(window), window.room)
    taken = [window.take(delivery_id, 59.9) for delivery_id in (first, other, second)]
    assert [None, 2, 1] == taken


def test_touch_starts_the_timeout_anew() -> None:
    """The delivery is held, under the same id, until a timeout after the touch."""
    window = Window(10)
    (delivery_id,) = window.add(batch(7), messages(0xA))

    assert 7 == window.touch(delivery_id, 50.0)
    assert 7 == window.take(delivery_id, 109.9)


@pytest.mark.parametrize("later_touches", [(), (60.2, 60.5, 60.8)])
def test_an_overdue_delivery_counts_again_once_its_touch_was_not_refused(
    later_touches: tuple[float, ...],
) -> None:
    """Within the margin the broker may have timed it out: RDY stays down for REFUSAL_S."""
    window = Window(1)
    (delivery_id,) = window.add(batch(), messages(0xA))
    window.expire(60.0 - MARGIN_S)

    window.touch(delivery_id, 59.9)
    touched = (window.room, len(window), window.due)
    for now in later_touches:
        window.touch(delivery_id, now)
        window.expire(now)
    window.expire(59.9 + REFUSAL_S)

    assert (0, 1, 59.9 + REFUSAL_S) == touched
    assert (1, 1) == (window.room, len(window))
    assert window.due > 100.0


def test_an_overdue_delivery_that_is_answered_after_its_touch_leaves_nothing_behind() -> None:
    """The moment when it would have counted again passes without effect."""
    window = Window(1)
    (delivery_id,) = window.add(batch(), messages(0xA))
    window.expire(60.0 - MARGIN_S)
    window.touch(delivery_id, 59.9)

    assert 1 == window.take(delivery_id, 60.1)
    window.expire(59.9 + REFUSAL_S)

    assert (1, 0, math.inf) == (window.room, len(window), window.due)


@pytest.mark.parametrize("is_overdue", [False, True])
def test_a_late_touch_releases_the_delivery(is_overdue: bool) -> None:  # noqa: FBT001
    """The broker has timed it out, and the client drops what it may not touch."""
    window = Window(1)
    (delivery_id,) = window.add(batch(), messages(0xA))
    if is_overdue:
        window.expire(60.0 - MARGIN_S)

    assert None is window.touch(delivery_id, 60.0)
    assert (1, 0, None) == (window.room, len(window), window.take(delivery_id, 60.0))


def test_a_touch_that_the_broker_refuses_releases_the_delivery_once() -> None:
    """By source and message id, whatever else holds the same id."""
    window = Window(10)
    (one,) = window.add(batch(1), messages(0xA))
    (two,) = window.add(batch(2), messages(0xA))
    for delivery_id in (one, two, two):
        window.touch(delivery_id, 1.0)

    named = [window.touch_refused(2, digits(0xA)) for _ in range(2)]

    assert [two, two] == named
    assert (True, False) == (window.holds(one), window.holds(two))


def test_a_refused_touch_of_what_was_answered_since_releases_nothing() -> None:
    """Nor does one that never was."""
    window = Window(10)
    (delivery_id,) = window.add(batch(1), messages(0xA))
    window.add(batch(1), messages(0xB))
    window.touch(delivery_id, 1.0)
    window.take(delivery_id, 2.0)

    refused = [window.touch_refused(1, digits(number)) for number in (0xA, 0xB)]

    assert ([delivery_id, None], 1) == (refused, len(window))


def test_a_touched_delivery_whose_message_comes_again_is_given_up() -> None:
    """The broker had timed it out before the TOUCH: the place stays the client's, RDY goes down."""
    window = Window(10)
    (old,) = window.add(batch(1), messages(0xA))
    window.touch(old, 1.0)

    window.refuse_earlier_deliveries(2, messages(0xA))
    other_source = window.room
    window.refuse_earlier_deliveries(1, messages(0xA))

    assert (10, 9) == (other_source, window.room)
    assert old == window.touch_refused(1, digits(0xA))
    assert 10 == window.room


def test_what_is_remembered_of_touches_is_bounded() -> None:
    """However many deliveries are touched and answered."""
    window = Window(10)
    for number in range(1_000):
        (delivery_id,) = window.add(batch(), messages(number))
        window.touch(delivery_id, 1.0)
        window.take(delivery_id, 1.0)

    assert len(window._touched) < 100


def test_touch_does_not_reach_beyond_the_ceiling() -> None:
    """At max_msg_timeout after the delivery the broker takes it back, however often touched."""
    window = Window(10)
    late = DeliveryBatch(1, 60.0, deadline=60.0, ceiling=70.0)
    (delivery_id,) = window.add(late, messages(1))
    window.add(batch(now=30.0), messages(2))

    window.touch(delivery_id, 50.0)
    due = window.due
    window.expire(70.0)

    assert 60.0 - MARGIN_S == due
    assert (9, None) == (window.room, window.touch(delivery_id, 70.0))


def test_touch_of_what_is_not_held_is_refused() -> None:
    """An unknown id changes nothing."""
    window = Window(10)
    window.add(batch(), messages(0xA))

    assert None is window.touch("unknown", 1.0)
    assert 1 == len(window)


def test_a_lost_source_takes_its_deliveries_with_it() -> None:
    """Held and overdue ones of that source are told, those of others stay."""
    window = Window(10)
    old = window.add(batch(1), messages(1))
    window.expire(60.0)
    new = window.add(batch(1, now=60.0), messages(2))
    window.add(batch(2, now=60.0), messages(3))

    lost = window.lose(1)

    assert sorted(old + new) == sorted(lost)
    assert 1 == len(window)


def test_what_is_left_at_the_end_is_what_can_still_be_answered() -> None:
    """By source, oldest first; what is past its deadline belongs to somebody else already."""
    window = Window(10)
    window.add(batch(1), messages(1))
    window.add(batch(1, now=10.0), messages(2))
    window.add(batch(2, now=20.0), messages(3))
    window.add(batch(1, now=20.0), messages(4))
    window.expire(69.9)

    left = window.take_all(69.9)

    assert {1: [digits(2), digits(4)], 2: [digits(3)]} == left
    assert (0, {}) == (len(window), window.take_all(69.9))


def test_answers_given_together_are_told_by_source() -> None:
    """Held, overdue, of several batches and numbers; those that cannot count are told apart."""
    window = Window(10)
    old = window.add(batch(1, timeout_s=5.0), messages(1, 2))
    window.expire(4.9)
    ids = old + window.add(batch(2), messages(3)) + window.add(batch(1), messages(4, 4, 5))

    taken, refused = window.take_many(["x", *ids, ids[0]], 4.9)

    expected = {1: [digits(1), digits(2), digits(4), digits(4), digits(5)], 2: [digits(3)]}
    assert (expected, ["x", ids[0]], 0) == (taken, refused, len(window))


def test_answers_given_together_are_late_together() -> None:
    """At the deadline of their batch all of them are refused."""
    window = Window(10)
    ids = window.add(batch(), messages(1, 2, 3))

    assert ({}, ids) == window.take_many(ids, 60.0)


def test_the_second_of_two_in_one_batch_has_a_number_of_its_own() -> None:
    """Its neighbours have the number of the batch, and nothing is held under another name."""
    window = Window(10)

    ids = window.add(batch(), messages(1, 2, 1, 3))

    numbers = [delivery_id.partition("-")[2] for delivery_id in ids]
    assert (["1", "1", "2", "1"], 4) == (numbers, len(window))
    assert {1: [digits(1), digits(2), digits(1), digits(3)]} == window.take_many(ids, 1.0)[0]


def test_ids_that_look_like_several_come_back_as_they_were() -> None:
    """A broker may put the end of another delivery's id into its own."""
    window = Window(10)
    odd = b"abcdef-1\nghijklm"
    sent = messages(0xA, 0xB, 0xC)
    sent[1].id = sent[2].id = odd
    first, _, second = window.add(batch(), sent)

    taken, _ = window.take_many([first, second], 1.0)

    assert {1: [digits(0xA), odd]} == taken


@given(
    st.lists(st.binary(min_size=16, max_size=16) | st.just(b"\n-1\n" * 4), max_size=6, min_size=1),
    st.randoms(use_true_random=False),
)
def test_any_ids_come_back_together(raws: list[bytes], random: Random) -> None:
    """Whatever bytes a broker gives as ids, and in whatever order they are answered."""
    window = Window(1)
    sent = messages(*range(len(raws)))
    for each, raw in zip(sent, raws, strict=True):
        each.id = raw
    by_id = dict(zip(window.add(batch(), sent), raws, strict=True))
    ids = sorted(by_id)
    random.shuffle(ids)

    taken, refused = window.take_many(ids, 1.0)

    assert (len(raws), {1: [by_id[each] for each in ids]}, []) == (len(by_id), taken, refused)


@given(st.binary(min_size=16, max_size=16))
def test_any_16_bytes_come_back_from_a_delivery_id(raw: bytes) -> None:
    """An id is opaque: what the broker sent is what it gets."""
    window = Window(1)
    sent = messages(0)
    sent[0].id = raw

    (delivery_id,) = window.add(batch(), sent)

    assert raw == message_id(delivery_id)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 50.0), st.floats(1.0, 100.0), st.sampled_from(["", "T", "F"])),
        max_size=30,
    )
)
def test_expire_at_due_is_never_late(deliveries: list[tuple[float, float, str]]) -> None:
    """However timeouts, touches and answers mix, nothing is within its margin and still counted."""
    window = Window(100)
    now = 0.0
    held: dict[str, float] = {}
    for number, (gap_s, timeout_s, then) in enumerate(deliveries):
        end = now + gap_s
        while (due := window.due) <= end:
            now = max(now, due)
            window.expire(now)
            held = {key: at for key, at in held.items() if at - MARGIN_S > now}
            assert 100 - window.room == len(window) - len(held)
        now = end
        made = DeliveryBatch(1, timeout_s, now + timeout_s, ceiling=now + 1.5 * timeout_s)
        (delivery_id,) = window.add(made, messages(number))
        held[delivery_id] = made.deadline
        oldest = next(iter(held))
        if then == "T":
            if window.touch(oldest, now) is None:
                del held[oldest]
            elif oldest in window._held:
                held[oldest] = window._held[oldest].deadline
        if then == "F":
            window.take(oldest, now)
            del held[oldest]


def test_a_session_says_what_of_it_each_broker_counts_as_in_flight() -> None:
    """Held or not yet sent; not what has timed out there, nor what was answered."""
    session = Session(SessionOptions(topic="t", channel="c", max_in_flight=10), now=0.0)
    session.on_source_opened(1, IdentifyResponse(msg_timeout=1_000))
    session.on_source_opened(2, IdentifyResponse())
    session.on_messages(1, messages(1, 2), 0.0)
    session.on_messages(2, messages(3, 4), 0.0)
    ids = delivery_ids(read(session, 0.0))
    session.on_messages(2, messages(5), 0.5)
    at_first = dict(session.in_flight_by_source())

    session.receive(command("FIN", id=ids[2]), 0.6)
    session.wake(0.9)

    assert {1: 2, 2: 3} == at_first
    assert {2: 2} == dict(session.in_flight_by_source())


def test_a_deadline_counts_from_when_the_broker_may_have_sent_it() -> None:
    """What has expired before it was read is dropped, and never shown."""
    session = Session(SessionOptions(topic="t", channel="c", max_in_flight=10), now=0.0)
    session.on_source_opened(1, IdentifyResponse(msg_timeout=3_000))
    read(session, 10.0)
    session.on_messages(1, messages(1), 10.0, 9.0)
    session.on_messages(1, messages(2), 10.0, 2.0)

    shown = [each for each in read(session, 10.0) if each["type"] == "message"]

    assert [(2_000, 1)] == [(each["deadline_ms"], int(each["id"][:16], 16)) for each in shown]
    assert {1: 1} == dict(session.in_flight_by_source())


def test_deliveries_that_time_out_are_counted() -> None:
    """Each once, all in the order of their ends."""
    window = Window(10)
    window.add(batch(timeout_s=10.0), messages(0xA, 0xB))
    window.add(batch(timeout_s=20.0), messages(0xC))

    counts = []
    for now in (0.0, 10.0, 10.0, 20.0):
        window.expire(now)
        counts.append(window.timed_out)

    assert [0, 2, 2, 3] == counts
