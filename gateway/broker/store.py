"""
The broker's messages on disk: one SQLite file, a thread that writes and one that reads.

The file is in WAL mode with synchronous=FULL: a transaction that has been committed survives the
loss of power. Only this module knows SQL. Callbacks run in the threads; `Journal` passes them on
to the event loop. Why SQLite: docs/decisions/0018-the-brokers-store.md.

::

    topic    id, name, is_paused, end_seq, distributed_seq (null: every message is in the channels)
    channel  id, topic, name, is_paused, first_page
    chunk    id = topic << 40 | number of its first message;  content (message_log.encode_chunk)
    page     id = channel << 32 | number of the page;         content (message_log.Page.encode)
"""

from __future__ import annotations

import contextlib
import fcntl
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from gateway.broker.message_log import PAGE_BITS, Page
from gateway.errors import StartError, StoreDamaged, StoreFailed
from gateway.telemetry import get_logger

FORMAT = 1
"""Version of the schema, in the file's user_version."""
FILE_NAME = "nsq-gateway.db"
LOCK_FILE_NAME = "nsq-gateway.lock"

APPLICATION_ID = 0x4E535147
"""In the file's application_id: "NSQG"."""
TOPIC_SHIFT = 40
"""Bits of a message's number in the id of a chunk."""
MAX_SEQ = 1 << TOPIC_SHIFT
"""The number of messages that a topic can have in its life."""
CHANNEL_SHIFT = 32
"""Bits of a page's number in the id of its row."""

