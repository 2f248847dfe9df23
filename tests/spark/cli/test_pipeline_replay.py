"""`pipeline replay` and `pipeline metrics`: output, confirmation and refusals, without Spark."""

from __future__ import annotations

import io
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gateway.cli import pipeline as pipeline_replay
from gateway.errors import SettingRefused
from gateway.pipeline.jobs.replay import ReplayPrompt, count_table
from gateway.pipeline.jobs.replay_plan import ReplayCount, TopicPlan

BEGIN_US = 1_793_000_040_000_000
COUNT = ReplayCount(
    [
        TopicPlan("orders", "orders.replay", 12, 3_000, BEGIN_US, BEGIN_US + 1_500_000),
        TopicPlan("refunds", "refunds.replay", 1, 7, None, None),
    ],
    5,
)


def test_a_count_is_a_table_with_sums() -> None:
    """The rows are counted by topic, in aligned columns."""
    assert [
        "topic    to              rows  bytes  first ts                  last ts",
        "orders   orders.replay   12    3000   2026-10-26T07:34:00.000Z  2026-10-26T07:34:01.500Z",
        "refunds  refunds.replay  1     7      unknown                   unknown",
        "13 rows, 2.9 KiB",
        "5 rows of them were replayed earlier",
    ] == count_table(COUNT)


def test_nothing_to_replay_is_said() -> None:
    """A sentence replaces the empty table."""
    assert ["No matching rows: nothing to replay."] == count_table(ReplayCount([], 0))


NOBODY = "--yes: not confirmed at the prompt; nothing was published"


class Keyboard(io.StringIO):
    """A terminal with typed input."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@click.command()
@click.option("--yes", "is_confirmed", is_flag=True)
def _ask(*, is_confirmed: bool) -> None:
    ReplayPrompt(is_confirmed=is_confirmed).confirm(["live has a channel (a)"])


def test_yes_agrees_before_it_is_asked_and_the_reason_is_shown() -> None:
    """With --yes the reason for the confirmation is still printed, for the job's log."""
    result = CliRunner().invoke(_ask, ["--yes"])

    assert (0, "Warning: live has a channel (a).\n") == (result.exit_code, result.stderr)


def test_without_a_terminal_nobody_can_agree() -> None:
    """Without a terminal it is a usage error; the reason is printed once."""
    result = CliRunner().invoke(_ask)

    assert isinstance(result.exception, SettingRefused)
    assert (
        "--yes: confirmation is required, and there is no terminal: live has a channel (a)"
        == str(result.exception)
    )
    assert "" == result.stderr


@pytest.mark.parametrize("typed, expected", [("y\n", "agreed"), ("n\n", NOBODY), ("\n", NOBODY)])
def test_on_a_terminal_it_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, expected: str
) -> None:
    """An empty answer means no."""
    monkeypatch.setattr("sys.stdin", Keyboard(typed))
    person = ReplayPrompt(is_confirmed=False)
    try:
        person.confirm(["live has a channel (a)"])
        outcome = "agreed"
    except SettingRefused as error:
        outcome = str(error)

    assert expected == outcome
    assert "Publish anyway? [y/N]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, words",
    [
        (pipeline_replay.replay, "--input: the folder of the archive is required"),
        (pipeline_replay.metrics, "--topic: name at least one"),
    ],
)
def test_a_job_without_its_flags_is_wrong_use(command: click.Command, words: str) -> None:
    result = CliRunner().invoke(command, [])

    assert isinstance(result.exception, SettingRefused)
    assert words in str(result.exception)


def test_help_tells_of_every_flag_of_ours() -> None:
    """--help lists the flags of the command itself, besides those of the settings."""
    text: Any = CliRunner().invoke(pipeline_replay.replay, ["--help"]).output

    assert ["--dry-run", "--yes", "--where", "--distinct"] == [
        flag for flag in ("--dry-run", "--yes", "--where", "--distinct") if flag in text
    ]
