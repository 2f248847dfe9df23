"""
Access files on a disk, HDFS or an object store, and read the logs that Spark keeps there.

Two kinds of logs are read. `_spark_metadata`, in an output folder, lists the files that a file sink
has committed. A checkpoint has the folders `sources/0`, the input files by planned batch;
`offsets`, the position of each batch in that list; and `commits`, the finished batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from gateway.errors import GatewayError, StartError

FOLDER = "_spark_metadata"
_BATCH = re.compile(r"(\d+)(\.compact)?")
_VERSION = "v1"


class UnreadableLog(GatewayError):
    """A log of Spark has an unknown format."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"{FOLDER}/{name} has {what}, so the committed files are unknown; read it with the "
            "version of Spark that wrote it"
        )


@dataclass(frozen=True)
class SinkFile:
    """A data file of an archive."""

    path: str
    """Absolute path on a local disk, or a URL with the scheme of its store."""
    size_bytes: int


def last_batch(names: Iterable[str]) -> int | None:
    """Return the highest batch number among *names*, the files of a log; None if there is none."""
    found = [_BATCH.fullmatch(name) for name in names]
    return max((int(each[1]) for each in found if each is not None), default=None)


def read_query_id(read: Callable[[str], str | None]) -> str:
    """
    Return the query id in a checkpoint; empty if it has none.

    *read* returns the text of a file in the checkpoint, or None if there is no such file.
    """
    found: str = json.loads(read("metadata") or "{}").get("id") or ""
    return found


def files_of(names: Iterable[str], read: Callable[[str], str]) -> list[SinkFile]:
    """
    Return the files that a file sink has committed.

    Args:
        names: File names of the log, one for each batch, or compacted.
        read: Returns the text of a file of the log.

    Raises:
        UnreadableLog: A file has another version than 1, or cannot be parsed.
    """
    entries = {int(found[1]): found for name in names if (found := _BATCH.fullmatch(name))}
    whole = [number for number, found in entries.items() if found[2]]
    # A compact entry contains all earlier ones, which may be stale or gone.
    first = max(whole, default=-1)
    files: dict[str, SinkFile] = {}
    for number in sorted(entries):
        if number < first:
            continue
        name = entries[number][0]
        version, *lines = read(name).splitlines() or [""]
        if version != _VERSION:
            raise UnreadableLog(name, f"version {version!r}, not {_VERSION}")
        for line in lines:
            try:
                _apply(line, files)
            except (ValueError, TypeError, KeyError) as error:
                raise UnreadableLog(name, "a line that cannot be read") from error
    return list(files.values())


def _apply(line: str, files: dict[str, SinkFile]) -> None:
    """Add the file in *line*, a log entry, to *files* by its URL, or remove it from them."""
    entry = json.loads(line)
    if entry["action"] == "add":
        files[entry["path"]] = SinkFile(_path_of(entry["path"]), entry["size"])
    else:
        files.pop(entry["path"], None)


def _path_of(url: str) -> str:
    """Return *url* unquoted; a `file:` URL as a path, others with their scheme."""
    path = unquote(url)
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


OFFSETS, COMMITS, FILES = "offsets", "commits", "sources/0"
"""Folders in the checkpoint of a query with one source."""
_ENTRY = re.compile(r"(\d+)(\.compact)?")
_END = re.compile(r'"logOffset"\s*:\s*(\d+)')
_BEGINNING = re.compile(r"^(file:)/*")


def done_files(
    names: Callable[[str], Iterable[str]], read: Callable[[str], str | None]
) -> set[str]:
    """
    Return the input files of a checkpoint's finished batches.

    Each is in the set twice, URL-quoted and unquoted, with one slash after `file:`.

    Args:
        names: Returns the names in a folder of the checkpoint; empty if it does not exist.
        read: Returns the text of a file of the checkpoint; None if it does not exist.
    """
    done = last_batch(names(COMMITS))
    found = None if done is None else _END.search(read(f"{OFFSETS}/{done}") or "")
    if found is None:
        return set()
    # The entry of a batch in `offsets` says up to where the batch has read the list of files.
    end = int(found[1])
    entries = {int(each[1]): each for name in names(FILES) if (each := _ENTRY.fullmatch(name))}
    # A compact entry contains all earlier ones.
    first = max((number for number, each in entries.items() if each[2]), default=-1)
    files: set[str] = set()
    for number, entry in entries.items():
        if number >= first:
            files |= _files_of(read(f"{FILES}/{entry[0]}") or "", end)
    return files


def _files_of(text: str, end: int) -> set[str]:
    """Return the files in *text*, a log entry, up to offset *end*; its first line is a version."""
    lines = map(json.loads, text.splitlines()[1:])
    paths = [line["path"] for line in lines if line["batchId"] <= end]
    return {_BEGINNING.sub(r"\1/", path) for each in paths for path in (each, unquote(each))}


_OFFSETS = "offsets"
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


class StoredFile(NamedTuple):
    """A file in a `HadoopFolder`."""

    path: str
    """Relative to the storage's root."""
    size_bytes: int
    modified_at: float
    """Seconds since 1970."""


