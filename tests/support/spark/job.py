"""`nsq-gateway pipeline archive` started like a user does, to be killed with its processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.support.spark.class_archive import java_options
from tests.support.spark.processes import kill_session, pids_of
from tests.support.spark.program import program_environment

_EXIT_TIMEOUT_S = 180.0
_PROGRAM = "from gateway.cli.main import main; main()"


class SparkJob:
    """A running job; make one with `archive_job`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def said(self) -> str:
        """The output so far."""
        return self._log.read_text(errors="replace")

    def pids(self, part: str = "") -> list[int]:
        """Return the processes of the job whose command line contains *part*."""
        return pids_of(self.process.pid, part)

    async def kill(self) -> None:
        """Kill all processes of the job with SIGKILL."""
        await asyncio.to_thread(kill_session, self.process.pid)
        with suppress(ProcessLookupError):
            self.process.kill()  # where sessions cannot be looked up
        await self.process.wait()

    def terminate_all(self) -> None:
        """Send SIGTERM to every process of it, as a supervisor of a whole group does."""
        for pid in self.pids():
            with suppress(ProcessLookupError):  # the end of another one has ended it
                os.kill(pid, signal.SIGTERM)

    async def ended(self) -> int:
        """Return the exit status."""
        async with asyncio.timeout(_EXIT_TIMEOUT_S):
            return await self.process.wait()


@asynccontextmanager
async def archive_job(folder: Path, options: Mapping[str, str]) -> AsyncIterator[SparkJob]:
    """
    Run the job with *options* of the format nsq as flags; stop it when the block ends.

    Rows and checkpoint are in *folder*.
    """
    home = folder / "job"
    home.mkdir(parents=True, exist_ok=True)
    log = folder / "job.log"
    conf = {
        "spark.driver.extraJavaOptions": java_options(),
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROGRAM, "pipeline", "archive"),
            *(f"--output={folder}/rows", f"--checkpoint={folder}/checkpoint"),
            *(f"--spark-conf={name}={value}" for name, value in conf.items()),
            *("--master=local[2,4]", "--trigger-s=0"),
            *(f"--{_dashed(name)}={value}" for name, value in options.items()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            cwd=home,
            env=program_environment(home),
            start_new_session=True,
        )
    job = SparkJob(process, log)
    try:
        yield job
    finally:
        await job.kill()


def _dashed(option: str) -> str:
    return "".join(f"-{each.lower()}" if each.isupper() else each for each in option)
