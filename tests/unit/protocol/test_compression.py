"""Snappy and deflate: as nsqd writes them, in any pieces, too much at once, and broken."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RemoteProtocolError
from gateway.protocol.commands import Identify, Nop
from gateway.protocol.compression import MAX_PIECE_BYTES, DeflateCodec, SnappyCodec
from gateway.protocol.connection import Codec
from tests.support.brokers.connected_pair import (
    CountingBuffer,
    Cut,
    byte_by_byte,
    cut_at,
    in_steps,
    opened_broker,
    plain,
    whole,
)

BOTH_CUTS = pytest.mark.parametrize("cut", [whole, byte_by_byte])
CodecFactory = Callable[[], Codec]
CODECS = {
    "snappy": SnappyCodec,
    "deflate-1": partial(DeflateCodec, 1),
    "deflate-6": partial(DeflateCodec, 6),
    "deflate-9": partial(DeflateCodec, 9),
}
ALL_CODECS = pytest.mark.parametrize("layer", CODECS.values(), ids=CODECS.keys())

START = b"\xff\x06\x00\x00sNaPpY"
FIN = b"FIN 0123456789abcdef\n"
FIN_CHUNK = b"\x01\x19\x00\x00\xb1\xea\x11\xea" + FIN
"""Four bytes of head, four of checksum, and the text: too short to become shorter."""


def chunk(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + len(data).to_bytes(3, "little") + data


def kinds_and_sizes(stream: bytes) -> Iterator[tuple[int, int]]:
    """Return type and size of each chunk."""
    while stream:
        size = int.from_bytes(stream[1:4], "little")
        yield stream[0], size
        stream = stream[4 + size :]


def decode_all(layer: Codec, pieces: Iterable[bytes]) -> tuple[bytes, str]:
    """Return what *pieces* say one after the other, and the error that ends them, if one does."""
    received = b""
    try:
        for piece in pieces:
            for part in layer.decode(piece):
                received += part
    except RemoteProtocolError as error:
        return received, str(error)
    return received, ""


def inflated(data: bytes) -> bytes:
    """Return what raw deflate says."""
    return zlib.decompressobj(wbits=-15).decompress(data)


def random_bytes(size_bytes: int) -> bytes:
    """Return bytes that nothing makes shorter, the same in every run."""
    return random.Random(size_bytes).randbytes(size_bytes)


class Counted:
    """A codec that records the size of each piece taken from another one."""

    def __init__(self, layer: Codec, taken: list[int]) -> None:
        self.encode = layer.encode
        self._layer = layer
        self._taken = taken

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Give the pieces."""
        for piece in self._layer.decode(data):
            self._taken.append(len(piece))
            yield piece


# Both

texts = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda part, times: part * times, st.binary(max_size=9), st.integers(0, 9_000)),
)


@given(st.data(), st.lists(texts, max_size=6), st.sampled_from(list(CODECS.values())))
def test_encoded_data_is_decoded_in_any_pieces(
    data: st.DataObject, writes: list[bytes], layer: CodecFactory
) -> None:
    writer = layer()
    stream = b"".join(map(writer.encode, writes))
    pieces = cut_at(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))

    received = [decode_all(layer(), cut) for cut in (pieces, whole(stream), byte_by_byte(stream))]

    assert [(b"".join(writes), "")] * 3 == received


@ALL_CODECS
def test_each_write_is_complete(layer: CodecFactory) -> None:
    """The peer can read every write up to its last byte before the next one comes."""
    writer, parser = layer(), layer()
    writes = [FIN, b"", b"x", random_bytes(200_000), FIN * 10_000, FIN]

    assert writes == [b"".join(parser.decode(writer.encode(data))) for data in writes]


@ALL_CODECS
def test_no_bytes_decode_to_no_piece(layer: CodecFactory) -> None:
    assert [] == list(layer().decode(b""))


