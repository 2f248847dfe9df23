"""A Spark session in another process, controlled by commands."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from benchmarks.harness import ROOT

_STOP_TIMEOUT_S = 30.0


class Session:
    """The commands of `benchmarks.clients.spark`."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        self._process = process
        self._log = log

    def run(self, do: str, **asked: object) -> Any:  # noqa: ANN401 - as JSON has it
        """Run a command and return its result; exit with the log if it fails."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        self._process.stdin.write(json.dumps({"do": do, **asked}) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:  # noqa: ANN401 - as JSON has it
        """Return the next result."""
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        self._log.seek(0)
        raise SystemExit(f"Spark has ended\n{self._log.read()[-4_000:]}")


@contextlib.contextmanager
def spark_session() -> Iterator[Session]:
    """Start a session; stop it and delete its files when the block ends."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.clients.spark", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            text=True,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        try:
            session = Session(process, log)
            session.answer()
            yield session
        finally:
            assert process.stdin is not None  # noqa: S101 - a pipe
            process.stdin.close()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
