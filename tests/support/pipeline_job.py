"""A job of the pipeline as a process: started as a person does, watched through its log, ended."""

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

from tests.support.spark_classes import java_options
from tests.support.spark_processes import kill_session, pids_of
from tests.support.spark_program import MASTER, ROOT, program_environment

_WAIT_S = 120.0
"""A session and its first batch, on a busy machine with two cores."""


class Job:
    """A running job and everything that it says; make one with `pipeline_job`."""

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
        """Return the first match of *pattern* in what it says, now or later, over all lines."""
        try:
            async with asyncio.timeout(_WAIT_S), self._changed:
                while not (found := re.search(pattern, self._text, re.DOTALL)):
                    assert not self._reading.done(), self._text
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"no {pattern!r} in:\n{self._text}") from None
        return found

    async def ended(self) -> int:
        """Return its exit status, once it has ended."""
        async with asyncio.timeout(_WAIT_S):
            return await self._process.wait()

    def pids(self, part: str) -> list[int]:
        """Return its processes whose command line has *part* in it."""
        return pids_of(self._process.pid, part)

    def terminate(self) -> None:
        """Send SIGTERM to the process that was started."""
        os.kill(self._process.pid, signal.SIGTERM)

    async def end(self) -> None:
        """End it with all its processes, and read what it said to the end."""
        await asyncio.to_thread(kill_session, self._process.pid)
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def pipeline_job(
    folder: Path, *arguments: str, is_submitted: bool = False
) -> AsyncIterator[Job]:
    """
    Run ``nsq-gateway pipeline`` with *arguments*; every process of it is gone afterwards.

    Args:
        folder: Where it runs, and where Spark keeps its files.
        arguments: Behind ``pipeline``.
        is_submitted: Whether it is run by Spark's own spark-submit.
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
