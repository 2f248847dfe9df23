"""
Random access files and random requests at every door, beside a small model of what they allow.

`NSQ_GATEWAY_ACCESS_SEED` is the seed, `NSQ_GATEWAY_ACCESS_POLICIES` the number of files.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlencode

import httpx
import pytest
import uvloop
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.access.auth_server import AuthServer
from gateway.client.from_settings import NsqdAddresses, read_access
from gateway.server.gateway import GatewayServer
from gateway.telemetry import configure_logging
from tests.support.access_model import CHANNELS, TOPICS, VIEWERS, Caller, PolicyMaker
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.v2_peer import ERROR, OK, length_prefixed, publish, v2_peer
from tests.support.gateways.free_port_settings import serve_settings
from tests.support.gateways.moved_control import MovedControl
from tests.support.http.raw_http import read_response
from tests.support.websocket.raw_socket import RawSocket, raw_socket
from tests.support.websocket.subscriber_client import Json, open_socket, sub_url

SEED = int(os.environ.get("NSQ_GATEWAY_ACCESS_SEED", "21"))
POLICIES = int(os.environ.get("NSQ_GATEWAY_ACCESS_POLICIES", "1000"))
POLICIES_AT_NSQD = max(20, POLICIES // 20)
REQUESTS = 10
"""For each policy."""
ACTIONS = ("create", "delete", "empty", "pause", "unpause")
OF_CODES = {
    "E_AUTH_FIRST": "AUTH_REQUIRED",
    "E_AUTH_FAILED": "AUTH_FAILED",
    "E_UNAUTHORIZED": "UNAUTHORIZED",
}
"""The tokens of HTTP, by the codes of sockets and of nsqd."""

Verdict: TypeAlias = str | tuple[str, ...]
"""OK, a token of an error, or the topics that were shown."""


@dataclass
class Doors:
    """A gateway, its access file, and the broker behind it."""

    address: str
    control: MovedControl
    http: RawSocket
    """A connection to the gateway that serves all requests of HTTP."""
    broker_http: httpx.AsyncClient
    nsqd: str | None
    """The TCP address of an nsqd that asks the gateway's auth server; None without one."""

    async def ask(self, method: str, path: str, caller: Caller, body: bytes = b"") -> Verdict:
        """Send one request; return OK for what was allowed, also for a topic that is missing."""
        bearer = "" if caller.secret is None else f"Authorization: Bearer {caller.secret}\r\n"
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.address}\r\n{bearer}"
        await self.http.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await read_response(self.http)
        if answer.status in (401, 403):
            return answer.message
        is_missing = answer.message in ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")
        assert answer.status == 200 or is_missing, (answer, path)
        if answer.headers.get("content-type", "").startswith("application/json"):
            shown = json.loads(answer.body)
            if "topics" in shown:
                return tuple(topic["topic_name"] for topic in shown["topics"] or ())
            if "identity" in shown:
                assert caller.name == shown["identity"]
        return "OK"

    async def topics(self) -> list[str]:
        """Return all topics of the broker."""
        answer = await self.broker_http.get("/stats", params={"format": "json"})
        return sorted(each["topic_name"] for each in answer.json()["topics"] or ())


def lasting(found: Verdict, caller: Caller) -> Verdict:
    """
    Return *found* without the ephemeral topics that *caller* may see.

    Such a topic may go between two looks, because the socket that made it was closed.
    """
    if isinstance(found, str):
        return found
    return tuple(
        topic for topic in found if not (topic.endswith("#ephemeral") and caller.sees(topic))
    )


@asynccontextmanager
async def gateway_at(
    control: MovedControl, tcp: str, http: str, *, nsqd: str | None = None
) -> AsyncIterator[Doors]:
    """Run a gateway in this process in front of one broker."""
    settings = serve_settings(nsqd_tcp_address=[tcp], nsqd_http_address=[http])
    server = GatewayServer(settings, access_control=control)
    server.bind()
    async with AsyncExitStack() as life:
        life.push_async_callback(server.stop)
        life.push_async_callback(server.drain)
        await server.start(NsqdAddresses((tcp,), (http,)), read_access(settings))
        raw = await life.enter_async_context(raw_socket(server.address))
        client = httpx.AsyncClient(base_url=f"http://{http}", trust_env=False)
        broker_http = await life.enter_async_context(client)
        yield Doors(server.address, control, raw, broker_http, nsqd)