class HadoopFolder:
    """
    A folder in a file system of Hadoop; methods take paths relative to it.

    Paths have forward slashes and are not escaped. Every method raises StartError if the folder
    cannot be used, for example if Spark does not support the scheme of its URL.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        """Open the folder *root*, a path or a URL; the folder need not exist."""
        self.root = root.rstrip("/")
        self._jvm: Any = spark._jvm  # noqa: SLF001 - Hadoop's file systems have no Python API
        conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        with self._failure_of():
            self._files = self._path("").getFileSystem(conf)

    def _path(self, path: str) -> Any:  # noqa: ANN401 - Java's
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}" if path else self.root)

    def url(self, path: str) -> str:
        """Return the full path or URL of *path*, for Spark."""
        return f"{self.root}/{path}"

    @property
    def qualified_path(self) -> str:
        """The qualified path, with the file system's scheme."""
        with self._failure_of():
            return str(self._files.makeQualified(self._path("")).toString())

    def exists(self, path: str) -> bool:
        """Return True if there is a file or a folder at *path*."""
        with self._failure_of():
            return bool(self._files.exists(self._path(path)))

    def names(self, path: str) -> list[str]:
        """Return the sorted names in the folder *path*, hidden ones too; empty if it is missing."""
        if not self.exists(path):
            return []
        with self._failure_of():
            found = self._files.listStatus(self._path(path))
            return sorted(each.getPath().getName() for each in found)

    def files(self, path: str) -> list[StoredFile]:
        """Return all files below the folder *path*, hidden ones too, sorted by path."""
        if not self.exists(path):
            return []
        before = len(self.qualified_path) + 1  # Hadoop returns qualified paths
        files = []
        with self._failure_of():
            found = self._files.listFiles(self._path(path), True)  # noqa: FBT003 - Java's
            while found.hasNext():
                each = found.next()
                name = str(each.getPath().toString())[before:]
                files.append(StoredFile(name, each.getLen(), each.getModificationTime() / 1_000))
        return sorted(files)

    def create(self) -> None:
        """Create the folder if it does not exist."""
        with self._failure_of():
            self._files.mkdirs(self._path(""))

    @property
    def local_path(self) -> str | None:
        """Path of the folder on this machine; None if it is in another store."""
        whole = self.qualified_path
        return whole.removeprefix("file:") if whole.startswith("file:/") else None

    def read(self, path: str) -> str | None:
        """Return the text of a file; None if it does not exist. Invalid UTF-8 is replaced."""
        if not self.exists(path):
            return None
        with self._failure_of():
            stream = self._files.open(self._path(path))
            try:
                return bytes(stream.readAllBytes()).decode(errors="replace")
            finally:
                stream.close()

    def write(self, path: str, text: str) -> None:
        """Write *text* to a file; readers see either no file or the whole text."""
        folder, _, name = path.rpartition("/")
        draft = f"{folder}/.{name}.{uuid4().hex}".lstrip("/")
        with self._failure_of():
            stream = self._files.create(self._path(draft), True)  # noqa: FBT003 - Java's
            try:
                stream.write(text.encode())
            finally:
                stream.close()
        # Hadoop's rename does not replace an existing file.
        self.delete(path)
        self.move_from(self, draft, path)

    def move_from(self, other: HadoopFolder, path: str, new: str) -> None:
        """
        Move the file or folder *path* of *other* to *new* here, which must not exist.

        Both must be in the same store.

        On a disk the move is atomic; on an object store it is atomic per file.

        Raises:
            OSError: The file system refused the rename.
        """
        folder = new.rpartition("/")[0]
        with self._failure_of():
            self._files.mkdirs(self._path(folder))
            is_moved = self._files.rename(other._path(path), self._path(new))
        if not is_moved:
            raise OSError(f"{other.url(path)} cannot be renamed to {self.url(new)}")

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""
        with self._failure_of():
            self._files.delete(self._path(path), True)  # noqa: FBT003 - Java's

    @contextmanager
    def _failure_of(self) -> Iterator[None]:
        """Context manager: if the block raises a Java exception, raise StartError instead."""
        try:
            yield
        except Py4JJavaError as error:
            detail = str(error.java_exception.toString()).splitlines()[0]
            raise StartError(f"the folder {self.root} cannot be used: {detail}") from error


def remove_partial_offsets(checkpoint: HadoopFolder) -> None:
    """
    Delete the offsets log if it has no batch, only a draft from an interrupted first write.

    Spark 4.3 requires an empty log to start (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY), and fails
    if it finds its own draft. No batch has been planned by then, so nothing depends on the draft.
    """
    if last_batch(checkpoint.names(_OFFSETS)) is None:
        checkpoint.delete(_OFFSETS)


def avoid_checkpoint_processes(spark: SparkSession, checkpoint: HadoopFolder) -> None:
    """
    Make Spark write a *checkpoint* on a local disk through the older of Hadoop's two file APIs.

    The newer API starts sixteen `readlink` processes per batch, which takes 100 ms. Both APIs write
    a temporary file and rename it (docs/decisions/0013). Nothing changes on other stores, if the
    user has chosen an API, or if this Spark lacks the older one.
    """
    is_local = checkpoint.qualified_path.startswith("file:")
    is_chosen = spark.conf.get(_FILE_MANAGER, None) is not None
    if is_local and not is_chosen and has_class(spark, _BY_FILE_SYSTEM):
        spark.conf.set(_FILE_MANAGER, _BY_FILE_SYSTEM)


def has_class(spark: SparkSession, name: str) -> bool:
    """Return True if Spark's JVM has the class *name*."""
    jvm: Any = spark._jvm  # noqa: SLF001 - no Python API
    try:
        jvm.org.apache.spark.util.Utils.classForName(name, False, True)  # noqa: FBT003 - Java's
    except Py4JJavaError:
        return False
    return True
