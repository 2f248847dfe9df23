"""What waits for a client, and how it is cut into frames."""

from __future__ import annotations

import math
import sys
from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.frames import Message
from gateway.session.json_frames import ErrorOut, MessageOut, Out, Ref, ResponseOut, encode_frame
from gateway.session.types import SessionObserver
from gateway.session.window import MARGIN_S, MAX_FRAME_BYTES, DeliveryBatch, Outbox, Window
from tests.support.websocket.session_messages import message, message_id, messages


def batch(source: int = 1, *, now: float = 0.0, timeout_s: float = 60.0) -> DeliveryBatch:
    return DeliveryBatch(source, timeout_s, now + timeout_s, ceiling=now + 900.0)


def outbox() -> Outbox:
    """Return an empty outbox of topic t, channel c."""
    return Outbox("t", "c")


def ids_of(out: list[Out]) -> list[str]:
    """Return the message ids, without the number of the batch."""
    return [each.id.partition("-")[0] for each in out if isinstance(each, MessageOut)]


def ok(ref: Ref) -> ResponseOut:
    return ResponseOut("NOP", ref, "OK")


def test_nothing_waits_at_first() -> None:
    """An empty outbox is false, gives no lines and has nothing to expire."""
    empty = outbox()

    assert ([], []) == empty.take(Window(10), 0.0)
    assert (False, 0, math.inf) == (bool(empty), empty.size_bytes, empty.due)


def test_messages_keep_their_order_over_batches() -> None:
    """One frame holds the batches one behind the other, each under its number."""
    box = outbox()
    box.add_messages(batch(1), messages(1, 2))
    box.add_messages(batch(2), messages(3))

    lines, deliveries = box.take(Window(10), 0.5)

    expected = ["0000000000000001-1", "0000000000000002-1", "0000000000000003-2"]
    assert expected == [each.id for each in lines if isinstance(each, MessageOut)]
    assert [expected[:2], expected[2:]] == deliveries


def test_a_line_tells_what_is_left_of_the_timeout() -> None:
    """Counted when the frame is made, in whole milliseconds."""
    box = outbox()
    box.add_messages(batch(), messages(1))

    (line,), _ = box.take(Window(10), 12.3456)

    assert isinstance(line, MessageOut)
    assert ("t", "c", 47_654) == (line.topic, line.channel, line.deadline_ms)


def test_answers_go_first() -> None:
    """They keep their order before the messages that came earlier."""
    box = outbox()
    box.add_messages(batch(), messages(1))
    box.add_answer(ok(1))
    box.add_answer(ok(2))

    lines, _ = box.take(Window(10), 0.0)

    assert [ok(1), ok(2)] == lines[:2]
    assert 3 == len(lines)


def test_what_was_taken_is_held_by_the_window() -> None:
    """From then on the client owes an answer."""
    box, window = outbox(), Window(10)
    box.add_messages(batch(7), messages(1))

    _, ((delivery_id,),) = box.take(window, 0.0)

    assert 7 == window.take(delivery_id, 1.0)


def test_expired_messages_are_not_sent() -> None:
    """At the deadline the broker gives them to somebody else; what is younger goes out."""
    box, window = outbox(), Window(10)
    box.add_messages(batch(now=0.0), messages(1, 2))
    box.add_messages(batch(now=1.0), messages(3))

    lines, _ = box.take(window, 60.0)

    assert ["0000000000000003"] == ids_of(lines)
    assert (1, 0) == (len(window), box.size_bytes)


