"""
Stores for the durable broker's messages, compared: SQLite, LMDB and segment files.

The program behind docs/decisions/0018-the-brokers-store.md. It measures the stores alone: chunks
are packed before the clock starts, and there is no broker. In each of them, what a commit has
written is on disk when it returns.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import statistics
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks.harness import ROOT
from benchmarks.table import Benchmark, Gap, Row, compare, in_turn

try:
    import lmdb
except ImportError:  # it comes with requirements/bench.txt
    lmdb = None

_BODY = bytes(range(200))
_CHUNK_MESSAGES = 1_024
_PAGE_BYTES = 2_048
_TOPIC = 7
_MAX_LMDB_BYTES = 8 << 30
_SEGMENT_BYTES = 64 << 20
_DELETED_CHUNKS = 16
"""How many finished chunks one commit deletes."""

_BACKLOG_COMMIT_MESSAGES = 5_000


@dataclass(frozen=True)
class Chunk:
    """Messages that lie in one row, in the order in which they came."""

    number: int
    """Of its first message in its topic."""
    count: int
    data: bytes
    """MessagePack of lists [timestamp_ns, id, body], behind its CRC32."""


class Store(Protocol):
    """What the broker's one writing thread asks of a store."""

    def commit(self, chunks: Sequence[Chunk], pages: dict[int, bytes]) -> None:
        """Write *chunks*, and replace *pages* of attempts and finished marks; both or nothing."""

    def read(self) -> Iterator[bytes]:
        """Yield the data of all chunks, the oldest first."""

    def delete(self, first: int, end: int) -> None:
        """Delete the chunks whose number is in [*first*, *end*)."""

    def close(self) -> None:
        """Close all files."""


class SqliteChunks:
    """SQLite of the standard library: a row for each chunk, and for each page."""

    name = "SQLite, a row per chunk"

    def __init__(self, folder: Path) -> None:
        """Make an empty database in *folder*."""
        self._db = _sqlite(folder)
        self._db.execute("CREATE TABLE chunk (key INTEGER PRIMARY KEY, data BLOB NOT NULL)")
        self._db.execute("CREATE TABLE page (key INTEGER PRIMARY KEY, data BLOB NOT NULL)")

    def commit(self, chunks: Sequence[Chunk], pages: dict[int, bytes]) -> None:
        """Write all in one transaction."""
        rows = [(_TOPIC << 44 | chunk.number, chunk.data) for chunk in chunks]
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO chunk VALUES (?, ?)", rows)
        self._db.executemany("INSERT OR REPLACE INTO page VALUES (?, ?)", pages.items())
        self._db.execute("COMMIT")

    def read(self) -> Iterator[bytes]:
        """Yield the rows by key."""
        for (data,) in self._db.execute("SELECT data FROM chunk ORDER BY key"):
            yield data

    def delete(self, first: int, end: int) -> None:
        """Delete the rows of a range."""
        self._db.execute(
            "DELETE FROM chunk WHERE key >= ? AND key < ?",
            (_TOPIC << 44 | first, _TOPIC << 44 | end),
        )

    def close(self) -> None:
        """Close the database, which copies the log into it."""
        self._db.close()


