"""Errors before the upgrade, or before a publish, are HTTP responses."""

from __future__ import annotations

import pytest

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd
from tests.support.websocket.raw_socket import raw_socket
from tests.support.websocket.subscriber_client import Json, open_socket, refused_upgrade

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROBLEM = {"type", "title", "status", "detail", "message", "retryable", "request_id"}
MSG_LIMIT_BYTES = 1_048_576
AT_ONCE_S = 2.0


@pytest.mark.parametrize(
    "query,token",
    [
        ("", "MISSING_ARG_TOPIC"),
        ("channel=c", "MISSING_ARG_TOPIC"),
        ("topic=", "INVALID_TOPIC"),
        ("topic=t%0A", "INVALID_TOPIC"),
        ("topic=t%00", "INVALID_TOPIC"),
        ("topic=a%20b", "INVALID_TOPIC"),
        ("topic=%ff", "INVALID_TOPIC"),
        ("topic=" + "t" * 65, "INVALID_TOPIC"),
        ("topic=t%zz", "INVALID_REQUEST"),
        ("topic=t&channel=", "INVALID_ARG_CHANNEL"),
        ("topic=t&channel=a%20b", "INVALID_ARG_CHANNEL"),
        ("topic=t&channel=c%0A", "INVALID_ARG_CHANNEL"),
        ("topic=t&channel=" + "c" * 65, "INVALID_ARG_CHANNEL"),
        ("topic=t&channel=c&max_in_flight=0", "INVALID_ARG_MAX_IN_FLIGHT"),
        ("topic=t&channel=c&max_in_flight=2501", "INVALID_ARG_MAX_IN_FLIGHT"),
        ("topic=t&channel=c&max_in_flight=ten", "INVALID_ARG_MAX_IN_FLIGHT"),
        ("topic=t&channel=c&msg_timeout_ms=999", "INVALID_ARG_MSG_TIMEOUT_MS"),
        ("topic=t&channel=c&msg_timeout_ms=900001", "INVALID_ARG_MSG_TIMEOUT_MS"),
        ("topic=t&channel=c&requeue_on_close_ms=-1", "INVALID_ARG_REQUEUE_ON_CLOSE_MS"),
        ("topic=t&channel=c&ack=maybe", "INVALID_ARG_ACK"),
        ("topic=t&channel=c&sample_rate=5", "INVALID_ARG_SAMPLE_RATE"),
        ("topic=t&sample_rate=100", "INVALID_ARG_SAMPLE_RATE"),
        ("topic=t&chanel=c", "INVALID_ARG"),
    ],
)
async def test_a_wrong_subscription_is_400(gateway: RunningGateway, query: str, token: str) -> None:
    """The upgrade is answered with a problem body that names what is wrong."""
    status, body = await refused_upgrade(f"{gateway.websocket_url}/sub?{query}")

    assert (400, 400, token, False) == (
        status,
        body["status"],
        body["message"],
        body["retryable"],
    )
    assert set(body) == PROBLEM


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", ""])
async def test_a_page_from_elsewhere_may_not_subscribe(
    gateway: RunningGateway, topic: str, origin: str
) -> None:
    """An Origin that is neither our own nor allowed is 403."""
    status, body = await refused_upgrade(gateway.sub_url(topic, "c"), headers={"Origin": origin})

    assert (403, "FORBIDDEN") == (status, body["message"])


async def test_our_own_page_may_subscribe(gateway: RunningGateway, topic: str) -> None:
    """An Origin with the host and port of the gateway is let in."""
    url = gateway.sub_url(topic, "c")
    async with open_socket(url, headers={"Origin": gateway.url}) as client:
        assert "SUB" == (await client.receive())["cmd"]


async def test_a_page_from_elsewhere_may_not_publish(gateway: RunningGateway, topic: str) -> None:
    """POST /pub with a foreign Origin is 403 and publishes nothing."""
    answer = await gateway.http.post(
        f"/pub?topic={topic}", content=b"x", headers={"Origin": "https://evil.example"}
    )

    assert (403, "FORBIDDEN") == (answer.status_code, answer.json()["message"])
    assert [] == await gateway.channels_become(topic, [])


async def test_a_subprotocol_that_is_not_spoken_is_400(gateway: RunningGateway, topic: str) -> None:
    """nsq.v2 alone is for a later version."""
    status, body = await refused_upgrade(gateway.sub_url(topic, "c"), subprotocols=["nsq.v2"])

    assert (400, "INVALID_SUBPROTOCOL") == (status, body["message"])


async def test_the_subprotocol_is_answered(gateway: RunningGateway, topic: str) -> None:
    """Of several that are offered, nsq.json.v1 is taken."""
    url = gateway.sub_url(topic, "c")
    async with open_socket(url, subprotocols=["nsq.v9", "nsq.json.v1"]) as client:
        assert "nsq.json.v1" == client.connection.subprotocol


