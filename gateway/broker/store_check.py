"""Read everything in a broker's store, and report what is damaged; the store is not changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from gateway.broker.message_log import PAGE_BITS, Page, decode_chunk
from gateway.broker.store import APPLICATION_ID, CHANNEL_SHIFT, FILE_NAME, FORMAT, TOPIC_SHIFT
from gateway.errors import StoreDamaged, StoreFailed

_PROGRESS_CHUNKS = 256


class Report(msgspec.Struct, kw_only=True):
    """What a store has, as far as it has been read."""

    topics: int = 0
    channels: int = 0
    chunks: int = 0
    """Chunks read."""
    all_chunks: int = 0
    """Chunks to read."""
    messages: int = 0
    """Messages in the chunks read: finished ones, too, whose chunk is needed for others."""
    problems: list[str] = msgspec.field(default_factory=list)
    """A sentence for each damage; empty if the store is whole."""


def check_store(data_path: Path) -> Iterator[Report]:
    """
    Read the store in *data_path*; yield the report again and again, complete at the end.

    A broker may use the store meanwhile; then the report is of the moment when the check began.

    Raises:
        StoreFailed: There is no store, it is of another program or a newer version, or it cannot be
            read at all.
    """
    path = data_path / FILE_NAME
    if not path.is_file():
        raise StoreFailed(f"{data_path} has no store: {path} is missing")
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, isolation_level=None
        )
    except sqlite3.Error as error:
        raise StoreFailed(f"{path}: {error}") from error
    try:
        yield from _check(connection, path)
    except sqlite3.Error as error:
        raise StoreFailed(f"{path}: {error}") from error
    finally:
        connection.close()


def _check(connection: sqlite3.Connection, path: Path) -> Iterator[Report]:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreFailed(f"{path} is not a store of this program")
    (format_,) = connection.execute("PRAGMA user_version").fetchone()
    if format_ > FORMAT:
        raise StoreFailed(f"{path} has format {format_}; this version reads up to {FORMAT}")
    report = Report()
    # One transaction, so that all is of one moment.
    connection.execute("BEGIN")
    topics = {
        number: (name, end_seq)
        for number, name, end_seq in connection.execute("SELECT id, name, end_seq FROM topic")
    }
    channels = dict(
        connection.execute(
            "SELECT channel.id, topic.name || '/' || channel.name FROM channel"
            " JOIN topic ON topic.id = channel.topic"
        ).fetchall()
    )
    (report.all_chunks,) = connection.execute("SELECT count(*) FROM chunk").fetchone()
    report.topics, report.channels = len(topics), len(channels)
    yield report
    yield from _check_chunks(connection, report, topics)
    for row_id, content in connection.execute("SELECT id, CAST(content AS BLOB) FROM page"):
        number = row_id & ((1 << CHANNEL_SHIFT) - 1)
        name = channels.get(row_id >> CHANNEL_SHIFT, "a deleted channel")
        try:
            Page.decode(content, f"page {number} of channel {name}")
        except (StoreDamaged, msgspec.DecodeError) as error:
            report.problems.append(str(error))
    for (text,) in connection.execute("PRAGMA integrity_check"):
        if text != "ok":
            report.problems.append(f"SQLite: {text}")
    yield report


def _check_chunks(
    connection: sqlite3.Connection, report: Report, topics: dict[int, tuple[str, int]]
) -> Iterator[Report]:
    for row_id, content in connection.execute(
        "SELECT id, CAST(content AS BLOB) FROM chunk ORDER BY id"
    ):
        first_seq = row_id & ((1 << TOPIC_SHIFT) - 1)
        name, end_seq = topics.get(row_id >> TOPIC_SHIFT, ("a deleted topic", None))
        try:
            messages = decode_chunk(first_seq, content)
        except StoreDamaged as error:
            report.problems.append(f"topic {name}: {error}")
        else:
            last_seq = first_seq + len(messages) - 1
            report.messages += len(messages)
            if end_seq is not None and last_seq >= end_seq:
                report.problems.append(f"topic {name}: message {last_seq} is beyond the end")
            if first_seq >> PAGE_BITS != last_seq >> PAGE_BITS:
                report.problems.append(f"topic {name}: the chunk at {first_seq} is in two pages")
        report.chunks += 1
        if not report.chunks % _PROGRESS_CHUNKS:
            yield report