# The doors

Door: TypeAlias = Callable[[Doors, random.Random, Caller], Awaitable[tuple[Verdict, Verdict]]]
"""Sends one random request; returns the verdict, and that of the model."""


def expected(caller: Caller, *, may: bool) -> Verdict:
    return caller.refusal or ("OK" if may else "UNAUTHORIZED")


async def rest(
    route: str, doors: Doors, chance: random.Random, caller: Caller
) -> tuple[Verdict, Verdict]:
    topic = chance.choice(TOPICS)
    defer = "&defer=1" if route == "/pub" and chance.random() < 0.2 else ""
    path = f"{route}?{urlencode({'topic': topic})}{defer}"
    found = await doors.ask("POST", path, caller, b"x")
    return found, expected(caller, may=caller.may_publish(topic))


async def pub(doors: Doors, chance: random.Random, caller: Caller) -> tuple[Verdict, Verdict]:
    return await rest("/pub", doors, chance, caller)


async def mpub(doors: Doors, chance: random.Random, caller: Caller) -> tuple[Verdict, Verdict]:
    return await rest("/mpub", doors, chance, caller)


async def socket_sub(
    doors: Doors, chance: random.Random, caller: Caller
) -> tuple[Verdict, Verdict]:
    topic, channel = chance.choice(TOPICS), chance.choice([*CHANNELS, VIEWERS[0]])
    found = await subscription(doors, chance, caller, topic, channel)
    return found, expected(caller, may=caller.may_subscribe(topic, channel))


async def socket_view(
    doors: Doors, chance: random.Random, caller: Caller
) -> tuple[Verdict, Verdict]:
    topic = chance.choice(TOPICS)
    more = {"ack": "client"} if chance.random() < 0.3 else {}
    found = await subscription(doors, chance, caller, topic, None, **more)
    return found, expected(caller, may=caller.may_watch(topic))


async def subscription(
    doors: Doors,
    chance: random.Random,
    caller: Caller,
    topic: str,
    channel: str | None,
    **more: str,
) -> Verdict:
    """
    Subscribe; the credential comes in the header, in a subprotocol or in a frame.

    An open socket then publishes, and the verdict about that is checked here.
    """
    way = chance.choice(["header", "entry", "frame"])
    options: Json = {}
    secret = caller.secret
    if secret is not None and way == "header":
        options = {"headers": {"Authorization": f"Bearer {secret}"}}
    elif secret is not None and way == "entry":
        text = base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")
        options = {"subprotocols": [f"nsq.auth.{text}", "nsq.json.v1"]}
    url = sub_url(f"http://{doors.address}", topic, channel, **more)
    try:
        async with open_socket(url, **options) as client:
            if not options:
                # Without AUTH, any other command is the last.
                await client.send({"cmd": "NOP"} if secret is None else auth(secret))
            answer = await client.receive()
            if answer["type"] == "error":
                code, _ = await client.closed()
                assert (answer["code"], code) in {
                    ("E_AUTH_FIRST", 4501),
                    ("E_AUTH_FAILED", 4003),
                    ("E_UNAUTHORIZED", 4503),
                }
                return OF_CODES[answer["code"]]
            if answer["cmd"] == "AUTH":
                assert caller.name == answer["data"]["identity"]
                answer = await client.receive()
            assert "SUB" == answer["cmd"], answer
            target = chance.choice(TOPICS)
            await client.send({"cmd": "PUB", "topic": target, "body": "x", "ref": "pub"})
            said = (await client.receive_until("pub"))[-1]
            published = "OK" if said["type"] == "response" else OF_CODES[said["code"]]
            COUNTS["socket PUB", published] += 1
            assert expected(caller, may=caller.may_publish(target)) == published, (caller, target)
            return "OK"
    except InvalidStatus as error:
        return str(json.loads(error.response.body or b"{}")["message"])
    except ConnectionClosed as error:
        raise AssertionError((caller, topic, channel, way)) from error


