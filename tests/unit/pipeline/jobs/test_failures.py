"""Extract the cause of a failed query from Spark's message."""

from __future__ import annotations

import pytest

from gateway.pipeline.jobs.failures import explain

_HEAD = "[STREAM_FAILED] Query [id = 1c, runId = 2d] terminated with exception: "
_IN_PYTHON = (
    _HEAD + "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source "
    "perform latestOffset: Traceback (most recent call last):\n"
    '  File "/x/python_streaming_source_runner.py", line 1, in main\n'
    "    offset = reader.latestOffset(start)\n"
    "{error}\n"
    " SQLSTATE: 38000 SQLSTATE: XXKST"
)


def test_an_error_of_python_is_one_line() -> None:
    """The class without its module, and the message."""
    error = "gateway.errors.BrokerUnreachable: nsqd at 127.0.0.1:1: connection refused"

    failure = explain(_IN_PYTHON.format(error=error))

    assert "BrokerUnreachable: nsqd at 127.0.0.1:1: connection refused" == str(failure)
    assert failure.is_retryable


def test_the_last_of_several_errors_counts() -> None:
    """The last one is the exception that Spark got."""
    chain = (
        "OSError: [Errno 111] connect\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1\n'
        "gateway.errors.NoBroker: no nsqd is there"
    )

    assert "NoBroker: no nsqd is there" == str(explain(_IN_PYTHON.format(error=chain)))


@pytest.mark.parametrize(
    "error",
    [
        "gateway.errors.SettingsError: maxRowsPerBatch is 0; allowed: 1 to 1 000 000",
        "gateway.errors.SettingRefused: ackMode: the checkpoint was not written with it",
        "gateway.errors.RowRefused: order-7: body too big: the body has 9 bytes, nsqd takes 8",
        "gateway.errors.AuthRequired: nsqd asks for a secret",
        "ModuleNotFoundError: No module named 'gateway'",
        "gateway.errors.BrokerRefused: E_AUTH_FAILED AUTH failed",
        "gateway.errors.BrokerRefused: E_UNAUTHORIZED AUTH no",
        "gateway.errors.BrokerRefused: E_BAD_TOPIC no",
    ],
)
def test_a_permanent_error_is_not_retryable(error: str) -> None:
    """A query that cannot succeed is not restarted."""
    assert not explain(_IN_PYTHON.format(error=error)).is_retryable


@pytest.mark.parametrize(
    "error, is_retryable",
    [
        ("errors.SettingRefused: topic: name at least one topic", False),
        ("errors.NoBroker: nsqd at 127.0.0.1:1: connection refused", True),
        ("pipeline.spool_files.SpoolDamaged: segment 3 at byte 9", False),
    ],
)
def test_our_error_without_a_traceback_is_recognized(error: str, is_retryable: bool) -> None:  # noqa: FBT001
    """As Spark reports it under `without_traceback`."""
    text = (
        _HEAD + "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data "
        f"source perform latestOffset: gateway.{error}\n SQLSTATE: 38000"
    )

    failure = explain(text)

    assert error.endswith(str(failure))
    assert failure.kind in error
    assert is_retryable == failure.is_retryable


def test_an_error_raised_by_a_condition_is_not_retryable() -> None:
    """A restart would find the same row."""
    text = _HEAD + "[USER_RAISED_EXCEPTION] topic late came SQLSTATE: P0001"

    failure = explain(text)

    assert ("USER_RAISED_EXCEPTION: topic late came", False) == (str(failure), failure.is_retryable)


def test_a_refusal_that_passes_heals() -> None:
    """For example of an nsqd that is exiting."""
    error = "gateway.errors.BrokerRefused: E_SUB_FAILED SUB failed"

    assert explain(_IN_PYTHON.format(error=error)).is_retryable


def test_a_checkpoint_of_another_query_does_not_heal() -> None:
    """Spark's own errors for this are recognized."""
    text = (
        _HEAD + "There are [1] sources in the checkpoint offsets and now there are [2] sources "
        "requested by the query. Cannot continue. SQLSTATE: XXKST\n\tat org.apache.spark.X"
    )

    failure = explain(text)

    assert not failure.is_retryable
    assert failure.sentence.endswith("Cannot continue.")


def test_an_error_of_spark_has_its_own_word() -> None:
    """Without SQLSTATE and stack trace."""
    text = (
        _HEAD + "[TASK_WRITE_FAILED] Task failed while writing rows to file:/x. SQLSTATE: 58030\n"
    )

    assert "TASK_WRITE_FAILED: Task failed while writing rows to file:/x." == str(explain(text))


def test_an_error_of_java_has_the_name_of_its_class() -> None:
    text = _HEAD + "java.io.IOException: No space left on device\n\tat java.base/x"

    assert "IOException: No space left on device" == str(explain(text))


@pytest.mark.parametrize("text", ["", "\n", _HEAD, "[", "Traceback (most recent call last):"])
def test_any_text_is_explained(text: str) -> None:
    failure = explain(text)

    assert failure.kind
    assert failure.is_retryable


def test_a_sentence_is_cut() -> None:
    """So that a body or a plan does not fill the log."""
    assert 400 == len(explain(_HEAD + "java.lang.X: " + "x" * 9_000).sentence)


_FULL_DISK = (
    _HEAD + "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function. "
    "Reason: Traceback (most recent call last):\n"
    '  File "x.py", line 1, in write\n'
    "py4j.protocol.Py4JJavaError: An error occurred while calling o47.parquet.\n"
    ": org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to "
    "file:/x. SQLSTATE: 58030\n"
    "\tat org.apache.spark.X.y(X.scala:1)\n"
    "Caused by: org.apache.parquet.util.AutoCloseables$ParquetCloseResourceException: Unable to "
    "close resource\n"
    "\tat org.apache.parquet.X.y(X.java:1)\n"
    "Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device\n"
    "\tat java.base/java.io.X.y(X.java:1)\n"
    "\t... 29 more\n"
    "\tSuppressed: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device\n"
    "\tCaused by: java.lang.X: not the cause\n"
    " SQLSTATE: 39000\n"
    "Caused by: py4j.Py4JException: An exception was raised by the Python Proxy.\n"
)


def test_a_java_exception_is_explained_with_its_first_cause() -> None:
    """The text has the root cause, such as a full disk, and no py4j object ids."""
    failure = explain(_FULL_DISK)

    expected = "Task failed while writing rows to file:/x: No space left on device"
    assert ("TASK_WRITE_FAILED", expected) == (failure.kind, failure.sentence)
    assert failure.is_retryable


def test_a_java_exception_without_a_cause_is_explained_once() -> None:
    """For example when Spark does not start."""
    text = (
        "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
        ": org.apache.spark.SparkException: Could not parse Master URL: 'spark:/x'\n"
        "\tat org.apache.spark.SparkContext\n"
    )

    assert "SparkException: Could not parse Master URL: 'spark:/x'" == str(explain(text))


def test_a_python_error_below_java_is_explained_as_python() -> None:
    text = (
        "An error occurred while calling o1.save.\n"
        ": org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "x.py", line 1\n'
        "gateway.errors.NoBroker: no nsqd is there\n\n"
        "\tat org.apache.spark.X\n"
    )

    assert "NoBroker: no nsqd is there" == str(explain(text))
