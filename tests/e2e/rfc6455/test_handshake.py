"""RFC 6455 §4.2, over TCP: which requests get 101, and the responses to all others."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.http.raw_http import RawAnswer, read_response
from tests.support.websocket.echo_handler import EchoUpgradeHandler
from tests.support.websocket.frames import FIN, wire_frame
from tests.support.websocket.raw_socket import TEXT, RawSocket, raw_socket

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
GET = "GET /sub HTTP/1.1"
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The answer to it: the example of §1.3."""
HEADERS = {
    "Host": "gateway",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}


@pytest_asyncio.fixture(loop_scope="session")
async def raw(address: str) -> AsyncIterator[RawSocket]:
    """Return a connection without any data yet."""
    async with raw_socket(address) as raw:
        yield raw


def head(first: str = GET, **changes: str | None) -> bytes:
    """Return a handshake with other headers; None leaves one out, ``_`` stands for ``-``."""
    headers: dict[str, str | None] = dict(HEADERS)
    headers.update({name.replace("_", "-"): value for name, value in changes.items()})
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([first, *lines, "", ""]).encode("latin-1")


async def ask(raw: RawSocket, request: bytes) -> RawAnswer:
    """Return what is answered; the body of a 101 is empty."""
    await raw.send(request)
    return await read_response(raw)


async def test_the_answer_proves_that_the_handshake_was_read(raw: RawSocket) -> None:
    """§4.2.2 (5): 101, Upgrade, Connection, and the hash of the key; nothing about extensions."""
    answer = await ask(raw, head())

    assert (101, "websocket", "upgrade", ACCEPT) == (
        answer.status,
        answer.headers["upgrade"].lower(),
        answer.headers["connection"].lower(),
        answer.headers["sec-websocket-accept"],
    )
    assert not {"sec-websocket-extensions", "sec-websocket-protocol"} & answer.headers.keys()


async def test_every_key_has_an_answer_of_its_own(raw: RawSocket) -> None:
    """§4.2.2 (5.4): SHA-1 of the key and a GUID, in base64."""
    key = base64.b64encode(os.urandom(16)).decode()
    guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    proof = base64.b64encode(hashlib.sha1(f"{key}{guid}".encode()).digest())  # noqa: S324

    answer = await ask(raw, head(Sec_WebSocket_Key=key))

    assert proof.decode() == answer.headers["sec-websocket-accept"]


@pytest.mark.parametrize(
    "changes",
    [
        {"Upgrade": "WebSocket"},
        {"Upgrade": "WEBSOCKET"},
        {"Connection": "upgrade"},
        {"Connection": "keep-alive, Upgrade"},
        {"Connection": "UPGRADE,keep-alive"},
        {"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits"},
        {"Sec-WebSocket-Protocol": "chat, superchat"},
        {"Origin": "http://gateway"},
        {"Content-Length": "0"},
        {"X-Other": "any"},
    ],
    ids=str,
)
async def test_a_handshake_may_be_spelled_in_several_ways(
    raw: RawSocket, changes: dict[str, str]
) -> None:
    """§4.2.1: values that are tokens have no case, and lists may have more in them."""
    assert 101 == (await ask(raw, head(GET, **changes))).status


async def test_names_of_headers_have_no_case(raw: RawSocket) -> None:
    """§4.2.1: as everywhere in HTTP."""
    request = head().replace(b"Sec-WebSocket", b"SEC-websocket").replace(b"Upgrade:", b"uPGRADE:")

    assert 101 == (await ask(raw, request)).status


@pytest.mark.parametrize(
    "target, path, query",
    [
        ("/sub", "/sub", b""),
        ("/sub?topic=t&channel=c%23e", "/sub", b"topic=t&channel=c%23e"),
        ("/%73ub?a=/b?c", "/sub", b"a=/b?c"),
        ("http://gateway/sub?topic=t", "/sub", b"topic=t"),
    ],
)
async def test_the_resource_is_a_path_or_an_absolute_address(
    raw: RawSocket, gate: EchoUpgradeHandler, target: str, path: str, query: bytes
) -> None:
    """§4.2.1 (1): a Request-URI, which may hold the host (RFC 9112 §3.2.2)."""
    answer = await ask(raw, head(f"GET {target} HTTP/1.1"))

    assert 101 == answer.status
    assert (path, query) == (gate.upgrades[-1].path, gate.upgrades[-1].query)