def auth(secret: str) -> Json:
    return {"cmd": "AUTH", "secret": secret, "ref": "auth"}


async def topic_admin(
    doors: Doors, chance: random.Random, caller: Caller
) -> tuple[Verdict, Verdict]:
    topic, action = chance.choice(TOPICS), chance.choice(ACTIONS)
    found = await doors.ask("POST", f"/topic/{action}?{urlencode({'topic': topic})}", caller)
    return found, expected(caller, may=caller.may_administer(topic))


async def channel_admin(
    doors: Doors, chance: random.Random, caller: Caller
) -> tuple[Verdict, Verdict]:
    names = {"topic": chance.choice(TOPICS), "channel": chance.choice(CHANNELS)}
    path = f"/channel/{chance.choice(ACTIONS)}?{urlencode(names)}"
    found = await doors.ask("POST", path, caller)
    return found, expected(caller, may=caller.may_administer(**names))


async def stats_of_one(
    doors: Doors, chance: random.Random, caller: Caller
) -> tuple[Verdict, Verdict]:
    topic = chance.choice(TOPICS)
    query = urlencode({"format": "json", "topic": topic})
    found = await doors.ask("GET", f"/stats?{query}", caller)
    there = lasting(tuple({topic}.intersection(await doors.topics())), caller)
    return lasting(found, caller), there if caller.sees(topic) else expected(caller, may=False)


async def stats_of_all(
    doors: Doors, chance: random.Random, caller: Caller
) -> tuple[Verdict, Verdict]:
    """Shown are the topics that are granted, with what several nodes have to do with them."""
    del chance
    found = await doors.ask("GET", "/stats?format=json", caller)
    shown = lasting(tuple(filter(caller.sees, await doors.topics())), caller)
    return lasting(found, caller), shown if caller.sees_something else expected(caller, may=False)


async def stats_text(
    doors: Doors, chance: random.Random, caller: Caller
) -> tuple[Verdict, Verdict]:
    path = chance.choice(["/stats", "/stats?format=text"])
    return await doors.ask("GET", path, caller), expected(caller, may=caller.sees_everything)


async def info(doors: Doors, chance: random.Random, caller: Caller) -> tuple[Verdict, Verdict]:
    del chance
    return await doors.ask("GET", "/info", caller), expected(caller, may=caller.sees_something)


async def whoami(doors: Doors, chance: random.Random, caller: Caller) -> tuple[Verdict, Verdict]:
    del chance
    return await doors.ask("GET", "/whoami", caller), expected(caller, may=True)


async def nsqd_pub(doors: Doors, chance: random.Random, caller: Caller) -> tuple[Verdict, Verdict]:
    topic = chance.choice(TOPICS)
    found = await at_nsqd(doors, caller, publish(topic.encode(), b"x"))
    return found, at_nsqd_expected(caller, may=caller.may_publish(topic))


async def nsqd_sub(doors: Doors, chance: random.Random, caller: Caller) -> tuple[Verdict, Verdict]:
    topic, channel = chance.choice(TOPICS), chance.choice([*CHANNELS, *VIEWERS[:2]])
    found = await at_nsqd(doors, caller, f"SUB {topic} {channel}\n".encode())
    may = caller.may_subscribe_at_nsqd(topic, channel)
    return found, at_nsqd_expected(caller, may=may)


async def at_nsqd(doors: Doors, caller: Caller, command: bytes) -> Verdict:
    """Return the verdict of nsqd, which asks the gateway, for one *command* after AUTH."""
    assert doors.nsqd is not None
    async with v2_peer(doors.nsqd) as peer:
        if caller.secret is not None:
            kind, data = await peer.ask(b"AUTH\n" + length_prefixed(caller.secret.encode()))
            if kind == ERROR:
                return OF_CODES[data.decode().split()[0]]
        answer = await peer.ask(command)
    return "OK" if answer == OK else OF_CODES[answer[1].decode().split()[0]]


