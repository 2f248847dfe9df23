"""The logging of the process, which a test may change and has to leave as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

_OF_OTHERS = ("uvicorn", "websockets", "httpx")


@contextmanager
def logging_kept() -> Iterator[None]:
    """
    Give the process its logging back, structlog's too.

    structlog's own defaults are not ours: with them lines go to standard output, and a later test
    of the same process sees nothing in `caplog`.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in _OF_OTHERS}
    before = structlog.get_config()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name in _OF_OTHERS:
            logging.getLogger(name).setLevel(levels[name])
        structlog.configure(**before)
