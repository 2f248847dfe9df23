"""`Supervisor`: start and stop; tests/e2e/test_workers.py tests what clients see."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import SettingsError, StartError
from gateway.listener import listen_tcp
from gateway.server.workers.supervisor import Supervisor
from gateway.settings.fields import flag_name
from gateway.settings.serve import ServeSettings
from tests.support.gateways.free_port_settings import FREE, serve_settings
from tests.support.gateways.gateway import poll_until
from tests.support.gateways.leaks import no_leaks


def settings(**values: object) -> ServeSettings:
    """Return settings on free ports, with two workers."""
    return serve_settings(**{"workers": 2, **values})


async def test_the_start_says_the_shared_address_and_how_many_workers_there_are() -> None:
    """All workers have one address; after the stop no port is open."""
    async with no_leaks():
        supervisor = Supervisor(settings())
        lines = await supervisor.start()
        ready = await poll_until(supervisor.describe_readiness, (True, "ready"))
        await supervisor.drain()
        draining = await supervisor.describe_readiness()
        await supervisor.stop()

    where, management = supervisor.address, supervisor.management_address
    assert lines[0].startswith("nsq-gateway 0.1.0 with embedded broker (in memory; TCP 127.")
    assert [
        f"listening on http://{where} (management: http://{management}/readyz), 2 workers",
        f"publish:    curl -d 'hello' 'http://{where}/pub?topic=greetings'",
        f"subscribe:  ws://{where}/sub?topic=greetings&channel=readers",
        f"console:    http://{where}/console",
    ] == lines[1:]
    assert ((True, "ready"), (False, "draining")) == (ready, draining)


async def test_what_all_workers_tell_is_told_once() -> None:
    """Each worker reports the unreachable nsqd."""
    with listen_tcp("test", FREE) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    supervisor = Supervisor(settings(nsqd_tcp_address=address))

    lines = await supervisor.start()
    await supervisor.stop()

    assert 1 == sum(line.endswith("; trying again") for line in lines)


@pytest.mark.parametrize("name", ["listen", "management_listen", "broker_tcp_address"])
async def test_an_address_that_is_taken_leaves_nothing_running(name: str) -> None:
    """The error comes before any worker starts, and the other ports are closed again."""
    with listen_tcp("another", FREE) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        supervisor = Supervisor(settings(**{name: address}))

        async with no_leaks():
            with pytest.raises(StartError, match=f"cannot listen on {address}"):
                await supervisor.start()

    for freed in {supervisor.address, supervisor.management_address} - {FREE, address}:
        listen_tcp("again", freed).close()


@pytest.mark.parametrize("name", ["auth_secret_file", "admin_secret_file"])
async def test_a_file_that_cannot_be_used_is_an_error_of_the_settings(name: str) -> None:
    """The error comes before any worker starts, and contains the setting."""
    supervisor = Supervisor(settings(**{name: "/nowhere"}))

    with pytest.raises(SettingsError, match=flag_name(name)):
        await supervisor.start()

    assert FREE == supervisor.address


async def test_a_worker_that_does_not_start_is_told_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One failed worker fails the start: all have the same settings."""
    monkeypatch.setattr("sys.executable", "/nowhere/python")

    async with no_leaks():
        with pytest.raises(StartError, match="cannot be started"):
            await Supervisor(settings()).start()


async def test_a_start_that_is_cut_short_leaves_nothing() -> None:
    async with no_leaks():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await Supervisor(settings()).start()