class TimeoutCounter(SessionObserver):
    """Keep each count."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_timed_out(self, count: int) -> None:
        """Keep it."""
        self.counts.append(count)


def test_an_observer_hears_of_each_message_that_timed_out() -> None:
    """In the window, and unsent: before a frame is made, or when it is."""
    observer = TimeoutCounter()
    window, box = Window(10, observer), Outbox("t", "c", observer)
    window.add(batch(timeout_s=10.0), messages(1))
    box.add_messages(batch(timeout_s=10.0), messages(2, 3))
    window.expire(10.0)
    box.expire(10.0)
    box.add_messages(batch(timeout_s=20.0), messages(4, 5, 6))
    box.take(window, 20.0)

    assert [1, 2, 3] == observer.counts


def test_what_expires_while_the_client_takes_nothing_counts_on() -> None:
    """It is dropped a little before its deadline, and occupies the window until the next frame."""
    box = outbox()
    box.add_messages(batch(now=0.0), messages(1, 2))
    box.add_messages(batch(now=9.0), messages(3))
    due = box.due

    box.expire(60.0 - MARGIN_S)
    dropped = box.expired
    lines, _ = box.take(Window(10), 61.0)

    assert (60.0 - MARGIN_S, 2) == (due, dropped)
    assert (["0000000000000003"], 0) == (ids_of(lines), box.expired)


def test_a_frame_ends_before_it_is_too_large() -> None:
    """A message that does not fit any more opens the next frame."""
    box, window = outbox(), Window(10)
    body = b"x" * (MAX_FRAME_BYTES // 2 - 1_000)
    box.add_messages(batch(), [message(number, body) for number in (1, 2, 3)])
    frames = []

    while box:
        lines, _ = box.take(window, 0.0)
        frames.append(ids_of(lines))

    assert [["0000000000000001", "0000000000000002"], ["0000000000000003"]] == frames


@pytest.mark.parametrize("before", [0, 1])
def test_a_larger_message_goes_alone(before: int) -> None:
    """Neither what came before it nor what comes behind it waits for its size."""
    box, window = outbox(), Window(10)
    if before:
        box.add_messages(batch(), messages(1))
    box.add_messages(batch(), [message(8, b"x" * (2 * MAX_FRAME_BYTES)), message(9)])
    frames = []

    while box:
        lines, _ = box.take(window, 0.0)
        frames.append(ids_of(lines))

    alone = [["0000000000000008"], ["0000000000000009"]]
    assert [["0000000000000001"]] * before + alone == frames


def test_a_larger_message_leaves_nothing_behind() -> None:
    """Where it was the last of its batch, the batch is gone with it."""
    box = outbox()
    box.add_messages(batch(), [message(8, b"x" * (2 * MAX_FRAME_BYTES))])

    box.take(Window(10), 0.0)

    assert (False, 0, math.inf) == (bool(box), box.size_bytes, box.due)


def test_many_answers_take_several_frames() -> None:
    """Answers fill a frame as messages do, and messages wait behind them."""
    box = outbox()
    box.add_messages(batch(), messages(1))
    for ref in range(1_000):
        box.add_answer(ok(ref))

    lines, deliveries = box.take(Window(10), 0.0)

    assert (True, []) == (len(lines) < 1_000, deliveries)


@pytest.mark.parametrize(
    "source, dropped, left",
    [
        (None, {1: [message_id(1), message_id(3)], 2: [message_id(2)]}, []),
        (1, {1: [message_id(1), message_id(3)]}, ["0000000000000002"]),
        (9, {}, ["0000000000000001", "0000000000000002", "0000000000000003"]),
    ],
)
def test_messages_can_be_taken_back(
    source: int | None, dropped: dict[int, list[bytes]], left: list[str]
) -> None:
    """All, or those of one source, oldest first; answers stay."""
    box = outbox()
    box.add_messages(batch(1), messages(1))
    box.add_messages(batch(2), messages(2))
    box.add_messages(batch(1), messages(3))
    box.add_answer(ok(1))

    assert dropped == box.take_messages(source)

    lines, _ = box.take(Window(10), 0.0)
    assert ([ok(1)], left, 0) == (lines[:1], ids_of(lines), box.size_bytes)


@pytest.mark.parametrize(
    "answer",
    [
        ok("r" * 50_000),
        ok(10**4_000),
        ErrorOut("FIN", None, "E", "m", retryable=False, id="i" * 50_000),
        ErrorOut("FIN", None, "E", "m", retryable=False, ids=["i" * 100] * 500),
        ErrorOut("FIN", None, "E", "m" * 50_000, retryable=False),
    ],
    ids=["a long ref", "a long number", "a long id", "many ids", "a long text"],
)
def test_what_the_client_made_long_counts_as_long(answer: ResponseOut | ErrorOut) -> None:
    """An echo is not free: the buffer's bound holds for it."""
    short, long = outbox(), outbox()
    short.add_answer(ErrorOut("FIN", 1.5, "E", "m", retryable=False, id="i"))

    long.add_answer(answer)

    assert long.size_bytes > short.size_bytes + 1_000


