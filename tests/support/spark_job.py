"""`nsq-gateway pipeline archive` as a user starts it, to be killed with all of its processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.support.spark_classes import java_options
from tests.support.spark_processes import kill_session, pids_of
from tests.support.spark_program import program_environment

_END_S = 60.0
_PROGRAM = "from gateway.cli import main; main()"


class SparkJob:
    """A running job; make one with `archive_job`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def said(self) -> str:
        """What it has said so far."""
        return self._log.read_text(errors="replace")

    def pids(self, part: str = "") -> list[int]:
        """Return its processes whose command line has *part* in it."""
        return pids_of(self.process.pid, part)

    async def kill(self) -> None:
        """End all of it by SIGKILL."""
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
        async with asyncio.timeout(_END_S):
            return await self.process.wait()


@asynccontextmanager
async def archive_job(folder: Path, options: Mapping[str, str]) -> AsyncIterator[SparkJob]:
    """
    Run the job with *options* of the format nsq as flags; it is gone afterwards.

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
