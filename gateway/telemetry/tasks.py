"""Tasks: each is kept until it ends, and none fails unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.telemetry.logs import get_logger
from gateway.telemetry.metrics import gauge

T = TypeVar("T")

_tasks: set[asyncio.Task[Any]] = set()
"""Running tasks: the event loop itself holds them only weakly."""

gauge("tasks", "Tasks of ours that run now.").set_function(lambda: len(_tasks))


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