def at_nsqd_expected(caller: Caller, *, may: bool) -> Verdict:
    """Return the verdict of an nsqd: a caller that may nothing there is none to it."""
    of_nsqd = {"publish", "subscribe", "watch"}
    if caller.refusal is None and not any(of_nsqd & {*each.permissions} for each in caller.grants):
        return "AUTH_FAILED"
    return expected(caller, may=may)


DOORS: Sequence[Door] = (
    *(pub, mpub, socket_sub, socket_view, topic_admin, channel_admin),
    *(stats_of_one, stats_of_all, stats_text, info, whoami),
)
COUNTS: Counter[tuple[str, str]] = Counter()
"""Verdicts by door and kind."""


async def compare(doors: Doors, chance: random.Random, folder: Path, policies: int) -> None:
    """Send random requests under *policies* random files; each must get the model's verdict."""
    COUNTS.clear()
    kinds: Sequence[Door] = DOORS if doors.nsqd is None else (*DOORS, nsqd_pub, nsqd_sub)
    maker = PolicyMaker(chance, folder, doors.control.now)
    for number in range(policies):
        policy = maker.policy()
        doors.control.change(*policy.entries)
        for _ in range(REQUESTS):
            door, caller = chance.choice(kinds), chance.choice(policy.callers)
            found, wanted = await door(doors, chance, caller)
            assert wanted == found, (number, door.__name__, caller, policy.entries)
            kind = found if isinstance(found, str) else "some" if found else "none"
            COUNTS[door.__name__, kind] += 1
    print(f"seed {SEED}, {policies} policies")  # noqa: T201
    for (name, kind), times in sorted(COUNTS.items()):
        print(f"{name:16}{kind:16}{times:6}")  # noqa: T201


def both_are_common(least: int) -> bool:
    """Return whether each door had so many requests of callers that it knew, of both kinds."""
    found: dict[str, Counter[bool]] = {}
    for (name, kind), times in COUNTS.items():
        if not re.match("AUTH_", kind):
            found.setdefault(name, Counter())[kind == "UNAUTHORIZED"] += times
    del found["whoami"]  # nobody who is known is refused
    return all(min(counts[True], counts[False]) >= least for counts in found.values())


@pytest.mark.timeout(600)
def test_every_door_has_the_verdict_of_the_model(tmp_path: Path) -> None:
    uvloop.run(compare_without_auth(tmp_path))

    assert both_are_common(POLICIES // 40)


async def compare_without_auth(folder: Path) -> None:
    """Compare a gateway whose broker asks nobody, as most do."""
    configure_logging("console", "error")
    control = MovedControl(folder)
    async with (
        embedded_broker(has_http=True) as broker,
        gateway_at(control, broker.tcp_address, broker.http_address) as doors,
    ):
        await compare(doors, random.Random(SEED), folder, POLICIES)


@pytest.mark.nsqd
@pytest.mark.timeout(600)
def test_an_nsqd_that_asks_the_gateway_has_the_same_verdicts(tmp_path: Path) -> None:
    """The gateway brings it the callers' own tokens, so that both decide about each request."""
    uvloop.run(compare_at_nsqd(tmp_path))

    assert both_are_common(1)


async def compare_at_nsqd(folder: Path) -> None:
    configure_logging("console", "error")
    control = MovedControl(folder)
    auth_server = AuthServer("127.0.0.1:0", control)
    auth_server.bind()
    async with AsyncExitStack() as life:
        life.push_async_callback(auth_server.stop)
        await auth_server.start()
        nsqd = await life.enter_async_context(real_nsqd(auth_server.nsqd_flag))
        doors = await life.enter_async_context(
            gateway_at(control, nsqd.tcp_address, nsqd.http_address, nsqd=nsqd.tcp_address)
        )
        await compare(doors, random.Random(SEED + 1), folder, POLICIES_AT_NSQD)
