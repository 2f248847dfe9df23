"""
Open the Spark session of a job, and log Spark's output.

Without spark-submit the job starts and configures its own JVM. With spark-submit the JVM runs
already, and its settings have precedence over the defaults of the job.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from gateway.credentials import Secret
from gateway.errors import SettingRefused, StartError
from gateway.pipeline.jobs.failures import explain
from gateway.settings.fields import ENVIRONMENT_PREFIX, environment_name, flag_name
from gateway.settings.pipeline import JobSettings
from gateway.telemetry import LOG_LEVEL_VARIABLE, get_logger

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
_REPORTED_LOGGERS = (
    "org.apache.spark.sql.execution",
    "org.apache.spark.executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.api.python",
    "org.apache.spark.util",
)
"""Loggers whose errors also end a query or a job, and are reported by that."""

LOG4J = {
    "quiet": _APPENDER
    + "rootLogger.level = error\n"
    + "".join(
        f"logger.{place}.name = {name}\nlogger.{place}.level = off\n"
        for place, name in enumerate(_REPORTED_LOGGERS)
    ),
    "debug": _APPENDER.replace("%m%n", "%m%n%ex") + "rootLogger.level = warn\n",
}
"""Log4j configuration files: quiet, with errors only, and debug, with warnings and traces."""

_TRACE_BEGINS = "Traceback (most recent call last):"
_TRACE_GOES_ON = re.compile(r"\s|During handling of|The above exception|$|[\w.]+(: |$)")
_LEVELS = frozenset({"debug", "info", "warning", "error", "critical"})
_CONNECTED_EVENT = "nsqd connected"
"""Event that is logged at debug: a stream has many connections, and "subscribed" for each nsqd."""
_JVM_ERROR = re.compile(r"(ERROR|FATAL) ")
_HARMLESS = re.compile(
    r"WARNING: |Using Spark's default|Setting default log level|To adjust logging level"
)


class LogLine(NamedTuple):
    """A structured log line, written by another process of this package."""

    level: str
    event: str
    fields: dict[str, Any]


def parse_worker_log_line(line: str) -> LogLine | None:
    """
    Parse *line* as a log line of this package from a Python process that the JVM started.

    Return None for any other line. Those processes have the sockets and the spool, so only their
    log reports lost connections and disk errors.
    """
    if not line.startswith("{"):
        return None
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    level, event = fields.pop("level", None), fields.pop("event", None)
    if level not in _LEVELS or not isinstance(event, str):
        return None
    if event == _CONNECTED_EVENT:
        level = "debug"
    fields.pop("timestamp", None)  # this process adds its own timestamp
    return LogLine(level, event, fields)


class JvmLogFilter:
    """Decide the log level of each line of Spark's output; stateful, because of tracebacks."""

    def __init__(self) -> None:
        self._is_trace = False

    def level_of(self, line: str) -> Literal["warning", "debug"]:
        """Return the level for the next *line*: warning for an error that nothing else reports."""
        if line.startswith(_TRACE_BEGINS):
            self._is_trace = True
            return "debug"
        if self._is_trace:
            self._is_trace = _TRACE_GOES_ON.match(line) is not None
            if self._is_trace:
                return "debug"
        if not line.strip() or _HARMLESS.match(line):
            return "debug"
        return "warning" if _JVM_ERROR.match(line) else "debug"


def log_stream(stream: IO[bytes]) -> None:
    """Log the lines of *stream* until its end, in a daemon thread."""
    threading.Thread(target=_log, args=(stream,), name="Spark output", daemon=True).start()


def _log(stream: IO[bytes]) -> None:
    jvm_filter = JvmLogFilter()
    for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        entry = parse_worker_log_line(line)
        if entry is not None:
            log: Callable[..., None] = getattr(logger, entry.level)
            log(entry.event, **entry.fields)
        elif jvm_filter.level_of(line) == "warning":
            logger.warning("Spark error", text=line)
        elif line:
            logger.debug("Spark output", text=line)


LOCAL_MASTER = "local[*,4]"
"""All cores, and four attempts per task; plain local[*] allows only one attempt."""

MIN_JAVA = 17
_JAVA_WAIT_S = 30
_LOOPBACK = "127.0.0.1"
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Some readers of Parquet do not support INT96, Spark's default.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A topic named 007 must stay a string, not become the number 7.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.streaming.stopTimeout": "20s",
}
_ASYNC_PROGRESS = "asyncprogresstracking"


