"""What the JVM and its Python processes write: log lines of ours, with traces at debug only."""

from __future__ import annotations

import re
import threading
from typing import IO, Literal

from gateway.telemetry import get_logger

logger = get_logger()

_APPENDER = """\
status = off
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
rootLogger.appenderRef.console.ref = console
"""
_TOLD_BY_US = (
    "org.apache.spark.sql.execution",
    "org.apache.spark.executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.api.python",
    "org.apache.spark.util",
)
"""Whose errors are those of a query or of a job, which are told when it ends."""

LOG4J = {
    "quiet": _APPENDER
    + "rootLogger.level = error\n"
    + "".join(
        f"logger.{place}.name = {name}\nlogger.{place}.level = off\n"
        for place, name in enumerate(_TOLD_BY_US)
    ),
    "debug": _APPENDER.replace("%m%n", "%m%n%ex") + "rootLogger.level = warn\n",
}
"""How Spark logs: the text of a file for Log4j."""

_TRACE_BEGINS = "Traceback (most recent call last):"
_TRACE_GOES_ON = re.compile(r"\s|During handling of|The above exception|$|[\w.]+(: |$)")
_OF_THE_JVM = re.compile(r"(ERROR|FATAL) ")
_KNOWN = re.compile(
    r"WARNING: |Using Spark's default|Setting default log level|To adjust logging level"
)


class Chatter:
    """Tells of each line, one after the other, whether a person is to see it."""

    def __init__(self) -> None:
        self._is_trace = False

    def level_of(self, line: str) -> Literal["warning", "debug"]:
        """Return the level for the next *line*: warning for what nobody else will tell."""
        if line.startswith(_TRACE_BEGINS):
            self._is_trace = True
            return "debug"
        if self._is_trace:
            self._is_trace = _TRACE_GOES_ON.match(line) is not None
            if self._is_trace:
                return "debug"
        if not line.strip() or _KNOWN.match(line):
            return "debug"
        return "warning" if _OF_THE_JVM.match(line) else "debug"


def listen(stream: IO[bytes]) -> None:
    """Log what comes on *stream* until its end, in a thread of its own."""
    threading.Thread(target=_log, args=(stream,), name="spark says", daemon=True).start()


def _log(stream: IO[bytes]) -> None:
    chatter = Chatter()
    for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        if chatter.level_of(line) == "warning":
            logger.warning("spark warns", text=line)
        elif line:
            logger.debug("spark says", text=line)
