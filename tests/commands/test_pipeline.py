"""The commands of the pipeline, as far as they go without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from gateway.cli import commands, main
from gateway.commands.pipeline import job
from gateway.errors import StartError
from tests.support.logging_kept import logging_kept

ARCHIVE = ("pipeline", "archive", "--topic", "t", "--nsqd-tcp-address", "127.0.0.1:1")


@contextmanager
def signals_kept() -> Iterator[None]:
    """Give the process the handlers back that it had."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("name", ["archive", "compact"])
def test_help_has_examples_and_exit_statuses(name: str) -> None:
    """Without Spark having to be there."""
    result = CliRunner().invoke(commands, ["pipeline", name, "--help"])

    assert 0 == result.exit_code
    assert f"nsq-gateway pipeline {name} --" in result.output
    assert "Exit status: 0 done, or stopped by SIGTERM; 1 failed" in result.output


def test_the_commands_do_without_spark_until_one_is_run() -> None:
    """Everybody else would wait two seconds for it, and the gateway does not have it."""
    code = "import sys, gateway.cli; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for name in [name for name in sys.modules if name.startswith("gateway.pipeline.")]:
        monkeypatch.delitem(sys.modules, name)

    with pytest.raises(StartError, match=r"pip install 'nsq-gateway\[spark\]'"):
        job("archive")


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
        ((*ARCHIVE, "--spark-conf", "x=1"), "--spark-conf"),
    ],
)
def test_wrong_use_is_said_before_a_jvm_is_started(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    """With the name of the setting, and status 2."""
    with logging_kept(), signals_kept(), pytest.raises(SystemExit) as ended:
        main(arguments)

    assert 2 == ended.value.code
    assert capsys.readouterr().err.startswith(f"nsq-gateway: {expected}")


def test_the_module_is_a_program_too() -> None:
    """As spark-submit runs it."""
    result = subprocess.run(
        [sys.executable, "-m", "pyspark_nsq", "archive"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )

    assert (2, "nsq-gateway: --output: say where the Parquet files go\n") == (
        result.returncode,
        result.stderr,
    )
