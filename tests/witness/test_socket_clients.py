"""Four WebSocket libraries of others as clients: Go's, two of Node's, and Python's."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.brokers.auth_server import Grant, auth_server
from tests.support.brokers.killable_broker import KillableBroker
from tests.support.brokers.nsqd import real_nsqd
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd
from tests.support.websocket.clients import (
    BUILTIN,
    GORILLA,
    WEBSOCKETS,
    WS,
    Library,
    SocketClient,
    SocketRequest,
    node_has_websocket,
    socket_client,
)
from tests.support.websocket.subscriber_client import Json

pytestmark = pytest.mark.asyncio(loop_scope="session")

SUBPROTOCOL = "nsq.json.v1"
SECRET = "s3cret-of-alice"
LIBRARIES = [
    pytest.param(GORILLA, marks=pytest.mark.gorilla, id="gorilla"),
    pytest.param(WS, marks=pytest.mark.node, id="ws"),
    pytest.param(BUILTIN, marks=pytest.mark.node, id="builtin"),
    pytest.param(WEBSOCKETS, id="websockets"),
]
OUTSIDE_BROWSERS = [each for each in LIBRARIES if each.id != "builtin"]
"""A browser's WebSocket has no headers, pings and fragments of the page's own."""
PING_INTERVAL_S = 0.3
FRAME_LIMIT_BYTES = 10_000
OTHER_ALPHABETS = "żółć 漢字 🐇\u2028" * 20


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    library: Library = request.param
    if library is BUILTIN and not node_has_websocket():
        pytest.skip("this Node has no WebSocket of its own; 20 and later have")
    return library


@pytest_asyncio.fixture(loop_scope="session")
async def client(
    gateway: RunningGateway, library: Library, topic: str
) -> AsyncIterator[SocketClient]:
    """Return a client that has been subscribed to *topic*, channel "c"."""
    async with socket_client(library, SocketRequest(url=gateway.sub_url(topic, "c"))) as client:
        await subscribed(client)
        yield client


async def subscribed(client: SocketClient) -> str:
    """Return the subprotocol, once the client has received SUB."""
    opened = await client.opened()
    assert "open" == opened["event"], opened
    answer = await client.receive()
    assert "SUB" == answer.get("cmd"), answer
    return str(opened["subprotocol"])


def ok(cmd: str, ref: object) -> Json:
    """Return the answer to a command that went well."""
    return {"type": "response", "cmd": cmd, "ref": ref, "data": "OK"}


# What a consumer does


@pytest.mark.parametrize("asked_for", [(), (SUBPROTOCOL,), ("something.else", SUBPROTOCOL)])
async def test_the_subprotocol_is_negotiated(
    gateway: RunningGateway, library: Library, topic: str, asked_for: tuple[str, ...]
) -> None:
    """A library that requested one gets it; others accept the server's choice, or get none."""
    wish = SocketRequest(url=gateway.sub_url(topic, "c"), subprotocols=asked_for)
    async with socket_client(library, wish) as client:
        told = await subscribed(client)

    assert told in ({SUBPROTOCOL} if asked_for else {SUBPROTOCOL, ""})


async def test_a_message_is_received_and_finished(
    gateway: RunningGateway, client: SocketClient, topic: str
) -> None:
    """Its body is what was published, and the broker has nothing left after the FIN."""
    await gateway.publish(topic, OTHER_ALPHABETS.encode())
    delivery = await client.message()
    answer = await client.ask({"cmd": "FIN", "id": delivery["id"], "ref": "f"})

    assert (OTHER_ALPHABETS, 1) == (delivery["body"], delivery["attempts"])
    assert ok("FIN", "f") == answer
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_one_fin_finishes_many(
    gateway: RunningGateway, client: SocketClient, topic: str
) -> None:
    """FIN with ids and without a ref gets no response, and no message is left."""
    await gateway.post("/mpub", b"1\n2\n3", topic=topic)
    ids = [(await client.message())["id"] for _ in range(3)]
    await client.send({"cmd": "FIN", "ids": ids}, {"cmd": "NOP", "ref": 1})

    assert ok("NOP", 1) == await client.receive()
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_a_message_that_is_requeued_comes_again(
    gateway: RunningGateway, client: SocketClient, topic: str
) -> None:
    """As another delivery, with another id and one more attempt."""
    await gateway.publish(topic, b"again")
    first = await client.message()
    answer = await client.ask({"cmd": "REQ", "id": first["id"], "ref": 2})
    second = await client.message()
    await client.ask({"cmd": "FIN", "id": second["id"], "ref": 3})

    assert ok("REQ", 2) == answer
    assert ("again", 2) == (second["body"], second["attempts"])
    assert first["id"] != second["id"]


async def test_a_message_can_be_touched(
    gateway: RunningGateway, client: SocketClient, topic: str
) -> None:
    await gateway.publish(topic, b"held")
    delivery = await client.message()
    answer = await client.ask({"cmd": "TOUCH", "id": delivery["id"], "ref": 4})

    assert ok("TOUCH", 4) == answer
    assert (0, 1, 0) == await gateway.counts_become(topic, "c", (0, 1, 0))