async def test_origin_and_subprotocols_reach_the_handler(
    raw: RawSocket, gate: EchoUpgradeHandler
) -> None:
    """§4.2.2 (3): origin and subprotocols are the gate's to judge, and where it came from."""
    await ask(
        raw,
        head(Origin="http://page", Sec_WebSocket_Protocol="a , b,,", X_Request_Id="mine"),
    )

    upgrade = gate.upgrades[-1]
    assert (["a", "b"], "127.0.0.1") == (upgrade.subprotocols, upgrade.peer)
    assert {(b"origin", b"http://page"), (b"x-request-id", b"mine")} <= set(upgrade.headers)


# What is refused


@pytest.mark.parametrize(
    "changes, status",
    [
        ({"Upgrade": None}, 426),
        ({"Connection": None}, 426),
        ({"Connection": "keep-alive"}, 426),
        ({"Upgrade": "h2c"}, 426),
        ({"Upgrade": "websocket2"}, 426),
        ({"Host": None}, 400),
        ({"Sec-WebSocket-Key": None}, 400),
        ({"Sec-WebSocket-Key": ""}, 400),
        ({"Sec-WebSocket-Key": "short"}, 400),
        ({"Sec-WebSocket-Key": KEY[:-1]}, 400),
        ({"Sec-WebSocket-Key": base64.b64encode(bytes(15)).decode()}, 400),
        ({"Sec-WebSocket-Key": base64.b64encode(bytes(17)).decode()}, 400),
        ({"Sec-WebSocket-Key": "d*hlIHNhbXBsZSBub25jZQ=="}, 400),
        ({"Sec-WebSocket-Key": "\xe4" * 24}, 400),
        ({"Content-Length": "3"}, 400),
    ],
    ids=str,
)
async def test_a_handshake_that_is_wrong_is_refused(
    raw: RawSocket, changes: dict[str, str | None], status: int
) -> None:
    """§4.2.1: an appropriate HTTP error, with the body of all others, and the end."""
    answer = await ask(raw, head(GET, **changes) + (b"abc" if "Content-Length" in changes else b""))

    assert (status, "application/problem+json") == (answer.status, answer.headers["content-type"])
    assert answer.headers.get("x-request-id")


@pytest.mark.parametrize("name", ["Sec-WebSocket-Key", "Sec-WebSocket-Version", "Host"])
async def test_a_header_that_stands_there_once_does_not_stand_there_twice(
    raw: RawSocket, name: str
) -> None:
    """§11.3: two of them are no handshake, though they be equal."""
    line = f"{name}: {HEADERS[name]}\r\n".encode()

    answer = await ask(raw, head().replace(line, line * 2))

    assert (426 if name == "Sec-WebSocket-Version" else 400) == answer.status


@pytest.mark.parametrize("version", [None, "0", "8", "12", "14", "13, 8", "013", "x", "256"])
async def test_another_version_gets_426_with_the_supported_one(
    raw: RawSocket, version: str | None
) -> None:
    """§4.2.2 (4) and §4.4: 426, with the versions that are."""
    answer = await ask(raw, head(Sec_WebSocket_Version=version))

    assert (426, "13") == (answer.status, answer.headers["sec-websocket-version"])


@pytest.mark.parametrize("method", ["POST", "PUT", "HEAD", "OPTIONS", "DELETE"])
async def test_another_method_is_405(raw: RawSocket, method: str) -> None:
    """§4.2.1 (1): a GET request; and Allow says so."""
    await raw.send(head(f"{method} /sub HTTP/1.1"))
    answer = (await raw.read_until(b"\r\n\r\n")).decode().lower()

    assert answer.startswith("http/1.1 405 ")
    assert "\r\nallow: get\r\n" in answer
    assert (method == "HEAD") == (b"" == await raw.read_to_end())


