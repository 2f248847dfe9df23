"""`SpoolStore`: durable data is read byte for byte, whatever happened in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import StartError
from gateway.pipeline.schema import decode
from gateway.pipeline.spool.records import SEGMENT_HEAD_BYTES, Names, Position
from gateway.pipeline.spool.segments import SpoolDamaged, SpoolLost
from gateway.pipeline.spool.store import SpoolOptions, SpoolStore
from gateway.protocol.frames import Message, encode_messages

NAMES = Names("t", "127.0.0.1:4150")
FIRST = 1_000
MIB = 1_048_576
_WAIT_S = 60.0


@contextmanager
def spool(
    folder: Path, *, max_bytes: int = 64 * MIB, retention_s: float = 0
) -> Iterator[SpoolStore]:
    options = SpoolOptions(
        folder=folder, max_bytes=max_bytes, retention_s=retention_s, lock_wait_s=0
    )
    store = SpoolStore(options)
    store.open(FIRST)
    try:
        yield store
    finally:
        store.close()


def append(store: SpoolStore, *bodies: bytes, topic: str = "t") -> Position:
    """Append *bodies* as one record; return its end."""
    data = encode_messages([Message(1, 1, b"i" * 16, body) for body in bodies])
    store.append([(Names(topic, NAMES.nsqd), 5, [data], len(bodies))])
    return store.end


def bodies(store: SpoolStore, start: Position, end: Position) -> list[bytes]:
    parts = list(store.read(start, end))
    return [body for batch in decode(parts) for body in batch.column("body").to_pylist()]


def test_durable_messages_read_the_same_after_a_restart(tmp_path: Path) -> None:
    """A range has the same bytes in any process; each process writes its own segment."""
    with spool(tmp_path) as store:
        start, middle, end = store.start, append(store, b"a", b"b"), append(store, b"c")
        seen = [list(store.read(start, end)), list(store.read(middle, end))]
    with spool(tmp_path) as store:
        again = [list(store.read(start, end)), list(store.read(middle, end))]
        last = append(store, b"d")

        assert (seen, 2) == (again, store.segments)
        assert [b"c", b"d"] == bodies(store, middle, last)
    assert last.segment == end.segment + 1


def test_a_process_that_wrote_nothing_leaves_no_segment_behind(tmp_path: Path) -> None:
    """The next process continues its file."""
    for _ in range(3):
        with spool(tmp_path) as store:
            assert (1, FIRST) == (store.segments, store.start.segment)


def test_a_batch_has_no_more_than_it_may(tmp_path: Path) -> None:
    """Records stay whole if they fit; a record above the limit is split between messages."""
    with spool(tmp_path) as store:
        start = store.start
        append(store, b"0", b"1", b"2", b"3", b"4")
        append(store, b"5", b"6")
        append(store, b"7")
        batches = []
        while (end := store.cut(start, 3)) != start:
            batches.append(bodies(store, start, end))
            assert 8 - sum(map(len, batches)) == store.count_after(end)
            start = end

    assert [[b"0", b"1", b"2"], [b"3", b"4"], [b"5", b"6", b"7"]] == batches


def test_a_batch_spans_segments(tmp_path: Path) -> None:
    """Segments have an eighth of the maximum size; the next continues after the last message."""
    with spool(tmp_path, max_bytes=MIB) as store:
        start = store.start
        for number in range(10):
            append(store, b"%d" % number * 100_000)
        read = bodies(store, start, store.cut(start, 100))

        assert store.segments == 5
        assert [b"%d" % number * 100_000 for number in range(10)] == read


def test_a_batch_of_long_messages_is_short(tmp_path: Path) -> None:
    """A batch is held in memory, so it ends with the record that reaches its size limit."""
    with spool(tmp_path) as store:
        start = store.start
        ends = [append(store, b"x" * 1_000) for _ in range(5)]

        assert ends[1] == store.cut(start, 100, target_bytes=1_500)


def test_unneeded_segments_are_removed(tmp_path: Path) -> None:
    with spool(tmp_path, max_bytes=MIB) as store:
        ends = [append(store, b"x" * 150_000) for _ in range(4)]
        store.release(ends[1])

        assert (3, b"x") == (store.segments, bodies(store, ends[1], ends[2])[0][:1])
        store.release(ends[3])
        assert [f"{ends[3].segment:020d}.spool", "lock"] == sorted(
            path.name for path in tmp_path.iterdir()
        )


def test_retained_segments_stay_unless_space_is_needed(tmp_path: Path) -> None:
    """For a new checkpoint to read; the size limit has precedence."""
    with spool(tmp_path, max_bytes=MIB, retention_s=3_600) as store:
        for _ in range(3):
            store.release(append(store, b"x" * 150_000))
        kept = store.segments
        for _ in range(10):
            store.release(append(store, b"x" * 150_000))

        assert 3 == kept
        assert store.size_bytes < MIB + 300_000


def test_only_needed_messages_fill_a_spool(tmp_path: Path) -> None:
    """Otherwise the segment being written could keep the spool full for ever."""
    with spool(tmp_path, max_bytes=MIB) as store:
        end = append(store, b"x" * MIB)
        was_full = store.is_full
        store.release(end)
        is_full = store.is_full
        end = append(store, b"y")
        store.release(end)

        assert (True, False, 1) == (was_full, is_full, store.segments)


def as_if_killed(folder: Path) -> None:
    """Remove the empty segment that `close` creates."""
    *_, last = sorted(folder.glob("*.spool"))
    assert SEGMENT_HEAD_BYTES == last.stat().st_size
    last.unlink()


def test_a_torn_end_is_cut(tmp_path: Path) -> None:
    """Earlier records are read, and later ones are written after them."""
    with spool(tmp_path) as store:
        start, end = store.start, append(store, b"a")
        append(store, b"b")
    as_if_killed(tmp_path)
    path = tmp_path / f"{FIRST:020d}.spool"
    path.write_bytes(path.read_bytes()[:-1])
    with spool(tmp_path) as store:
        last = append(store, b"c")
        assert [b"a", b"c"] == bodies(store, start, last)
    assert end.byte == path.stat().st_size


def test_a_segment_that_was_never_made_is_no_damage(tmp_path: Path) -> None:
    """The crash interrupted the write of its header."""
    with spool(tmp_path) as store:
        start, end = store.start, append(store, b"a")
    for head in (b"", b"NSQSP"):
        (tmp_path / f"{FIRST + 1:020d}.spool").write_bytes(head)
        with spool(tmp_path) as store:
            assert ([b"a"], 2) == (bodies(store, start, end), store.segments)


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def test_damage_is_reported_with_its_position(tmp_path: Path) -> None:
    """For the last segment at `open`, for older ones when they are read."""
    with spool(tmp_path) as store:
        start, first = store.start, append(store, b"a")
        end = append(store, b"b")
    as_if_killed(tmp_path)
    path = tmp_path / f"{FIRST:020d}.spool"
    flip(path, first.byte - 1)
    said = f"{path.name} at byte {start.byte}: .* new checkpoint"
    with pytest.raises(SpoolDamaged, match=said), spool(tmp_path):
        pass
    flip(path, first.byte - 1)
    with spool(tmp_path) as store:
        append(store, b"c")
    flip(path, end.byte - 1)
    with spool(tmp_path) as store:
        with pytest.raises(SpoolDamaged, match=f"{path.name} at byte {first.byte}"):
            bodies(store, start, end)
        assert [b"a"] == bodies(store, start, first)


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "damaged"])
def test_damage_at_the_end_is_no_torn_end_behind_an_orderly_one(
    is_gone: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
) -> None:
    """The next segment's header proves it; messages were finished at nsqd."""
    with spool(tmp_path) as store:
        start, first, end = store.start, append(store, b"a"), append(store, b"b")
    path = tmp_path / f"{FIRST:020d}.spool"
    if is_gone:
        path.write_bytes(path.read_bytes()[: first.byte])
    else:
        flip(path, end.byte - 1)
    with spool(tmp_path) as store:
        last = append(store, b"c")
        assert [b"a"] == bodies(store, start, first)
        with pytest.raises(SpoolDamaged, match=f"{path.name} at byte {first.byte}"):
            bodies(store, start, last)


