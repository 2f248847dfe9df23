"""The composition root: what is told at the start, what is left after a failed one, the end."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.errors import StartError
from gateway.listener import HttpListener
from gateway.protocol.wire import Limits
from gateway.service import BrokerService, Service, learn_limits, run_until_signal
from gateway.settings import BrokerSettings, ServeSettings
from gateway.telemetry import spawn
from tests.support.nsqd import real_nsqd
from tests.support.programs import nsq_gateway

FREE = "127.0.0.1:0"


def serve_settings(**values: object) -> ServeSettings:
    """Return settings on free ports."""
    return ServeSettings.model_validate(
        {
            "listen": FREE,
            "management_listen": FREE,
            "broker_tcp_address": FREE,
            "broker_http_address": FREE,
            "drain_window_s": 0,
            **values,
        }
    )


@asynccontextmanager
async def taken_address() -> AsyncIterator[str]:
    """Give an address that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


async def status_of(address: str, path: str) -> int:
    """Return the status that the management port answers."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"http://{address}{path}")).status_code


async def test_the_start_says_which_broker_where_and_what_to_try() -> None:
    """One line for the broker, one for the addresses, one to publish, one to subscribe."""
    service = Service(serve_settings())

    lines = await service.start()
    await service.stop()

    where = service.address
    assert lines[0].startswith("nsq-gateway 0.1.0 with its embedded broker (in memory; TCP 127.")
    assert [
        f"listening on http://{where} (management: http://{service.management_address}/readyz)",
        f"publish:    curl -d 'hello' 'http://{where}/pub?topic=greetings'",
        f"subscribe:  ws://{where}/sub?topic=greetings&channel=readers",
    ] == lines[1:]


async def test_an_nsqd_that_is_not_there_is_told_and_waited_for() -> None:
    """Serve starts all the same: it tries for ever and answers 503 meanwhile."""
    async with taken_address() as address:
        pass
    service = Service(serve_settings(nsqd_tcp_address=address))

    lines = await service.start()
    ready = await status_of(service.management_address, "/readyz")
    async with httpx.AsyncClient(trust_env=False) as client:
        publish = await client.post(f"http://{service.address}/pub?topic=t", content=b"x")
    await service.stop()

    assert f"with nsqd at {address}" in lines[0]
    assert lines[1].startswith(f"nsqd at {address}: ")
    assert lines[1].endswith("trying again, publishes answer 503 meanwhile")
    assert (200, 503, "NO_BROKER") == (ready, publish.status_code, publish.json()["message"])


async def test_ready_ends_with_the_drain_and_live_does_not() -> None:
    """Traffic goes elsewhere, and nobody restarts a process that drains."""
    service = Service(serve_settings())
    await service.start()
    management = service.management_address
    before = await status_of(management, "/readyz")

    await service.drain()

    after = await status_of(management, "/readyz"), await status_of(management, "/livez")
    await service.stop()
    assert (200, (503, 200)) == (before, after)


@pytest.mark.parametrize(
    "setting", ["listen", "management_listen", "broker_tcp_address", "broker_http_address"]
)
async def test_a_start_that_fails_leaves_nothing_listening(setting: str) -> None:
    """The sentence names the taken address, and the others can be had again."""
    async with taken_address() as address:
        service = Service(serve_settings(**{setting: address}))

        with pytest.raises(StartError, match=f"cannot listen on {address}"):
            await service.start()

    for freed in (service.address, service.management_address):
        if freed != address and not freed.endswith(":0"):
            host, port = freed.split(":")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(host, int(port))


async def test_two_listeners_on_one_address_do_not_start() -> None:
    """The management port never stands in for the public one, nor the other way round."""
    async with taken_address() as address:
        pass
    service = Service(serve_settings(listen=address, management_listen=address))

    try:
        with pytest.raises(StartError, match="the management port cannot listen on"):
            await service.start()
    finally:
        await service.stop()


class Stubborn:
    """A part whose stop ends only when it is aborted."""

    def __init__(self) -> None:
        self.stops = asyncio.Event()
        self.aborted = asyncio.Event()

    async def start(self) -> list[str]:
        """Start."""
        return ["started"]

    async def drain(self) -> None:
        """Take no time."""

    async def stop(self) -> None:
        """Tell, and wait."""
        self.stops.set()
        await self.aborted.wait()

    def abort(self) -> None:
        """Let the stop end."""
        self.aborted.set()


async def test_a_second_signal_ends_a_stop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that never comes keeps nobody who is in a hurry."""
    monkeypatch.setattr("gateway.service._HURRY_S", 0)
    part = Stubborn()
    announced: asyncio.Queue[str] = asyncio.Queue()

    running = spawn("run", run_until_signal(part, announced.put_nowait))
    await announced.get()
    signal.raise_signal(signal.SIGTERM)
    await part.stops.wait()
    signal.raise_signal(signal.SIGINT)

    assert (signal.SIGTERM, True) == (await running, part.aborted.is_set())


async def test_a_signal_drains_and_stops() -> None:
    """The first signal is given back when all is done."""
    service = BrokerService(BrokerSettings(tcp_address=FREE, http_address=FREE))
    announced: asyncio.Queue[str] = asyncio.Queue()

    running = spawn("run", run_until_signal(service, announced.put_nowait))
    first_line = await announced.get()
    signal.raise_signal(signal.SIGTERM)

    assert signal.SIGTERM == await running
    assert "broker (in memory): TCP 127.0.0.1:" in first_line


@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_the_exit_status_tells_how_it_ended(number: signal.Signals, status: int) -> None:
    """SIGTERM is how a service is meant to end; Ctrl-C is an interruption."""
    async with nsq_gateway("broker", f"--tcp-address={FREE}", f"--http-address={FREE}") as program:
        await program.said("publish:")

        program.signal(number)

        assert status == await program.ended()


@pytest.mark.nsqd
async def test_limits_are_the_smallest_of_all_nsqd() -> None:
    """What one of them refuses, no publish may hold."""
    async with (
        real_nsqd("--max-msg-size=1000", "--max-req-timeout=2h") as one,
        real_nsqd("--max-body-size=5000") as other,
    ):
        limits, lines = await learn_limits(Limits(), [one.http_address, other.http_address])

    assert (1_000, 5_000, 3_600_000, []) == (
        limits.max_msg_size_bytes,
        limits.max_body_size_bytes,
        limits.max_req_timeout_ms,
        lines,
    )


async def test_limits_are_asked_of_nsqd_and_not_of_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy in the environment is for the world outside."""

    async def seven(
        _scope: object, _receive: object, send: Callable[[object], Awaitable[None]]
    ) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"7000000"})

    async with taken_address() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy}")
        nsqd = HttpListener("nsqd", FREE)
        await nsqd.start(seven)
        limits, lines = await learn_limits(Limits(), [nsqd.address])
        await nsqd.stop()

    assert (7_000_000, 7, []) == (limits.max_msg_size_bytes, limits.max_req_timeout_ms, lines)


async def test_limits_that_are_not_told_are_those_of_the_settings() -> None:
    """A line says which nsqd did not answer."""
    async with taken_address() as address:
        pass

    limits, lines = await learn_limits(Limits(max_msg_size_bytes=7), [address])

    assert Limits(max_msg_size_bytes=7) == limits
    assert 1 == len(lines)
    assert lines[0].startswith(f"nsqd at {address} does not tell its limits")
