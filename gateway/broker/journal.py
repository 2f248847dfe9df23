"""
Group commit: everything that happens while one transaction is written goes into the next one.

A publish, and each change of a topic or channel, is on disk before its response. Deliveries, FINs
and REQs have no response; they are written with the next publish, or `ACK_WINDOW_S` after the first
of them. When the process is killed, what was finished in that window is delivered again.

::

    idle --- publish, change ---> scheduled --- next turn ---> committing --- done ---> idle
    idle --- ack ---> scheduled, in `ACK_WINDOW_S`            |
                                                              +--- failed: publishes are refused,
                                                                   the rest is written again
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Protocol, TypeVarTuple

import msgspec

from gateway.broker import store
from gateway.broker.message import ClockReading, StoredMessage
from gateway.broker.message_log import (
    ChannelChanges,
    ChannelLog,
    TopicLog,
    encode_chunk,
    split_chunks,
)
from gateway.broker.store import MAX_SEQ, Chunks, Statement, Store, Transaction
from gateway.errors import StoreFailed
from gateway.telemetry import get_logger

ACK_WINDOW_S = 0.025
"""How long deliveries, FINs and REQs may wait for a transaction of their own."""
RETRY_S = 1.0
"""How long after a failure the changes are written again that nobody waits for."""
COMMIT_MESSAGES = 4_096
COMMIT_BYTES = 8 * 1_048_576
"""Where a commit ends, so that it does not block the event loop; the rest waits for the next."""

_log = get_logger()

Ts = TypeVarTuple("Ts")
OnCommit = Callable[[StoreFailed | None], None]


class StoredTopic(Protocol):
    """A topic with a log; a Protocol, because `topics` imports this module."""

    log: TopicLog

    def on_stored(self, messages: list[StoredMessage]) -> None:
        """Give *messages*, which are on disk now, to the channels."""

    def on_refused(self, messages: list[StoredMessage]) -> None:
        """Drop *messages*, which could not be written."""


class _Publish(msgspec.Struct, frozen=True):
    topic: StoredTopic
    messages: Sequence[StoredMessage]
    size_bytes: int


class _Commit(msgspec.Struct):
    """What a transaction that is being written consists of, to undo it if that fails."""

    transaction: Transaction
    publishes: list[tuple[StoredTopic, list[StoredMessage]]]
    changes: list[ChannelChanges]
    waiting: list[OnCommit]


class Journal:
    """Write the changes of a broker to its store, in order."""

    def __init__(self, file: Store, *, read_clocks: Callable[[], ClockReading]) -> None:
        self.store = file
        self.read_clocks = read_clocks
        self.on_progress: Callable[[], None] = lambda: None
        """Called after messages have reached channels; `Server` delivers them."""
        self.error: str | None = None
        """Why the last transaction failed; None if it did not."""
        self.version = 0
        """Rises with each change whose response has to wait for the disk."""
        self._loop = asyncio.get_running_loop()
        # In order: publishes, and who waits for what stands before it.
        self._publishes: deque[_Publish | OnCommit] = deque()
        self._waiting_bytes = 0
        self._statements: list[Statement] = []
        self._deletions: list[tuple[int, int, int]] = []
        self._changed: dict[ChannelLog, None] = {}
        self._commit: _Commit | None = None
        self._handle: asyncio.Handle | None = None
        self._is_closing = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    # Changes

    def append(self, topic: StoredTopic, messages: Sequence[StoredMessage]) -> None:
        """Store *messages* in *topic*, which gets them back once they are on disk."""
        size_bytes = sum([len(message.body) for message in messages])
        self._waiting_bytes += size_bytes
        self._publishes.append(_Publish(topic, messages, size_bytes))
        self._on_change()

    def changed(self, log: ChannelLog, *, is_awaited: bool = False) -> None:
        """Write what has changed in *log*: soon, or if a response waits for it, now."""
        if is_awaited and log.is_saved:
            self._changed[log] = None
            self._on_change()
        elif log.is_saved and log not in self._changed:
            self._changed[log] = None
            if self._commit is None and self._handle is None:
                self._is_idle.clear()
                self._handle = self._loop.call_later(ACK_WINDOW_S, self._begin)

    def delete_messages(self, topic: TopicLog, ranges: Sequence[tuple[int, int]]) -> None:
        """Delete messages: number of the first one, and end, of each of *ranges*."""
        if ranges:
            self._deletions += [(topic.id, first, end) for first, end in ranges]
            self._schedule()

    def create_topic(self, name: str) -> TopicLog:
        """Return the log of a new topic."""
        log = TopicLog(self.store.new_topic_id())
        self._execute(store.insert_topic(log.id, name))
        return log

    def save_topic(self, log: TopicLog, *, is_paused: bool, is_distributing: bool) -> None:
        """Write whether a topic is paused, and which messages are in no channel."""
        held_seq = None if is_distributing else log.distributed_seq
        self._execute(store.update_topic(log.id, is_paused=is_paused, distributed_seq=held_seq))

    def delete_topic(self, log: TopicLog) -> None:
        """Delete a topic and its messages; its channels have been deleted."""
        self._execute(*store.delete_topic(log.id))
        # Beyond its end, too: the commit that is under way may store more.
        self.delete_messages(log, [(0, MAX_SEQ)])

    def create_channel(self, topic: TopicLog, name: str, *, is_saved: bool) -> ChannelLog:
        """Return the log of a new channel of *topic*."""
        number = self.store.new_channel_id() if is_saved else 0
        log = ChannelLog(number, topic.distributed_seq, is_saved=is_saved)
        if is_saved:
            self._execute(store.insert_channel(number, topic.id, name, log.first_page))
            self.changed(log)
        return log

    def save_channel(self, log: ChannelLog, *, is_paused: bool) -> None:
        """Write whether a channel is paused."""
        if log.is_saved:
            self._execute(store.pause_channel(log.id, is_paused=is_paused))

    def delete_channel(self, log: ChannelLog) -> None:
        """Delete a channel and its pages."""
        self._changed.pop(log, None)
        if log.is_saved:
            self._execute(*store.delete_channel(log.id))

    def _execute(self, *statements: Statement) -> None:
        self._statements += statements
        self._on_change()

    def _on_change(self) -> None:
        self.version += 1
        self._schedule()

    @property
    def is_backlogged(self) -> bool:
        """True if so many publishes wait that publishers should not be read any more."""
        return self._waiting_bytes > 4 * COMMIT_BYTES or len(self._publishes) > 4 * COMMIT_MESSAGES

    # Waiting and reading

    def when_committed(self, callback: OnCommit) -> None:
        """
        Call *callback* once all changes until now are on disk.

        Its argument tells that the transaction with the last of them failed; None that it did not.
        """
        self._publishes.append(callback)
        self._schedule()

    def committed(self) -> asyncio.Future[StoreFailed | None]:
        """Return a future of what `when_committed` calls its callback with."""
        done: asyncio.Future[StoreFailed | None] = self._loop.create_future()
        self.when_committed(lambda error: None if done.done() else done.set_result(error))
        return done

    def read(
        self,
        topic: TopicLog,
        first_seq: int,
        end_seq: int,
        *,
        max_bytes: int,
        is_chunk_skipped: bool = False,
        on_read: Callable[[Chunks | StoreFailed], None],
    ) -> None:
        """Read chunks as `Store.read` does; *on_read* is called on the event loop."""
        self.store.read(
            topic.id,
            first_seq,
            end_seq,
            max_bytes=max_bytes,
            is_chunk_skipped=is_chunk_skipped,
            done=lambda found: self._call(self._on_read, on_read, found),
        )

    def _on_read(
        self, on_read: Callable[[Chunks | StoreFailed], None], found: Chunks | StoreFailed
    ) -> None:
        on_read(found)
        self.on_progress()

    def call_later(self, callback: Callable[[], None]) -> None:
        """Call *callback* after `RETRY_S`."""
        self._loop.call_later(RETRY_S, callback)

    async def close(self) -> None:
        """Write what is left, once, and close the store."""
        self._is_closing = True
        if self._changed:
            self._schedule()
        while not self._is_idle.is_set():
            await self._is_idle.wait()
        await self._loop.run_in_executor(None, self.store.close)

    # Committing

    def _schedule(self) -> None:
        """Commit in the next turn of the event loop, or after the commit that is under way."""
        if self._commit is not None:
            return
        if isinstance(self._handle, asyncio.TimerHandle):
            self._handle.cancel()
            self._handle = None
        if self._handle is None:
            self._is_idle.clear()
            # In the next turn, so that the reads of other sockets in this one join the commit.
            self._handle = self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._handle = None
        commit = self._take()
        if commit.transaction.is_empty and not self.store.has_deletions:
            self._finish(commit, None)
            return
        self._commit = commit
        self.store.commit(commit.transaction, lambda error: self._call(self._on_done, error))

    def _take(self) -> _Commit:
        """Return the next transaction, and number its messages."""
        publishes, waiting = self._take_publishes()
        transaction = Transaction(statements=self._statements, deletions=self._deletions)
        self._statements, self._deletions = [], []
        for topic, messages in publishes:
            log = topic.log
            for seq, message in enumerate(messages, log.end_seq):
                message.seq = seq
            transaction.ends.append((log.end_seq + len(messages), log.id))
            transaction.chunks += [
                (log.id, first_seq, encode_chunk(part))
                for first_seq, part in split_chunks(messages, log.end_seq)
            ]
        changes = [log.take_changes() for log in self._changed if log.has_changes]
        self._changed = {}
        for change in changes:
            number = change.log.id
            transaction.pages += [(number, page, content) for page, content in change.pages]
            if change.first_page != change.old_first_page:
                transaction.done_pages.append((number, change.old_first_page, change.first_page))
        return _Commit(transaction, publishes, changes, waiting)

    def _take_publishes(
        self,
    ) -> tuple[list[tuple[StoredTopic, list[StoredMessage]]], list[OnCommit]]:
        """
        Return the next messages by topic, up to the limits of a commit, and who waits.

        A commit ends behind somebody who waits: all publishes of one read have one outcome.
        """
        taken: list[_Publish] = []
        waiting: list[OnCommit] = []
        count, size_bytes, may_end = 0, 0, True
        while self._publishes:
            entry = self._publishes[0]
            if not isinstance(entry, _Publish):
                waiting.append(entry)
                may_end = True
            elif may_end and (count >= COMMIT_MESSAGES or size_bytes >= COMMIT_BYTES):
                break
            else:
                may_end = False
                taken.append(entry)
                count += len(entry.messages)
                size_bytes += entry.size_bytes
            self._publishes.popleft()
        self._waiting_bytes -= size_bytes
        by_topic: dict[StoredTopic, list[StoredMessage]] = {}
        for topic, entries in groupby(taken, key=lambda entry: entry.topic):
            messages = by_topic.setdefault(topic, [])
            for entry in entries:
                messages += entry.messages
        return [*by_topic.items()], waiting

    def _on_done(self, error: StoreFailed | None) -> None:
        commit, self._commit = self._commit, None
        if commit is not None:
            self._finish(commit, error)

    def _finish(self, commit: _Commit, error: StoreFailed | None) -> None:
        if error is None:
            if self.error is not None:
                _log.info("broker store writable again", path=str(self.store.path))
            self.error = None
            for topic, messages in commit.publishes:
                topic.log.end_seq += len(messages)
                topic.on_stored(messages)
        else:
            self._on_failed(commit, error)
        for callback in commit.waiting:
            callback(error)
        if commit.publishes:
            self.on_progress()
        has_changes = bool(self._publishes or self._statements or self._deletions or self._changed)
        if self._is_closing:
            # A disk that is full does not keep the process; old messages are deleted at the start.
            is_more = has_changes and error is None
        else:
            is_more = has_changes or self.store.has_deletions
        if is_more:
            self._resume(error)
        elif self._handle is None:
            self._is_idle.set()

    def _on_failed(self, commit: _Commit, error: StoreFailed) -> None:
        if self.error is None:
            _log.error("broker store not writable: publishes are refused", reason=str(error))
        self.error = str(error)
        for topic, messages in commit.publishes:
            topic.on_refused(messages)
        # In front of what came meanwhile: a topic is created before it is deleted.
        self._statements = commit.transaction.statements + self._statements
        self._deletions = commit.transaction.deletions + self._deletions
        for change in commit.changes:
            change.log.restore_changes(change)
            self._changed[change.log] = None

    def _resume(self, error: StoreFailed | None) -> None:
        """Begin the next commit: at once if somebody waits for it."""
        if self._handle is not None:
            return
        self._is_idle.clear()
        is_urgent = self._publishes or self._is_closing
        if is_urgent or (error is None and (self._statements or self._deletions)):
            self._handle = self._loop.call_soon(self._begin)
        else:
            delay_s = ACK_WINDOW_S if error is None else RETRY_S
            self._handle = self._loop.call_later(delay_s, self._begin)

    def _call(self, callback: Callable[[*Ts], None], *values: *Ts) -> None:
        """Call *callback* on the event loop; for the threads of the store."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *values)