def raising(number: int) -> Callable[..., None]:
    """Return a system call that fails."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_failed_attempt_leaves_nothing_in_the_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The header of a segment was not durable, and its file was not deleted."""
    with spool(tmp_path, max_bytes=MIB) as store:
        start, long = store.start, b"x" * MIB
        append(store, long)
        with monkeypatch.context() as failing:
            failing.setattr(os, "fsync", raising(errno.EIO))
            failing.setattr(Path, "unlink", raising(errno.EIO))
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                append(store, b"b")
        end = append(store, b"b")
        assert [long, b"b"] == bodies(store, start, end)


def test_the_rest_of_a_space_check_is_cut_before_a_segment_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise zeros would follow its last record."""
    with spool(tmp_path, max_bytes=MIB) as store:
        start, long = store.start, b"x" * MIB
        append(store, long)
        with monkeypatch.context() as failing:
            failing.setattr(os, "ftruncate", raising(errno.EIO))
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                store.check_space()
        end = append(store, b"b")
    with spool(tmp_path, max_bytes=MIB) as store:
        assert [long, b"b"] == bodies(store, start, end)


def drop(folder: Path) -> None:
    """Delete the second segment of three."""
    (folder / f"{FIRST + 1:020d}.spool").unlink()


def empty(folder: Path) -> None:
    """Truncate the second segment of three."""
    (folder / f"{FIRST + 1:020d}.spool").write_bytes(b"")


@pytest.mark.parametrize("harm", [drop, empty])
def test_a_missing_segment_is_reported(harm: Callable[[Path], None], tmp_path: Path) -> None:
    """If it is between others, its messages would be skipped silently."""
    for _ in range(3):
        with spool(tmp_path) as store:
            append(store, b"a")
    harm(tmp_path)
    with pytest.raises(SpoolDamaged, match=f"{FIRST + 1}|{FIRST + 2}"), spool(tmp_path):
        pass


def test_a_checkpoint_of_removed_data_is_refused(tmp_path: Path) -> None:
    """For missing segments, another spool, or a lost end; the error has advice."""
    with spool(tmp_path, max_bytes=MIB) as store:
        start = store.start
        ends = [append(store, b"x" * 200_000) for _ in range(3)]
        store.release(ends[1])
        places = {
            start: "segment 1000, but the spool .* new checkpoint",
            Position(start.segment + 9, 40): "another spool",
            Position(ends[2].segment, ends[2].byte + 1): "or lost its end",
        }
        for place, said in places.items():
            with pytest.raises(SpoolLost, match=said):
                store.cut(place, 1)
            with pytest.raises(SpoolLost, match=said):
                list(store.read(place, ends[2]))


def test_a_folder_is_one_process_s(tmp_path: Path) -> None:
    """A second process gets an error; it may lock the folder later."""
    said = f"{tmp_path} is in use by another process.*spoolDir"
    with spool(tmp_path), pytest.raises(StartError, match=said), spool(tmp_path):
        pass
    with spool(tmp_path) as store:
        assert 1 == store.segments


def test_a_new_folder_is_there_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new parents too: each is synced in its parent."""
    synced: list[Path] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    with spool(tmp_path / "a" / "b" / "c"):
        assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(synced)