async def test_http_1_0_has_no_upgrade(raw: RawSocket) -> None:
    """§4.2.1 (1): 1.1 or higher; in 1.0 it is passed over (RFC 9110 §7.8), so this is a GET."""
    answer = await ask(raw, head("GET /sub HTTP/1.0"))

    assert (426, "UPGRADE_REQUIRED") == (answer.status, answer.message)
    assert b"" == await raw.read_to_end()


@pytest.mark.parametrize("target", ["/", "/nothing", "/sub/more", "/pub", "/ping", "//sub"])
async def test_another_resource_is_not_found(raw: RawSocket, target: str) -> None:
    """§4.2.2 (4): /name/ that is not available is 404; or where it is, near it."""
    answer = await ask(raw, head(f"GET {target} HTTP/1.1"))

    assert (301 if target == "//sub" else 404) == answer.status


@pytest.mark.parametrize(
    "line",
    ["Cookie: " + "k" * 9_000, "\r\n".join(f"X-{number}: 1" for number in range(200))],
    ids=["long", "many"],
)
async def test_headers_that_are_too_much_are_431(raw: RawSocket, line: str) -> None:
    """§10.4: what is read of a peer is bounded."""
    answer = await ask(raw, head().replace(b"\r\n\r\n", f"\r\n{line}\r\n\r\n".encode()))

    assert (431, "HEAD_TOO_BIG") == (answer.status, answer.message)


@pytest.mark.parametrize("value", ["nsq.auth.YWxpY2U=", "a b", "nsq.auth.YWxpY2U, (x)", "\xe4"])
async def test_a_malformed_subprotocol_is_not_repeated(raw: RawSocket, value: str) -> None:
    """§4.2.1 (8): it is a list of tokens; one of them may be a secret, here with padding."""
    answer = await ask(raw, head(Sec_WebSocket_Protocol=value))

    assert (400, "INVALID_REQUEST") == (answer.status, answer.message)
    assert "Sec-WebSocket-Protocol is malformed" in answer.body.decode()
    assert "YWxp" not in answer.body.decode()


async def test_a_refusal_ends_the_connection(raw: RawSocket) -> None:
    """§4.2.2 (4): what the client says behind its handshake is not HTTP."""
    await ask(raw, head(Sec_WebSocket_Key=None) + head())

    assert b"" == await raw.read_to_end()


# Order


async def test_a_handshake_may_come_behind_other_requests(raw: RawSocket) -> None:
    """RFC 9110 §7.8: a connection may speak HTTP first."""
    first = await ask(raw, b"GET /ping HTTP/1.1\r\nHost: gateway\r\n\r\n")
    second = await ask(raw, b"GET /nothing HTTP/1.1\r\nHost: gateway\r\n\r\n")

    assert [200, 404, 101] == [first.status, second.status, (await ask(raw, head())).status]


async def test_frames_sent_with_the_handshake_are_not_lost(raw: RawSocket) -> None:
    """§4.1: clients wait for the 101; frames of one that does not are read after it."""
    answer = await ask(raw, head() + wire_frame(FIN | TEXT, b"early") + b"\x81")
    await raw.send(wire_frame(FIN | TEXT, b"late")[1:])

    assert 101 == answer.status
    first, second = await raw.read_exactly(7), await raw.read_exactly(6)
    assert (b"\x81\x05early", b"\x81\x04late") == (first, second)


@pytest.mark.parametrize("at", range(1, len(head()), 11))
async def test_a_handshake_may_be_cut_anywhere(raw: RawSocket, at: int) -> None:
    """RFC 9112 §2.2: a head has no relation to what TCP delivers at a time."""
    await raw.send(head()[:at])
    answer = await ask(raw, head()[at:])

    assert 101 == answer.status
