"""Decode frames of nsqd into rows."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.schema import ARROW_SCHEMA, Frames, decode
from gateway.protocol.frames import Message, encode_messages

MICROSECOND = 1_000


def frames(topic: str, *messages: Message) -> Frames:
    return Frames(topic, "127.0.0.1:4150", 5, encode_messages(messages))


def test_a_row_has_the_fields_of_its_message() -> None:
    """Times are UTC; nanoseconds below a microsecond are cut."""
    message = Message(1_700_000_000_123_456_789, 3, b"0123456789abcdef", b"\xff\x00")
    [batch] = decode([frames("orders", message)])

    assert batch.schema == ARROW_SCHEMA
    assert [
        {
            "topic": "orders",
            "nsqd": "127.0.0.1:4150",
            "id": "0123456789abcdef",
            "ts": datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC),
            "attempts": 3,
            "received": datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC),
            "body": b"\xff\x00",
        }
    ] == batch.to_pylist()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 7_000)), max_size=5))
def test_rows_are_decoded_in_order_in_batches(parts: list[tuple[str, int]]) -> None:
    """However the frames were split into chunks."""
    chunks = [
        frames(topic, *[Message(at * MICROSECOND, 1, b"i" * 16, b"") for at in range(count)])
        for topic, count in parts
    ]
    batches = list(decode(chunks))
    rows = [topic for batch in batches for topic in batch.column("topic").to_pylist()]

    assert [topic for topic, count in parts for _ in range(count)] == rows
    assert all(0 < batch.num_rows < 20_000 for batch in batches)