async def test_a_socket_elsewhere_is_404(gateway: RunningGateway) -> None:
    status, body = await refused_upgrade(f"{gateway.websocket_url}/elsewhere")

    assert (404, "NOT_FOUND") == (status, body["message"])


async def test_a_socket_too_many_is_503(shared_broker: KillableBroker, topic: str) -> None:
    """Above max_sockets it is FULL, to be tried later; when one has left there is room."""
    addresses = [shared_broker.tcp_address], [shared_broker.http_address]
    async with gateway_with_nsqd(*addresses, "--max-sockets=1") as gateway:
        async with gateway.subscribe(topic, "c"):
            status, problem = await refused_upgrade(gateway.sub_url(topic, "c"))
        await gateway.program.said("subscriber disconnected")
        async with gateway.subscribe(topic, "c"):
            pass

    assert (503, "FULL", True) == (status, problem["message"], problem["retryable"])


async def test_sub_without_an_upgrade_is_426(gateway: RunningGateway, topic: str) -> None:
    answer = await gateway.http.get(f"/sub?topic={topic}")

    assert (426, "websocket") == (answer.status_code, answer.headers["upgrade"])


@pytest.mark.parametrize(
    "query,body,status,token",
    [
        ("topic={topic}", b"", 400, "MSG_EMPTY"),
        ("topic={topic}", b"x" * (MSG_LIMIT_BYTES + 1), 413, "MSG_TOO_BIG"),
        ("", b"x", 400, "MISSING_ARG_TOPIC"),
        ("topic={topic}%0A", b"x", 400, "INVALID_TOPIC"),
        ("topic={topic}%0APUB%20evil", b"x", 400, "INVALID_TOPIC"),
        ("topic=%00%00", b"x", 400, "INVALID_TOPIC"),
        ("topic={topic}&defer=-1", b"x", 400, "INVALID_DEFER"),
        ("topic={topic}&defer=3600001", b"x", 400, "INVALID_DEFER"),
        ("topic={topic}&defer=soon", b"x", 400, "INVALID_DEFER"),
    ],
    ids=[
        "empty",
        "a byte too long",
        "no topic",
        "newline",
        "command behind a newline",
        "zeros",
        "negative defer",
        "defer too long",
        "defer no number",
    ],
)
async def test_a_wrong_publish_is_refused(
    gateway: RunningGateway, topic: str, query: str, body: bytes, status: int, token: str
) -> None:
    """The answer names what is wrong, as a problem body with nsqd's own token."""
    answer = await gateway.http.post(f"/pub?{query.format(topic=topic)}", content=body)
    problem: Json = answer.json()

    assert (status, token) == (answer.status_code, problem["message"])
    assert set(problem) == PROBLEM
    assert "application/problem+json" == answer.headers["content-type"]


async def test_a_refused_publish_publishes_nothing(gateway: RunningGateway, topic: str) -> None:
    async with gateway.subscribe(topic, "c") as client:
        await gateway.http.post(f"/pub?topic={topic}", content=b"x" * (MSG_LIMIT_BYTES + 1))
        await gateway.http.post(f"/pub?topic={topic}&defer=-1", content=b"no")
        await gateway.publish(topic, b"yes")

        assert "yes" == (await client.message())["body"]


async def test_an_incomplete_body_delays_no_other_client(
    gateway: RunningGateway, topic: str
) -> None:
    """While one publisher hangs in the middle of its body, another one is served."""
    async with gateway.subscribe(topic, "c") as client, raw_socket(gateway.address) as raw:
        await raw.send(
            f"POST /pub?topic={topic} HTTP/1.1\r\nHost: {gateway.address}\r\n".encode()
            + b"Content-Length: 10\r\n\r\nhalf"
        )
        await gateway.publish(topic, b"whole")
        whole = await client.message(within_s=AT_ONCE_S)
        await raw.send(b" done.")
        answer = await raw.read_until(b"OK")
        late = await client.message(within_s=AT_ONCE_S)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert ["whole", "half done."] == [whole["body"], late["body"]]


@pytest.mark.parametrize(
    "data",
    [
        bytes(64),
        b"GET\r\n\r\n",
        b"  V2NOP\n\r\n\r\n",
        b"POST /pub HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ],
    ids=["zeros", "half a line", "V2", "length no number"],
)
async def test_invalid_http_is_400(gateway: RunningGateway, topic: str, data: bytes) -> None:
    """Bytes that are no request are answered with 400 and a close; another client is served."""
    async with raw_socket(gateway.address) as raw:
        await raw.send(data)
        answer = await raw.read_to_end()
    await gateway.publish(topic, b"unharmed")

    assert answer.startswith(b"HTTP/1.1 400 ")
