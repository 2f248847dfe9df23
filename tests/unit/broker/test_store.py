"""The store refuses what it cannot use, and says why; what is damaged harms nothing else."""

from __future__ import annotations

import queue
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gateway.broker.journal import COMMIT_MESSAGES
from gateway.broker.message_log import PAGE_MESSAGES, decode_chunk, encode_chunk, split_chunks
from gateway.broker.store import FILE_NAME, FORMAT, Done, Store, Transaction, insert_topic
from gateway.broker.store_check import Report, check_store
from gateway.errors import StartError, StoreDamaged, StoreFailed
from tests.support.brokers.broker_core import consumer, new_messages
from tests.support.brokers.durable_core import DurableCore


@contextmanager
def store(path: Path) -> Iterator[Store]:
    """Open a store, which is not synced."""
    with closing(Store(path, is_synced=False)) as opened:
        yield opened


def commit(opened: Store, transaction: Transaction) -> StoreFailed | None:
    """Write *transaction*; return the error, if any."""
    done: queue.SimpleQueue[StoreFailed | None] = queue.SimpleQueue()
    opened.commit(transaction, done.put)
    return done.get()


def report(path: Path) -> Report:
    """Return the complete report of a check."""
    *_, last = check_store(path)
    return last


def damage_chunk(path: Path) -> None:
    """Change a byte in the middle of the first chunk."""
    with closing(sqlite3.connect(path / FILE_NAME)) as file, file:
        number, content = file.execute("SELECT id, content FROM chunk ORDER BY id").fetchone()
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        file.execute("UPDATE chunk SET content = ? WHERE id = ?", (changed, number))


