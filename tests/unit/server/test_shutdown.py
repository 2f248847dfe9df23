"""Running a service: start, drain, stop, and a forced shutdown."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gateway.aio import spawn
from gateway.errors import StartError
from gateway.server.runner import (
    Shutdown,
    ending_signals,
    run_until,
    run_until_signal,
    stop_in_order,
)

pytestmark = pytest.mark.usefixtures("_nothing_is_ignored")


@pytest.fixture
def _nothing_is_ignored() -> Iterator[None]:
    """Reset ignored signals, which nohup and a shell's & leave behind."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        if handler is not None:
            signal.signal(number, handler)


class Part:
    """A service that records its calls, and blocks in the method *waits_in* until aborted."""

    max_shutdown_s = 7.0

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
        """Record the call."""
        await self._step("start")
        return ["started"]

    async def drain(self) -> None:
        """Record the call."""
        await self._step("drain")

    async def stop(self) -> None:
        """Record the call."""
        await self._step("stop")

    def abort(self) -> None:
        """Unblock the blocked method."""
        self.log.append("abort")
        self._aborted.set()


def announce(_line: str) -> None:
    """Discard the line."""


async def test_the_first_word_drains_and_stops() -> None:
    """The lines of the start were announced before."""
    part, end = Part(), Shutdown()
    announced: asyncio.Queue[str] = asyncio.Queue()

    running = spawn("run", run_until(end, part, announced.put_nowait))
    line = await announced.get()
    end.request()
    end.request()
    await running

    assert ("started", ["start", "drain", "stop"]) == (line, part.log)


async def test_a_hurry_ends_a_drain() -> None:
    """A forced shutdown skips the rest of the drain, not the stop."""
    part, end = Part(waits_in="drain"), Shutdown()

    running = spawn("run", run_until(end, part, announce))
    end.request()
    await part.waits.wait()
    end.force()
    await running

    assert ["start", "drain", "stop"] == part.log


async def test_a_hurry_cuts_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forced shutdown aborts a stop that does not end in time."""
    monkeypatch.setattr("gateway.server.runner.FORCED_STOP_S", 0)
    part, end = Part(waits_in="stop"), Shutdown()

    running = spawn("run", run_until(end, part, announce))
    end.request()
    await part.waits.wait()
    end.force()
    await running

    assert ["start", "drain", "stop", "abort"] == part.log


async def test_what_is_cut_may_tell_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted stop may continue for a short time, then it is cancelled."""
    monkeypatch.setattr("gateway.server.runner.FORCED_STOP_S", 0)
    monkeypatch.setattr("gateway.server.runner._ABORT_S", 0.01)

    class Telling(Part):
        async def stop(self) -> None:
            try:
                await super().stop()
                self.log.append("goes on")
                await asyncio.Event().wait()
            finally:
                self.log.append("told")

    part, end = Telling(waits_in="stop"), Shutdown()

    running = spawn("run", run_until(end, part, announce))
    end.request()
    await part.waits.wait()
    end.force()
    await running

    assert ["start", "drain", "stop", "abort", "goes on", "told"] == part.log


async def test_one_that_cannot_be_stopped_does_not_keep_the_others() -> None:
    """The failure is logged, and the other parts are stopped in order."""

    class Failing(Part):
        async def stop(self) -> None:
            raise ValueError("a bug")

    last = Part()

    with capture_logs() as lines:
        await stop_in_order(None, Failing(), last)

    assert ["stop"] == last.log
    assert [("stop failed", "Failing")] == [(line["event"], line["part"]) for line in lines]


async def test_a_start_that_is_not_over_is_cut_short() -> None:
    """The incomplete start is stopped, without a drain."""
    part, end = Part(waits_in="start"), Shutdown()

    running = spawn("run", run_until(end, part, announce))
    await part.waits.wait()
    end.request()
    await running

    assert ["start", "stop"] == part.log


async def test_what_a_start_raises_is_raised_and_not_logged() -> None:
    """The caller prints the error."""

    class Failing(Part):
        async def start(self) -> list[str]:
            raise StartError("taken")

    with capture_logs() as lines, pytest.raises(StartError, match="taken"):
        await run_until(Shutdown(), Failing(), announce)

    assert [] == lines


async def test_who_ends_it_is_told_how_long_it_may_take() -> None:
    """After a signal, the log line also mentions that a second signal stops at once."""
    part, end = Part(), Shutdown()

    with capture_logs() as lines:
        end.on_signal(signal.SIGINT)
        await run_until(end, part, announce)

    [line] = [line for line in lines if line["event"] == "stopping"]
    assert (7.0, "SIGINT") == (line["max_duration_s"], line["signal"])
    assert "stop at once" == line["on_second_signal"]


def test_who_ignores_the_end_of_its_terminal_goes_on() -> None:
    """nohup starts programs with SIGHUP ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert [signal.SIGTERM, signal.SIGINT] == ending_signals()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "numbers", [("SIGTERM", "SIGINT"), ("SIGINT", "SIGINT"), ("SIGHUP", "SIGTERM")]
)
async def test_the_second_signal_is_the_hurry(numbers: tuple[str, str]) -> None:
    """The second signal forces the shutdown; the first one is returned."""
    first, second = (signal.Signals[name] for name in numbers)
    part = Part(waits_in="drain")
    announced: asyncio.Queue[str] = asyncio.Queue()

    running = spawn("run", run_until_signal(part, announced.put_nowait))
    await announced.get()
    signal.raise_signal(first)
    await part.waits.wait()
    signal.raise_signal(second)

    assert (first, ["start", "drain", "stop"]) == (await running, part.log)
