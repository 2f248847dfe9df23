"""One Spark program that many tests use, one after the other."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from pyspark.sql import SparkSession

from tests.support.spark.program import SparkProgram


class SharedSpark(AbstractContextManager["SharedSpark"]):
    """Start a program on first use, restart it if it ended, and stop it on exit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program: SparkProgram | None = None
        self._started = 0

    def program(self) -> SparkProgram:
        """Return a running program, started if necessary."""
        if self._program is None or not self._program.is_alive:
            self._end()
            self._started += 1
            self._program = SparkProgram(self._folder / str(self._started))
        return self._program

    def tidy(self) -> None:
        """Stop queries that a test has left running."""
        if self._program is not None and self._program.is_alive:
            self._program.call(stop_queries)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the program."""
        self._end()

    def _end(self) -> None:
        if self._program is not None:
            self._program.kill()


def stop_queries(spark: SparkSession) -> None:
    """Stop every query; runs in the program."""
    for query in spark.streams.active:
        query.stop()
