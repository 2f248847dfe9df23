"""What a stream holds: each message is in one place, and comes out of it once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.ledger import Ledger
from gateway.protocol.frames import Message, encode_messages
from gateway.protocol.raw_messages import RawMessages

SOURCES = ("a", "b")


def raw(*numbers: int) -> RawMessages:
    """Return messages whose ids are *numbers*."""
    messages = [Message(number, 1, b"%016d" % number, b"x" * (number % 3)) for number in numbers]
    return RawMessages(encode_messages(messages), [message.id for message in messages])


def ids(*numbers: int) -> list[bytes]:
    """Return the ids of messages."""
    return raw(*numbers).ids


def ledger_with(*chunks: tuple[str, tuple[int, ...]]) -> Ledger[str]:
    """Return a ledger that holds *chunks*, which came a second apart from 0 on."""
    ledger: Ledger[str] = Ledger()
    for at, (source, numbers) in enumerate(chunks):
        ledger.arrived(source, raw(*numbers), now=float(at), received_us=at)
    return ledger


def test_a_batch_is_never_larger_than_its_limit() -> None:
    """A chunk is cut where it has to be; what is left waits for the next one."""
    ledger = ledger_with(("a", (1, 2, 3)), ("b", (4, 5)))
    numbers = [ledger.seal(2), ledger.seal(2), ledger.seal(2), ledger.seal(2)]

    assert [1, 2, 3, None] == numbers
    batches = [
        [each for chunk in ledger.chunks(n - 1, n) for each in chunk.messages.ids]
        for n in (1, 2, 3)
    ]
    assert [ids(1, 2), ids(3, 4), ids(5)] == batches


def test_a_batch_may_end_at_a_size() -> None:
    """With the chunk that reaches it."""
    ledger = ledger_with(("a", (1, 2)), ("b", (3,)), ("a", (4,)))

    assert 1 == ledger.seal(100, about_bytes=1)
    assert [ids(1, 2)] == [chunk.messages.ids for chunk in ledger.chunks(0, 1)]


def test_what_is_held_is_counted() -> None:
    """In batches and waiting, by source, and since when."""
    ledger = ledger_with(("a", (1, 2)), ("b", (3,)))
    ledger.seal(1)
    held = ledger.held, ledger.held_of("a"), ledger.held_of("b"), ledger.oldest_at
    ledger.finished(1)
    ledger.source_lost("a")

    assert ((3, 2, 1, 0.0), 1.0) == (held, ledger.oldest_at)
    assert {"b": ids(3)} == ledger.hand_back()
    assert (0, None) == (ledger.held, ledger.oldest_at)


def test_what_a_lost_source_brought_is_not_in_flight() -> None:
    """Its batch is held until Spark has finished it, and nsqd delivers it again meanwhile."""
    ledger = ledger_with(("a", (1, 2)), ("b", (3,)))
    ledger.seal(2)
    ledger.source_lost("a")

    assert (3, 1, 1.0) == (ledger.held, ledger.in_flight, ledger.waits_since)


def test_what_is_finished_is_told_once_by_source() -> None:
    """Up to the number that is named, and nothing behind it."""
    ledger = ledger_with(("a", (1,)), ("b", (2,)), ("a", (3,)))
    for _ in range(3):
        ledger.seal(1)

    assert {"a": ids(1), "b": ids(2)} == ledger.finished(2)
    assert {} == ledger.finished(2)
    assert (1, 0) == (ledger.in_batches, ledger.buffered)


def test_what_a_lost_source_brought_is_not_finished() -> None:
    """What waited is forgotten, since nsqd sends it again; what is in a batch stays readable."""
    ledger = ledger_with(("a", (1,)), ("b", (2,)), ("a", (3,)))
    ledger.seal(2)
    forgotten = ledger.source_lost("a")

    assert (1, 0) == (forgotten, ledger.buffered)
    assert 2 == len(ledger.chunks(0, 1))
    assert {"b": ids(2)} == ledger.finished(1)


def test_what_is_held_is_touched_when_it_is_due() -> None:
    """In batches and waiting; once an interval."""
    ledger = ledger_with(("a", (1,)), ("b", (2,)))
    ledger.seal(1)
    touched = [ledger.to_touch(now, 10.0) for now in (9.9, 10.0, 10.5, 11.0, 20.0)]

    assert [{}, {"a": ids(1)}, {}, {"b": ids(2)}, {"a": ids(1)}] == touched


def test_what_waits_for_too_long_is_forgotten() -> None:
    """It is nsqd's again by then; what Spark was promised stays."""
    ledger = ledger_with(("a", (1,)), ("a", (2,)), ("a", (3, 4)))
    ledger.seal(1)

    assert (1, 2) == (ledger.drop_older_than(2.0), ledger.buffered)
    assert ids(1) == ledger.chunks(0, 1)[0].messages.ids


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
    """And the counts are those of what is held."""
    ledger: Ledger[tuple[str, int]] = Ledger()
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
                ledger.arrived((source, lives[source]), messages, now=0.0, received_us=0)
            case ("seal", int(limit)):
                number = ledger.seal(limit)
                chunks = ledger.chunks((number or 1) - 1, number or 0)
                promised.update(each for chunk in chunks for each in chunk.messages.ids)
            case ("finish", int(up_to)):
                done += [each for some in ledger.finished(up_to).values() for each in some]
            case ("lose", str(source)):
                ledger.source_lost((source, lives[source]))
                lives[source] += 1
            case other:
                pytest.fail(str(other))
    assert len(done) == len(set(done))
    assert set(done) <= promised
    held = [each for some in ledger.hand_back().values() for each in some]
    assert len(held) == len(set(held))
    assert not set(held) & set(done)
    assert (0, 0, 0) == (ledger.buffered, ledger.in_batches, ledger.size_bytes)
