"""
The end of a JVM that spark-submit has started: it gets SIGTERM, and this process does not.

Without more, Spark would stop in the middle of a batch. So its first step is to ask here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark import SparkContext

from gateway.pipeline.session import is_submitted
from gateway.settings_jobs import QueryJobSettings

_BEFORE_SPARK = 1_000
"""The higher the sooner; Spark's own are below 100."""
_LEAST_WAIT_S = 5.0


class _Hook:
    """Is run by the JVM, at its end."""

    def __init__(self, told: Callable[[], None], wait_s: float) -> None:
        self._told = told
        self._wait_s = wait_s
        self.is_done = threading.Event()

    def run(self) -> None:
        """Tell of the end; return when all is in order, or it takes too long."""
        self._told()
        self.is_done.wait(self._wait_s)

    class Java:
        """What it is over there."""

        implements = ("java.lang.Runnable",)


@contextmanager
def jvm_ending(told: Callable[[], None], settings: QueryJobSettings) -> Iterator[None]:
    """Call *told* when a JVM that is not our own begins to end; it waits until the block ends."""
    jvm = SparkContext._jvm  # noqa: SLF001 - the only way to it
    if jvm is None or not is_submitted():
        yield
        return
    hook = _Hook(told, settings.stop_wait_s + _LEAST_WAIT_S)
    thread = jvm.java.lang.Thread(hook)  # it is never started: a thing with `run` and equality
    hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    hooks.addShutdownHook(thread, _BEFORE_SPARK)
    try:
        yield
    finally:
        hook.is_done.set()
        with suppress(Exception):  # a JVM that ends takes nothing back
            hooks.removeShutdownHook(thread)
