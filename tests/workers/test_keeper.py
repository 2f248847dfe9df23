"""One worker kept running: replaced when it dies, over and over, until it is told to end."""

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
from gateway.errors import StartError
from gateway.nsqd_access import Nsqds
from gateway.settings import ServeSettings
from gateway.workers.channel import Order
from gateway.workers.keeper import Keeper
from gateway.workers.shared_address import SharedAddress
from tests.support.certificates import certificates
from tests.support.gateway import become
from tests.support.manual_clock import turn


@asynccontextmanager
async def keeper(settings: ServeSettings) -> AsyncIterator[tuple[Keeper, SharedAddress]]:
    """Give a keeper that has not started yet, and where its worker is to listen."""
    address = SharedAddress("test", "127.0.0.1:0")
    address.bind()
    kept = Keeper(Order(worker=1, settings=settings, nsqds=Nsqds((), ())), address)
    try:
        yield kept, address
    finally:
        kept.kill()
        await kept.ended()
        address.close()


async def phase_of(kept: Keeper) -> str | None:
    """Return the phase that its worker tells; None when there is nobody who does."""
    await turn()
    phase: str | None = await kept.ask("phase", 5)
    return phase


async def is_refused(address: str) -> bool:
    """Tell whether nobody listens at *address*."""
    host, port = split_address(address)
    try:
        _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False  # it was in the queue of a socket that was closed in that moment
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
    """What is wrong from the beginning is told, and not tried again."""
    async with keeper(with_file(tmp_path / "missing")) as (kept, _):
        with pytest.raises(StartError, match=r"worker 1: .*missing"):
            await kept.start()


async def test_it_does_not_give_up(tmp_path: Path) -> None:
    """While no process comes up newcomers are not kept waiting; when one can, it does."""
    with certificates() as files:
        path = tmp_path / "ca.pem"
        shutil.copy(files.root_ca_file, path)
        async with keeper(with_file(path)) as (kept, shared):
            await kept.start()
            first = kept.pid
            assert first is not None
            path.unlink()
            os.kill(first, signal.SIGKILL)
            refused = await become(lambda: is_refused(shared.address), expected=True)
            silent = await phase_of(kept)
            shutil.copy(files.root_ca_file, path)
            ready: str | None = "ready"
            phase = await become(lambda: phase_of(kept), ready)
            last = kept.pid
            refused_now = await is_refused(shared.address)

    assert (True, None, "ready", False) == (refused, silent, phase, refused_now)
    assert first != last


async def test_no_process_comes_after_one_that_was_told_to_end() -> None:
    """An end is an end, and again is without effect."""
    settings = ServeSettings(lookupd_http_address=("127.0.0.1:1",), drain_window_s=0)
    async with keeper(settings) as (kept, shared):
        await kept.start()
        kept.end()
        kept.end()
        await kept.ended()

        assert (None, True) == (kept.pid, await is_refused(shared.address))
