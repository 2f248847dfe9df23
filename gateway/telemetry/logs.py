"""Logging: a fixed event phrase and fields; plain text on a terminal, otherwise JSON."""

from __future__ import annotations

import logging
import os
import sys
import threading
from types import TracebackType
from typing import Literal, TypeAlias

import structlog

LogFormat: TypeAlias = Literal["auto", "json", "console"]

LOG_LEVEL_VARIABLE = "PYSPARK_NSQ_LOG_LEVEL"
"""
Environment variable with the log level of Spark's Python workers.

Spark starts these processes, so they have no flags; the job reads their log lines as JSON.
"""


def _log_by_the_standard_library() -> None:
    """
    Send log lines to the standard library's ``logging``, unless structlog is configured.

    structlog's default writes to standard output, which would surprise programs that only use the
    client. In Spark's Python workers, write JSON; see `LOG_LEVEL_VARIABLE`.
    """
    level = os.environ.get(LOG_LEVEL_VARIABLE)
    if level is not None:
        configure_logging("json", level)
    elif not structlog.is_configured():
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


def get_logger() -> structlog.stdlib.BoundLogger:
    """Return a structlog logger. Log a fixed phrase as the event, and values as fields."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger()
    return logger


def configure_logging(log_format: LogFormat, level: str) -> None:
    """
    Write log lines of *level* and above to standard error, as plain text or JSON.

    *log_format* ``auto`` means plain text on a terminal, otherwise JSON. Lines of the standard
    library's logging, which uvicorn uses, get the same format.
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
        # If "rich" is installed, the default formatter shows local variables, secrets included.
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        # Methods below the level become no-ops: a debug line costs one call.
        wrapper_class=_new_logger_class(level),
        # A module's logger binds once: after its first line, another configuration has no effect.
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
    # uvicorn's start-up lines, and those of HTTP clients for each request.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_no_bad_request)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.WARNING)


def _new_logger_class(level: str) -> type:
    """Return a class of loggers that log *level* and above; `set_log_level` changes it."""
    global _logger_class  # noqa: PLW0603 - structlog's configuration is global, too
    _logger_class = type("Logger", (_filtering_class(level),), {})
    return _logger_class


def _filtering_class(level: str) -> type:
    number = logging.getLevelNamesMapping()[level.upper()]
    return structlog.make_filtering_bound_logger(number)


_logger_class: type | None = None


def set_log_level(level: str) -> None:
    """
    Log lines of *level* and above from now on, in this process.

    Without `configure_logging` this changes nothing: a program that only uses parts of this package
    configures the standard library's logging.
    """
    if _logger_class is None or structlog.get_config()["wrapper_class"] is not _logger_class:
        return
    # The methods are replaced, not the class: loggers that have logged once keep their class.
    for name, method in vars(_filtering_class(level)).items():
        if not name.startswith("__"):
            setattr(_logger_class, name, method)
    logging.getLogger().setLevel(level.upper())


def _is_no_bad_request(record: logging.LogRecord) -> bool:
    """Return False for uvicorn's line about invalid HTTP, to drop it: a port scan causes many."""
    return record.msg != "Invalid HTTP request received."


def log_uncaught() -> None:
    """
    Log uncaught exceptions and warnings: Python would write them to standard error as plain text.

    Call this after `configure_logging`: from then on, standard error contains only log lines.
    """
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda args: _log_uncaught(
        args.exc_type, args.exc_value, args.exc_traceback
    )
    sys.unraisablehook = lambda args: _log_uncaught(
        args.exc_type, args.exc_value, args.exc_traceback
    )


def _log_uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    get_logger().error("uncaught exception", exc_info=(kind, error, trace))


# On import: modules may log before a program configures logging, or without doing so at all.
_log_by_the_standard_library()
