"""
The session of Spark that a job runs in.

Alone, the job brings its own JVM, which is told here what it needs; under spark-submit the JVM is
there first, and whoever submits has the say.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from gateway.errors import SettingRefused, StartError
from gateway.pipeline.chatter import LOG4J, listen
from gateway.secret import Secret
from gateway.settings_common import ENVIRONMENT_PREFIX, flag_of, variable_of
from gateway.settings_jobs import JobSettings
from gateway.telemetry import get_logger

logger = get_logger()

LOCAL_MASTER = "local[*,4]"
"""All cores; and a task is tried four times, where plain local[*] gives up at the first."""

LEAST_JAVA = 17
_JAVA_WAIT_S = 30
_LOOPBACK = "127.0.0.1"
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # The old form, INT96, is what other readers do not like.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A topic named 007 stays a name.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.streaming.stopTimeout": "20s",
}
_ASYNCHRONOUS = "asyncprogresstracking"


def is_submitted() -> bool:
    """Tell whether spark-submit has started this process, and the JVM before it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def session(settings: JobSettings, name: str) -> Iterator[SparkSession]:
    """Give a session for the job *name*, and stop it afterwards; see `open_session`."""
    spark = open_session(settings, name)
    try:
        yield spark
    finally:
        with suppress(Exception):  # a signal to all processes has ended the JVM first
            spark.stop()


def open_session(settings: JobSettings, name: str) -> SparkSession:
    """
    Return a session for the job *name*; the JVM is started where there is none.

    Alone, the environment is left without our own settings, but for a secret: the processes that
    Spark starts get them as options, and the secret by the environment.

    Raises:
        SettingsError: A setting of Spark, or a secret given as a flag, cannot be used.
        StartError: There is no Java, an old one, or Spark did not start.
    """
    given = spark_settings(settings)
    _hush_py4j()
    _hand_on_secret(settings)
    if not is_submitted():
        check_java()
        logger.info("Spark starts", job=name, master=settings.master or LOCAL_MASTER)
        _launch(settings, given)
    conf = SparkConf(_jvm=SparkContext._jvm)  # noqa: SLF001 - no other way to what spark-submit said
    conf.setAppName(given.get("spark.app.name", f"nsq-gateway {name}"))
    for key, value in _DEFAULTS.items():
        conf.setIfMissing(key, value)
    for key, value in given.items():
        conf.set(key, value)
    try:
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        raise StartError(f"Spark did not start: {_first_line(error)}") from error
    if is_submitted() and "spark.log.level" not in given:
        spark.sparkContext.setLogLevel("DEBUG" if settings.log_level == "debug" else "WARN")
    if not conf.contains("spark.sql.shuffle.partitions"):
        spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    return spark


def _hush_py4j() -> None:
    """Keep away what py4j logs: each call, and its trace of each that a JVM has left unanswered."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        # It writes to the root logger too; what it raises is told where it is caught.
        handler.addFilter(lambda record: Path(record.pathname).parent.name != "py4j")


def spark_settings(settings: JobSettings) -> dict[str, str]:
    """
    Return what --spark-conf says, by name.

    Raises:
        SettingsError: Asynchronous progress tracking is asked for.
    """
    given = dict(each.split("=", 1) for each in settings.spark_conf)
    for key in given:
        if _ASYNCHRONOUS in key.lower():
            reason = (
                "with asynchronous progress tracking a message would be finished before its batch "
                "is in Spark's log of commits, and could be lost; leave it out"
            )
            raise SettingRefused(f"--spark-conf {key}", reason)
    if settings.master:
        given["spark.master"] = settings.master
    return given


def check_java() -> None:
    """Raise StartError where there is no Java that Spark runs on."""
    advice = f"Spark needs Java {LEAST_JAVA} or later; install it, or let JAVA_HOME name its folder"
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
        raise StartError(f"{java} does not tell its version: {advice}")
    if int(found[1]) < LEAST_JAVA:
        raise StartError(f"{java} is Java {found[1]}: {advice}")


def _hand_on_secret(settings: JobSettings) -> None:
    """Put the secret where the processes that Spark starts find it, and no other setting."""
    secret: Secret | None = getattr(settings, "auth_secret", None)
    variable = variable_of("auth_secret")
    text = None if secret is None else os.fsdecode(secret.reveal())
    if is_submitted():
        if text is not None and os.environ.get(variable) != text:
            reason = (
                "under spark-submit Spark runs already, and the secret would reach it as an option "
                f"that stands in plans and logs; use {flag_of('auth_secret_file')}"
            )
            raise SettingRefused(flag_of("auth_secret"), reason)
        return
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
        del os.environ[name]
    if text is not None:
        os.environ[variable] = text


def _launch(settings: JobSettings, given: dict[str, str]) -> None:
    """Start the JVM; what it writes becomes log lines."""
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
        try:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            )
        except (OSError, PySparkRuntimeError) as error:
            raise StartError(f"Spark did not start: {_first_line(error)}") from error
        finally:
            os.environ["SPARK_SUBMIT_OPTS"] = before
    listen(gateway.proc.stdout)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001 - as PySpark does


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
