"""`PendingBatches`: each message is in one place, and leaves it once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.pending_batches import PendingBatches
from gateway.protocol.frames import Message, RawMessages, encode_messages

SOURCES = ("a", "b")


def raw(*numbers: int) -> RawMessages:
    messages = [Message(number, 1, b"%016d" % number, b"x" * (number % 3)) for number in numbers]
    return RawMessages(encode_messages(messages), [message.id for message in messages])


def ids(*numbers: int) -> list[bytes]:
    return raw(*numbers).ids


def pending_with(*chunks: tuple[str, tuple[int, ...]]) -> PendingBatches[str]:
    """Return pending batches with *chunks* that nsqd sent after 0 s, 1 s, and so on."""
    pending: PendingBatches[str] = PendingBatches()
    for at, (source, numbers) in enumerate(chunks):
        pending.add(source, raw(*numbers), sent_after=float(at), received_us=at)
    return pending


def test_a_batch_is_never_larger_than_its_limit() -> None:
    """A chunk is split if needed; its rest waits for the next batch."""
    pending = pending_with(("a", (1, 2, 3)), ("b", (4, 5)))
    numbers = [
        pending.cut_batch(2),
        pending.cut_batch(2),
        pending.cut_batch(2),
        pending.cut_batch(2),
    ]

    assert [1, 2, 3, None] == numbers
    batches = [
        [each for chunk in pending.chunks(n - 1, n) for each in chunk.messages.ids]
        for n in (1, 2, 3)
    ]
    assert [ids(1, 2), ids(3, 4), ids(5)] == batches


def test_a_batch_may_end_at_a_size() -> None:
    """The batch ends with the chunk that reaches target_bytes."""
    pending = pending_with(("a", (1, 2)), ("b", (3,)), ("a", (4,)))

    assert 1 == pending.cut_batch(100, target_bytes=1)
    assert [ids(1, 2)] == [chunk.messages.ids for chunk in pending.chunks(0, 1)]


def test_the_bytes_that_wait_are_those_of_no_batch() -> None:
    """After arrivals, after a split into a batch, and after messages were dropped."""
    pending = pending_with(("a", (1, 2)), ("b", (3, 4)), ("a", (5,)))
    sizes = [len(raw(number).data) for number in (1, 2, 3, 4, 5)]
    waiting = [pending.waiting_bytes]
    pending.cut_batch(3)
    waiting.append(pending.waiting_bytes)
    pending.drop_unbatched("b")
    waiting.append(pending.waiting_bytes)
    pending.take_up_to(1)

    assert [sum(sizes), sum(sizes[3:]), sizes[4]] == waiting
    assert (sizes[4], sizes[4]) == (pending.waiting_bytes, pending.size_bytes)


def test_held_messages_are_counted() -> None:
    """In batches and waiting, by source, with their age."""
    pending = pending_with(("a", (1, 2)), ("b", (3,)))
    pending.cut_batch(1)
    held = pending.held_messages, pending.count_of("a"), pending.count_of("b"), pending.oldest_at
    pending.take_up_to(1)
    pending.drop_unbatched("a")

    assert ((3, 2, 1, 0.0), 1.0) == (held, pending.oldest_at)
    assert {"b": ids(3)} == pending.clear()
    assert (0, None) == (pending.held_messages, pending.oldest_at)


def test_messages_of_a_lost_source_are_not_in_flight() -> None:
    """Their batch is kept until Spark has committed it, while nsqd delivers them again."""
    pending = pending_with(("a", (1, 2)), ("b", (3,)))
    pending.cut_batch(2)
    pending.drop_unbatched("a")

    assert (3, 1, 1.0) == (pending.held_messages, pending.in_flight, pending.waiting_since)


def test_finish_returns_ids_by_source_once() -> None:
    """Ids of the batches up to the given number, and of no later ones."""
    pending = pending_with(("a", (1,)), ("b", (2,)), ("a", (3,)))
    for _ in range(3):
        pending.cut_batch(1)

    assert {"a": ids(1), "b": ids(2)} == pending.take_up_to(2)
    assert {} == pending.take_up_to(2)
    assert (1, 0) == (pending.in_batches, pending.buffered)


def test_messages_of_a_lost_source_are_not_finished() -> None:
    """Waiting messages are dropped, since nsqd sends them again; a batch can still be read."""
    pending = pending_with(("a", (1,)), ("b", (2,)), ("a", (3,)))
    pending.cut_batch(2)
    forgotten = pending.drop_unbatched("a")

    assert (1, 0) == (forgotten, pending.buffered)
    assert 2 == len(pending.chunks(0, 1))
    assert {"b": ids(2)} == pending.take_up_to(1)


def test_held_messages_are_touched_when_due() -> None:
    """Messages in batches and waiting ones, once per interval."""
    pending = pending_with(("a", (1,)), ("b", (2,)))
    pending.cut_batch(1)
    touched = [pending.due_touches(now, 10.0) for now in (9.9, 10.0, 10.5, 11.0, 20.0)]

    assert [{}, {"a": ids(1)}, {}, {"b": ids(2)}, {"a": ids(1)}] == touched


def test_messages_past_the_maximum_timeout_are_forgotten() -> None:
    """nsqd has requeued them by then; batches stay unchanged."""
    pending = pending_with(("a", (1,)), ("a", (2,)), ("a", (3, 4)))
    pending.cut_batch(1)

    assert (1, 2) == (pending.drop_older_than(2.0), pending.buffered)
    assert ids(1) == pending.chunks(0, 1)[0].messages.ids


def test_the_age_counts_from_when_nsqd_may_have_sent_not_from_the_arrival() -> None:
    """A connection that was not read for long delivers older messages than one read before."""
    pending = pending_with()
    for source, sent_after in (("a", 30.0), ("b", 5.0), ("a", 40.0), ("b", 6.0)):
        pending.add(source, raw(int(sent_after)), sent_after=sent_after, received_us=0)

    assert (5.0, 5.0) == (pending.waiting_since, pending.oldest_at)
    assert (2, 30.0, 2) == (pending.drop_older_than(10.0), pending.waiting_since, pending.buffered)
    assert {"a": ids(30, 40)} == pending.clear()


def test_the_oldest_message_may_be_in_any_batch_or_in_none() -> None:
    """A batch has what arrived first, which nsqd need not have sent first."""
    pending = pending_with()
    oldest = []
    for sent_after in (30.0, 20.0, 10.0):
        pending.add("a", raw(int(sent_after)), sent_after=sent_after, received_us=0)
        pending.cut_batch(1)
        oldest.append(pending.oldest_at)
    pending.add("b", raw(5), sent_after=5.0, received_us=0)

    assert [30.0, 20.0, 10.0, 5.0] == [*oldest, pending.oldest_at]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("arrive"), st.sampled_from(SOURCES), st.integers(1, 5)),
            st.tuples(st.just("seal"), st.integers(1, 4)),
            st.tuples(st.just("finish"), st.integers(0, 6)),
            st.tuples(st.just("lose"), st.sampled_from(SOURCES)),
        ),
        max_size=30,
    )
)
def test_no_message_is_finished_twice_or_unread(steps: list[tuple[object, ...]]) -> None:
    """For random sequences of calls; the counts match the messages held."""
    pending: PendingBatches[tuple[str, int]] = PendingBatches()
    lives = dict.fromkeys(SOURCES, 0)
    given_ids: list[bytes] = []
    done: list[bytes] = []
    promised: set[bytes] = set()
    for step in steps:
        match step:
            case ("arrive", str(source), int(count)):
                first = len(given_ids)
                messages = raw(*range(first, first + count))
                given_ids += messages.ids
                pending.add((source, lives[source]), messages, sent_after=0.0, received_us=0)
            case ("seal", int(limit)):
                number = pending.cut_batch(limit)
                chunks = pending.chunks((number or 1) - 1, number or 0)
                promised.update(each for chunk in chunks for each in chunk.messages.ids)
            case ("finish", int(up_to)):
                done += [each for some in pending.take_up_to(up_to).values() for each in some]
            case ("lose", str(source)):
                pending.drop_unbatched((source, lives[source]))
                lives[source] += 1
            case other:
                pytest.fail(str(other))
    assert len(done) == len(set(done))
    assert set(done) <= promised
    held = [each for some in pending.clear().values() for each in some]
    assert len(held) == len(set(held))
    assert not set(held) & set(done)
    assert (0, 0, 0) == (pending.buffered, pending.in_batches, pending.size_bytes)
    assert 0 == pending.waiting_bytes
