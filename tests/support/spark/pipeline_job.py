"""A pipeline job as a process, started like a user does, and observed through its log."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.project import ROOT
from tests.support.spark.class_archive import java_options
from tests.support.spark.processes import kill_session, pids_of
from tests.support.spark.program import MASTER, program_environment

_WAIT_S = 120.0
"""A session and its first batch, on a busy machine with two cores."""


class Job:
    """A running job and its output; make one with `pipeline_job`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._text = ""
        self._changed = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._changed:
                self._text += line.decode(errors="replace")
                self._changed.notify_all()
        async with self._changed:
            self._changed.notify_all()

    async def said(self, pattern: str) -> re.Match[str]:
        """Wait for *pattern* in the output, over all lines; return the first match."""
        try:
            async with asyncio.timeout(_WAIT_S), self._changed:
                while not (found := re.search(pattern, self._text, re.DOTALL)):
                    assert not self._reading.done(), self._text
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"no {pattern!r} in:\n{self._text}") from None
        return found

    async def ended(self) -> int:
        """Wait for the job to end; return its exit status."""
        async with asyncio.timeout(_WAIT_S):
            return await self._process.wait()

    def pids(self, part: str) -> list[int]:
        """Return the processes of the job whose command line contains *part*."""
        return pids_of(self._process.pid, part)

    def terminate(self) -> None:
        """Send SIGTERM to the process that was started."""
        os.kill(self._process.pid, signal.SIGTERM)

    async def end(self) -> None:
        """End all processes of the job, and read the rest of their output."""
        await asyncio.to_thread(kill_session, self._process.pid)
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def pipeline_job(
    folder: Path, *arguments: str, is_submitted: bool = False
) -> AsyncIterator[Job]:
    """
    Run ``nsq-gateway pipeline`` with *arguments*; stop all of its processes at the end.

    Args:
        folder: Working directory, also for Spark's files.
        arguments: Command line arguments after ``pipeline``.
        is_submitted: True to run the job with spark-submit.
    """
    python = Path(sys.executable)
    options = java_options()
    if is_submitted:
        program = (str(python.with_name("spark-submit")), "--master", MASTER)
        command: tuple[str, ...] = (
            *program,
            "--driver-java-options",
            options,
            f"{ROOT}/pyspark_nsq/__main__.py",
        )
        spark: tuple[str, ...] = ()
    else:
        command = (str(python), "-m", "gateway", "pipeline")
        spark = ("--spark-conf", f"spark.driver.extraJavaOptions={options}", "--master", MASTER)
    process = await asyncio.create_subprocess_exec(
        *(*command, *arguments, *spark, "--log-format", "json"),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        cwd=folder,
        env=program_environment(folder),
        start_new_session=True,
    )
    job = Job(process)
    try:
        yield job
    finally:
        await job.end()
