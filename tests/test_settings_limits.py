"""The limits of brokers: as each nsqd tells them, else as the settings do."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.listener import HttpListener
from gateway.protocol.wire import Limits
from gateway.settings_limits import learn_limits
from tests.support.nsqd import real_nsqd

FREE = "127.0.0.1:0"


@asynccontextmanager
async def taken_address() -> AsyncIterator[str]:
    """Give an address that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


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
