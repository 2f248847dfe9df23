"""
A Spark session in a subprocess that runs functions for tests.

A request is a JSON line with the name of a function, and the response is a JSON line with its
result. Spark's output goes to a file in the program's folder, and into the text of a failure.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyspark.sql import SparkSession

from tests.support.project import ROOT
from tests.support.spark.class_archive import java_options
from tests.support.spark.processes import kill_session, pids_of, wait_for_end

P = ParamSpec("P")
T = TypeVar("T")

MASTER = "local[2,4]"
"""Two cores, and up to four attempts for a task, as on a cluster; the default is one."""
_SETTINGS = "NSQ_GATEWAY_"
_ANSWER_S = 150.0
"""Timeout of a call; the first session on a busy machine with two cores takes most of a minute."""
_EXIT_TIMEOUT_S = 240.0
"""Timeout of `end`; a JVM that writes a CDS archive takes ten seconds on an idle machine."""
_LOG_CHARACTERS = 6_000


class SparkFailed(AssertionError):
    """The function raised, the program ended, or a call timed out."""


class SparkProgram:
    """A running program; create one with `spark_program`."""

    def __init__(
        self,
        folder: Path,
        *,
        master: str = MASTER,
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "spark.log"
        self._one_at_a_time = threading.Lock()
        self._answers: queue.Queue[bytes] = queue.Queue()
        asked = {"master": master, "conf": _conf(folder) | dict(conf or {})}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps(asked)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=program_environment(folder) | dict(environment or {}),
                start_new_session=True,
            )
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    @property
    def pid(self) -> int:
        """PID of the Python process; its JVM and workers are in the same session (`pids`)."""
        return self._process.pid

    def pids(self, part: str = "") -> list[int]:
        """Return the processes of this program whose command line contains *part*."""
        return pids_of(self.pid, part)

    @property
    def is_alive(self) -> bool:
        """True while the program can be called."""
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """The last characters of Spark's output."""
        return self._log.read_text(errors="replace")[-_LOG_CHARACTERS:]

    def call(
        self, function: Callable[Concatenate[SparkSession, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """
        Run *function* in the program, by its name; return its result, after a JSON round trip.

        Raises:
            SparkFailed: The function raised, the program ended, or the call timed out; after a
                timeout the program is killed.
        """
        asked = [function.__module__, function.__qualname__, args, kwargs]
        with self._one_at_a_time:
            answer = self._ask(json.dumps(asked).encode())
        if "error" in answer:
            raise SparkFailed(answer["error"])
        result: T = answer["result"]
        return result

    async def run(
        self, function: Callable[Concatenate[SparkSession, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `call` in a thread."""
        return await asyncio.to_thread(lambda: self.call(function, *args, **kwargs))

    def end(self) -> None:
        """
        Stop the session and the JVM gracefully; wait until all processes have ended.

        Raises:
            SparkFailed: The processes have not ended in time.
        """
        assert self._process.stdin is not None
        pids = self.pids()
        self._process.stdin.close()
        if not all(wait_for_end(pid, _EXIT_TIMEOUT_S) for pid in pids):
            raise SparkFailed(f"the program does not end\n{self.said}")

    def kill(self) -> None:
        """Kill every process of the program with SIGKILL, and wait for their end."""
        kill_session(self.pid)
        self._process.kill()  # not found by session; the JVM ends with its Python
        self._process.wait(_EXIT_TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):  # unwritten data is discarded
                stream.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError, OSError):  # closed by `kill`
            for line in self._process.stdout:
                self._answers.put(line)
        self._answers.put(b"")

    def _ask(self, line: bytes) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
            text = self._answers.get(timeout=_ANSWER_S)
        except (OSError, ValueError, queue.Empty) as error:
            # A late response would be taken for that of the next call.
            self.kill()
            raise SparkFailed(f"no answer: {error!r}\n{self.said}") from None
        if not text:
            raise SparkFailed(f"the program has ended\n{self.said}")
        answer: dict[str, Any] = json.loads(text)
        return answer


@contextmanager
def spark_program(
    folder: Path,
    *,
    master: str = MASTER,
    conf: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[SparkProgram]:
    """
    Run a program with all files in *folder*; kill all of its processes at the end of the block.

    Args:
        folder: Directory for Spark's files and output (spark.log).
        master: Spark's master URL.
        conf: Settings of the session, in addition to the defaults.
        environment: Additional environment variables; PYTHONPATH begins with this repository.
    """
    program = SparkProgram(folder, master=master, conf=conf, environment=environment)
    try:
        yield program
    finally:
        program.kill()


def _conf(folder: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.driver.extraJavaOptions": java_options(),
    }


def program_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a Spark program, without NSQ_GATEWAY_ variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    return kept | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
    }


def main(asked: str) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the JVM and functions may write to stdout
    wanted = json.loads(asked)
    builder = SparkSession.builder.master(wanted["master"])
    for name, value in wanted["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        module, name, args, kwargs = json.loads(line)
        answer: dict[str, Any]
        try:
            function = getattr(importlib.import_module(module), name)
            answer = {"result": function(spark, *args, **kwargs)}
        except Exception:  # noqa: BLE001 - every error is reported to the test
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
