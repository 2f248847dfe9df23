"""Log lines: destination and format."""

import json
import logging
import subprocess
import sys

import pytest

from gateway.telemetry import configure_logging, get_logger


def test_without_a_word_from_the_program_lines_go_to_the_standard_librarys_logging() -> None:
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


def test_a_line_is_one_json_object_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """It has event, level, timestamp, and the fields unchanged."""
    configure_logging("json", "info")

    get_logger().info("subscriber connected", topic="t", n=1)

    line = json.loads(capsys.readouterr().err)
    assert {"event": "subscriber connected", "level": "info", "topic": "t", "n": 1} == {
        key: value for key, value in line.items() if key != "timestamp"
    }


def test_the_standard_librarys_logging_goes_the_same_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("json", "warning")

    logging.getLogger("uvicorn.error").warning("it happened")
    logging.getLogger("uvicorn.error").info("not this")

    assert ["it happened"] == [
        json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()
    ]


def test_who_speaks_no_http_at_the_management_port_is_no_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A port scan would write a line for each connection, without its address."""
    configure_logging("json", "warning")

    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")

    assert "" == capsys.readouterr().err


def test_the_console_form_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal the lines are not JSON."""
    configure_logging("console", "info")

    get_logger().info("hello", topic="t")

    assert "hello" in capsys.readouterr().err


def test_what_is_below_the_level_is_not_even_put_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("json", "info")

    class Costly:
        def __repr__(self) -> str:
            raise AssertionError("somebody looked")

    get_logger().debug("unseen", value=Costly())

    assert "" == capsys.readouterr().err


def test_what_python_writes_by_itself_is_a_log_line_too() -> None:
    """Warnings and uncaught exceptions of threads, destructors and the main program."""
    program = """
import threading, warnings
from gateway.telemetry import configure_logging, log_uncaught

class Fails:
    def __del__(self):
        raise ValueError("in a destructor")

configure_logging("json", "info")
log_uncaught()
warnings.warn("mind this")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
Fails()
raise KeyError("in the program")
"""
    run = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )

    lines = [json.loads(line) for line in run.stderr.splitlines()]
    assert (1, "", 4) == (run.returncode, run.stdout, len(lines))
    assert "mind this" in lines[0]["event"]
    errors = ("ZeroDivisionError", "in a destructor", "in the program")
    for line, error in zip(lines[1:], errors, strict=True):
        assert "uncaught exception" == line["event"]
        assert error in line["exception"]
