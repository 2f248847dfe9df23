"""Why a query ended, out of what Spark says."""

from __future__ import annotations

import pytest

from gateway.pipeline.failures import explain

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
    """Its class without the module, and what it says."""
    error = "gateway.errors.BrokerUnreachable: nsqd at 127.0.0.1:1: connection refused"

    failure = explain(_IN_PYTHON.format(error=error))

    assert "BrokerUnreachable: nsqd at 127.0.0.1:1: connection refused" == str(failure)
    assert failure.can_heal


def test_the_last_of_several_errors_counts() -> None:
    """It is the one that Spark was told of."""
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
def test_what_is_the_same_at_the_next_try_does_not_heal(error: str) -> None:
    """Nobody waits for a query that cannot run."""
    assert not explain(_IN_PYTHON.format(error=error)).can_heal


def test_what_a_query_itself_raises_of_a_row_does_not_heal() -> None:
    """The row is there at the next try, too."""
    text = _HEAD + "[USER_RAISED_EXCEPTION] topic late came SQLSTATE: P0001"

    failure = explain(text)

    assert ("USER_RAISED_EXCEPTION: topic late came", False) == (str(failure), failure.can_heal)


def test_a_refusal_that_passes_heals() -> None:
    """An nsqd that stops, say."""
    error = "gateway.errors.BrokerRefused: E_SUB_FAILED SUB failed"

    assert explain(_IN_PYTHON.format(error=error)).can_heal


def test_a_checkpoint_of_another_query_does_not_heal() -> None:
    """Spark says so in a sentence of its own."""
    text = (
        _HEAD + "There are [1] sources in the checkpoint offsets and now there are [2] sources "
        "requested by the query. Cannot continue. SQLSTATE: XXKST\n\tat org.apache.spark.X"
    )

    failure = explain(text)

    assert not failure.can_heal
    assert failure.sentence.endswith("Cannot continue.")


def test_an_error_of_spark_has_its_own_word() -> None:
    """Without the state of SQL, and without the trace."""
    text = (
        _HEAD + "[TASK_WRITE_FAILED] Task failed while writing rows to file:/x. SQLSTATE: 58030\n"
    )

    assert "TASK_WRITE_FAILED: Task failed while writing rows to file:/x." == str(explain(text))


def test_an_error_of_java_has_the_name_of_its_class() -> None:
    """Without its package."""
    text = _HEAD + "java.io.IOException: No space left on device\n\tat java.base/x"

    assert "IOException: No space left on device" == str(explain(text))


@pytest.mark.parametrize("text", ["", "\n", _HEAD, "[", "Traceback (most recent call last):"])
def test_whatever_is_said_comes_to_something(text: str) -> None:
    """A reason is always there."""
    failure = explain(text)

    assert failure.kind
    assert failure.can_heal


def test_a_sentence_is_cut() -> None:
    """A body, or a plan, is not to fill the log."""
    assert 400 == len(explain(_HEAD + "java.lang.X: " + "x" * 9_000).sentence)
