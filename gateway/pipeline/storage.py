"""Files where Spark keeps its own: on a disk, HDFS or an object store, whatever a path says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from gateway.errors import StartError
from gateway.pipeline.sink_log import last_batch

_OFFSETS = "offsets"
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


class Storage:
    """
    A folder; paths in it are relative, with forward slashes, and taken as they are spelled.

    Everything raises StartError where the folder cannot be used, as where Spark has nothing for
    the scheme of its URL.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        """See the folder *root*, a path or a URL; it need not be there."""
        self.root = root.rstrip("/")
        self._jvm: Any = spark._jvm  # noqa: SLF001 - Spark's own way to files has no Python side
        conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        with self._explained():
            self._files = self._path("").getFileSystem(conf)

    def _path(self, path: str) -> Any:  # noqa: ANN401 - Java's
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}" if path else self.root)

    def url(self, path: str) -> str:
        """Return *path* as Spark reads it."""
        return f"{self.root}/{path}"

    @property
    def whole_path(self) -> str:
        """Where it is, from the root of its file system, which is named too."""
        with self._explained():
            return str(self._files.makeQualified(self._path("")).toString())

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or a folder."""
        with self._explained():
            return bool(self._files.exists(self._path(path)))

    def names(self, path: str) -> list[str]:
        """Return what is in a folder, hidden ones too, in order; nothing where there is none."""
        if not self.exists(path):
            return []
        with self._explained():
            found = self._files.listStatus(self._path(path))
            return sorted(each.getPath().getName() for each in found)

    def read(self, path: str) -> str | None:
        """Return the text of a file, whatever it is; None: there is none."""
        if not self.exists(path):
            return None
        with self._explained():
            stream = self._files.open(self._path(path))
            try:
                return bytes(stream.readAllBytes()).decode(errors="replace")
            finally:
                stream.close()

    def write(self, path: str, text: str) -> None:
        """Write *text* to a file, so that it is there as a whole or not at all."""
        folder, _, name = path.rpartition("/")
        draft = f"{folder}/.{name}.{uuid4().hex}".lstrip("/")
        with self._explained():
            stream = self._files.create(self._path(draft), True)  # noqa: FBT003 - Java's
            try:
                stream.write(text.encode())
            finally:
                stream.close()
        self.delete(path)
        self.take(self, draft, path)

    def take(self, other: Storage, path: str, new: str) -> None:
        """
        Move a file or a folder of *other*, in the same store, to *new*, where nothing is.

        On a disk, it is there as a whole or not at all; on an object store, a file is.

        Raises:
            OSError: It cannot be moved.
        """
        folder = new.rpartition("/")[0]
        with self._explained():
            self._files.mkdirs(self._path(folder))
            is_moved = self._files.rename(other._path(path), self._path(new))
        if not is_moved:
            raise OSError(f"{other.url(path)} cannot become {self.url(new)}")

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with what is in it, where there is one."""
        with self._explained():
            self._files.delete(self._path(path), True)  # noqa: FBT003 - Java's

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            said = str(error.java_exception.toString()).splitlines()[0]
            raise StartError(f"the folder {self.root} cannot be used: {said}") from error


def clear_draft(checkpoint: Storage) -> None:
    """
    Take away what is left where a stop came while Spark wrote down its very first batch.

    Spark 4.3 begins nowhere but in an empty log (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY), and
    fails at its own draft. No batch was planned by then, so nothing depends on it.
    """
    if last_batch(checkpoint.names(_OFFSETS)) is None:
        checkpoint.delete(_OFFSETS)


def spare_processes(spark: SparkSession, checkpoint: Storage) -> None:
    """
    Let Spark write a *checkpoint* on a local disk through the older of Hadoop's two ways to files.

    The newer one starts a `readlink` at each step, sixteen for a batch, and 100 ms of it; both
    write beside and rename (docs/decisions/0013). Elsewhere, where somebody has chosen, and where
    this Spark does not have it, nothing changes.
    """
    is_local = checkpoint.whole_path.startswith("file:")
    is_chosen = spark.conf.get(_FILE_MANAGER, None) is not None
    if is_local and not is_chosen and _has_class(spark, _BY_FILE_SYSTEM):
        spark.conf.set(_FILE_MANAGER, _BY_FILE_SYSTEM)


def _has_class(spark: SparkSession, name: str) -> bool:
    jvm: Any = spark._jvm  # noqa: SLF001 - no Python side
    try:
        jvm.org.apache.spark.util.Utils.classForName(name, False, True)  # noqa: FBT003 - Java's
    except Py4JJavaError:
        return False
    return True
