"""An archive in a table format: run like a user, killed at the worst time, read by others."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.project import ROOT
from tests.support.spark.class_archive import java_options
from tests.support.spark.kills import until
from tests.support.spark.processes import kill_session
from tests.support.spark.program import MASTER, program_environment

Row: TypeAlias = tuple[str, str, str]
"""Topic, id, body."""

DELTA = ROOT / ".venv-delta" / "bin" / "python"
"""Python of an environment with the Spark version of Delta's latest release."""
ICEBERG = ROOT / ".venv-iceberg" / "bin" / "python"
"""Python of an environment with the Spark version of Iceberg's latest module."""

_SOURCE = Path(__file__).with_name("preload_rename.c")
_PROGRAM = "from gateway.cli.main import main; main()"
_WAIT_S = 240.0
"""A session of Spark and its first batch, on a busy machine; jars may have to be fetched."""


def flags_of(broker: KillableBroker, folder: Path, *flags: str) -> tuple[str, ...]:
    """Return the flags of a one-off archive of topic t in *folder*."""
    return (
        *("--topic=t", f"--nsqd-tcp-address={broker.tcp_address}"),
        *(f"--nsqd-http-address={broker.http_address}", "--available-now", "--poll-ms=50"),
        *(f"--output={folder}/table", f"--checkpoint={folder}/checkpoint"),
        *flags,
    )


async def archive(
    folder: Path,
    *flags: str,
    python: Path = Path(sys.executable),
    environment: Mapping[str, str] | None = None,
    held: Path | None = None,
) -> tuple[int, str]:
    """
    Run the job with *flags*; return its exit status and its output.

    With *held*, kill all of its processes with SIGKILL once that file exists.
    """
    home = folder / "job"
    home.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-c", _PROGRAM, "pipeline", "archive", *flags),
        *("--spark-conf=spark.sql.shuffle.partitions=1", f"--master={MASTER}"),
        f"--spark-conf=spark.driver.extraJavaOptions={java_options()}",
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        cwd=home,
        env=program_environment(home) | {"PYSPARK_PYTHON": str(python)} | dict(environment or {}),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_WAIT_S):
            reading = asyncio.create_task(process.communicate())
            if held is not None:
                await until(lambda: held.exists() or process.returncode is not None)
                await asyncio.to_thread(kill_session, process.pid)
            said, _ = await reading
    finally:
        await asyncio.to_thread(kill_session, process.pid)
    assert process.returncode is not None
    return process.returncode, said.decode()


def hold_commit(folder: Path, batch: int) -> tuple[dict[str, str], Path]:
    """
    Return an environment in which Spark blocks before it commits *batch*, and its signal file.

    The batch is in the table by then.
    """
    library = folder / "preload_rename.so"
    built = ("cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl")
    subprocess.run(built, check=True, capture_output=True)
    held = folder / "held"
    environment = {
        "LD_PRELOAD": str(library),
        "PRELOAD_HOLD": f"/commits/{batch}",
        "PRELOAD_HELD": str(held),
    }
    return environment, held


async def read_by(python: Path, reader: str, folder: Path, *arguments: str) -> list[Row]:
    """Return the rows that the function *reader* of `table_readers` reads, run by *python*."""
    process = await asyncio.create_subprocess_exec(
        *(str(python), str(Path(__file__).with_name("table_readers.py")), reader, *arguments),
        stdout=PIPE,
        stderr=PIPE,
        cwd=folder,
        env=program_environment(folder) | {"PYSPARK_PYTHON": str(python)},
    )
    try:
        async with asyncio.timeout(_WAIT_S):
            output, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert 0 == process.returncode, error.decode()
    return sorted((topic, number, body) for topic, number, body in json.loads(output.decode()))


def duplicates(rows: list[Row]) -> list[Row]:
    """Return the rows that appear more than once."""
    return [row for row, count in Counter(rows).items() if count > 1]
