"""Restore the logging configuration that a test changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import structlog

_OF_OTHERS = ("uvicorn", "websockets", "httpx")


@contextmanager
def restored_logging() -> Iterator[None]:
    """
    Restore the process' logging, and structlog's, when the block ends.

    structlog's own defaults are not ours: with them lines go to standard output, and a later test
    of the same process sees nothing in `caplog`. A logger keeps the form of its first line, if it
    is allowed to, for as long as its module lives: here it is not.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in _OF_OTHERS}
    before = structlog.get_config()
    try:
        with mock.patch.object(structlog, "configure", _configure_without_keeping):
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name in _OF_OTHERS:
            logging.getLogger(name).setLevel(levels[name])
        structlog.configure(**before)


_configure: Callable[..., None] = structlog.configure


def _configure_without_keeping(**options: object) -> None:
    _configure(**options | {"cache_logger_on_first_use": False})
