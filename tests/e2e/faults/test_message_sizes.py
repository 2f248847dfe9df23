"""Messages at the limit, one byte above it, empty, and of any bytes: the exact responses."""

from __future__ import annotations

import base64
import struct

import pytest

from tests.support.gateways.gateway import RunningGateway
from tests.support.websocket.raw_socket import TEXT, raw_websocket

pytestmark = pytest.mark.asyncio(loop_scope="session")

MAX_MSG_BYTES = 1_048_576
MAX_FRAME_BYTES = 2_097_152
ANY_BYTES = bytes(range(256))


@pytest.mark.parametrize(
    "body,status,token",
    [
        pytest.param(b"x" * MAX_MSG_BYTES, 200, None, id="at the bound"),
        pytest.param(b"x" * (MAX_MSG_BYTES - 1), 200, None, id="below"),
        pytest.param(b"x" * (MAX_MSG_BYTES + 1), 413, "MSG_TOO_BIG", id="above"),
        pytest.param(b"", 400, "MSG_EMPTY", id="empty"),
        pytest.param(ANY_BYTES, 200, None, id="any bytes"),
    ],
)
async def test_each_size_has_its_response_and_accepted_messages_arrive_unchanged(
    gateway: RunningGateway, topic: str, body: bytes, status: int, token: str | None
) -> None:
    """And what is refused is published nowhere: what comes first is what is sent behind it."""
    async with gateway.subscribe(topic, "c") as client:
        answer = await gateway.http.post("/pub", content=body, params={"topic": topic})
        await gateway.publish(topic, b"behind")
        first = await client.message()

    assert status == answer.status_code
    if token is not None:
        assert (token, "behind") == (answer.json()["message"], first["body"])
    elif body is ANY_BYTES:
        assert body == base64.b64decode(first["body_base64"])
    else:
        # A bool, for the difference of two such bodies is nothing to print.
        assert True is (body.decode() == first["body"])


@pytest.mark.parametrize(
    "data,code",
    [
        pytest.param(b"\x81\x81" + bytes(4) + b"\xe4", 1007, id="no UTF-8"),
        pytest.param(b"\x82\x82" + bytes(4) + b"{}", 1003, id="binary"),
        pytest.param(
            b"\x81\xff" + struct.pack(">Q", MAX_FRAME_BYTES + 1) + bytes(4), 1009, id="above"
        ),
    ],
)
async def test_an_unacceptable_frame_has_its_close_code(
    gateway: RunningGateway, topic: str, data: bytes, code: int
) -> None:
    """The socket that sent it is closed, and its neighbour is not."""
    async with (
        gateway.subscribe(topic, "c") as neighbour,
        raw_websocket(gateway.sub_url(topic, "c")) as socket,
    ):
        await socket.send(data)
        assert code == await socket.close_code()
        assert "here" == (await neighbour.ask({"cmd": "NOP", "ref": "here"}))["ref"]


async def test_a_frame_at_the_bound_is_read(gateway: RunningGateway, topic: str) -> None:
    command = b'{"cmd":"NOP","ref":1}'
    async with raw_websocket(gateway.sub_url(topic, "c")) as socket:
        await socket.read_frame()
        await socket.send_frame(TEXT, command + b" " * (MAX_FRAME_BYTES - len(command)))
        _, answer = await socket.read_frame()

    assert b'"ref":1' in answer
