"""The file format of a spool: after any crash, durable records are read unchanged."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.spool.records import (
    SEGMENT_HEAD_BYTES,
    Names,
    RecordPosition,
    Scan,
    SegmentHead,
    count_frames,
    encode_record,
    is_whole,
    names_of,
    read_record_head,
    read_segment_head,
    scan,
    skip_frames,
)
from gateway.protocol.frames import Message, encode_messages

HEAD = SegmentHead(segment=1_700_000_000_000, first=40, salt=0xDEADBEEF)
NAMES = Names("orders", "127.0.0.1:4150")


class Written(NamedTuple):
    """A segment's bytes."""

    data: bytes
    ends: list[int]
    """End of each record in bytes, after that of the header."""
    numbers: list[int]
    """Number of messages up to each end."""


def frames(count: int, body: bytes = b"x") -> bytes:
    return encode_messages([Message(1, 1, b"%016d" % number, body) for number in range(count)])


def segment(groups: list[list[int]], body: bytes = b"x") -> Written:
    """Return a segment with a record per count; records of a list are one durable group."""
    data, ends, numbers = HEAD.encode(), [SEGMENT_HEAD_BYTES], [HEAD.first]
    for group in groups:
        durable = len(data)
        for count in group:
            place = RecordPosition(numbers[-1], durable, received_us=5)
            parts = [frames(count, body)]
            data += encode_record(NAMES, place, parts, count, HEAD.salt) + parts[0]
            ends.append(len(data))
            numbers.append(numbers[-1] + count)
    return Written(data, ends, numbers)


GROUPS = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4)


def test_a_record_is_read_as_it_was_written() -> None:
    """A record may have its frames in several parts."""
    parts = [frames(2), frames(3)]
    data = encode_record(NAMES, RecordPosition(7, 40, 5), parts, 5, 1) + b"".join(parts)
    head = read_record_head(data)
    assert head is not None

    assert (7, 40, 5, 5) == (head.number, head.durable, head.received_us, head.messages)
    assert (NAMES, len(data)) == (names_of(data, 0, head), head.record_size_bytes)
    assert (True, False) == (is_whole(data, 0, head, 1), is_whole(data, 0, head, 2))
    assert b"".join(parts) == data[head.frames_offset :]


def test_a_segment_says_which_it_is() -> None:
    """A header that is cut or has a wrong bit is rejected."""
    data = HEAD.encode()

    assert (HEAD, SEGMENT_HEAD_BYTES) == (read_segment_head(data + b"more"), len(data))
    for bit in range(len(data) * 8):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        assert read_segment_head(bytes(wrong)) is None
    assert all(read_segment_head(data[:length]) is None for length in range(len(data)))


def test_a_segment_cut_at_any_byte_keeps_its_whole_records() -> None:
    """No wrong row, and no lost record before the cut."""
    written = segment([[1, 2], [3], [2]])

    for length in range(SEGMENT_HEAD_BYTES, len(written.data) + 1):
        whole = sum(end <= length for end in written.ends) - 1
        expected = Scan(written.ends[whole], written.numbers[whole], None)
        assert expected == scan(written.data[:length], HEAD)


@given(GROUPS, st.integers(1, 3), st.data())
def test_a_torn_last_group_is_cut_and_nothing_before_it(
    groups: list[list[int]], torn: int, drawn: st.DataObject
) -> None:
    """A crash may keep any pages of the last group; other pages are missing or zero."""
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
def test_changed_durable_bytes_are_damage(groups: list[list[int]], drawn: st.DataObject) -> None:
    """Durable data is never cut off silently; a later group proves that it was durable."""
    before = segment(groups)
    data = bytearray(segment([*groups, [1]]).data)
    at = drawn.draw(st.integers(SEGMENT_HEAD_BYTES, len(before.data) - 1))
    data[at] ^= drawn.draw(st.integers(1, 255))
    found = scan(bytes(data), HEAD)

    assert max(end for end in before.ends if end <= at) == found.end == found.damage


@given(GROUPS, st.binary(max_size=200))
def test_noise_behind_the_end_is_no_record(groups: list[list[int]], noise: bytes) -> None:
    """Whatever bytes follow the last record."""
    written = segment(groups)

    assert (written.ends[-1], written.numbers[-1], None) == scan(written.data + noise, HEAD)


def test_a_body_does_not_pass_for_a_record() -> None:
    """Even a body copied from a record: checksums start from a secret salt."""
    forged = encode_record(NAMES, RecordPosition(40, SEGMENT_HEAD_BYTES + 1, 5), [frames(1)], 1, 1)
    written = segment([[1], [1]], body=forged + frames(1))
    torn = written.data[: written.ends[-1] - 3]

    assert (written.ends[1], written.numbers[1], None) == scan(torn, HEAD)


def test_frames_are_counted_between_their_edges_only() -> None:
    """A position inside a frame is rejected."""
    data = b"head" + frames(3, b"body")
    second = skip_frames(data, 4, 1)

    assert (2, 3, 0) == (
        count_frames(data, second, len(data)),
        count_frames(data, 4, len(data)),
        count_frames(data, len(data), len(data)),
    )
    assert count_frames(data, second + 1, len(data)) is None
