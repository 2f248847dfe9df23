"""
A program on Spark, in a process of its own, that runs functions which tests name.

One JSON line asks for a function, one JSON line answers. Everything that Spark says on its way
goes to a file in the program's folder, and into the text of a failure.
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

from tests.support.spark_classes import java_options
from tests.support.spark_processes import kill_session, pids_of, wait_for_end

P = ParamSpec("P")
T = TypeVar("T")

ROOT = Path(__file__).parents[2]
MASTER = "local[2,4]"
"""Two cores; a task is tried four times, as on a cluster, and not once."""
_SETTINGS = "NSQ_GATEWAY_"
_ANSWER_S = 150.0
"""A first session on a busy machine with two cores takes most of a minute."""
_END_S = 240.0
"""A JVM that writes its classes down at its end takes ten seconds, alone on the machine."""
_LOG_CHARACTERS = 6_000


class SparkFailed(AssertionError):
    """The function raised, the program ended, or no answer came in time; the text says which."""


class SparkProgram:
    """A running program; make one with `spark_program`."""

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
        """Of the Python process; its JVM and workers are in the same session (`pids`)."""
        return self._process.pid

    def pids(self, part: str = "") -> list[int]:
        """Return the processes of this program whose command line has *part* in it."""
        return pids_of(self.pid, part)

    @property
    def is_alive(self) -> bool:
        """Whether it can be called."""
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """The end of what Spark has said."""
        return self._log.read_text(errors="replace")[-_LOG_CHARACTERS:]

    def call(
        self, function: Callable[Concatenate[SparkSession, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """
        Return what *function* returns there, as JSON shows it; it is found by its name.

        Raises:
            SparkFailed: It raised, the program ended, or time was up; then the program is ended.
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
        """Do the same as `call` while other tasks go on."""
        return await asyncio.to_thread(lambda: self.call(function, *args, **kwargs))

    def end(self) -> None:
        """
        Let the session stop and the JVM end in order; return once all of it is gone.

        Raises:
            SparkFailed: It is not gone in time.
        """
        assert self._process.stdin is not None
        pids = self.pids()
        self._process.stdin.close()
        if not all(wait_for_end(pid, _END_S) for pid in pids):
            raise SparkFailed(f"the program does not end\n{self.said}")

    def kill(self) -> None:
        """End every process of it by SIGKILL, at once; return once they are gone."""
        kill_session(self.pid)
        self._process.kill()  # where sessions cannot be looked up; a JVM ends with its Python
        self._process.wait(_END_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):  # what was not written to it is for nobody
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
            # An answer that comes late would be taken for another one's.
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
    Run a program whose files are all in *folder*; every process of it is gone afterwards.

    Args:
        folder: Where Spark keeps what it needs, and what it says (spark.log).
        master: As Spark spells it.
        conf: Of the session, over what is there already.
        environment: Of its processes, on top; PYTHONPATH begins with this repository.
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
    """Return the environment of a program on Spark; settings of whoever tests are not in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    return kept | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
    }


def main(asked: str) -> None:
    """Answer until the end of the input."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the JVM writes there, and so may functions
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
        except Exception:  # noqa: BLE001 - whatever it is, the test is told
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
