"""From start to end: announced, drained, stopped, and cut when it is told twice."""

from __future__ import annotations

import asyncio
import signal

import pytest
from structlog.testing import capture_logs

from gateway.errors import StartError
from gateway.lifetime import End, run_until, run_until_signal
from gateway.telemetry import spawn


class Part:
    """A part that writes down what is asked of it, and waits where it is told to."""

    longest_end_s = 7.0

    def __init__(self, waits_in: str = "") -> None:
        self.log: list[str] = []
        self.waits = asyncio.Event()
        self._waits_in = waits_in
        self._aborted = asyncio.Event()

    async def _step(self, name: str) -> None:
        self.log.append(name)
        if name == self._waits_in:
            self.waits.set()
            await self._aborted.wait()

    async def start(self) -> list[str]:
        """Start."""
        await self._step("start")
        return ["started"]

    async def drain(self) -> None:
        """Drain."""
        await self._step("drain")

    async def stop(self) -> None:
        """Stop."""
        await self._step("stop")

    def abort(self) -> None:
        """Let what waits go on."""
        self.log.append("abort")
        self._aborted.set()


def announce(_line: str) -> None:
    """Tell nobody."""


async def test_the_first_word_drains_and_stops() -> None:
    """What the start returned has been announced by then."""
    part, end = Part(), End()
    announced: asyncio.Queue[str] = asyncio.Queue()

    running = spawn("run", run_until(end, part, announced.put_nowait))
    line = await announced.get()
    end.ask()
    end.ask()
    await running

    assert ("started", ["start", "drain", "stop"]) == (line, part.log)


async def test_a_hurry_ends_a_drain() -> None:
    """The stop comes all the same."""
    part, end = Part(waits_in="drain"), End()

    running = spawn("run", run_until(end, part, announce))
    end.ask()
    await part.waits.wait()
    end.hurry()
    await running

    assert ["start", "drain", "stop"] == part.log


async def test_a_hurry_cuts_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that never comes keeps nobody who is in a hurry."""
    monkeypatch.setattr("gateway.lifetime.HURRY_S", 0)
    part, end = Part(waits_in="stop"), End()

    running = spawn("run", run_until(end, part, announce))
    end.ask()
    await part.waits.wait()
    end.hurry()
    await running

    assert ["start", "drain", "stop", "abort"] == part.log


async def test_a_start_that_is_not_over_is_cut_short() -> None:
    """There is nothing to drain yet, and something to stop, maybe."""
    part, end = Part(waits_in="start"), End()

    running = spawn("run", run_until(end, part, announce))
    await part.waits.wait()
    end.ask()
    await running

    assert ["start", "stop"] == part.log


async def test_what_a_start_raises_is_raised_and_not_logged() -> None:
    """Who called tells the person."""

    class Failing(Part):
        async def start(self) -> list[str]:
            raise StartError("taken")

    with capture_logs() as lines, pytest.raises(StartError, match="taken"):
        await run_until(End(), Failing(), announce)

    assert [] == lines


async def test_who_ends_it_is_told_how_long_it_may_take() -> None:
    """And, where it was a signal, that another one stops at once."""
    part, end = Part(), End()

    with capture_logs() as lines:
        end.on_signal(signal.SIGINT)
        await run_until(end, part, announce)

    [line] = [line for line in lines if line["event"] == "stopping"]
    assert (7.0, "SIGINT") == (line["at_most_s"], line["signal"])
    assert "second signal" in line["again"]


@pytest.mark.parametrize("numbers", [("SIGTERM", "SIGINT"), ("SIGINT", "SIGINT")])
async def test_the_second_signal_is_the_hurry(numbers: tuple[str, str]) -> None:
    """The first one is given back when all is done."""
    first, second = (signal.Signals[name] for name in numbers)
    part = Part(waits_in="drain")
    announced: asyncio.Queue[str] = asyncio.Queue()

    running = spawn("run", run_until_signal(part, announced.put_nowait))
    await announced.get()
    signal.raise_signal(first)
    await part.waits.wait()
    signal.raise_signal(second)

    assert (first, ["start", "drain", "stop"]) == (await running, part.log)