def is_submitted() -> bool:
    """Return True if spark-submit has started this process, and the JVM before it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def session(
    settings: JobSettings, name: str, needed: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """
    Context manager: open a session for the job *name*, and stop it after the block.

    Arguments and errors are those of `open_session`.
    """
    spark = open_session(settings, name, needed)
    try:
        yield spark
    finally:
        with suppress(Exception):  # a signal to the process group may have ended the JVM first
            spark.stop()


def open_session(
    settings: JobSettings, name: str, needed: Mapping[str, str] | None = None
) -> SparkSession:
    """
    Return a session for the job *name*; start the JVM if there is none.

    *needed* are Spark settings that the job requires. They replace those of --spark-conf with the
    same name, whose values the caller has merged into them. With spark-submit, *needed* are only
    defaults: the settings of spark-submit and of --spark-conf have precedence.

    Without spark-submit, this package's variables are removed from the environment, except for the
    secret: processes that Spark starts get settings as options, and the secret by its variable.

    Raises:
        SettingsError: A Spark setting is refused, or a secret is given as a flag with spark-submit.
        StartError: Java is missing or too old, or Spark did not start.
    """
    given = spark_settings(settings)
    defaults = _DEFAULTS
    if is_submitted():
        defaults = _DEFAULTS | dict(needed or {})
    else:
        given |= needed or {}
    _silence_py4j()
    _export_secret(settings)
    if not is_submitted():
        check_java()
        logger.info("starting Spark", job=name, master=settings.master or LOCAL_MASTER)
        _launch(settings, given)
    conf = SparkConf(_jvm=SparkContext._jvm)  # noqa: SLF001 - the only way to spark-submit's settings
    conf.setAppName(given.get("spark.app.name", f"nsq-gateway {name}"))
    # Defaults only where spark-submit has no setting; what the user gave replaces both.
    for key, value in defaults.items():
        conf.setIfMissing(key, value)
    for key, value in given.items():
        conf.set(key, value)
    try:
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        raise StartError(f"Spark did not start: {explain(str(error))}") from error
    if is_submitted() and "spark.log.level" not in given:
        spark.sparkContext.setLogLevel("DEBUG" if settings.log_level == "debug" else "WARN")
    # One task for each core, instead of Spark's default of 200 tasks for each shuffle.
    if not conf.contains("spark.sql.shuffle.partitions"):
        spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    return spark


def _silence_py4j() -> None:
    """Silence py4j, which logs every call, and a traceback for each call that a lost JVM fails."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # py4j also logs to the root logger. Its exceptions are reported where they are caught.
    logging.getLogger().addFilter(_is_not_from_py4j)
    # This logger repeats the exception for a condition that Spark cannot parse.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def spark_settings(settings: JobSettings) -> dict[str, str]:
    """
    Return the settings of --spark-conf by name.

    Raises:
        SettingsError: Asynchronous progress tracking is enabled.
    """
    given = dict(each.split("=", 1) for each in settings.spark_conf)
    for key in given:
        if _ASYNC_PROGRESS in key.lower():
            reason = (
                "with asynchronous progress tracking a message would be finished before Spark's "
                "commit log has its batch, and could be lost; omit it"
            )
            raise SettingRefused(f"--spark-conf {key}", reason)
    if settings.master:
        given["spark.master"] = settings.master
    return given


def check_java() -> None:
    """Raise StartError if Java is missing, does not run, or is too old for Spark."""
    advice = f"Spark needs Java {MIN_JAVA} or later; install it, or set JAVA_HOME to its folder"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        where = f"JAVA_HOME ({home})" if home else "PATH, and JAVA_HOME is not set"
        raise StartError(f"there is no java in {where}: {advice}")
    try:
        answer = subprocess.run(  # noqa: S603 - the java that Spark will start
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartError(f"{java} does not run ({error}): {advice}") from error
    found = _JAVA_VERSION.search(answer.stderr + answer.stdout)
    if found is None:
        raise StartError(f"{java} does not report its version: {advice}")
    if int(found[1]) < MIN_JAVA:
        raise StartError(f"{java} is Java {found[1]}: {advice}")


def _export_secret(settings: JobSettings) -> None:
    """
    Remove this package's variables from the environment, and add the secret for Spark's processes.

    With spark-submit those processes have their environment already, so nothing is changed.

    Raises:
        SettingsError: With spark-submit, a secret is given that is not in the environment.
    """
    secret: Secret | None = getattr(settings, "auth_secret", None)
    variable = environment_name("auth_secret")
    text = None if secret is None else os.fsdecode(secret.reveal())
    if is_submitted():
        if text is not None and os.environ.get(variable) != text:
            reason = (
                "under spark-submit Spark already runs, and would get the secret as an option, "
                f"which appears in plans and logs; use {flag_name('auth_secret_file')}"
            )
            raise SettingRefused(flag_name("auth_secret"), reason)
        return
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
        del os.environ[name]
    if text is not None:
        os.environ[variable] = text


def _launch(settings: JobSettings, given: dict[str, str]) -> None:
    """Start the JVM, unless this process has one already; log what the JVM prints."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - where PySpark keeps it
        return
    conf = SparkConf(loadDefaults=False)
    conf.setMaster(LOCAL_MASTER)
    for key, value in given.items():
        conf.set(key, value)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if (conf.get("spark.master") or "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    with tempfile.TemporaryDirectory(prefix="nsq-gateway-") as folder:
        path = Path(folder) / "log4j2.properties"
        path.write_text(LOG4J["debug" if settings.log_level == "debug" else "quiet"])
        before = os.environ.get("SPARK_SUBMIT_OPTS", "")
        options = f"-Dlog4j2.configurationFile={path.as_uri()} {before}".strip()
        os.environ["SPARK_SUBMIT_OPTS"] = options
        os.environ[LOG_LEVEL_VARIABLE] = settings.log_level
        try:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            )
        except (OSError, PySparkRuntimeError) as error:
            raise StartError(f"Spark did not start: {_first_line(error)}") from error
        finally:
            os.environ["SPARK_SUBMIT_OPTS"] = before
            del os.environ[LOG_LEVEL_VARIABLE]
    log_stream(gateway.proc.stdout)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001 - as PySpark does


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
