"""What a handshake comes to; RFC 6455 §4 over TCP is in tests/e2e/rfc6455/."""

from __future__ import annotations

import json

import pytest
from websockets.http11 import Response

from gateway.web.proxies import Caller
from gateway.web.websocket.handshake import (
    RawUpgradeRequest,
    encode_101,
    handshake_response,
    read_plain_request,
    read_upgrade,
)
from tests.support.http.asgi import http_scope

SECRET = b"nsq.auth.YWxpY2U"
HEADERS = [
    (b"host", b"gateway"),
    (b"upgrade", b"websocket"),
    (b"connection", b"Upgrade"),
    (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    (b"sec-websocket-version", b"13"),
]


def asked(
    *more: tuple[bytes, bytes], method: bytes = b"GET", target: bytes = b"/sub?topic=t"
) -> RawUpgradeRequest:
    return RawUpgradeRequest(method, target, [*HEADERS, *more], Caller("10.0.0.1", is_secure=False))


def test_an_upgrade_has_a_request_id_though_none_came() -> None:
    """Who looks at it twice finds the same one, in the log and in the answer."""
    ids = [value for name, value in read_upgrade(asked()).headers if name == b"x-request-id"]

    assert [16] == [len(value) for value in ids]


@pytest.mark.parametrize("brought, stays", [(b"mine", True), (b"not sane\x01", False)])
def test_an_upgrade_has_one_request_id(brought: bytes, stays: bool) -> None:  # noqa: FBT001
    """The client's, when that may be written into a log."""
    upgrade = read_upgrade(asked((b"x-request-id", brought)))

    ids = [value for name, value in upgrade.headers if name == b"x-request-id"]

    assert ([brought] == ids, 1) == (stays, len(ids))


def test_a_list_of_too_many_subprotocols_is_not_read() -> None:
    """It is refused by its length: 57 kB of them held the event loop for 80 ms."""
    upgrade = read_upgrade(asked(*[(b"sec-websocket-protocol", b"a," * 4_000)] * 7))

    assert [] == upgrade.subprotocols


def test_a_list_of_many_subprotocols_is_read() -> None:
    """As many as may be; what is in no use among them is for the gate to say."""
    value = b"nsq.json.v1," * 127 + SECRET
    wanted = asked((b"sec-websocket-protocol", value))

    assert [*["nsq.json.v1"] * 127, SECRET.decode()] == read_upgrade(wanted).subprotocols
    assert isinstance(handshake_response(wanted, read_upgrade(wanted)), Response)


def test_an_upgrade_does_not_show_what_may_be_a_secret() -> None:
    secrets = ((b"sec-websocket-protocol", SECRET), (b"authorization", b"Bearer " + SECRET))

    shown = repr(asked(*secrets)) + repr(read_upgrade(asked(*secrets)))

    assert SECRET.decode() not in shown


def test_a_right_handshake_is_greeted() -> None:
    greeting = handshake_response(asked(), read_upgrade(asked()))
    assert isinstance(greeting, Response)

    sent = encode_101(greeting, "nsq.json.v1")

    assert sent.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert sent.endswith(b"\r\nSec-WebSocket-Protocol: nsq.json.v1\r\n\r\n")


def test_a_greeting_need_not_name_a_subprotocol() -> None:
    """Who asked for none may be told of none."""
    greeting = handshake_response(asked(), read_upgrade(asked()))
    assert isinstance(greeting, Response)

    assert b"Protocol:" not in encode_101(greeting, None)


@pytest.mark.parametrize(
    "wrong, status, token",
    [
        (asked(method=b"POST"), 405, "METHOD_NOT_ALLOWED"),
        (asked((b"sec-websocket-version", b"13")), 426, "UPGRADE_REQUIRED"),
        (asked((b"upgrade", b"h2c")), 426, "UPGRADE_REQUIRED"),
        (asked((b"connection", b"Upgrade@")), 400, "INVALID_REQUEST"),
        (asked((b"sec-websocket-protocol", SECRET + b"=")), 400, "INVALID_REQUEST"),
        (asked((b"content-length", b"1")), 400, "INVALID_REQUEST"),
        (asked((b"transfer-encoding", b"chunked")), 400, "INVALID_REQUEST"),
        (asked((b"cookie", b"c" * 8_192)), 431, "HEAD_TOO_BIG"),
        (asked(*[(b"x", b"1")] * 128), 431, "HEAD_TOO_BIG"),
        (asked(*[(b"cookie", b"c" * 8_000)] * 2, (b"x", b"c" * 400)), 431, "HEAD_TOO_BIG"),
        (asked((b"sec-websocket-protocol", b"a," * 128 + b"a")), 431, "HEAD_TOO_BIG"),
        (asked(*[(b"sec-websocket-protocol", b"a,b")] * 65), 431, "HEAD_TOO_BIG"),
        (asked((b"sec-websocket-version", b"13"), target=b"/other"), 404, "NOT_FOUND"),
        (asked((b"sec-websocket-protocol", b"," * 8_000), target=b"/other"), 404, "NOT_FOUND"),
        (asked(target=b"/other"), 404, "NOT_FOUND"),
        (asked(target=b"/%ff"), 404, "NOT_FOUND"),
    ],
)
def test_a_handshake_that_is_refused_has_a_problem_body(
    wrong: RawUpgradeRequest, status: int, token: str
) -> None:
    """The one of every other error; what may hold a secret is not in it."""
    answer = handshake_response(wrong, read_upgrade(wrong))
    assert isinstance(answer, tuple)

    document = json.loads(answer[2])

    assert (status, status, token) == (answer[0], document["status"], document["message"])
    assert SECRET.decode() not in document["detail"]


@pytest.mark.parametrize("target, location", [(b"/Sub/?topic=t", b"/sub?topic=t")])
def test_a_nearly_right_path_is_redirected(target: bytes, location: bytes) -> None:
    """As everywhere on the public port."""
    wrong = asked(target=target)
    answer = handshake_response(wrong, read_upgrade(wrong))
    assert isinstance(answer, tuple)

    assert (301, (b"location", location)) == (answer[0], answer[1][0])


def test_a_plain_request_is_read_as_the_upgrade_of_its_page() -> None:
    """Query, headers and peer are those that the upgrade would have had, and the id is given."""
    headers = [*HEADERS[:1], (b"sec-websocket-protocol", b"nsq.json.v1"), (b"x-request-id", b"?")]
    scope = http_scope("GET", "/sub", query=b"topic=t", headers=headers)

    plain = read_plain_request(
        {**scope, "client": ("10.0.0.1", 1), "state": {"request_id": "mine"}}
    )
    upgrade = read_upgrade(asked(headers[1], (b"x-request-id", b"mine")))

    assert (upgrade.path, upgrade.query, upgrade.subprotocols, upgrade.peer) == (
        plain.path,
        plain.query,
        plain.subprotocols,
        plain.peer,
    )
    assert [*headers[:2], (b"x-request-id", b"mine")] == plain.headers


@pytest.mark.parametrize(
    "more,origins",
    [
        ([(b"referer", b"http://gateway/page")], [b"http://gateway"]),
        ([(b"referer", b"http://elsewhere/page")], []),
        ([(b"referer", b"http://gateway/"), (b"origin", b"http://evil")], [b"http://evil"]),
        ([], []),
    ],
)
def test_a_plain_request_has_the_origin_of_its_own_page(
    more: list[tuple[bytes, bytes]], origins: list[bytes]
) -> None:
    """A browser leaves it out of a GET to the page's own host, and not out of an upgrade."""
    scope = http_scope("GET", "/sub", headers=[(b"host", b"gateway"), *more])

    plain = read_plain_request({**scope, "client": None, "state": {"request_id": "r"}})

    assert ("", origins) == (
        plain.peer,
        [value for name, value in plain.headers if name == b"origin"],
    )
