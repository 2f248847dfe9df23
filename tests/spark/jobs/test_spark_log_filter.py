"""Which lines of Spark's output are logged as warnings."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gateway.pipeline.jobs.spark import LOG4J, JvmLogFilter, LogLine, parse_worker_log_line
from gateway.telemetry import LOG_LEVEL_VARIABLE


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties",
        "something that a worker prints",
        "WARN Utils: Your hostname resolves to a loopback address",
        "",
    ],
)
def test_harmless_output_is_logged_at_debug(line: str) -> None:
    """Users cannot act on it."""
    assert "debug" == JvmLogFilter().level_of(line)


def test_an_error_of_the_jvm_is_shown() -> None:
    """Errors of queries are silenced, so this is another one."""
    line = (
        "ERROR DiskBlockManager: Failed to create local dir in /nowhere. Ignoring this directory."
    )

    assert "warning" == JvmLogFilter().level_of(line)


def test_a_trace_of_python_is_for_debug_until_its_end() -> None:
    """The failed query reports the same in one line."""
    lines = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "    raise ValueError",
        "ValueError: no",
        "ERROR SparkContext: after it",
    ]
    chatter = JvmLogFilter()

    assert ["debug"] * 4 + ["warning"] == [chatter.level_of(line) for line in lines]


def test_our_log_line_is_parsed_with_level_and_fields() -> None:
    """Only the job can read the log of the process with the sockets."""
    program = (
        "from gateway.telemetry import get_logger\n"
        "get_logger().debug('asked')\n"
        "get_logger().warning('spool full', size_bytes=9)\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {LOG_LEVEL_VARIABLE: "info"},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )

    told = [parse_worker_log_line(line) for line in ended.stderr.splitlines()]
    assert [LogLine("warning", "spool full", {"size_bytes": 9})] == told


def test_connection_events_are_logged_at_debug() -> None:
    """A stream has up to 64 connections to each nsqd."""
    line = '{"nsqd": "a:1", "event": "nsqd connected", "level": "info", "timestamp": "x"}'

    assert LogLine("debug", "nsqd connected", {"nsqd": "a:1"}) == parse_worker_log_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "{}",
        "{x}",
        '{"level": "warning"}',
        '{"event": 1, "level": "info"}',
        "ERROR X: y",
        '{"event": "x", "level": "exec"}',
    ],
)
def test_other_lines_are_not_taken_for_ours(line: str) -> None:
    """Whatever a worker prints, the job continues to read."""
    assert parse_worker_log_line(line) is None


def test_traces_are_logged_at_debug_only() -> None:
    """At other levels the pattern has no stack trace, and errors of queries are silenced."""
    assert "%ex" in LOG4J["debug"]
    assert "%ex" not in LOG4J["quiet"]
    assert "org.apache.spark.sql.execution\n" in LOG4J["quiet"]
