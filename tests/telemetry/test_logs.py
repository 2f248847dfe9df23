"""Log lines: where they go, and their form."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.telemetry import configure_logging, get_logger
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


def test_what_is_below_the_level_is_not_even_put_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A line that nobody wants costs no more than a call: its values are not looked at."""
    configure_logging("json", "info")

    class Costly:
        def __repr__(self) -> str:
            raise AssertionError("somebody looked")

    get_logger().debug("unseen", value=Costly())

    assert "" == capsys.readouterr().err
