"""
Logs, metrics and tasks: what every part uses to be seen. Knows no domain word.

Metrics have the prefix ``nsq_gateway_`` and are registered in `REGISTRY`, next to the code that
counts.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import sys
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily

METRIC_PREFIX = "nsq_gateway_"

REGISTRY = CollectorRegistry(auto_describe=True)
"""Every metric of this process; /metrics shows it."""

LogFormat: TypeAlias = Literal["auto", "json", "console"]

T = TypeVar("T")

_tasks: set[asyncio.Task[Any]] = set()
"""Running tasks: the event loop itself holds them only weakly."""


def _log_by_the_standard_library() -> None:
    """
    Hand log lines to ``logging``, where the program has not said otherwise.

    Who uses the client by itself need not know structlog, whose default writes to standard output.
    """
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.dev.ConsoleRenderer(
                    colors=False, exception_formatter=structlog.dev.plain_traceback
                ),
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )


_log_by_the_standard_library()


def get_logger() -> structlog.stdlib.BoundLogger:
    """Return a logger: a fixed event phrase, then fields."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger()
    return logger


def configure_logging(log_format: LogFormat, level: str) -> None:
    """
    Write every log line to standard error: for people on a terminal, else as JSON.

    The standard library's logging, which uvicorn uses, goes the same way.
    """
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        # Where "rich" is installed the default would show the values of local variables.
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    last: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta
    ]
    if as_json:
        last.append(structlog.processors.format_exc_info)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*last, renderer])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # uvicorn's own lines for each connection; ours say more.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def spawn(name: str, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """
    Run *coroutine* as a task that is kept until it ends; the only place that makes tasks.

    An exception that nobody waits for is logged under *name*.
    """
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _tasks.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        get_logger().error("task failed", task=task.get_name(), exc_info=error)


def counter(name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
    """Return a counter that has been registered; its name ends in the unit and ``_total``."""
    return Counter(METRIC_PREFIX + name, doc, labels, registry=REGISTRY)


class Tally:
    """
    Counts by label values, ``tally.counts["/pub", "OK"] += 1``, for what happens very often.

    A fraction of what a `counter` costs, which locks: only the event loop's thread may count.
    """

    def __init__(self, name: str, doc: str, labels: Sequence[str]) -> None:
        self.counts: collections.Counter[tuple[str, ...]] = collections.Counter()
        self._name = name
        self._doc = doc
        self._labels = tuple(labels)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield what has been counted, for prometheus-client."""
        family = CounterMetricFamily(self._name, self._doc, labels=self._labels)
        for values, count in self.counts.items():
            family.add_metric(values, count)
        yield family


def tally(name: str, doc: str, labels: Sequence[str]) -> Tally:
    """Return a `Tally` that has been registered; its name ends in the unit and ``_total``."""
    registered = Tally(METRIC_PREFIX + name, doc, labels)
    REGISTRY.register(registered)
    return registered


def gauge(name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
    """Return a gauge that has been registered."""
    return Gauge(METRIC_PREFIX + name, doc, labels, registry=REGISTRY)


def histogram(
    name: str, doc: str, labels: Sequence[str] = (), *, buckets: Sequence[float]
) -> Histogram:
    """Return a histogram that has been registered; *buckets* are upper bounds, in its unit."""
    return Histogram(METRIC_PREFIX + name, doc, labels, registry=REGISTRY, buckets=buckets)
