"""`WorkerSlot`: a worker is restarted until its shutdown."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.addresses import split_address
from gateway.client.backoff import Backoff
from gateway.client.from_settings import NsqdAddresses
from gateway.errors import StartError
from gateway.server.workers import supervisor as keeper_module
from gateway.server.workers.process import WorkerConfig
from gateway.server.workers.supervisor import SharedAddress, WorkerSlot
from gateway.settings.serve import ServeSettings
from tests.support.certificates import certificates
from tests.support.gateways.gateway import poll_until
from tests.support.manual_clock import turn


@asynccontextmanager
async def keeper(settings: ServeSettings) -> AsyncIterator[tuple[WorkerSlot, SharedAddress]]:
    address = SharedAddress("test", "127.0.0.1:0")
    address.bind()
    kept = WorkerSlot(
        WorkerConfig(worker=1, settings=settings, nsqds=NsqdAddresses((), ())), address
    )
    try:
        yield kept, address
    finally:
        kept.kill()
        await kept.wait()
        address.close()


async def phase_of(kept: WorkerSlot) -> str | None:
    """Return the state that the worker reports; None without a process."""
    await turn()
    phase: str | None = await kept.request("state", 5)
    return phase


async def is_refused(address: str) -> bool:
    """
    Return whether connections to *address* are refused.

    Frequent attempts fill the queue of a listener that does not accept yet. The system then retries
    the SYN after 1, 3, 7 and 15 s, so a long timeout would miss a refusal in between.
    """
    host, port = split_address(address)
    try:
        async with asyncio.timeout(0.5):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        return False
    except ConnectionResetError:
        return False  # it was in the queue of a listener that was closed just then
    writer.close()
    return False


def with_file(path: Path) -> ServeSettings:
    """Return settings whose worker needs the file at *path* to start."""
    return ServeSettings.model_validate(
        {
            "lookupd_http_address": "127.0.0.1:1",
            "nsqd_tls_v1": True,
            "nsqd_tls_root_ca_file": str(path),
            "drain_window_s": 0,
        }
    )


async def test_a_first_start_that_fails_is_raised(tmp_path: Path) -> None:
    """The first start is not retried: its cause is probably a setting."""
    async with keeper(with_file(tmp_path / "missing")) as (kept, _):
        with pytest.raises(StartError, match=r"worker 1: .*missing"):
            await kept.start()


async def test_it_does_not_give_up(tmp_path: Path) -> None:
    """Connections are refused while no process runs; restarts continue until one succeeds."""
    with certificates() as files:
        path = tmp_path / "ca.pem"
        shutil.copy(files.root_ca_file, path)
        async with keeper(with_file(path)) as (kept, shared):
            await kept.start()
            first = kept.pid
            assert first is not None
            path.unlink()
            os.kill(first, signal.SIGKILL)
            refused = await poll_until(lambda: is_refused(shared.address), expected=True)
            silent = await phase_of(kept)
            shutil.copy(files.root_ca_file, path)
            ready: str | None = "ready"
            phase = await poll_until(lambda: phase_of(kept), ready)
            last = kept.pid
            refused_now = await is_refused(shared.address)

    assert (True, None, "ready", False) == (refused, silent, phase, refused_now)
    assert first != last


async def test_a_process_that_never_was_ready_does_not_count_as_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed starts do not reset the backoff, however long ago a process was ready."""
    delays_s: list[float] = []

    class SeenBackoff(Backoff):
        def next_delay_s(self) -> float:
            delays_s.append(super().next_delay_s())
            return 0.0

    monkeypatch.setattr(keeper_module, "Backoff", SeenBackoff)
    monkeypatch.setattr(keeper_module, "_MAX_RESTART_DELAY_S", 0.4)  # less than a start takes
    with certificates() as files:
        path = tmp_path / "ca.pem"
        shutil.copy(files.root_ca_file, path)
        async with keeper(with_file(path)) as (kept, _):
            await kept.start()
            assert kept.pid is not None
            path.unlink()
            os.kill(kept.pid, signal.SIGKILL)

            async def failures() -> bool:
                await turn()
                return len(delays_s) >= 4

            assert await poll_until(failures, expected=True)

    assert delays_s[-1] >= 0.2  # the upper half of the maximum; the first delay is lower


async def test_no_process_comes_after_one_that_was_told_to_end() -> None:
    """`shut_down` is final and idempotent."""
    settings = ServeSettings(lookupd_http_address=("127.0.0.1:1",), drain_window_s=0)
    async with keeper(settings) as (kept, shared):
        await kept.start()
        kept.shut_down()
        kept.shut_down()
        await kept.wait()

        assert (None, True) == (kept.pid, await is_refused(shared.address))
