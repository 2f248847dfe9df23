"""The receive buffer holds what cannot be used yet, and no longer."""

from __future__ import annotations

from gateway.protocol.buffer import ReceiveBuffer


def test_first_byte_is_enough_for_a_new_buffer() -> None:
    """Nothing is waited for at first, so what comes is handed out as it came."""
    buffer = ReceiveBuffer()

    assert b"a" == buffer.feed(b"a")


def test_nothing_is_not_enough() -> None:
    """An empty read hands out nothing."""
    buffer = ReceiveBuffer()

    assert buffer.feed(b"") is None


def test_piece_is_handed_out_without_a_copy_when_nothing_is_held() -> None:
    """The way of most reads copies nothing."""
    buffer = ReceiveBuffer()
    data = b"whole commands\n"

    assert data is buffer.feed(data)


def test_pieces_are_held_until_the_wanted_bytes_are_there() -> None:
    buffer = ReceiveBuffer()
    buffer.put_back(b"a", wanted_bytes=4)

    handed_out = [buffer.feed(b"b"), buffer.feed(b"c"), buffer.feed(b"d")]

    assert [None, None, b"abcd"] == handed_out


def test_more_than_wanted_is_handed_out_too() -> None:
    """Bytes after the wanted ones are returned with them."""
    buffer = ReceiveBuffer()
    buffer.put_back(b"a", wanted_bytes=2)

    assert b"abcd" == buffer.feed(b"bcd")


def test_wait_ends_with_what_was_handed_out_from_the_piece_itself() -> None:
    """A wait with nothing held is over once enough came, as any other is."""
    buffer = ReceiveBuffer()
    buffer.put_back(b"", wanted_bytes=4)
    buffer.feed(b"abcd")

    assert b"e" == buffer.feed(b"e")


def test_wait_ends_with_what_was_handed_out_from_what_was_held() -> None:
    """After the wanted bytes, one more byte is enough."""
    buffer = ReceiveBuffer()
    buffer.put_back(b"abc", wanted_bytes=4)
    buffer.feed(b"d")

    assert b"e" == buffer.feed(b"e")


def test_newline_ends_the_wait_where_it_is_enough() -> None:
    """A line may be shorter than the longest one."""
    buffer = ReceiveBuffer()
    buffer.put_back(b"N", wanted_bytes=100, newline_is_enough=True)

    handed_out = [buffer.feed(b"OP"), buffer.feed(b"\n")]

    assert [None, b"NOP\n"] == handed_out


def test_newline_does_not_end_the_wait_for_a_body() -> None:
    buffer = ReceiveBuffer()
    buffer.put_back(b"", wanted_bytes=3)

    assert buffer.feed(b"\n\n") is None


def test_held_bytes_wait_even_if_they_are_enough() -> None:
    """Held bytes are not returned until more are added, and then come first."""
    buffer = ReceiveBuffer()
    buffer.append(b"ab")

    assert b"abc" == buffer.feed(b"c")


def test_length_is_what_is_held() -> None:
    """Each kind of holding counts."""
    buffer = ReceiveBuffer()
    buffer.put_back(b"ab", wanted_bytes=10)
    buffer.feed(b"c")
    buffer.append(b"d")

    assert 4 == len(buffer)


def test_take_all_empties_the_buffer() -> None:
    """Taking everything empties the buffer and ends the wait."""
    buffer = ReceiveBuffer()
    buffer.put_back(b"ab", wanted_bytes=10)

    assert (b"ab", 0, b"c") == (buffer.take_all(), len(buffer), buffer.feed(b"c"))
