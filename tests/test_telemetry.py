"""Logs, metrics and tasks."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest

from gateway import telemetry
from gateway.telemetry import REGISTRY, configure_logging, get_logger, spawn
from tests.support.logging_kept import logging_kept


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Give the process its logging back."""
    with logging_kept():
        yield


def test_without_a_word_from_the_program_lines_go_to_the_standard_librarys_logging() -> None:
    """A program that uses the client by itself sees nothing of it on its standard output."""
    program = (
        "import logging; logging.basicConfig(format='%(levelname)s %(name)s %(message)s');"
        "from gateway.telemetry import get_logger;"
        "get_logger().info('unseen'); get_logger().warning('seen', nsqd='a:1')"
    )

    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert "" == run.stdout
    assert ["WARNING", "__main__", "seen", "nsqd=a:1"] == run.stderr.split()


async def test_a_task_has_its_name_and_gives_its_value() -> None:
    """A spawned task is an ordinary one."""

    async def work() -> int:
        return 7

    task = spawn("work", work())

    assert ("work", 7) == (task.get_name(), await task)


async def test_an_exception_that_nobody_waits_for_is_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The line names the task and shows the error."""
    configure_logging("json", "info")

    async def fail() -> None:
        raise ValueError("broken")

    task = spawn("fail", fail())
    told = asyncio.Event()
    task.add_done_callback(lambda _task: told.set())
    await told.wait()  # callbacks run in the order in which they were added

    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert ("task failed", "fail", "error") == (line["event"], line["task"], line["level"])
    assert "ValueError: broken" in line["exception"]


async def test_a_cancelled_task_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Cancelling is how tasks are ended."""
    configure_logging("json", "info")
    task = spawn("wait", asyncio.Event().wait())

    task.cancel()
    await asyncio.wait({task})

    assert "" == capsys.readouterr().err


def test_a_line_is_one_json_object_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """Event phrase, level, time, and the fields as they were given."""
    configure_logging("json", "info")

    get_logger().info("subscriber connected", topic="t", n=1)

    line = json.loads(capsys.readouterr().err)
    assert {"event": "subscriber connected", "level": "info", "topic": "t", "n": 1} == {
        key: value for key, value in line.items() if key != "timestamp"
    }


def test_the_standard_librarys_logging_goes_the_same_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """uvicorn logs that way."""
    configure_logging("json", "warning")

    logging.getLogger("uvicorn.error").warning("it happened")
    logging.getLogger("uvicorn.error").info("not this")

    assert ["it happened"] == [
        json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()
    ]


def test_the_console_form_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """No JSON on a terminal."""
    configure_logging("console", "info")

    get_logger().info("hello", topic="t")

    assert "hello" in capsys.readouterr().err


def test_metrics_have_our_prefix_and_are_shown() -> None:
    """What is made here is registered here."""
    telemetry.counter("tests_total", "Tests.", ["kind"]).labels("a").inc()
    telemetry.gauge("tests_open", "Tests that are open.").set(2)
    telemetry.histogram("test_seconds", "Time of a test.", buckets=(1.0,)).observe(0.5)

    shown = generate_latest(REGISTRY).decode().splitlines()

    assert {
        'nsq_gateway_tests_total{kind="a"} 1.0',
        "nsq_gateway_tests_open 2.0",
        'nsq_gateway_test_seconds_bucket{le="1.0"} 1.0',
    } <= set(shown)
