"""What Spark tells of its queries, taken in the form that costs least."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from gateway.telemetry import get_logger

logger = get_logger()


class ProgressListener(StreamingQueryListener):
    """
    A listener whose `progress` gets each batch as Spark's own JSON object.

    PySpark would make an object of its own out of an event: that walks five arrays of Java's, each
    walk ends with an exception from there, and to tell which one it is Python asks seventy
    questions. 100 to 200 ms of processor time a batch, where the JSON is 3 (docs/decisions/0012).

    Spark calls it in threads of its own; nothing that is raised here gets to Spark.
    """

    def progress(self, progress: dict[str, Any]) -> None:
        """Learn what a batch was, or that there was none; `progress` is Spark's JSON object."""
        raise NotImplementedError

    # Spark's names from here on

    @property
    def _jlistener(self) -> Any:  # noqa: ANN401 - of Java
        """Return who listens in the JVM: as PySpark does, with another one behind it."""
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm  # noqa: SLF001 - where PySpark has it
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_Callbacks(self))
        return self._jlistenerobj

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Pass on what `progress` takes, where PySpark has made an event of it after all."""
        self.told(event.progress.json)

    def told(self, text: str) -> None:
        """Pass on the JSON *text* of a batch."""
        try:
            self.progress(json.loads(text))
        except Exception:
            logger.exception("a batch was not counted")

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing."""


@contextmanager
def listening(spark: SparkSession, listener: ProgressListener) -> Iterator[None]:
    """Let *listener* hear of the queries of *spark* meanwhile."""
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        with suppress(Exception):  # the JVM has ended first
            spark.streams.removeListener(listener)


class _Callbacks(JStreamingQueryListener):
    """What the JVM calls."""

    pylistener: ProgressListener

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: ANN401, N802 - Spark's
        self.pylistener.told(jevent.progress().json())