async def test_a_second_fin_is_refused_with_its_ref(
    gateway: RunningGateway, client: SocketClient, topic: str
) -> None:
    """The refusal names what it refused; the socket stays."""
    await gateway.publish(topic, b"once")
    delivery = await client.message()
    await client.send(
        {"cmd": "FIN", "id": delivery["id"]}, {"cmd": "FIN", "id": delivery["id"], "ref": 5}
    )
    refused = await client.receive()

    assert ("error", "FIN", 5, "E_FIN_FAILED") == (
        refused["type"],
        refused["cmd"],
        refused["ref"],
        refused["code"],
    )
    assert delivery["id"] == refused["id"]
    assert ok("NOP", 6) == await client.ask({"cmd": "NOP", "ref": 6})


@pytest.mark.parametrize(
    "command,bodies",
    [
        ({"cmd": "PUB", "body": OTHER_ALPHABETS}, [OTHER_ALPHABETS]),
        ({"cmd": "PUB", "body_base64": base64.b64encode(b"bytes").decode()}, ["bytes"]),
        ({"cmd": "MPUB", "bodies": ["one", "two"]}, ["one", "two"]),
    ],
    ids=["PUB", "base64", "MPUB"],
)
async def test_a_socket_publishes(
    client: SocketClient, topic: str, command: Json, bodies: list[str]
) -> None:
    """It is answered with the ref, and the socket itself receives what it published."""
    await client.send({**command, "topic": topic, "ref": 7})
    received = [await client.receive() for _ in range(1 + len(bodies))]
    deliveries = [each for each in received if each["type"] == "message"]
    for delivery in deliveries:
        await client.ask({"cmd": "FIN", "id": delivery["id"], "ref": 8})

    assert ok(command["cmd"], 7) in received
    assert bodies == sorted(delivery["body"] for delivery in deliveries)


async def test_a_socket_publishes_for_later(
    gateway: RunningGateway, client: SocketClient, topic: str
) -> None:
    """DPUB is answered, and the broker keeps the message until its time."""
    command = {"cmd": "DPUB", "topic": topic, "body": "late", "defer_ms": 60_000, "ref": 7}

    assert ok("DPUB", 7) == await client.ask(command)
    assert (0, 0, 1) == await gateway.counts_become(topic, "c", (0, 0, 1))


# Frames


@pytest.mark.parametrize("library", OUTSIDE_BROWSERS, indirect=True)
@pytest.mark.parametrize("fragment_bytes", [1, 126])
async def test_a_message_in_fragments_is_one(
    gateway: RunningGateway, library: Library, topic: str, fragment_bytes: int
) -> None:
    """A command that is cut anywhere, in the middle of a character too, is taken as it was."""
    wish = SocketRequest(url=gateway.sub_url(topic, "c"), fragment_bytes=fragment_bytes)
    async with socket_client(library, wish) as client:
        await subscribed(client)
        answer = await client.ask({"cmd": "NOP", "ref": OTHER_ALPHABETS})

    assert ok("NOP", OTHER_ALPHABETS) == answer


@pytest.mark.parametrize("library", OUTSIDE_BROWSERS, indirect=True)
async def test_a_ping_is_answered(client: SocketClient) -> None:
    """The pong holds what the ping held."""
    assert "are you there" == await client.ping("are you there")


@pytest.mark.node
async def test_a_client_that_answers_pings_stays(
    shared_broker: KillableBroker, library: Library, topic: str
) -> None:
    """Every library does so by itself: several intervals later the socket is there."""
    flags = (f"--ping-interval-s={PING_INTERVAL_S}", f"--ping-timeout-s={PING_INTERVAL_S}")
    async with (
        gateway_with_nsqd(
            [shared_broker.tcp_address], [shared_broker.http_address], *flags
        ) as gateway,
        # It sees pings, and waits for three; the others are there for as long.
        socket_client(WS, SocketRequest(url=gateway.sub_url(topic))) as clock,
        socket_client(library, SocketRequest(url=gateway.sub_url(topic, "c"))) as client,
    ):
        await subscribed(clock)
        await subscribed(client)
        for _ in range(3):
            await clock.saw("ping")
        if library.shows_pings:
            await client.saw("ping")

        assert ok("NOP", 2) == await client.ask({"cmd": "NOP", "ref": 2})


# Ends


async def test_a_client_that_closes_sees_its_code(client: SocketClient) -> None:
    assert 1000 == (await client.close())[0]


async def test_cls_ends_in_1000(gateway: RunningGateway, client: SocketClient, topic: str) -> None:
    """CLOSE_WAIT, what is held can still be finished, then 1000."""
    await gateway.publish(topic, b"held")
    delivery = await client.message()
    told = await client.ask({"cmd": "CLS", "ref": 9})
    finished = await client.ask({"cmd": "FIN", "id": delivery["id"], "ref": 10})
    code, _ = await client.closed()

    assert {"state": "CLOSE_WAIT", "reason": "client", "reconnect_after_ms": None} == told["data"]
    assert (9, ok("FIN", 10), 1000) == (told["ref"], finished, code)
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_a_binary_message_ends_in_1003(client: SocketClient) -> None:
    await client.send_binary('{"cmd":"NOP"}')

    assert 1003 == (await client.closed())[0]


