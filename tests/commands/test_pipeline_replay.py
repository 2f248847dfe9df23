"""What the commands of replay and metrics show, ask and refuse; no Spark is started."""

from __future__ import annotations

import io
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gateway.commands import pipeline_replay
from gateway.commands.pipeline_replay import Person, table_of
from gateway.errors import SettingRefused
from gateway.pipeline.replay_plan import Tally
from gateway.pipeline.replay_rows import Count

BEGIN_US = 1_793_000_040_000_000
COUNT = Count(
    [
        Tally("orders", "orders.replay", 12, 3_000, BEGIN_US, BEGIN_US + 1_500_000),
        Tally("refunds", "refunds.replay", 1, 7, None, None),
    ],
    5,
)


def test_a_count_is_a_table_with_sums() -> None:
    """By topic, in columns."""
    assert [
        "topic    to              rows  bytes  first ts                  last ts",
        "orders   orders.replay   12    3000   2026-10-26T07:34:00.000Z  2026-10-26T07:34:01.500Z",
        "refunds  refunds.replay  1     7      not known                 not known",
        "13 rows, 2.9 KiB",
        "5 rows of them were replayed before",
    ] == table_of(COUNT)


def test_nothing_to_replay_is_said() -> None:
    """In place of an empty table."""
    assert ["There are no such rows: nothing to replay."] == table_of(Count([], 0))


NOBODY = "--yes: nobody agreed; nothing was published"


class Keyboard(io.StringIO):
    """A terminal at which somebody types."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@click.command()
@click.option("--yes", "is_agreed", is_flag=True)
def _ask(*, is_agreed: bool) -> None:
    Person(is_agreed=is_agreed).agree(["live has a channel (a)"])


def test_yes_agrees_before_it_is_asked_and_the_reason_is_shown() -> None:
    """For whoever reads the log of a job."""
    result = CliRunner().invoke(_ask, ["--yes"])

    assert (0, "Attention: live has a channel (a).\n") == (result.exit_code, result.stderr)


def test_without_a_terminal_nobody_can_agree() -> None:
    """Wrong use, with the reason, which is said once."""
    result = CliRunner().invoke(_ask)

    assert isinstance(result.exception, SettingRefused)
    assert "--yes: somebody has to agree, and no terminal is here: live has a channel (a)" == str(
        result.exception
    )
    assert "" == result.stderr


@pytest.mark.parametrize("typed, expected", [("y\n", "agreed"), ("n\n", NOBODY), ("\n", NOBODY)])
def test_on_a_terminal_it_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, expected: str
) -> None:
    """And no is what is meant by nothing."""
    monkeypatch.setattr("sys.stdin", Keyboard(typed))
    person = Person(is_agreed=False)
    try:
        person.agree(["live has a channel (a)"])
        outcome = "agreed"
    except SettingRefused as error:
        outcome = str(error)

    assert expected == outcome
    assert "Publish in spite of that? [y/N]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, words",
    [
        (pipeline_replay.replay, "--input: say where the archive is"),
        (pipeline_replay.metrics, "--topic: name at least one"),
    ],
)
def test_a_job_without_its_flags_is_wrong_use(command: click.Command, words: str) -> None:
    """Nothing is started."""
    result = CliRunner().invoke(command, [])

    assert isinstance(result.exception, SettingRefused)
    assert words in str(result.exception)


def test_help_tells_of_every_flag_of_ours() -> None:
    """Beside those that all settings have."""
    text: Any = CliRunner().invoke(pipeline_replay.replay, ["--help"]).output

    assert ["--dry-run", "--yes", "--where", "--distinct"] == [
        flag for flag in ("--dry-run", "--yes", "--where", "--distinct") if flag in text
    ]
