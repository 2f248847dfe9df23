"""The Spark programs in examples/, started as documented there, and a Spark Connect server."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.brokers.killable_broker import free_port
from tests.support.project import ROOT
from tests.support.spark.class_archive import java_options
from tests.support.spark.processes import kill_session
from tests.support.spark.program import MASTER, program_environment

CONNECT_PAGE = ROOT / "docs" / "pipeline-connect.md"
_WAIT_S = 180.0


async def run_example(
    name: str,
    folder: Path,
    environment: Mapping[str, str],
    *arguments: str,
    python: str = sys.executable,
) -> str:
    """Return the output of the example *name*; *folder* is its working folder and FOLDER."""
    basis = program_environment(folder) | {"JDK_JAVA_OPTIONS": java_options()}
    process = await asyncio.create_subprocess_exec(
        python,
        str(ROOT / "examples" / name),
        *arguments,
        stdout=PIPE,
        stderr=STDOUT,
        cwd=folder,
        env=basis | {"FOLDER": str(folder), "PYSPARK_PYTHON": python} | dict(environment),
    )
    try:
        async with asyncio.timeout(_WAIT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert 0 == process.returncode, output.decode()
    return output.decode()


@asynccontextmanager
async def connect_server(folder: Path) -> AsyncIterator[str]:
    """
    Run a Spark Connect server on this machine; yield its address.

    It is started by the commands of docs/pipeline-connect.md, in the folder of the checkout.
    """
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    flags = [flag for each in settings.items() for flag in ("--conf", "=".join(each))]
    [commands] = re.findall("(?s)```sh\n(.*?)\n```", CONNECT_PAGE.read_text())
    commands = re.sub(r"(\$PWD/)?\.venv/bin/python", sys.executable, commands)
    environment = program_environment(folder) | {"JDK_JAVA_OPTIONS": java_options()}
    with (folder / "server.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", f'set -e\n{commands} "$@"', "bash"),
            *("--master", MASTER, *flags),
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env=environment | {"SPARK_LOG_DIR": str(folder)},
            start_new_session=True,
        )
    try:
        yield f"sc://127.0.0.1:{port}"
    finally:
        kill_session(process.pid)
        await process.wait()