@ALL_CODECS
def test_sizes_at_the_edges_are_kept(layer: CodecFactory) -> None:
    """A write as large as a chunk or a piece, one byte more and one less, is decoded whole."""
    for size_bytes in (0, 1, 65_535, 65_536, 65_537, 1_048_575, 1_048_576):
        data = random_bytes(size_bytes)

        assert (data, "") == decode_all(layer(), [layer().encode(data)]), size_bytes


@ALL_CODECS
def test_pieces_are_bounded_and_made_when_asked_for(layer: CodecFactory) -> None:
    """A bomb is decoded on demand, in pieces of at most 64 KiB."""
    pieces = layer().decode(layer().encode(bytes(10 * MAX_PIECE_BYTES)))

    sizes = [len(next(pieces)) for _ in range(3)]
    rest = [len(piece) for piece in pieces]

    assert [MAX_PIECE_BYTES] * 10 == sizes + rest


@ALL_CODECS
def test_bomb_ends_at_the_size_that_it_announces(layer: CodecFactory) -> None:
    """A command that is too big is refused with one piece decoded, however much would follow."""
    bomb = layer().encode(b"PUB t\n\x7f\xff\xff\xff" + bytes(64 * MAX_PIECE_BYTES))
    taken: list[int] = []
    broker = opened_broker()
    broker.receive_data(Identify(b"{}").encode())
    broker.upgrade(Counted(layer(), taken))

    received = plain(broker.receive_data(bomb))

    description = b"E_BAD_MESSAGE PUB message too big 2147483647 > 1048576"
    assert [b"\x00\x00\x00\x3a\x00\x00\x00\x01" + description] == received
    assert [MAX_PIECE_BYTES] == taken


@ALL_CODECS
def test_bomb_during_a_pause_is_not_decoded(layer: CodecFactory) -> None:
    """Data after IDENTIFY is not decoded before the handler's response."""
    bomb = layer().encode(Identify(b"{}").encode() + b"NOP\n" + bytes(64 * MAX_PIECE_BYTES))
    taken: list[int] = []
    broker = opened_broker()
    broker.receive_data(Identify(b"{}").encode())
    broker.upgrade(Counted(layer(), taken))

    before = [broker.receive_data(bomb), broker.receive_data(b"")]
    behind = broker.upgrade(None)

    assert [[Identify(b"{}")], []] == before
    assert ([Nop()], [MAX_PIECE_BYTES]) == (behind[:1], taken)


@given(
    st.data(),
    st.lists(st.sampled_from([START, FIN_CHUNK, b"\x00" * 4]) | st.binary(max_size=30), max_size=9),
    st.sampled_from([SnappyCodec, CODECS["deflate-6"]]),
)
def test_garbage_is_a_violation_or_incomplete(
    data: st.DataObject, parts: list[bytes], layer: CodecFactory
) -> None:
    """Any bytes are read, waited with, or refused with E_INVALID; the cut does not matter."""
    stream = b"".join(parts)
    pieces = cut_at(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))

    received = [decode_all(layer(), cut) for cut in (pieces, whole(stream), byte_by_byte(stream))]

    assert [received[0][1]] * 3 == [error for _, error in received]
    assert received[0][1].startswith("E_INVALID the ") or received[0][1] == ""
    if layer is SnappyCodec:
        assert [received[0]] * 3 == received


@given(st.data(), st.sampled_from(list(CODECS.values())))
def test_data_before_a_wrong_byte_is_right(data: st.DataObject, layer: CodecFactory) -> None:
    """A corrupt byte does not change the data of the writes before it."""
    writer = layer()
    writes = [writer.encode(FIN), writer.encode(b"ab" * 500), writer.encode(b"cd" * 500)]
    stream = bytearray(b"".join(writes))
    position = data.draw(st.integers(len(writes[0]), len(stream) - 1))
    stream[position] ^= data.draw(st.integers(1, 255))

    received, _ = decode_all(layer(), [writes[0], bytes(stream[len(writes[0]) :])])

    assert received.startswith(FIN)


# Snappy: the format


def test_snappy_begins_with_the_identifier_once() -> None:
    """The stream identifier stands before the first chunk, and a short text is not compressed."""
    writer = SnappyCodec()

    assert [START + FIN_CHUNK, FIN_CHUNK] == [writer.encode(FIN), writer.encode(FIN)]


