"""The pipeline commands, without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from gateway.cli.main import commands, main
from gateway.cli.pipeline import job_module
from gateway.errors import StartError

ARCHIVE = ("pipeline", "archive", "--topic", "t", "--nsqd-tcp-address", "127.0.0.1:1")


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restore the signal handlers of this process after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("name", ["archive", "compact", "vacuum"])
def test_help_has_examples_and_exit_statuses(name: str) -> None:
    result = CliRunner().invoke(commands, ["pipeline", name, "--help"])

    assert 0 == result.exit_code
    assert f"nsq-gateway pipeline {name} --" in result.output
    assert "Exit status: 0 success, or stopped by SIGTERM; 1 failure" in result.output


def test_the_commands_do_without_spark_until_one_is_run() -> None:
    """Importing Spark takes two seconds, and the gateway runs without it."""
    code = (
        "import sys, gateway.cli.main; "
        "sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one sentence with the pip command."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for name in [name for name in sys.modules if name.startswith("gateway.pipeline.")]:
        monkeypatch.delitem(sys.modules, name)

    with pytest.raises(StartError, match=r"pip install 'nsq-gateway\[spark\]'"):
        job_module("archive")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (ARCHIVE, "--output"),
        ((*ARCHIVE, "--output", "/o"), "--checkpoint"),
        ((*ARCHIVE, "--output", "/o", "--checkpoint", "/o"), "--checkpoint /o"),
        ((*ARCHIVE, "--output", "/o", "--checkpoint", "/c", "--channel", "x y"), "--channel"),
        ((*ARCHIVE, "--trigger-s", "-1"), "--trigger-s"),
        (("pipeline", "archive", "--output", "/o", "--checkpoint", "/c"), "--topic"),
        (("pipeline", "compact", "--output", "/o"), "--input"),
        (("pipeline", "compact", "--input", "/o", "--output", "/o/x"), "--output /o/x"),
        (("pipeline", "vacuum"), "--input"),
        (("pipeline", "vacuum", "--input", "/o", "--compacted", "/o/"), "--compacted /o/"),
        ((*ARCHIVE, "--spark-conf", "x=1"), "--spark-conf"),
    ],
)
def test_wrong_use_is_said_before_a_jvm_is_started(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    """The error contains the setting, and the exit status is 2."""
    with signals_kept(), pytest.raises(SystemExit) as ended:
        main(arguments)

    assert 2 == ended.value.code
    assert capsys.readouterr().err.startswith(f"nsq-gateway: {expected}")


def test_the_module_is_a_program_too() -> None:
    """spark-submit runs `pyspark_nsq/__main__.py`."""
    result = subprocess.run(
        [sys.executable, "-m", "pyspark_nsq", "archive"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )

    assert (
        2,
        "nsq-gateway: --output: the folder for the Parquet files, or the table, is required\n",
    ) == (
        result.returncode,
        result.stderr,
    )
