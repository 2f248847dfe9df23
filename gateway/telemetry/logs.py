"""Log lines: a fixed event phrase, then fields; for people on a terminal, else as JSON."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TypeAlias

import structlog

LogFormat: TypeAlias = Literal["auto", "json", "console"]


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
        # What is below the level costs no more than a call.
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
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
    logging.getLogger("urllib3").setLevel(logging.WARNING)