async def test_nonsense_ends_in_4508(client: SocketClient) -> None:
    """And the library shows the code, which is one of ours."""
    await client.send_text("nonsense\n" * 200)
    code, reason = await client.closed()

    assert 4508 == code
    assert reason


async def test_a_frame_over_the_bound_ends_in_1009(
    shared_broker: KillableBroker, library: Library, topic: str
) -> None:
    flag = f"--max-frame-bytes={FRAME_LIMIT_BYTES}"
    async with gateway_with_nsqd(
        [shared_broker.tcp_address], [shared_broker.http_address], flag
    ) as gateway:
        for fragment_bytes in (0, 1_000):
            wish = SocketRequest(url=gateway.sub_url(topic, "c"), fragment_bytes=fragment_bytes)
            async with socket_client(library, wish) as client:
                await subscribed(client)
                await client.send_text("x" * (FRAME_LIMIT_BYTES + 1))

                assert 1009 == (await client.closed())[0]


async def test_messages_of_a_vanished_client_are_requeued(
    gateway: RunningGateway, client: SocketClient, library: Library, topic: str
) -> None:
    """Its messages go to the next consumer of the channel at once."""
    await gateway.publish(topic, b"held")
    held = await client.message()
    async with socket_client(library, SocketRequest(url=gateway.sub_url(topic, "c"))) as heir:
        await subscribed(heir)
        await client.abort()
        inherited = await heir.message()
        await heir.ask({"cmd": "FIN", "id": inherited["id"], "ref": 11})

    assert (held["body"], 2) == (inherited["body"], inherited["attempts"])


async def test_an_upgrade_that_is_refused_is_seen(
    gateway: RunningGateway, library: Library, topic: str
) -> None:
    """With status and problem body where the library shows them, else as a socket that fails."""
    wish = SocketRequest(url=gateway.sub_url(topic, "c", max_in_flight=0))
    async with socket_client(library, wish) as client:
        answer = await client.opened()

    assert "refused" == answer["event"]
    if library.has_headers:
        assert 400 == answer["status"]
        assert "INVALID_ARG_MAX_IN_FLIGHT" == json.loads(answer["data"])["message"]


# AUTH


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded() -> AsyncIterator[RunningGateway]:
    """Return a gateway in front of an nsqd that knows one secret."""
    async with (
        auth_server() as server,
        real_nsqd(f"--auth-http-address={server.address}") as nsqd,
        gateway_with_nsqd([nsqd.tcp_address], [nsqd.http_address]) as gateway,
    ):
        server.grant(SECRET, Grant(), identity="alice")
        yield gateway


def entry(secret: str) -> str:
    return "nsq.auth." + base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")


@pytest.mark.nsqd
@pytest.mark.parametrize("library", OUTSIDE_BROWSERS, indirect=True)
async def test_a_secret_may_come_in_a_header(
    guarded: RunningGateway, library: Library, topic: str
) -> None:
    headers = {"Authorization": f"Bearer {SECRET}"}
    wish = SocketRequest(url=guarded.sub_url(topic, "c"), headers=headers)
    async with socket_client(library, wish) as client:
        await subscribed(client)


@pytest.mark.nsqd
async def test_a_secret_may_come_in_a_subprotocol(
    guarded: RunningGateway, library: Library, topic: str
) -> None:
    """It is not echoed: libraries fail if the server selects an entry they did not offer."""
    wish = SocketRequest(url=guarded.sub_url(topic, "c"), subprotocols=(SUBPROTOCOL, entry(SECRET)))
    async with socket_client(library, wish) as client:
        assert SUBPROTOCOL == await subscribed(client)


@pytest.mark.nsqd
async def test_a_secret_may_come_in_the_first_frame(
    guarded: RunningGateway, library: Library, topic: str
) -> None:
    async with socket_client(library, SocketRequest(url=guarded.sub_url(topic, "c"))) as client:
        await client.opened()
        told = await client.ask({"cmd": "AUTH", "secret": SECRET, "ref": 12})
        then = await client.receive()

    assert ("AUTH", 12, "alice") == (told["cmd"], told["ref"], told["data"]["identity"])
    assert ("response", "SUB") == (then["type"], then["cmd"])


@pytest.mark.nsqd
async def test_a_wrong_secret_ends_in_4503(
    guarded: RunningGateway, library: Library, topic: str
) -> None:
    """Behind an error that says so."""
    async with socket_client(library, SocketRequest(url=guarded.sub_url(topic, "c"))) as client:
        await client.opened()
        refused = await client.ask({"cmd": "AUTH", "secret": "wrong", "ref": 13})
        code, _ = await client.closed()

    assert ("error", "AUTH", 13, "E_AUTH_FAILED") == (
        refused["type"],
        refused["cmd"],
        refused["ref"],
        refused["code"],
    )
    assert 4503 == code