def test_snappy_compresses_compressible_text() -> None:
    """A longer text is one compressed chunk: checksum, then what snappy makes of it."""
    text = b"ab" * 500
    _, (kind, size) = kinds_and_sizes(encoded := SnappyCodec().encode(text))

    assert (0, True) == (kind, size < 100)
    assert text == snappy.decompress(encoded[18:])


@pytest.mark.parametrize(
    "size_bytes,chunks",
    [
        (0, []),
        (65_536, [(1, 65_540)]),
        (65_537, [(1, 65_540), (1, 5)]),
        (200_000, [(1, 65_540)] * 3 + [(1, 3_396)]),
    ],
)
def test_snappy_chunks_hold_65536_bytes(size_bytes: int, chunks: list[tuple[int, int]]) -> None:
    """More than 65,536 bytes are several chunks; nothing is none."""
    stream = SnappyCodec().encode(random_bytes(size_bytes))

    assert chunks == list(kinds_and_sizes(stream.removeprefix(START)))


@pytest.mark.parametrize(
    "between",
    [
        START,
        chunk(0xFE, b""),
        chunk(0xFE, bytes(10)),
        chunk(0x80, b"any"),
        chunk(0xFD, FIN_CHUNK),
        chunk(0xFE, bytes(100_000)),
        chunk(0xFE, bytes(3)) + START + chunk(0x99, bytes(3)),
        chunk(0x01, b"\xd8\xea\x82\xa2"),
        chunk(0x00, b"\xd8\xea\x82\xa2\x00"),
    ],
    ids=[
        "identifier",
        "empty",
        "padding",
        "0x80",
        "0xfd",
        "long",
        "several",
        "no-data",
        "no-data-compressed",
    ],
)
@BOTH_CUTS
def test_snappy_skips_chunks_without_data(between: bytes, cut: Cut) -> None:
    """Identifiers, padding, what is reserved as skippable and chunks of no bytes say nothing."""
    stream = START + FIN_CHUNK + between + FIN_CHUNK + between

    assert (FIN + FIN, "") == decode_all(SnappyCodec(), cut(stream))


def test_snappy_never_holds_padding() -> None:
    """16 MiB of padding are dropped as they come."""
    layer = SnappyCodec()
    buffer, held = layer._buffer, []
    for piece in in_steps(START + chunk(0xFE, bytes(2**24 - 1)), 65_536):
        assert [] == list(layer.decode(piece))
        held.append(len(buffer))

    assert ([0], (FIN, "")) == (sorted(set(held)), decode_all(layer, [FIN_CHUNK]))


@BOTH_CUTS
def test_snappy_accepts_the_longest_chunks(cut: Cut) -> None:
    """65,536 bytes as they are and compressed are chunks."""
    data = random_bytes(65_536)
    stream = SnappyCodec().encode(data) + SnappyCodec().encode(bytes(65_536))

    assert (data + bytes(65_536), "") == decode_all(SnappyCodec(), cut(stream))


