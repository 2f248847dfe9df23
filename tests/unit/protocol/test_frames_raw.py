"""Messages undecoded: the same as decoded ones, however the stream is cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.connection import (
    Event,
    MessagesReceived,
    Role,
    V2Connection,
    ViolationReceived,
)
from gateway.protocol.frames import (
    HEARTBEAT_FRAME,
    OK,
    Message,
    RawMessages,
    encode_messages,
    read_messages,
)

bodies = st.one_of(st.binary(max_size=40), st.sampled_from([b"a" * 8, b"b" * 8]))
messages = st.builds(
    Message,
    timestamp_ns=st.integers(0, 2**63 - 1),
    attempts=st.integers(0, 65_535),
    id=st.binary(min_size=16, max_size=16),
    body=bodies,
)
rows = st.lists(messages, min_size=1, max_size=30)
streams = st.lists(
    st.one_of(rows.map(encode_messages), st.sampled_from([OK.encode(), HEARTBEAT_FRAME.encode()])),
    max_size=6,
).map(b"".join)


def read(data: bytes, cuts: list[int], *, is_raw: bool) -> list[Event]:
    """Return what *data* says when it comes in pieces."""
    connection = V2Connection(Role.CLIENT, is_raw=is_raw)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    return [event for piece in pieces for event in connection.receive_data(piece)]


def decoded(event: Event) -> Event:
    if not isinstance(event, RawMessages):
        return event
    row: list[Message] = []
    assert len(event.data) == read_messages(event.data, 0, row)
    assert event.ids == [message.id for message in row]
    return MessagesReceived(row)


@given(data=streams, cuts=st.lists(st.integers(min_value=0), max_size=8))
def test_raw_messages_equal_decoded_ones(data: bytes, cuts: list[int]) -> None:
    assert read(data, cuts, is_raw=False) == [
        decoded(event) for event in read(data, cuts, is_raw=True)
    ]


@given(data=streams)
def test_byte_by_byte_too(data: bytes) -> None:
    """Nothing is lost at any cut."""
    cuts = list(range(len(data)))
    assert read(data, cuts, is_raw=False) == [
        decoded(event) for event in read(data, cuts, is_raw=True)
    ]


def test_an_invalid_frame_ends_the_reading() -> None:
    whole = encode_messages([Message(1, 1, b"i" * 16, b"x")] * 9)
    *events, last = read(whole + b"\x00\x00\x00\x05\x00\x00\x00\x02x", [], is_raw=True)

    assert [whole] == [event.data for event in events if isinstance(event, RawMessages)]
    assert isinstance(last, ViolationReceived)
