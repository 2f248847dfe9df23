"""
Random HTTP requests get the same answer from the embedded broker and from nsqd.

One sequence goes to both, so their topics and channels are the same, too. Left out, because they
differ by intention: `/config//`, the `?` of an empty query in a Location, and a `#` in one, which
is written as %23 here, as a client needs it.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

import pytest
import pytest_asyncio

from gateway.broker.broker import Broker, BrokerOptions
from gateway.protocol.wire import Limits
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.nsqd import RealNsqd, as_current_nsqd, is_older_nsqd, real_nsqd
from tests.support.fuzz import fuzz_seeds, print_seed
from tests.support.http.raw_http import RawAnswer, exchange

pytestmark = [
    pytest.mark.nsqd,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(is_older_nsqd, reason="the embedded broker follows the current version"),
]

SEEDS, REQUESTS = 3, 400
MAX_MESSAGE, MAX_BODY = 100, 900
ROUTES = """
    /pub /mpub /topic/create /topic/delete /topic/empty /topic/pause /topic/unpause /channel/create
    /channel/delete /channel/empty /channel/pause /channel/unpause /stats
"""
OTHER_ROUTES = """
    /ping /info /config/max_msg_size /config/nothing /config /config/log_level /nothing /topic
    /config/nsqlookupd_tcp_addresses /config/max_msg_size/x /topic/create/x /
"""
METHODS = ["GET"] * 5 + ["POST"] * 5 + ["PUT", "DELETE", "OPTIONS", "PATCH"]
USUAL_NAMES = ["t", "t2", "c"]
NAMES = [
    *("c2", "x%23ephemeral", "", "no!", "a%0a", "%ff", "a" * 64, "a" * 65, "#ephemeral", "+", "%"),
    *("a" * 54 + "%23ephemeral", "a" * 55 + "%23ephemeral", "%4", "%zz", ".", "%C3%A9", "t#frag"),
]
NUMBERS = [
    *("0", "1", "+1", "-1", "-0", "00", "3600000", "3600001", "1e3", "x", "", "+", "1_0", "0x10"),
    *("9223372036854775807", "9223372036854775808", "99999999999999999999"),
]
FLAGS = ["true", "1", "false", "0", "", "TRUE", "yes", "json", "text"]
KEYS = {
    "topic": NAMES,
    "channel": NAMES,
    "Topic": NAMES,
    "%74opic": NAMES,
    "": NAMES,
    "defer": NUMBERS,
    **dict.fromkeys(("binary", "format", "include_clients", "include_mem"), FLAGS),
}
BODIES = [
    *(b"", b"x", b"a\nb\n", b"\n\n", b"\r\n", b"info", b"[]", b"{}", b"[1]"),
    *(b"\0\0\0\1\0\0\0\1x", b"\0\0\0\2\0\0\0\1x", b"\0\0\0\1\0\0\0\2xyz", b"\0\0\0\1\0\0\0\0"),
    *(b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0"),
    *(b"x" * MAX_MESSAGE, b"x" * (MAX_MESSAGE + 1), b"y" * (MAX_BODY + 100)),
    b"y" * MAX_MESSAGE + b"\n" + b"z" * (MAX_MESSAGE + 1),
]


@dataclass(frozen=True)
class Request:
    """One request."""

    method: str
    target: str
    body: bytes
    chunked: bool


def request(rng: random.Random) -> Request:
    """Return a request that is nearly right, or not at all."""
    route = rng.choice(ROUTES.split() * 3 + OTHER_ROUTES.split())
    method = rng.choice(METHODS)
    path = rng.choice([route] * 14 + misspelled(route))
    query = "&".join(parameter(rng) for _ in range(rng.choice([0, 1, 1, 2, 2, 2, 3, 4])))
    if rng.random() < 0.05:
        query = query.replace("&", rng.choice([";", "&&"]))
    has_body = method != "GET" or rng.random() < 0.1
    body = rng.choice(BODIES) if has_body else b""
    return Request(method, f"{path}?{query}" if query else path, body, rng.random() < 0.2)


def misspelled(route: str) -> list[str]:
    """Return other spellings of *route*, of which some are redirected."""
    return [
        *(route.upper(), route.title(), f"/x/..{route}", f"/.{route}"),
        *(route.replace("p", "%70", 1), route.replace("c", "%43", 1)),
        # nsqd redirects /config/ to a path that it does not have.
        *([] if route == "/config" else [f"{route}/", f"/{route}", f"{route}/."]),
    ]


def parameter(rng: random.Random) -> str:
    """Return a parameter of a query."""
    key = rng.choice([*["topic", "channel"] * 4, *KEYS])
    value = rng.choice(USUAL_NAMES * 8 + NAMES if KEYS[key] is NAMES else KEYS[key])
    return rng.choice([f"{key}={value}"] * 8 + [key, f"{key}=={value}", f"{key}=a={value}"])


def shown(answer: RawAnswer) -> tuple[object, ...]:
    """Return what has to be the same; times, ports and Go's memory are not."""
    names = ("content-type", "x-nsq-content-type", "allow", "location")
    headers = [answer.headers.get(name, "") for name in names]
    body = as_current_nsqd(answer.body).decode("latin-1")
    if answer.status in {301, 307}:
        headers[-1] = quote(headers[-1], safe="/?=&%+;!")
        body = re.sub(r'(?<=<a href=")[^"]*', "", body)
    own = r'"start_time":\d+|start_time \S+|uptime \S+|^nsqd .*|"memory":\{.*?\}|"\w+_port":\d+'
    body = re.sub(own + r"|   (heap|gc|next)_\S+\s+\d+", "<own>", body)
    return answer.status, headers, body


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["memory", "disk"])
async def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[RealNsqd, Broker]]:
    """Both brokers, with small limits."""
    limits = Limits(max_msg_size_bytes=MAX_MESSAGE, max_body_size_bytes=MAX_BODY)
    data_path = tmp_path_factory.mktemp("data") if request.param == "disk" else None
    options = BrokerOptions(broadcast_address="127.0.0.1", limits=limits, data_path=data_path)
    flags = (f"--max-msg-size={MAX_MESSAGE}", f"--max-body-size={MAX_BODY}")
    async with real_nsqd(*flags) as nsqd, embedded_broker(options, has_http=True) as embedded:
        yield nsqd, embedded


async def test_a_request_by_grammar_is_answered_as_by_nsqd(pair: tuple[RealNsqd, Broker]) -> None:
    for seed in fuzz_seeds(SEEDS):
        rng = random.Random(seed)
        with print_seed(seed):
            for _ in range(REQUESTS):
                sent = request(rng)
                first, second = await answers(pair, sent)
                if first != second and "stats" in sent.target.lower():
                    first, second = await same_answers(pair, sent)
                assert first == second, sent


async def answers(pair: tuple[RealNsqd, Broker], sent: Request) -> list[tuple[object, ...]]:
    """Return what nsqd answers, and what the embedded broker answers."""
    return [
        shown(
            await exchange(
                each.http_address, sent.method, sent.target, sent.body, chunked=sent.chunked
            )
        )
        for each in pair
    ]


async def same_answers(pair: tuple[RealNsqd, Broker], sent: Request) -> list[tuple[object, ...]]:
    """Ask until both are the same: nsqd hands messages to its channels in its own time."""
    both: list[tuple[object, ...]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            while not both or both[0] != both[1]:
                both = await answers(pair, sent)
    return both