BROKEN = {
    "no-identifier": (FIN_CHUNK, "it does not begin with a stream identifier"),
    "plain": (b"\x00\x00\x00\x06\x00\x00\x00\x00OK", "it does not begin with a stream identifier"),
    "padding-first": (chunk(0xFE, b"") + START, "it does not begin with a stream identifier"),
    "other-identifier": (chunk(0xFF, b"sNaPpX"), "its identifier is not snappy's"),
    "short-identifier": (
        chunk(0xFF, b"sNaPp"),
        "chunk of type 0xff and 5 bytes, allowed: 6 to 6 bytes",
    ),
    "long-identifier": (
        chunk(0xFF, b"sNaPpYY"),
        "chunk of type 0xff and 7 bytes, allowed: 6 to 6 bytes",
    ),
    "no-checksum": (
        START + chunk(0x01, b"abc"),
        "chunk of type 0x01 and 3 bytes, allowed: 4 to 65540 bytes",
    ),
    "empty": (
        START + chunk(0x00, b""),
        "chunk of type 0x00 and 0 bytes, allowed: 4 to 76490 bytes",
    ),
    "long": (
        START + chunk(0x01, bytes(65_541)),
        "chunk of type 0x01 and 65541 bytes, allowed: 4 to 65540 bytes",
    ),
    "long-compressed": (
        START + chunk(0x00, bytes(76_491)),
        "chunk of type 0x00 and 76491 bytes, allowed: 4 to 76490 bytes",
    ),
    "0x02": (START + chunk(0x02, b""), "chunk type 0x02 is reserved and must not be skipped"),
    "0x7f": (START + chunk(0x7F, b""), "chunk type 0x7f is reserved and must not be skipped"),
    "checksum": (START + FIN_CHUNK[:-1] + b"?", "snappy: corrupt input (bad checksum"),
    "checksum-compressed": (
        START + chunk(0x00, b"\x00\x00\x00\x00" + snappy.compress(b"ab" * 500)),
        "snappy: corrupt input (bad checksum",
    ),
    "checksum-only": (START + chunk(0x00, bytes(4)), "snappy: corrupt input"),
    "says-65537": (
        START + chunk(0x00, bytes(4) + snappy.compress(bytes(65_537))),
        "snappy: corrupt input (unsupported chunk length: 65537)",
    ),
    "says-4-GiB": (START + chunk(0x00, bytes(4) + b"\xff\xff\xff\xff\x0f"), "snappy: corrupt"),
    "no-snappy": (START + chunk(0x00, bytes(4) + b"\xff" * 20), "snappy: corrupt"),
    "cut-chunk": (START + FIN_CHUNK[:-1] + FIN_CHUNK, "snappy: corrupt input (bad checksum"),
}


@pytest.mark.parametrize("stream,reason", BROKEN.values(), ids=BROKEN.keys())
@BOTH_CUTS
def test_broken_snappy_is_a_violation(stream: bytes, reason: str, cut: Cut) -> None:
    """Invalid chunks are E_INVALID with the reason, and yield nothing."""
    received, error = decode_all(SnappyCodec(), cut(stream + FIN_CHUNK))

    assert b"" == received
    assert error.startswith(f"E_INVALID the snappy stream is invalid: {reason}")


BROKEN_LATER = {name: row for name, row in BROKEN.items() if "begin" not in row[1]}


@BOTH_CUTS
def test_valid_chunks_come_before_an_invalid_one(cut: Cut) -> None:
    """They are decoded, however many of them came with it."""
    for (stream, reason), count in itertools.product(BROKEN_LATER.values(), (1, 15, 16, 17)):
        received, error = decode_all(
            SnappyCodec(), cut(START + FIN_CHUNK * count + stream + FIN_CHUNK)
        )

        assert FIN * count == received, (stream, count)
        assert error.startswith(f"E_INVALID the snappy stream is invalid: {reason}")


def test_incomplete_snappy_waits() -> None:
    """A stream that ends within a chunk yields nothing, and is no violation."""
    stream = START + FIN_CHUNK
    for length in range(len(stream)):
        layer = SnappyCodec()

        assert (b"", "") == decode_all(layer, [stream[:length]])
        assert (FIN, "") == decode_all(layer, [stream[length:]])


@pytest.mark.parametrize(
    "chunk_bytes,count,step", [(65_536, 10, 61), (21, 5_000, 7)], ids=["big-chunks", "small-chunks"]
)
def test_work_for_a_chunk_is_linear_in_its_bytes(chunk_bytes: int, count: int, step: int) -> None:
    """However finely a stream is cut, each byte is looked at twice at most."""
    writer, layer = SnappyCodec(), SnappyCodec()
    text = random_bytes(chunk_bytes)
    stream = b"".join(writer.encode(text) for _ in range(count))
    layer._buffer = buffer = CountingBuffer()
    # A new buffer begins as the filter's own did.
    buffer.put_back(b"", wanted_bytes=4)

    received = decode_all(layer, in_steps(stream, step))

    assert (text * count, "") == received
    assert buffer.handed_out_bytes <= 2 * len(stream)