class SqliteMessages(SqliteChunks):
    """SQLite with a row for each message, to see what the chunks are worth."""

    name = "SQLite, a row per message"

    def commit(self, chunks: Sequence[Chunk], pages: dict[int, bytes]) -> None:
        """Write each message as a row of its own."""
        self._db.execute("BEGIN IMMEDIATE")
        for chunk in chunks:
            size = -(-len(chunk.data) // chunk.count)
            rows = (
                (_TOPIC << 44 | chunk.number + at, chunk.data[at * size : (at + 1) * size])
                for at in range(chunk.count)
            )
            self._db.executemany("INSERT INTO chunk VALUES (?, ?)", rows)
        self._db.executemany("INSERT OR REPLACE INTO page VALUES (?, ?)", pages.items())
        self._db.execute("COMMIT")


def _sqlite(folder: Path) -> sqlite3.Connection:
    database = sqlite3.connect(folder / "store.sqlite3", isolation_level=None)
    database.execute("PRAGMA page_size = 16384")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA wal_autocheckpoint = 1000")
    return database


class LmdbChunks:
    """LMDB: a value for each chunk, and for each page."""

    name = "LMDB, a value per chunk"

    def __init__(self, folder: Path) -> None:
        """Make an empty environment in *folder*."""
        self._db = lmdb.open(str(folder), map_size=_MAX_LMDB_BYTES, max_dbs=2)
        self._chunks = self._db.open_db(b"chunk")
        self._pages = self._db.open_db(b"page")

    def commit(self, chunks: Sequence[Chunk], pages: dict[int, bytes]) -> None:
        """Write all in one transaction."""
        with self._db.begin(write=True) as transaction:
            for chunk in chunks:
                key = struct.pack(">IQ", _TOPIC, chunk.number)
                transaction.put(key, chunk.data, db=self._chunks, append=True)
            for key_number, data in pages.items():
                transaction.put(struct.pack(">Q", key_number), data, db=self._pages)

    def read(self) -> Iterator[bytes]:
        """Yield the values by key."""
        with self._db.begin(db=self._chunks) as transaction:
            for _, data in transaction.cursor():
                yield data

    def delete(self, first: int, end: int) -> None:
        """Delete the values of a range, one after the other: LMDB has no call for a range."""
        with self._db.begin(write=True, db=self._chunks) as transaction:
            cursor = transaction.cursor()
            found = cursor.set_range(struct.pack(">IQ", _TOPIC, first))
            while found and cursor.key() < struct.pack(">IQ", _TOPIC, end):
                found = cursor.delete()

    def close(self) -> None:
        """Close the environment."""
        self._db.close()


class Segments:
    """
    Files that only grow, and are removed when all in them is finished: the yardstick.

    It has no index, no check at the start and no compaction of pages: the least that can be done.
    """

    name = "segments"
    _head = struct.Struct(">IIQ")

    def __init__(self, folder: Path) -> None:
        """Make the first segment in *folder*."""
        self._folder = folder
        self._firsts: list[int] = []
        self._file = self._size = 0
        self._open(0)

    def _open(self, first: int) -> None:
        if self._file:
            os.close(self._file)
        self._file = os.open(self._folder / str(first), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._firsts.append(first)
        self._size = 0
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def commit(self, chunks: Sequence[Chunk], pages: dict[int, bytes]) -> None:
        """Append all with one write, and wait for the disk."""
        if chunks and self._size > _SEGMENT_BYTES:
            self._open(chunks[0].number)
        parts: list[bytes] = []
        for chunk in chunks:
            parts += (self._head.pack(0, len(chunk.data), chunk.number), chunk.data)
        for key, data in pages.items():
            parts += (self._head.pack(1, len(data), key), data)
        record = b"".join(parts)
        os.write(self._file, record)
        os.fdatasync(self._file)
        self._size += len(record)

    def read(self) -> Iterator[bytes]:
        """Yield the chunks of all segments."""
        for first in self._firsts:
            with (self._folder / str(first)).open("rb") as file:
                while head := file.read(self._head.size):
                    kind, size, _ = self._head.unpack(head)
                    data = file.read(size)
                    if kind == 0:
                        yield data

    def delete(self, first: int, end: int) -> None:
        """Note the end of the range, and remove the segments that lie wholly before it."""
        self.commit((), {first: struct.pack(">QQ", first, end)})
        while len(self._firsts) > 1 and self._firsts[1] <= end:
            (self._folder / str(self._firsts.pop(0))).unlink()

    def close(self) -> None:
        """Close the last segment."""
        os.close(self._file)


STORES: dict[str, Callable[[Path], Store]] = {
    each.name: each for each in (SqliteChunks, LmdbChunks, SqliteMessages, Segments)
}


def packed(first: int, count: int) -> list[Chunk]:
    """Return *count* messages of 200 bytes as chunks of at most 1024."""
    encode = msgspec.msgpack.Encoder().encode
    chunks = []
    for start in range(first, first + count, _CHUNK_MESSAGES):
        numbers = range(start, min(start + _CHUNK_MESSAGES, first + count))
        data = encode([[1_700_000_000_000_000_000 + n, b"%016x" % n, _BODY] for n in numbers])
        crc = zlib.crc32(data).to_bytes(4, "big")
        chunks.append(Chunk(start, len(numbers), crc + data))
    return chunks


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    scale, rounds = (0.05, 1) if quick else (1.0, 7)
    about = (
        f"SQLite {sqlite3.sqlite_version} (WAL, synchronous=FULL) and LMDB beside segment files, "
        f"each commit synced; messages of 200 B in chunks of {_CHUNK_MESSAGES}; {rounds} rounds"
    )
    return Benchmark(about, _rows(scale, rounds))


def _rows(scale: float, rounds: int) -> Iterator[Row | Gap]:
    makers = dict(STORES)
    if lmdb is None:
        del makers[LmdbChunks.name]
        yield Gap(LmdbChunks.name, "lmdb is not installed (requirements/bench.txt)")
    for count, commits in ((1, 300), (64, 150), (500, 60), (5_000, 15)):
        rates = [_publish(makers, count, max(int(commits * scale), 5)) for _ in range(rounds)]
        unit = "messages/s" if count > 1 else "commits/s"
        yield from _compare(f"commits of {count}", unit, _by_store(rates))
    rates = [_finish(makers, max(int(150 * scale), 5)) for _ in range(rounds)]
    yield from _compare("commits of 8 pages of 2 KiB", "commits/s", _by_store(rates))
    backlogs = {name: partial(_backlog, make, int(1e6 * scale)) for name, make in makers.items()}
    spent = in_turn(backlogs, rounds=min(rounds, 3))
    for at, what in enumerate(("writing", "reading", "deleting")):
        of_part = {name: [each[at] for each in side] for name, side in spent.items()}
        yield from _compare(f"a backlog of {int(1e6 * scale):,}: {what}", "messages/s", of_part)
    sizes = {name: [each[3] for each in side] for name, side in spent.items()}
    yield from _compare("bytes on disk a message of 200 B", "B", sizes)


def _by_store(rounds: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [each[name] for each in rounds] for name in rounds[0]}


def _compare(what: str, unit: str, rates: dict[str, list[float]]) -> Iterator[Row]:
    yardstick = rates.pop(Segments.name)
    for name, ours in rates.items():
        # The best rounds are those that other programs disturbed least.
        note = f"best rounds {max(ours):,.0f} ÷ {max(yardstick):,.0f}"
        yield compare(f"{what}: {name} ÷ segments", unit, ours, yardstick, note)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    # Beside the project: /tmp may be in memory, where syncing costs nothing.
    path = Path(tempfile.mkdtemp(prefix=".stores-", dir=ROOT))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _publish(
    makers: dict[str, Callable[[Path], Store]], count: int, commits: int
) -> dict[str, float]:
    batches = [packed(number * count, count) for number in range(commits)]
    page = bytes(_PAGE_BYTES)
    # The page in which their attempts will stand is new with every 1024th message.
    pages = [{each.number: page for each in chunks if _is_first(each)} for chunks in batches]
    return {name: count * rate for name, rate in _commit_in_turn(makers, batches, pages).items()}


def _is_first(chunk: Chunk) -> bool:
    """Return whether *chunk* begins another 1024 messages of its topic."""
    return chunk.number % _CHUNK_MESSAGES < chunk.count


def _finish(makers: dict[str, Callable[[Path], Store]], commits: int) -> dict[str, float]:
    pages = [
        dict.fromkeys(range(at % 50, at % 50 + 8), bytes([at % 256]) * _PAGE_BYTES)
        for at in range(commits)
    ]
    return _commit_in_turn(makers, [[]] * commits, pages)


def _commit_in_turn(
    makers: dict[str, Callable[[Path], Store]],
    batches: Sequence[Sequence[Chunk]],
    pages: Sequence[dict[int, bytes]],
) -> dict[str, float]:
    """
    Return the commits a second of each store, by the median time of a commit, and of the disk.

    The stores take turns with every commit, so that what else uses the disk slows all alike.
    """
    with contextlib.ExitStack() as life:
        stores = {name: make(life.enter_context(_folder())) for name, make in makers.items()}
        plain = os.open(life.enter_context(_folder()) / "plain", os.O_WRONLY | os.O_CREAT)
        spent: dict[str, list[float]] = {name: [] for name in (*stores, "the disk")}
        for chunks, changed in zip(batches, pages, strict=True):
            for name, store in stores.items():
                started = time.perf_counter()
                store.commit(chunks, changed)
                spent[name].append(time.perf_counter() - started)
            data = b"".join((*(chunk.data for chunk in chunks), *changed.values()))
            started = time.perf_counter()
            os.write(plain, data)
            os.fdatasync(plain)
            spent["the disk"].append(time.perf_counter() - started)
        for store in stores.values():
            store.close()
        os.close(plain)
    return {name: 1 / statistics.median(each) for name, each in spent.items()}


def _backlog(make: Callable[[Path], Store], count: int) -> tuple[float, float, float, float]:
    """Return how many messages a second were written, read and deleted, and the bytes of each."""
    chunks = packed(0, count)
    with _folder() as folder:
        store = make(folder)
        started = time.perf_counter()
        waiting = iter(chunks)
        while batch := list(islice(waiting, _BACKLOG_COMMIT_MESSAGES // _CHUNK_MESSAGES)):
            store.commit(batch, {})
        written = time.perf_counter() - started
        size = sum(file.stat().st_size for file in folder.iterdir())
        started = time.perf_counter()
        found = sum(_checked(data) for data in store.read())
        read = time.perf_counter() - started
        if found != sum(len(chunk.data) for chunk in chunks):
            raise SystemExit("a store lost bytes")
        started = time.perf_counter()
        step = _DELETED_CHUNKS * _CHUNK_MESSAGES
        for first in range(0, count, step):
            store.delete(first, first + step)
        deleted = time.perf_counter() - started
        store.close()
    return count / written, count / read, count / deleted, size / count


def _checked(data: bytes) -> int:
    """Return the size of *data* after its checksum was computed, as the broker would."""
    zlib.crc32(data)
    return len(data)
