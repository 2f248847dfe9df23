"""Tasks: kept until they end, and none fails unseen."""

import asyncio
import json

import pytest

from gateway.aio import spawn
from gateway.telemetry import configure_logging


async def test_a_task_has_its_name_and_gives_its_value() -> None:
    async def work() -> int:
        return 7

    task = spawn("work", work())

    assert ("work", 7) == (task.get_name(), await task)


async def test_an_exception_that_nobody_waits_for_is_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The line names the task and shows the error."""
    configure_logging("json", "info")

    async def fail() -> None:
        raise ValueError("broken")

    task = spawn("fail", fail())
    told = asyncio.Event()
    task.add_done_callback(lambda _task: told.set())
    await told.wait()  # callbacks run in the order in which they were added

    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert ("task failed", "fail", "error") == (line["event"], line["task"], line["level"])
    assert "ValueError: broken" in line["exception"]


async def test_a_cancelled_task_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "info")
    task = spawn("wait", asyncio.Event().wait())

    task.cancel()
    await asyncio.wait({task})

    assert "" == capsys.readouterr().err
