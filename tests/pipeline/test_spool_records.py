"""The bytes of a spool: whatever a crash leaves, what was written before it is read as it was."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.spool_records import (
    SEGMENT_HEAD_BYTES,
    Names,
    Place,
    Scan,
    SegmentHead,
    behind_frames,
    count_frames,
    encode_record,
    is_whole,
    names_of,
    read_record_head,
    read_segment_head,
    scan,
)
from gateway.protocol.frames import Message, encode_messages

HEAD = SegmentHead(segment=1_700_000_000_000, first=40, salt=0xDEADBEEF)
NAMES = Names("orders", "127.0.0.1:4150")


class Written(NamedTuple):
    """A segment."""

    data: bytes
    ends: list[int]
    """Where each record ends; the head is the first."""
    numbers: list[int]
    """Messages up to there."""


def frames(count: int, body: bytes = b"x") -> bytes:
    """Return frames of *count* messages."""
    return encode_messages([Message(1, 1, b"%016d" % number, body) for number in range(count)])


def segment(groups: list[list[int]], body: bytes = b"x") -> Written:
    """Return a segment with a record for each count; those of a list became durable as one."""
    data, ends, numbers = HEAD.encode(), [SEGMENT_HEAD_BYTES], [HEAD.first]
    for group in groups:
        durable = len(data)
        for count in group:
            place = Place(numbers[-1], durable, received_us=5)
            parts = [frames(count, body)]
            data += encode_record(NAMES, place, parts, count, HEAD.salt) + parts[0]
            ends.append(len(data))
            numbers.append(numbers[-1] + count)
    return Written(data, ends, numbers)


GROUPS = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4)


def test_a_record_says_what_it_was_given() -> None:
    """Frames in any number of parts stand behind one head."""
    parts = [frames(2), frames(3)]
    data = encode_record(NAMES, Place(7, 40, 5), parts, 5, 1) + b"".join(parts)
    head = read_record_head(data)
    assert head is not None

    assert (7, 40, 5, 5) == (head.number, head.durable, head.received_us, head.messages)
    assert (NAMES, len(data)) == (names_of(data, 0, head), head.size_bytes)
    assert (True, False) == (is_whole(data, 0, head, 1), is_whole(data, 0, head, 2))
    assert b"".join(parts) == data[head.frames_from :]


def test_a_segment_says_which_it_is() -> None:
    """A head that is cut, or has one bit wrong, is none."""
    data = HEAD.encode()

    assert (HEAD, SEGMENT_HEAD_BYTES) == (read_segment_head(data + b"more"), len(data))
    for bit in range(len(data) * 8):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        assert read_segment_head(bytes(wrong)) is None
    assert all(read_segment_head(data[:length]) is None for length in range(len(data)))


def test_a_segment_cut_at_any_byte_keeps_what_is_whole_before_it() -> None:
    """Never a wrong row, and none lost that stands before."""
    written = segment([[1, 2], [3], [2]])

    for length in range(SEGMENT_HEAD_BYTES, len(written.data) + 1):
        whole = sum(end <= length for end in written.ends) - 1
        expected = Scan(written.ends[whole], written.numbers[whole], None)
        assert expected == scan(written.data[:length], HEAD)


@given(GROUPS, st.integers(1, 3), st.data())
def test_a_torn_last_group_is_cut_and_nothing_before_it(
    groups: list[list[int]], torn: int, drawn: st.DataObject
) -> None:
    """A crash keeps any pages of what was being written: the rest of them is nothing, or zero."""
    before = segment(groups)
    written = segment([*groups, [2] * torn])
    tail = bytearray(written.data[len(before.data) :])
    for _ in range(drawn.draw(st.integers(1, 4))):
        first = drawn.draw(st.integers(0, len(tail) - 1))
        last = drawn.draw(st.integers(first + 1, len(tail)))
        tail[first:last] = bytes(last - first)
    found = scan(before.data + bytes(tail), HEAD)

    assert found.damage is None
    assert found.end >= len(before.data)
    assert written.data[: found.end] == (before.data + bytes(tail))[: found.end]
    assert found.end in written.ends


@given(GROUPS, st.data())
def test_what_was_durable_and_is_wrong_is_damage(
    groups: list[list[int]], drawn: st.DataObject
) -> None:
    """It was finished at nsqd, so it is never cut in silence: a later group tells."""
    before = segment(groups)
    data = bytearray(segment([*groups, [1]]).data)
    at = drawn.draw(st.integers(SEGMENT_HEAD_BYTES, len(before.data) - 1))
    data[at] ^= drawn.draw(st.integers(1, 255))
    found = scan(bytes(data), HEAD)

    assert max(end for end in before.ends if end <= at) == found.end == found.damage


@given(GROUPS, st.binary(max_size=200))
def test_noise_behind_the_end_is_no_record(groups: list[list[int]], noise: bytes) -> None:
    """Whatever stands there."""
    written = segment(groups)

    assert (written.ends[-1], written.numbers[-1], None) == scan(written.data + noise, HEAD)


def test_a_body_does_not_pass_for_a_record() -> None:
    """Even one that was made of a record: the checksum begins with a number nobody knows."""
    forged = encode_record(NAMES, Place(40, SEGMENT_HEAD_BYTES + 1, 5), [frames(1)], 1, 1)
    written = segment([[1], [1]], body=forged + frames(1))
    torn = written.data[: written.ends[-1] - 3]

    assert (written.ends[1], written.numbers[1], None) == scan(torn, HEAD)


def test_frames_are_counted_between_their_edges_only() -> None:
    """A place inside of one is none."""
    data = b"head" + frames(3, b"body")
    second = behind_frames(data, 4, 1)

    assert (2, 3, 0) == (
        count_frames(data, second, len(data)),
        count_frames(data, 4, len(data)),
        count_frames(data, len(data), len(data)),
    )
    assert count_frames(data, second + 1, len(data)) is None
