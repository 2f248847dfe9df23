"""CORS and rate limits of publishing on a running gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd
from tests.support.http.raw_http import RawAnswer, send_raw_request

pytestmark = pytest.mark.asyncio(loop_scope="session")

FRIEND = "https://app.example.org"
EVIL = "https://evil.example.org"
REBOUND = "rebound.example.org:8080"
BURST = 5
SECONDS_FOR_ONE = 20
BODY_LIMIT_BYTES = 1_000


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def open_to_friends(shared_broker: KillableBroker) -> AsyncIterator[RunningGateway]:
    async with gateway_with_nsqd(
        [shared_broker.tcp_address],
        [shared_broker.http_address],
        f"--allow-origin={FRIEND}",
        f"--publish-body-limit-bytes={BODY_LIMIT_BYTES}",
    ) as running:
        yield running


async def ask(
    gateway: RunningGateway,
    first_line: str,
    body: bytes = b"",
    *,
    host: str | None = None,
    **headers: str,
) -> RawAnswer:
    """Send one request with *headers*, whose names have ``_`` for ``-``."""
    lines = [
        f"{first_line} HTTP/1.1",
        f"Host: {host or gateway.address}",
        "Connection: close",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        f"Content-Length: {len(body)}",
    ]
    return await send_raw_request(gateway.address, "\r\n".join([*lines, "", ""]).encode() + body)


def cors(answer: RawAnswer) -> dict[str, str]:
    return {
        name: value for name, value in answer.headers.items() if name.startswith("access-control-")
    }


@pytest.mark.parametrize("path", ["/pub", "/mpub", "/topic/create"])
async def test_a_browser_may_ask_before_it_posts(
    open_to_friends: RunningGateway, path: str
) -> None:
    """The preflight of a listed page is 204, with all that it may send."""
    answer = await ask(
        open_to_friends,
        f"OPTIONS {path}?topic=t",
        Origin=FRIEND,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization,content-type",
    )

    told = cors(answer)
    assert (204, b"", FRIEND, "Origin") == (
        answer.status,
        answer.body,
        told["access-control-allow-origin"],
        answer.headers["vary"],
    )
    assert "POST" in told["access-control-allow-methods"]
    assert "authorization, content-type" in told["access-control-allow-headers"]


async def test_a_preflight_from_another_origin_is_refused(
    open_to_friends: RunningGateway,
) -> None:
    """A 403 with nothing in it that a browser could take for leave."""
    answer = await ask(
        open_to_friends, "OPTIONS /pub", Origin=EVIL, Access_Control_Request_Method="POST"
    )

    assert (403, "FORBIDDEN", {}) == (answer.status, answer.message, cors(answer))


async def test_options_of_anybody_else_is_answered_as_nsqd_does(
    open_to_friends: RunningGateway,
) -> None:
    """Without the question of a browser it is no preflight."""
    answer = await ask(open_to_friends, "OPTIONS /pub")

    assert (200, {}) == (answer.status, cors(answer))
    assert "POST" in answer.headers["allow"]


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
async def test_a_listed_page_publishes_and_reads_the_answer(
    open_to_friends: RunningGateway, topic: str, path: str
) -> None:
    """The message is in nsqd, and the page may know."""
    answer = await ask(open_to_friends, f"POST {path}?topic={topic}", b"hello", Origin=FRIEND)

    assert (200, b"OK", FRIEND) == (
        answer.status,
        answer.body,
        cors(answer)["access-control-allow-origin"],
    )
    async with open_to_friends.subscribe(topic, "c") as reader:
        assert ["hello"] == [message["body"] for message in await reader.messages(1)]


async def test_a_listed_page_reads_why_it_was_refused(open_to_friends: RunningGateway) -> None:
    """Without these headers a script sees no more than "failed to fetch"."""
    answer = await ask(open_to_friends, "POST /pub?topic=a%20b", b"x", Origin=FRIEND)

    told = cors(answer)
    assert (400, "INVALID_TOPIC", FRIEND) == (
        answer.status,
        answer.message,
        told["access-control-allow-origin"],
    )
    assert "X-Request-Id" in told["access-control-expose-headers"]
    assert json.loads(answer.body)["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/ping", "/nowhere"])
async def test_a_listed_page_reads_the_other_answers_too(
    open_to_friends: RunningGateway, path: str
) -> None:
    answer = await ask(open_to_friends, f"GET {path}", Origin=FRIEND)

    assert FRIEND == cors(answer)["access-control-allow-origin"]


@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1:1"])
@pytest.mark.parametrize("path", ["/pub", "/mpub"])
async def test_a_page_of_another_origin_cannot_publish(
    open_to_friends: RunningGateway, topic: str, path: str, origin: str
) -> None:
    """It is 403, and what comes after it is the first message."""
    answer = await ask(open_to_friends, f"POST {path}?topic={topic}", b"evil", Origin=origin)

    assert (403, "FORBIDDEN", {}) == (answer.status, answer.message, cors(answer))
    await open_to_friends.publish(topic, b"good")
    async with open_to_friends.subscribe(topic, "c") as reader:
        assert ["good"] == [message["body"] for message in await reader.messages(1)]


async def test_our_own_page_publishes(open_to_friends: RunningGateway, topic: str) -> None:
    """Its Origin is our address; it needs no leave to read."""
    answer = await ask(
        open_to_friends, f"POST /pub?topic={topic}", b"own", Origin=open_to_friends.url
    )

    assert (200, {}) == (answer.status, cors(answer))


async def test_dns_rebinding_to_loopback_publishes_nothing(
    open_to_friends: RunningGateway, topic: str
) -> None:
    answer = await ask(
        open_to_friends,
        f"POST /pub?topic={topic}",
        b"evil",
        host=REBOUND,
        Origin=f"http://{REBOUND}",
    )

    assert (403, "FORBIDDEN") == (answer.status, answer.message)
    assert f"--allow-origin http://{REBOUND}" in json.loads(answer.body)["detail"]


async def test_a_caller_over_its_rate_gets_429_with_retry_after(
    shared_broker: KillableBroker, topic: str
) -> None:
    """Its burst is published, then it is 429, and its page may read that."""
    flags = (
        f"--allow-origin={FRIEND}",
        "--publish-rate-limit=0.05",
        f"--publish-rate-burst={BURST}",
    )
    async with gateway_with_nsqd(
        [shared_broker.tcp_address], [shared_broker.http_address], *flags
    ) as limited:
        answers = [
            await ask(limited, f"POST /pub?topic={topic}", b"%d" % number, Origin=FRIEND)
            for number in range(BURST + 1)
        ]
        async with limited.subscribe(topic, "c") as reader:
            bodies = sorted(message["body"] for message in await reader.messages(BURST))

    refused = answers[-1]
    assert [200] * BURST + [429] == [answer.status for answer in answers]
    assert ("RATE_LIMITED", FRIEND) == (
        refused.message,
        cors(refused)["access-control-allow-origin"],
    )
    assert 1 <= int(refused.headers["retry-after"]) <= SECONDS_FOR_ONE
    assert [str(number) for number in range(BURST)] == bodies


async def test_an_mpub_pays_for_all_its_messages(shared_broker: KillableBroker, topic: str) -> None:
    """A bucket with one token has_room_for_late it, and the next publish has to wait."""
    flags = ("--publish-rate-limit=0.05", "--publish-rate-burst=2")
    async with gateway_with_nsqd(
        [shared_broker.tcp_address], [shared_broker.http_address], *flags
    ) as limited:
        first = await ask(limited, f"POST /mpub?topic={topic}", b"a\nb\nc")
        second = await ask(limited, f"POST /pub?topic={topic}", b"d")

    assert (200, 429) == (first.status, second.status)
    assert SECONDS_FOR_ONE < int(second.headers["retry-after"])


@pytest.mark.parametrize(
    "target,token",
    [("/pub?", "MSG_TOO_BIG"), ("/mpub?", "BODY_TOO_BIG"), ("/mpub?binary&", "BODY_TOO_BIG")],
)
async def test_a_body_over_the_bound_of_the_operator_is_413(
    open_to_friends: RunningGateway, target: str, token: str
) -> None:
    """It is below nsqd's own limit, and the response has nsqd's code."""
    body = b"x" * (BODY_LIMIT_BYTES + 1)

    answer = await ask(open_to_friends, f"POST {target}topic=t", body, Origin=FRIEND)

    assert (413, token) == (answer.status, answer.message)
    assert str(BODY_LIMIT_BYTES) in json.loads(answer.body)["detail"]


async def test_a_body_as_long_as_the_bound_is_published(
    open_to_friends: RunningGateway, topic: str
) -> None:
    body = b"x" * BODY_LIMIT_BYTES

    answer = await ask(open_to_friends, f"POST /pub?topic={topic}", body, Origin=FRIEND)

    assert 200 == answer.status