DELETED_CHUNKS_PER_COMMIT = 256
DELETED_BYTES_PER_COMMIT = 8 * 1_048_576
"""So that the deletion of a long backlog delays publishes by milliseconds; the rest waits."""
_WAL_PAGES = 4096  # of 4 KiB; more makes checkpoints rarer and longer

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE topic (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, is_paused INTEGER NOT NULL DEFAULT 0,
    end_seq INTEGER NOT NULL DEFAULT 0, distributed_seq INTEGER
);
CREATE TABLE channel (
    id INTEGER PRIMARY KEY, topic INTEGER NOT NULL, name TEXT NOT NULL,
    is_paused INTEGER NOT NULL DEFAULT 0, first_page INTEGER NOT NULL, UNIQUE (topic, name)
);
CREATE TABLE chunk (id INTEGER PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE page (id INTEGER PRIMARY KEY, content BLOB NOT NULL);
"""

_log = get_logger()


class TopicRow(msgspec.Struct, frozen=True):
    """A topic as it is stored."""

    id: int
    name: str
    is_paused: bool
    end_seq: int
    """The number of the next message."""
    distributed_seq: int | None
    """Messages from this number on are in no channel yet; None: every message is."""


class ChannelRow(msgspec.Struct, frozen=True):
    """A channel as it is stored, with its pages by number."""

    id: int
    topic: int
    name: str
    is_paused: bool
    first_page: int
    pages: dict[int, Page]


Statement = tuple[str, tuple[object, ...]]
"""SQL and its parameters."""


@dataclass(kw_only=True)
class Transaction:
    """What one commit writes, in this order."""

    statements: list[Statement] = field(default_factory=list)
    """Topics and channels, in order."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """Number of the next message, and topic."""
    chunks: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Topic, number of the first message, content."""
    pages: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Channel, number of the page, content."""
    done_pages: list[tuple[int, int, int]] = field(default_factory=list)
    """Channel, first page and end of the pages whose rows go; the channel begins at the end."""
    deletions: list[tuple[int, int, int]] = field(default_factory=list)
    """Topic, first message and end of the messages that are deleted."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to write."""
        return not (
            self.statements or self.chunks or self.pages or self.done_pages or self.deletions
        )


def insert_topic(number: int, name: str) -> Statement:
    """Return the statement for a new topic, which keeps its messages: it has no channel."""
    return "INSERT OR IGNORE INTO topic (id, name, distributed_seq) VALUES (?, ?, 0)", (
        number,
        name,
    )


def update_topic(number: int, *, is_paused: bool, distributed_seq: int | None) -> Statement:
    """Return the statement for a topic that was paused, or has its first or no channel now."""
    return "UPDATE topic SET is_paused = ?, distributed_seq = ? WHERE id = ?", (
        is_paused,
        distributed_seq,
        number,
    )


def delete_topic(number: int) -> list[Statement]:
    """Return the statements for a topic that was deleted."""
    return [("DELETE FROM topic WHERE id = ?", (number,))]


def insert_channel(number: int, topic: int, name: str, first_page: int) -> Statement:
    """Return the statement for a new channel."""
    return "INSERT OR IGNORE INTO channel (id, topic, name, first_page) VALUES (?, ?, ?, ?)", (
        number,
        topic,
        name,
        first_page,
    )


def pause_channel(number: int, *, is_paused: bool) -> Statement:
    """Return the statement for a channel that was paused or unpaused."""
    return "UPDATE channel SET is_paused = ? WHERE id = ?", (is_paused, number)


def delete_channel(number: int) -> list[Statement]:
    """Return the statements for a channel that was deleted."""
    return [
        ("DELETE FROM channel WHERE id = ?", (number,)),
        (
            "DELETE FROM page WHERE id >= ? AND id < ?",
            (number << CHANNEL_SHIFT, (number + 1) << CHANNEL_SHIFT),
        ),
    ]


Done = Callable[[StoreFailed | None], None]
Chunks = list[tuple[int, bytes]]
"""Number of the first message, and content, of each chunk."""


class Store:
    """An open store; one process has it at a time."""

    def __init__(self, path: Path, *, is_synced: bool = True) -> None:
        """
        Open the store in the folder *path*, or create both.

        *is_synced* False leaves it to the system when data reaches the disk: for tests only.

        Raises:
            StartError: The folder cannot be written, another process has the store, it is damaged,
                or a newer version wrote it.
        """
        self.path = path / FILE_NAME
        self._lock = _lock(path)
        try:
            self._writer = _connect(self.path, is_synced=is_synced)
            self._reader = _connect(self.path, is_synced=is_synced)
        except BaseException:
            self._lock.close()
            raise
        # A number is not used again while rows of its former owner may be left.
        self._last_topic = max(
            self._scalar("SELECT max(id) FROM topic"),
            self._scalar("SELECT max(id) FROM chunk") >> TOPIC_SHIFT,
        )
        self._last_channel = max(
            self._scalar("SELECT max(id) FROM channel"),
            self._scalar("SELECT max(id) FROM page") >> CHANNEL_SHIFT,
        )
        self._pending_deletions: list[tuple[int, int, int]] = []
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=_run, args=(jobs,), name=name, daemon=True)
            for jobs, name in ((self._jobs, "store writer"), (self._reads, "store reader"))
        ]
        for thread in self._threads:
            thread.start()

    def new_topic_id(self) -> int:
        """Return a number for a topic that no row has."""
        self._last_topic += 1
        return self._last_topic

    def new_channel_id(self) -> int:
        """Return a number for a channel that no row has."""
        self._last_channel += 1
        return self._last_channel

    # Before the broker starts

    def load(self) -> tuple[list[TopicRow], list[ChannelRow]]:
        """
        Return all topics and channels, and delete what belongs to none.

        Raises:
            StartError: The file is damaged.
        """
        try:
            topics = [
                TopicRow(number, name, bool(is_paused), end_seq, distributed_seq)
                for number, name, is_paused, end_seq, distributed_seq in self._rows(
                    "SELECT id, name, is_paused, end_seq, distributed_seq FROM topic ORDER BY name"
                )
            ]
            channels = [
                self._channel(*row)
                for row in self._rows(
                    "SELECT id, topic, name, is_paused, first_page FROM channel ORDER BY name"
                )
            ]
            self._delete_orphans({row.id for row in topics}, {row.id for row in channels})
        except (sqlite3.Error, StoreDamaged) as error:
            raise StartError(_damaged(self.path, error)) from error
        return topics, channels

    def _channel(
        self, number: int, topic: int, name: str, is_paused: int, first_page: int
    ) -> ChannelRow:
        start = number << CHANNEL_SHIFT
        rows = self._rows(
            "SELECT id, content FROM page WHERE id BETWEEN ? AND ?",
            start + first_page,
            start + (1 << CHANNEL_SHIFT) - 1,
        )
        pages = {
            row_id - start: Page.decode(content, f"page {row_id - start} of channel {name}")
            for row_id, content in rows
        }
        return ChannelRow(number, topic, name, bool(is_paused), first_page, pages)

    def _delete_orphans(self, topics: set[int], channels: set[int]) -> None:
        """Delete chunks and pages of topics and channels that were deleted before a crash."""
        for table, shift, known in (
            ("chunk", TOPIC_SHIFT, topics),
            ("page", CHANNEL_SHIFT, channels),
        ):
            row_id = self._scalar(f"SELECT min(id) FROM {table}", none=-1)  # noqa: S608
            while row_id >= 0:
                owner = row_id >> shift
                if owner not in known:
                    with self._writer:
                        self._writer.execute(
                            f"DELETE FROM {table} WHERE id >= ? AND id < ?",  # noqa: S608
                            (owner << shift, owner + 1 << shift),
                        )
                row_id = self._scalar(
                    f"SELECT min(id) FROM {table} WHERE id >= ?",  # noqa: S608
                    owner + 1 << shift,
                    none=-1,
                )

    def _rows(self, sql: str, *values: object) -> list[tuple]:  # type: ignore[type-arg]
        return self._writer.execute(sql, values).fetchall()

    def _scalar(self, sql: str, *values: object, none: int = 0) -> int:
        (found,) = self._writer.execute(sql, values).fetchone()
        return none if found is None else int(found)

    # Called on the event loop

    def commit(self, transaction: Transaction, done: Done) -> None:
        """Write *transaction* to disk; then call *done* in the writer's thread."""
        self._jobs.put(lambda: done(self._commit(transaction)))

    def read(
        self,
        topic: int,
        first_seq: int,
        end_seq: int,
        *,
        max_bytes: int,
        is_chunk_skipped: bool = False,
        done: Callable[[Chunks | StoreFailed], None],
    ) -> None:
        """
        Read the chunks from *first_seq* to *end_seq*; then call *done* in the reader's thread.

        The first chunk may begin before *first_seq*, unless *is_chunk_skipped*. At least one chunk
        is read, and no further one after *max_bytes*; no chunk is left if the list is empty.
        """
        page_seq = first_seq if is_chunk_skipped else first_seq >> PAGE_BITS << PAGE_BITS
        self._reads.put(lambda: done(self._read(topic, first_seq, end_seq, max_bytes, page_seq)))

    def close(self) -> None:
        """Finish what was begun, and close the file; this blocks for as long as a commit takes."""
        for jobs in (self._jobs, self._reads):
            jobs.put(None)
        for thread in self._threads:
            thread.join()
        with contextlib.suppress(sqlite3.Error):
            # So that the next start has no log to read again.
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._reader.close()
        self._writer.close()
        self._lock.close()

    @property
    def has_deletions(self) -> bool:
        """True if chunks are waiting for their deletion; the next commits delete a part each."""
        return bool(self._pending_deletions)

    # In the threads

    def _commit(self, transaction: Transaction) -> StoreFailed | None:
        deletions = [*self._pending_deletions, *transaction.deletions]
        try:
            with self._writer as writer:
                writer.execute("BEGIN IMMEDIATE")
                for sql, values in transaction.statements:
                    writer.execute(sql, values)
                writer.executemany("UPDATE topic SET end_seq = ? WHERE id = ?", transaction.ends)
                writer.executemany(
                    "INSERT INTO chunk VALUES (?, ?)",
                    [
                        ((topic << TOPIC_SHIFT) + seq, content)
                        for topic, seq, content in transaction.chunks
                    ],
                )
                writer.executemany(
                    "INSERT OR REPLACE INTO page VALUES (?, ?)",
                    [
                        ((channel << CHANNEL_SHIFT) + number, content)
                        for channel, number, content in transaction.pages
                    ],
                )
                for channel, first_page, end_page in transaction.done_pages:
                    start = channel << CHANNEL_SHIFT
                    writer.execute(
                        "UPDATE channel SET first_page = ? WHERE id = ?", (end_page, channel)
                    )
                    writer.execute(
                        "DELETE FROM page WHERE id >= ? AND id < ?",
                        (start + first_page, start + end_page),
                    )
                left = self._delete_chunks(deletions)
        except (sqlite3.Error, OSError) as error:
            return StoreFailed(f"{self.path}: {error}")
        self._pending_deletions = left
        return None

    def _delete_chunks(self, ranges: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Delete some chunks of *ranges*; return the ranges that are left."""
        chunks_left, bytes_left = DELETED_CHUNKS_PER_COMMIT, DELETED_BYTES_PER_COMMIT
        for index, (topic, first_seq, end_seq) in enumerate(ranges):
            first, last = _chunk_range(topic, first_seq, end_seq)
            chunks = self._writer.execute(
                "SELECT id, length(content) FROM chunk"
                " WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",
                (first, last, chunks_left),
            ).fetchall()
            for chunk_id, size_bytes in chunks:
                self._writer.execute("DELETE FROM chunk WHERE id = ?", (chunk_id,))
                chunks_left -= 1
                bytes_left -= size_bytes
                if chunks_left <= 0 or bytes_left <= 0:
                    return ranges[index:]
        return []

    def _read(
        self, topic: int, first_seq: int, end_seq: int, max_bytes: int, page_seq: int = 0
    ) -> Chunks | StoreFailed:
        base = topic << TOPIC_SHIFT
        chunks: Chunks = []
        size_bytes = 0
        try:
            # A chunk lies within a page, so the one with first_seq begins in that page.
            rows = self._reader.execute(
                # Damage may have changed the type, too.
                "SELECT id, CAST(content AS BLOB) FROM chunk WHERE id BETWEEN"
                " ifnull((SELECT max(id) FROM chunk WHERE id BETWEEN ? AND ?), ?) AND ?"
                " ORDER BY id",
                (
                    base + page_seq,
                    base + first_seq,
                    base + first_seq,
                    base + end_seq - 1,
                ),
            )
            for chunk_id, content in rows:
                chunks.append((chunk_id - base, content))
                size_bytes += len(content)
                if size_bytes >= max_bytes:
                    break
        except (sqlite3.Error, OSError) as error:
            return StoreFailed(f"{self.path}: {error}")
        return chunks


def _chunk_range(topic: int, first_seq: int, end_seq: int) -> tuple[int, int]:
    """Return first and last id of the chunks that begin from *first_seq* to before *end_seq*."""
    base = topic << TOPIC_SHIFT
    return base + first_seq, base + end_seq - 1


def _run(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """Run the functions of *jobs* until None."""
    while (job := jobs.get()) is not None:
        job()


def _lock(path: Path) -> IO[bytes]:
    """Return a locked file, which keeps other processes away until it is closed."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / LOCK_FILE_NAME).open("ab")
    except OSError as error:
        raise StartError(f"cannot write in the data path {path}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StartError(
            f"another process uses the data path {path}; stop it, or choose another --data-path"
        ) from error
    return file


def _connect(path: Path, *, is_synced: bool) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=10, cached_statements=64
        )
    except sqlite3.Error as error:
        raise StartError(f"cannot open {path}: {error}") from error
    try:
        _prepare(connection, path, is_synced=is_synced)
    except sqlite3.Error as error:
        connection.close()
        raise StartError(_damaged(path, error)) from error
    except StartError:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, *, is_synced: bool) -> None:
    """Check whose file it is, create the tables of a new one, and set how it is written."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (format_,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise StartError(f"{path} is not a store of this program; choose another --data-path")
    if format_ > FORMAT:
        raise StartError(
            f"{path} has format {format_}, and this version reads up to {FORMAT}; install the "
            "version that wrote it, or choose another --data-path"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'OFF'}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
    if not tables:
        connection.executescript(f"BEGIN;{_SCHEMA}COMMIT;")


def _damaged(path: Path, error: Exception) -> str:
    return (
        f"cannot use {path}: {error}; `nsq-gateway broker check` says what is damaged, "
        "and docs/broker.md what to do"
    )