def test_a_second_process_is_refused_while_the_first_has_the_store(tmp_path: Path) -> None:
    with store(tmp_path), pytest.raises(StartError, match="another process uses the data path"):
        Store(tmp_path)
    with store(tmp_path):
        pass  # the lock ends with its owner


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StartError, match="cannot write in the data path"):
        Store(tmp_path / "file" / "data")


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with store(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as file:
        file.execute(f"PRAGMA user_version = {FORMAT + 1}")

    with pytest.raises(StartError, match=f"has format {FORMAT + 1}, and this version reads up to"):
        Store(tmp_path)
    with pytest.raises(StoreFailed, match=f"has format {FORMAT + 1}"):
        report(tmp_path)


def test_the_file_of_another_program_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as file:
        file.execute("CREATE TABLE t (x)")

    with pytest.raises(StartError, match="is not a store of this program"):
        Store(tmp_path)
    with pytest.raises(StoreFailed, match="is not a store of this program"):
        report(tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 1000)

    with pytest.raises(StartError, match="file is not a database"):
        Store(tmp_path)


def test_a_transaction_that_fails_changes_nothing(tmp_path: Path) -> None:
    content = encode_chunk(new_messages(1))
    with store(tmp_path) as opened:
        twice = Transaction(
            statements=[insert_topic(1, "t")], chunks=[(1, 0, content), (1, 0, content)]
        )
        error = commit(opened, twice)

        assert isinstance(error, StoreFailed)
        assert "UNIQUE constraint failed" in str(error)
        assert ([], []) == opened.load()


def test_chunks_lie_within_pages_and_keep_each_field() -> None:
    messages = new_messages(3 * PAGE_MESSAGES, body=b"b" * 300)
    messages[5].defer_ms = 70

    chunks = list(split_chunks(messages, 1_000))

    assert {first >> 10 for first, _ in chunks} == {
        (first + len(part) - 1) >> 10 for first, part in chunks
    }
    decoded = [
        message for first, part in chunks for message in decode_chunk(first, encode_chunk(part))
    ]
    assert [1_000 + index for index in range(len(messages))] == [each.seq for each in decoded]
    for message, copy in zip(messages, decoded, strict=True):
        message.seq = copy.seq
    assert messages == decoded


@pytest.mark.parametrize("place", [0, 3, 4, 30])
def test_a_changed_byte_of_a_chunk_is_noticed(place: int) -> None:
    content = bytearray(encode_chunk(new_messages(2)))
    content[place] ^= 0x10

    with pytest.raises(StoreDamaged, match="from number 7: the checksum does not match"):
        decode_chunk(7, bytes(content))


def test_a_damaged_chunk_costs_its_messages_and_no_other(tmp_path: Path) -> None:
    core = DurableCore(tmp_path)
    for body in (b"lost", b"kept"):
        core.topic("t").publish([body], core.clocks())
        core.commit()
    core.kill()
    damage_chunk(tmp_path)
    core.start()
    channel = core.topic("t").get_channel("c", now=0.0)
    channel.subscribe(consumer())
    channel.ready(channel.consumers[1], 10)

    assert [b"kept"] == [message.body for _, message in core.deliver()]
    core.kill()
    assert ["topic t: messages from number 0: the checksum does not match"] == report(
        tmp_path
    ).problems


def test_damaged_chunks_hide_nothing_behind_them(tmp_path: Path) -> None:
    core = DurableCore(tmp_path)
    for body in [b"l" * 600_000, b"k" * 600_000, *[b"%d" % number for number in range(50)]]:
        core.topic("t").publish([body], core.clocks())
        core.commit()
    core.kill()
    damage_chunk(tmp_path)
    core.start()
    channel = core.topic("t").get_channel("c", now=0.0)
    channel.subscribe(consumer())
    channel.ready(channel.consumers[1], 2_500)

    assert 51 == len(core.deliver())
    core.kill()


def test_an_ephemeral_channel_that_gets_behind_keeps_no_message_on_disk(tmp_path: Path) -> None:
    core = DurableCore(tmp_path, mem_queue_size=10)
    topic = core.topic("t")
    topic.publish([b"x"] * 5_000, core.clocks())
    core.commit()
    channel = topic.get_channel("e#ephemeral", now=0.0)
    holder = consumer()
    channel.subscribe(holder)
    channel.ready(holder, 2_500)
    got = core.deliver()
    topic.publish([b"y"] * 100, core.clocks())
    core.commit()
    for _, message in got:  # most of them have no room
        assert channel.requeue(holder, message.id, delay_ms=0, now=0.0) is None
    for _, message in core.deliver():
        channel.finish(holder, message.id)
    core.commit()

    assert 0 == channel.depth
    assert 5_100 % PAGE_MESSAGES >= report(tmp_path).messages
    core.kill()


def test_the_publishes_in_front_of_one_who_waits_have_one_outcome(tmp_path: Path) -> None:
    core = DurableCore(tmp_path)
    topic = core.topic("t")
    core.commit()
    sizes: list[int] = []
    write = core.journal.store.commit

    def count(transaction: Transaction, done: Done) -> None:
        sizes.append(len(transaction.chunks))
        write(transaction, done)

    core.journal.store.commit = count  # type: ignore[method-assign]
    for _ in range(3 * COMMIT_MESSAGES):
        topic.publish([b"x"], core.clocks())
    core.commit()

    # One transaction, or a failure of the second one would leave the first one stored.
    assert [3 * COMMIT_MESSAGES // PAGE_MESSAGES] == sizes
    core.kill()


def test_a_check_counts_and_changes_nothing(tmp_path: Path) -> None:
    core = DurableCore(tmp_path)
    core.topic("t").publish([b"x"] * 2_000, core.clocks())
    core.topic("t").get_channel("c", now=0.0)
    core.commit()
    while_open = report(tmp_path)
    core.kill()

    assert (1, 1, 2_000, []) == (
        while_open.topics,
        while_open.channels,
        while_open.messages,
        while_open.problems,
    )
    assert report(tmp_path) == while_open


def test_a_check_of_nothing_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="has no store"):
        report(tmp_path)


def test_finished_messages_leave_the_disk(tmp_path: Path) -> None:
    core = DurableCore(tmp_path, mem_queue_size=10_000)
    channel = core.topic("t").get_channel("c", now=0.0)
    channel.subscribe(consumer())
    core.topic("t").publish([b"x"] * 5_000, core.clocks())
    core.commit()
    channel.ready(channel.consumers[1], 5_000)
    for _, message in core.deliver():
        channel.finish(channel.consumers[1], message.id)
    core.commit()

    left = report(tmp_path)
    # The last page is not full, so its messages are kept until it is.
    assert 5_000 % PAGE_MESSAGES == left.messages
    core.kill()
