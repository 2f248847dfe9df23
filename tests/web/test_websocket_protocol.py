"""What uvicorn's WebSocket protocol would tell, and ours does not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from starlette.types import Receive, Scope, Send

from gateway.listener import HttpListener
from gateway.web.websocket_protocol import WebSocketProtocol
from tests.support.raw_socket import handshake, raw_socket

ENTRY = "nsq.auth.YWxpY2U="  # padded: no token of RFC 9110


async def nobody(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve nobody."""
    del scope, receive, send


@pytest_asyncio.fixture
async def address() -> AsyncIterator[str]:
    """Where a server answers that has the protocol."""
    listener = HttpListener("test", "127.0.0.1:0", ws=WebSocketProtocol)
    await listener.start(nobody)
    yield listener.address
    await listener.stop()


@pytest.mark.parametrize(
    "header,words",
    [
        (f"Sec-WebSocket-Protocol: {ENTRY}", "Sec-WebSocket-Protocol is malformed"),
        ("Sec-WebSocket-Extensions: =", "invalid Sec-WebSocket-Extensions header"),
    ],
)
async def test_a_handshake_that_is_malformed_is_400_and_does_not_repeat_a_secret(
    address: str, header: str, words: str
) -> None:
    """What is wrong with another header is shown."""
    async with raw_socket(address) as raw:
        head = handshake(address, "/sub").removesuffix(b"\r\n")
        await raw.send(head + f"{header}\r\n\r\n".encode())
        answer = (await raw.read_to_end()).decode()

    assert answer.startswith("HTTP/1.1 400 ")
    assert words in answer
    assert "YWxp" not in answer


@pytest.mark.parametrize(
    "lines, status",
    [
        (["Cookie: " + "k" * 9_000], 431),
        ([f"X-{number}: 1" for number in range(200)], 431),
        (["no header"], 400),
    ],
    ids=["long", "many", "none"],
)
async def test_headers_that_are_too_much_are_refused_and_hold_up_nothing(
    address: str, lines: list[str], status: int
) -> None:
    """The answer comes at once, and the server that stops behind this has nobody to wait for."""
    async with raw_socket(address) as raw:
        head = handshake(address, "/sub").removesuffix(b"\r\n")
        await raw.send(head + "\r\n".join([*lines, "", ""]).encode())
        answer = (await raw.read_to_end()).decode()

    assert answer.startswith(f"HTTP/1.1 {status} ")