@pytest.mark.parametrize("text", ["r" * 50_000, "\u00e9" * 50_000, "\u4e2d" * 50_000])
@pytest.mark.parametrize("emoji", ["", "\U0001f600"])
def test_a_text_counts_what_it_takes_in_memory(text: str, emoji: str) -> None:
    """One emoji among its characters makes each of them take four bytes."""
    text += emoji
    box = outbox()
    box.add_answer(ok(text))
    box.add_answer(ErrorOut("FIN", None, "E", "m", retryable=False, id=text))
    box.add_answer(ErrorOut("FIN", None, "E", "m", retryable=False, ids=[text, text]))
    takes_bytes = 4 * sys.getsizeof(text)
    counted_bytes = box.answer_bytes
    while box:
        box.take(Window(10), 0.0)

    assert takes_bytes - 1_000 < counted_bytes < takes_bytes + 1_000
    assert (0, 0) == (box.answer_bytes, box.size_bytes)


def test_a_text_that_was_encoded_meanwhile_is_given_free_as_it_was_counted() -> None:
    """The decoder's text keeps its UTF-8 from then on."""
    ref = msgspec.json.decode(b'"' + "\u00e9".encode() * 50_000 + b'"')
    box = outbox()
    box.add_answer(ok(ref))
    before_bytes = sys.getsizeof(ref)
    encode_frame([ok(ref)])
    grown_bytes = sys.getsizeof(ref)
    box.take(Window(10), 0.0)

    assert before_bytes < grown_bytes
    assert 0 == box.answer_bytes


MESSAGES = st.lists(st.integers(1, 100_000), min_size=1, max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 3), MESSAGES),
    st.tuples(st.just("answer"), st.integers(0, 70_000)),
    st.tuples(st.just("take"), st.floats(0.0, 30.0)),
    st.tuples(st.just("expire"), st.floats(0.0, 30.0)),
    st.tuples(st.just("drop"), st.integers(1, 3)),
)


@given(st.lists(STEPS, max_size=30))
def test_every_message_leaves_once_and_every_byte_is_given_free(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    """Sent, dropped or expired: each once, in order; an empty outbox has zero bytes."""
    box, window, numbers, now = outbox(), Window(100), count(1), 0.0
    waiting: list[bytes] = []
    for step in [*steps, ("drop", None)]:
        if step[0] == "add":
            made: list[Message] = [message(next(numbers), b"x" * size) for size in step[2]]
            box.add_messages(batch(step[1], now=now), made)
            waiting += [each.id for each in made]
        elif step[0] == "answer":
            box.add_answer(ok("r" * step[1]))
        elif step[0] == "drop":
            for ids in box.take_messages(step[1]).values():
                for each in ids:
                    waiting.remove(each)
        else:
            now += step[1]
            before = len(waiting)
            if step[0] == "take":
                lines, _ = box.take(window, now)
                sent = [each.encode() for each in ids_of(lines)]
                assert sorted(sent) == sent
                assert set(sent) <= set(waiting)
            else:
                box.expire(now)
            left = [each.id for unsent in box._unsent for each in unsent.messages]
            assert waiting[before - len(left) :] == left
            waiting = left
    while box:
        box.take(window, now)
    assert ([], 0) == (waiting, box.size_bytes)