def test_a_reader_that_a_signal_holds_up_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """The handler waits for the writer's end, which reads the size without the lock."""
    with spool(tmp_path) as store, ThreadPoolExecutor(1) as other, store._changed:
        assert not other.submit(lambda: store.is_full).result(_WAIT_S)


def test_a_folder_that_cannot_be_used_is_told() -> None:
    """With the reason of the operating system."""
    said = r"/dev/full/spool cannot be used .*Not a directory"
    with pytest.raises(StartError, match=said), spool(Path("/dev/full/spool")):
        pass


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    groups=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=6),
    limits=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    restarts=st.data(),
)
def test_messages_are_read_once_and_in_order_however_batches_are_cut(
    groups: list[list[int]],
    limits: list[int],
    restarts: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Consecutive batches have no gap, and each is within its limit."""
    folder, written, read = tmp_path_factory.mktemp("spool"), 0, list[bytes]()
    with spool(folder) as store:
        place = store.start
        for group in groups:
            for count in group:
                append(store, *(b"%d" % number for number in range(written, written + count)))
                written += count
    with spool(folder) as store:
        for turn in range(written + 1):
            limit = limits[turn % len(limits)]
            if restarts.draw(st.booleans()):
                store._batch_ends.clear()
            end = store.cut(place, limit)
            batch = bodies(store, place, end)
            assert len(batch) <= limit
            read += batch
            place = end

    assert [b"%d" % number for number in range(written)] == read
