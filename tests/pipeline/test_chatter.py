"""What of all that Spark writes a person is to see."""

from __future__ import annotations

import pytest

from gateway.pipeline.chatter import LOG4J, Chatter


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
def test_chatter_is_for_debug(line: str) -> None:
    """Nobody can do anything about it."""
    assert "debug" == Chatter().level_of(line)


def test_an_error_of_the_jvm_is_shown() -> None:
    """It is none of a query, for those are off."""
    line = (
        "ERROR DiskBlockManager: Failed to create local dir in /nowhere. Ignoring this directory."
    )

    assert "warning" == Chatter().level_of(line)


def test_a_trace_of_python_is_for_debug_until_its_end() -> None:
    """The query says the same in one line."""
    lines = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "    raise ValueError",
        "ValueError: no",
        "ERROR SparkContext: after it",
    ]
    chatter = Chatter()

    assert ["debug"] * 4 + ["warning"] == [chatter.level_of(line) for line in lines]


def test_traces_are_logged_at_debug_only() -> None:
    """Elsewhere the pattern has no place for one, and queries say nothing themselves."""
    assert "%ex" in LOG4J["debug"]
    assert "%ex" not in LOG4J["quiet"]
    assert "org.apache.spark.sql.execution\n" in LOG4J["quiet"]