# Deflate


def test_deflate_is_raw_and_ends_in_a_sync_flush() -> None:
    """Neither header nor checksum stand around it, and each write ends in an empty block."""
    writer = DeflateCodec(6)
    writes = [writer.encode(FIN), writer.encode(FIN)]

    assert FIN + FIN == inflated(b"".join(writes))
    assert [b"\x00\x00\xff\xff"] * 2 == [write[-4:] for write in writes]


@pytest.mark.parametrize(
    "level,same_as", [(-1, 1), (0, 1), (1, 1), (5, 5), (6, 6), (9, 9), (10, 9), (2**63, 9)]
)
def test_level_is_that_of_deflate(level: int, same_as: int) -> None:
    """Levels 1 to 9 are zlib's; one outside is the next that there is."""
    text = b"".join(b"%d " % (number * number) for number in range(50_000))
    compressor = zlib.compressobj(same_as, wbits=-15)

    expected = compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH)

    assert expected == DeflateCodec(level).encode(text)


@BOTH_CUTS
def test_empty_blocks_decode_to_nothing(cut: Cut) -> None:
    """Two sync flushes in a row, as nsqd writes them, are nothing between two texts."""
    writer, empty = DeflateCodec(6), b"\x00\x00\x00\xff\xff"
    stream = empty + empty + writer.encode(FIN) + empty + empty + writer.encode(FIN) + empty

    assert (FIN + FIN, "") == decode_all(DeflateCodec(6), cut(stream))


@pytest.mark.parametrize(
    "stream",
    [b"\xff" * 4, b"\x07", b"\x01\x05\x00\x00\x00hello", zlib.compress(FIN), START + FIN_CHUNK],
    ids=["reserved", "type-3", "length", "zlib", "snappy"],
)
@BOTH_CUTS
def test_broken_deflate_is_a_violation(stream: bytes, cut: Cut) -> None:
    """Invalid deflate is E_INVALID with zlib's reason."""
    received, error = decode_all(DeflateCodec(6), cut(stream + b"\xff" * 1_000))

    assert (
        b"",
        "E_INVALID the deflate stream is invalid: Error -3 while decompressing data: ",
    ) == (
        received,
        error[: error.find("data: ") + 6],
    )


@BOTH_CUTS
def test_data_after_the_end_of_deflate_is_a_violation(cut: Cut) -> None:
    """A last block ends the stream in order; a byte after it is a violation."""
    compressor = zlib.compressobj(wbits=-15)
    stream = compressor.compress(FIN) + compressor.flush()
    layer = DeflateCodec(6)

    assert (FIN, "") == decode_all(layer, cut(stream))
    assert (b"", "E_INVALID the deflate stream is invalid: data after its end") == decode_all(
        layer, [b"x"]
    )
    assert (FIN, "E_INVALID the deflate stream is invalid: data after its end") == decode_all(
        DeflateCodec(6), cut(stream + b"x")
    )


@pytest.mark.parametrize("cut_bytes", range(8))
def test_deflate_is_decoded_to_the_end_of_a_full_piece(cut_bytes: int) -> None:
    """zlib may hold more output after it has consumed all input; it needs no further input."""
    stream = DeflateCodec(6).encode(b"\0" * (MAX_PIECE_BYTES + 7))
    stream = stream[: len(stream) - cut_bytes]

    received = b"".join(DeflateCodec(6).decode(stream))

    assert len(inflated(stream)) == len(received)


@pytest.mark.parametrize("text", [FIN, b"", b"ab" * 5_000])
def test_cut_deflate_waits(text: bytes) -> None:
    """A stream may be cut anywhere: what is missing is no violation."""
    stream = DeflateCodec(6).encode(text)

    for length in range(len(stream)):
        layer = DeflateCodec(6)
        first, rest = decode_all(layer, [stream[:length]]), decode_all(layer, [stream[length:]])
        assert ("", "", text) == (first[1], rest[1], first[0] + rest[0])
