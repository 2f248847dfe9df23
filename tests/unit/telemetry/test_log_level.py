"""The level of log lines can be changed while a program runs."""

from __future__ import annotations

import json
import logging

import pytest

from gateway.telemetry import configure_logging, get_logger, set_log_level
from tests.support.logging_state import restored_logging


@pytest.mark.parametrize(
    "at_first,later,expected",
    [("info", "debug", ["first", "detail"]), ("debug", "error", ["first"])],
)
def test_a_logger_that_has_logged_takes_another_level(
    at_first: str, later: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with restored_logging():
        configure_logging("json", at_first)
        logger = get_logger().bind()
        logger.info("first")

        set_log_level(later)
        logger.debug("detail")

    lines = capsys.readouterr().err.splitlines()
    assert expected == [json.loads(line)["event"] for line in lines]


def test_lines_of_the_standard_library_take_it_too() -> None:
    with restored_logging():
        configure_logging("json", "info")

        set_log_level("warning")

        assert logging.WARNING == logging.getLogger().level


def test_a_program_that_did_not_configure_logging_keeps_its_own() -> None:
    level = logging.getLogger().level

    set_log_level("critical")

    assert level == logging.getLogger().level
