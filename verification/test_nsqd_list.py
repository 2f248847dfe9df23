"""What nsqd's own lists of tests cover holds over the wire, at nsqd and at the embedded broker."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.broker.broker import BrokerOptions
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.layered_peer import layered_peer
from tests.support.brokers.nsqd import real_nsqd
from tests.support.brokers.v2_peer import (
    ERROR,
    HEARTBEAT,
    MESSAGE,
    OK,
    Frame,
    V2Peer,
    body_and_attempts,
    identify,
    length_prefixed,
    multi_publish,
    publish,
    v2_peer,
)
from tests.support.certificates import Certificates, Identity, certificates
from tests.support.http.raw_http import exchange

pytestmark = [pytest.mark.nsqd, pytest.mark.asyncio(loop_scope="module")]

KINDS = ["nsqd, memory", "nsqd, disk", "embedded, memory", "embedded, disk"]

_WAIT_S = 60.0
_NUMBERS = itertools.count(1)

Counters = dict[str, Any]
"""A part of /stats."""


@dataclass(frozen=True)
class Node:
    """A broker, and what the tests ask of it."""

    tcp_address: str
    http_address: str

    async def post(self, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return status and body of the answer to a POST."""
        answer = await exchange(self.http_address, "POST", target, body)
        return answer.status, answer.body

    async def stats(self, topic: str) -> Counters | None:
        """Return the counters of *topic*, its channels by name, or None without that topic."""
        target = f"/stats?format=json&include_mem=false&topic={topic}"
        found = json.loads((await exchange(self.http_address, "GET", target)).body)["topics"]
        if not found:
            return None
        channels = {each["channel_name"]: each for each in found[0]["channels"]}
        return {**found[0], "channels": channels}

    async def is_ready_for(self, topic: str, channel: str, count: int) -> None:
        """Return once the only consumer of *channel* has this RDY count."""
        async with asyncio.timeout(_WAIT_S):
            while True:
                shown = await self.stats(topic)
                assert shown is not None
                if shown["channels"][channel]["clients"][0]["ready_count"] == count:
                    return

    async def reaches(self, topic: str, channel: str = "", **counters: object) -> None:
        """Return once *topic*, or its *channel*, has these *counters*."""
        async with asyncio.timeout(_WAIT_S):
            while True:
                shown = await self.stats(topic)
                assert shown is not None
                part = shown["channels"].get(channel, {}) if channel else shown
                if counters == {name: part.get(name) for name in counters}:
                    return


@asynccontextmanager
async def running(kind: str, folder: Path, options: Mapping[str, Any]) -> AsyncIterator[Node]:
    """Run a broker of *kind*; *options* are those of `BrokerOptions`, and nsqd's by these names."""
    program, _, storage = kind.partition(", ")
    if program == "nsqd":
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        if storage == "disk":
            flags.append("--mem-queue-size=0")  # it keeps every message in a file
        async with real_nsqd(*flags) as nsqd:
            yield Node(nsqd.tcp_address, nsqd.http_address)
    else:
        data_path = folder if storage == "disk" else None
        wanted = BrokerOptions(data_path=data_path, **options)
        async with embedded_broker(wanted, has_http=True) as broker:
            yield Node(broker.tcp_address, broker.http_address)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Node]:
    """One broker of each kind with the default options."""
    async with running(request.param, tmp_path_factory.mktemp("data"), {}) as started:
        yield started


@pytest.fixture
def topic() -> str:
    """Return a topic that no other test has."""
    return f"t{next(_NUMBERS)}"


@pytest.fixture(scope="module")
def certs() -> Iterator[Certificates]:
    """Return certificates for all tests of this module."""
    with certificates() as made:
        yield made


async def subscribed(
    peer: V2Peer, topic: str, channel: str = "c", then: str = "", **offer: int
) -> None:
    """Let *peer* identify itself with *offer*, subscribe, and send the line *then*."""
    if offer:
        assert OK == await peer.ask(identify(json.dumps(offer).encode()))
    assert OK == await peer.ask(f"SUB {topic} {channel}\n".encode())
    if then:
        await peer.send(f"{then}\n".encode())


def cut(frame: Frame) -> Frame:
    """Return *frame* with the first word of its data."""
    return frame[0], frame[1].partition(b" ")[0]


BODIES: dict[str, tuple[str, bytes, int]] = {
    "one body": ("/pub?topic={}", b"a\nb\n", 1),
    "a line each": ("/mpub?topic={}", b"a\nb\nc", 3),
    "a last line that ends": ("/mpub?topic={}", b"a\nb\n", 2),
    "empty lines": ("/mpub?topic={}", b"\na\n\n\nb\n\n", 2),
    "only empty lines": ("/mpub?topic={}", b"\n\n", 0),
    "binary": (
        "/mpub?topic={}&binary=true",
        struct.pack(">I", 2) + length_prefixed(b"a\n") + length_prefixed(b"b"),
        2,
    ),
    "binary by any other word": (
        "/mpub?topic={}&binary=certainly",
        struct.pack(">I", 2) + length_prefixed(b"a\n") + length_prefixed(b"b"),
        2,
    ),
    "lines by the word false": ("/mpub?topic={}&binary=false", b"a\nb", 2),
}


@pytest.mark.parametrize("case", BODIES.values(), ids=BODIES)
async def test_a_post_is_as_many_messages(
    node: Node, topic: str, case: tuple[str, bytes, int]
) -> None:
    target, body, count = case
    await node.post(f"/topic/create?topic={topic}")

    assert (200, b"OK") == await node.post(target.format(topic), body)
    await node.reaches(topic, depth=count, message_count=count)


async def test_a_deferred_post_is_counted_as_deferred(node: Node, topic: str) -> None:
    await node.post(f"/topic/create?topic={topic}")
    await node.post(f"/channel/create?topic={topic}&channel=c")

    await node.post(f"/pub?topic={topic}&defer=60000", b"later")

    await node.reaches(topic, "c", deferred_count=1, depth=0, message_count=1)


async def test_a_deferred_message_does_not_come_early(node: Node, topic: str) -> None:
    async with v2_peer(node.tcp_address) as peer:
        await subscribed(peer, topic, then="RDY 1")
        start_s = asyncio.get_running_loop().time()
        assert OK == await peer.ask(f"DPUB {topic} 300\n".encode() + length_prefixed(b"later"))
        await node.reaches(topic, message_count=1)

        assert (b"later", 1) == body_and_attempts(await peer.frame())
        assert asyncio.get_running_loop().time() - start_s >= 0.3


async def test_creating_what_is_there_changes_nothing(node: Node, topic: str) -> None:
    create_topic = f"/topic/create?topic={topic}"
    create_channel = f"/channel/create?topic={topic}&channel=c"
    for target in (create_topic, create_channel):
        assert (200, b"") == await node.post(target)
    await node.post(f"/pub?topic={topic}", b"x")
    await node.reaches(topic, "c", depth=1)

    for target in (create_topic, create_channel):
        assert (200, b"") == await node.post(target)
    await node.reaches(topic, "c", depth=1, message_count=1)


async def test_a_deleted_topic_is_gone_and_comes_back_empty(node: Node, topic: str) -> None:
    await node.post(f"/topic/create?topic={topic}")
    await node.post(f"/channel/create?topic={topic}&channel=c")
    await node.post(f"/pub?topic={topic}", b"x")

    assert (200, b"") == await node.post(f"/topic/delete?topic={topic}")
    assert await node.stats(topic) is None
    status, body = await node.post(f"/topic/delete?topic={topic}")
    assert (404, "TOPIC_NOT_FOUND") == (status, json.loads(body)["message"])

    await node.post(f"/topic/create?topic={topic}")
    shown = await node.stats(topic)
    assert shown is not None
    assert (0, 0, {}) == (shown["depth"], shown["message_count"], shown["channels"])


async def test_a_deleted_topic_closes_the_consumers_of_all_channels(node: Node, topic: str) -> None:
    async with v2_peer(node.tcp_address) as first, v2_peer(node.tcp_address) as second:
        await subscribed(first, topic, "a")
        await subscribed(second, topic, "b")

        await node.post(f"/topic/delete?topic={topic}")

        assert ([], []) == (await first.frames_to_end(), await second.frames_to_end())


async def test_a_deleted_channel_comes_back_empty(node: Node, topic: str) -> None:
    await node.post(f"/topic/create?topic={topic}")
    for channel in "ab":
        await node.post(f"/channel/create?topic={topic}&channel={channel}")
    await node.post(f"/pub?topic={topic}", b"x")
    for channel in "ab":
        await node.reaches(topic, channel, depth=1)

    assert (200, b"") == await node.post(f"/channel/delete?topic={topic}&channel=a")
    status, body = await node.post(f"/channel/delete?topic={topic}&channel=a")
    assert (404, "CHANNEL_NOT_FOUND") == (status, json.loads(body)["message"])

    await node.post(f"/channel/create?topic={topic}&channel=a")
    await node.reaches(topic, "a", depth=0, message_count=0)
    await node.reaches(topic, "b", depth=1, message_count=1)


async def test_without_its_last_channel_a_topic_keeps_what_is_published(
    node: Node, topic: str
) -> None:
    await node.post(f"/topic/create?topic={topic}")
    await node.post(f"/channel/create?topic={topic}&channel=c")
    await node.post(f"/channel/delete?topic={topic}&channel=c")

    await node.post(f"/pub?topic={topic}", b"kept")
    await node.reaches(topic, depth=1)

    async with v2_peer(node.tcp_address) as peer:
        await subscribed(peer, topic, "next", "RDY 1")
        assert (b"kept", 1) == body_and_attempts(await peer.frame())


async def test_a_paused_topic_gives_its_channels_nothing(node: Node, topic: str) -> None:
    await node.post(f"/topic/create?topic={topic}")
    await node.post(f"/channel/create?topic={topic}&channel=c")
    assert (200, b"") == await node.post(f"/topic/pause?topic={topic}")

    await node.post(f"/pub?topic={topic}", b"x")
    await node.reaches(topic, depth=1, paused=True)
    await node.reaches(topic, "c", depth=0, paused=False)

    assert (200, b"") == await node.post(f"/topic/unpause?topic={topic}")
    await node.reaches(topic, depth=0, paused=False)
    await node.reaches(topic, "c", depth=1)


async def test_a_paused_channel_holds_back_from_its_consumer(node: Node, topic: str) -> None:
    async with v2_peer(node.tcp_address) as paused, v2_peer(node.tcp_address) as other:
        await subscribed(paused, topic, "paused", "RDY 1")
        await subscribed(other, topic, "other", "RDY 1")
        assert (200, b"") == await node.post(f"/channel/pause?topic={topic}&channel=paused")

        await node.post(f"/pub?topic={topic}", b"x")
        await other.frame()
        await node.reaches(topic, "paused", depth=1, in_flight_count=0, paused=True)
        # Its next frame is an answer, so no message came before.
        assert OK == await paused.ask(publish(f"{topic}_2".encode(), b"y"))

        assert (200, b"") == await node.post(f"/channel/unpause?topic={topic}&channel=paused")
        assert (b"x", 1) == body_and_attempts(await paused.frame())


async def test_each_channel_gets_a_copy_with_the_same_id(node: Node, topic: str) -> None:
    async with v2_peer(node.tcp_address) as first, v2_peer(node.tcp_address) as second:
        await subscribed(first, topic, "a", "RDY 1")
        await subscribed(second, topic, "b", "RDY 1")
        await node.post(f"/pub?topic={topic}", b"x")

        assert await first.frame() == await second.frame()
        # What one channel has finished is still in flight in the other.
        await first.send(b"FIN <id-0>\n")
        await node.reaches(topic, "a", in_flight_count=0, depth=0)
        await node.reaches(topic, "b", in_flight_count=1, depth=0)


async def test_a_silent_client_gets_heartbeats_and_is_closed(node: Node) -> None:
    async with v2_peer(node.tcp_address) as peer:
        assert OK == await peer.ask(identify(b'{"heartbeat_interval":1000}'))

        frames = await peer.frames_to_end()

        assert {HEARTBEAT} == set(frames)


async def test_a_client_that_answers_its_heartbeats_outlives_a_silent_one(node: Node) -> None:
    async with v2_peer(node.tcp_address) as silent, v2_peer(node.tcp_address) as alive:
        for peer in (alive, silent):
            assert OK == await peer.ask(identify(b'{"heartbeat_interval":1000}'))
        ending = asyncio.create_task(silent.frames_to_end())
        for _ in range(3):
            assert HEARTBEAT == await alive.frame()
            await alive.send(b"NOP\n")
        await ending
        await alive.send(b"PUB alive\n" + length_prefixed(b"x"))
        while (frame := await alive.frame()) == HEARTBEAT:
            pass
        assert OK == frame


async def test_the_largest_message_and_rdy_are_taken(node: Node, topic: str) -> None:
    name = topic.encode()
    largest = b"x" * 1_048_576
    async with v2_peer(node.tcp_address) as peer:
        assert OK == await peer.ask(publish(name, largest))
        assert OK == await peer.ask(multi_publish(name, largest))
        assert OK == await peer.ask(f"DPUB {topic} 3600000\n".encode() + length_prefixed(largest))
        await subscribed(peer, topic, then="RDY 2500")
        assert {(largest, 1)} == {body_and_attempts(each) for each in await peer.frames(2)}


async def test_a_touched_message_outlives_an_untouched_one(node: Node, topic: str) -> None:
    name = topic.encode()
    async with v2_peer(node.tcp_address) as peer:
        await subscribed(peer, topic, msg_timeout=3_000)
        # nsqd first looks for what is due up to 5 s after a channel is made; then often.
        assert OK == await peer.ask(b"DPUB %b 1\n" % name + length_prefixed(b"first"))
        await peer.send(b"RDY 1\n")
        await peer.frame()
        await peer.send(b"RDY 0\nFIN <id-0>\n")
        assert OK == await peer.ask(multi_publish(name, b"a", b"b"))
        # The deferred message tells when to touch: late, and before the other two time out.
        assert OK == await peer.ask(b"DPUB %b 1000\n" % name + length_prefixed(b"now"))
        await peer.send(b"RDY 3\n")
        ids = {data[26:]: data[10:26] for _, data in await peer.frames(2)}
        assert (b"now", 1) == body_and_attempts(await peer.frame())
        await peer.send(b"TOUCH %b\n" % ids[b"a"])

        assert (b"b", 2) == body_and_attempts(await peer.frame())
        # A FIN of a message that has timed out would be answered with an error.
        await peer.send(b"FIN %b\n" % ids[b"a"])
        assert OK == await peer.ask(publish(f"{topic}_2".encode(), b"x"))


async def test_a_message_times_out_as_its_client_has_asked(node: Node, topic: str) -> None:
    async with v2_peer(node.tcp_address) as hasty, v2_peer(node.tcp_address) as patient:
        await subscribed(hasty, topic, then="RDY 1", msg_timeout=1_000)
        await node.post(f"/pub?topic={topic}", b"x")
        assert (b"x", 1) == body_and_attempts(await hasty.frame())
        await hasty.send(b"RDY 0\n")
        await subscribed(patient, topic, then="RDY 1")

        assert (b"x", 2) == body_and_attempts(await patient.frame())
        message_id = hasty.message_ids[0]
        assert (ERROR, b"E_FIN_FAILED") == cut(await hasty.ask(b"FIN %b\n" % message_id))
        await node.reaches(topic, "c", timeout_count=1, in_flight_count=1)
        await patient.send(b"FIN %b\n" % message_id)
        await node.reaches(topic, "c", in_flight_count=0, depth=0)


async def test_all_messages_in_flight_time_out(node: Node, topic: str) -> None:
    async with v2_peer(node.tcp_address) as peer:
        await subscribed(peer, topic, then="RDY 1000", msg_timeout=1_000)
        await node.post(f"/mpub?topic={topic}", b"x\n" * 1_000)
        await peer.frames(1)
        # The rest may come before RDY 0 does, or stay in the channel.
        await node.reaches(topic, "c", message_count=1_000)
        await peer.send(b"RDY 0\n")

        await node.reaches(topic, "c", in_flight_count=0, depth=1_000)
        shown = await node.stats(topic)
        assert shown is not None
        counted = shown["channels"]["c"]
        assert counted["timeout_count"] > 0
        assert 0 == counted["clients"][0]["in_flight_count"]


async def test_an_emptied_channel_has_nothing_and_its_consumer_goes_on(
    node: Node, topic: str
) -> None:
    async with v2_peer(node.tcp_address) as peer:
        await subscribed(peer, topic)
        await node.post(f"/mpub?topic={topic}", b"a\nb\nc\nd")
        await peer.send(b"RDY 2\n")
        await peer.frames(2)
        # RDY 1 first: with REQ right behind it, nsqd may deliver one more for RDY 2.
        await peer.send(b"RDY 1\n")
        await node.is_ready_for(topic, "c", 1)
        await peer.send(b"REQ <id-0> 60000\n")
        await node.reaches(topic, "c", depth=2, in_flight_count=1, deferred_count=1)
        # nsqd frees the window before it empties the disk, so that one more could be delivered.
        await peer.send(b"RDY 0\n")
        await node.is_ready_for(topic, "c", 0)

        assert (200, b"") == await node.post(f"/channel/empty?topic={topic}&channel=c")

        await node.reaches(topic, "c", depth=0, in_flight_count=0, deferred_count=0)
        shown = await node.stats(topic)
        assert shown is not None
        assert 0 == shown["channels"]["c"]["clients"][0]["in_flight_count"]
        assert (ERROR, b"E_FIN_FAILED") == cut(await peer.ask(b"FIN <id-1>\n"))
        await peer.send(b"RDY 1\n")
        await node.post(f"/pub?topic={topic}", b"next")
        assert (b"next", 1) == body_and_attempts(await peer.frame())


async def test_an_emptied_topic_keeps_its_channels_messages(node: Node, topic: str) -> None:
    await node.post(f"/topic/create?topic={topic}")
    await node.post(f"/channel/create?topic={topic}&channel=c")
    await node.post(f"/pub?topic={topic}", b"x")
    await node.reaches(topic, "c", depth=1)
    await node.post(f"/topic/pause?topic={topic}")
    await node.post(f"/pub?topic={topic}", b"y")
    await node.reaches(topic, depth=1)

    assert (200, b"") == await node.post(f"/topic/empty?topic={topic}")

    await node.reaches(topic, depth=0)
    await node.reaches(topic, "c", depth=1)


async def test_a_share_of_the_messages_comes_and_the_rest_is_gone(node: Node, topic: str) -> None:
    async with v2_peer(node.tcp_address) as peer:
        await subscribed(peer, topic, then="RDY 2500", sample_rate=50)
        await node.post(f"/mpub?topic={topic}", b"x\n" * 2_000)
        await node.reaches(topic, "c", message_count=2_000, depth=0)
        shown = await node.stats(topic)
        assert shown is not None
        count = shown["channels"]["c"]["in_flight_count"]

        # Nine standard deviations on each side.
        assert 800 < count < 1_200
        assert {MESSAGE} == {kind for kind, _ in await peer.frames(count)}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_channel_has_no_more_consumers_than_allowed(kind: str, tmp_path: Path) -> None:
    async with (
        running(kind, tmp_path, {"max_channel_consumers": 1}) as node,
        v2_peer(node.tcp_address) as first,
        v2_peer(node.tcp_address) as second,
        v2_peer(node.tcp_address) as third,
    ):
        await subscribed(first, "t")
        refusal = b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1"
        assert (ERROR, refusal) == await second.ask(b"SUB t c\n")
        assert [] == await second.frames_to_end()
        await subscribed(third, "t", "another")


def context_of(certs: Certificates, identity: Identity | None) -> ssl.SSLContext:
    """Return the context of a client with the certificate *identity*, if any."""
    context = ssl.create_default_context(cafile=certs.root_ca_file)
    if identity is not None:
        context.load_cert_chain(identity.cert_file, identity.key_file)
    return context


async def is_admitted(node: Node, context: ssl.SSLContext) -> bool:
    """Return whether TLS by *context* is followed by OK, and not by the end."""
    async with layered_peer(node.tcp_address) as peer:
        await peer.ask(identify(b'{"feature_negotiation":true,"tls_v1":true}'))
        try:
            await peer.upgrade("tls", context)
            return await peer.frame() == OK
        except (EOFError, ConnectionError, ssl.SSLError):
            return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["require", "require-verify"])
async def test_a_policy_for_certificates_holds_for_tcp_and_spares_http(
    kind: str, policy: str, tmp_path: Path, certs: Certificates
) -> None:
    options = {
        "tls_cert": certs.server.cert_file,
        "tls_key": certs.server.key_file,
        "tls_root_ca_file": certs.root_ca_file,
        "tls_client_auth_policy": policy,
        "tls_required": "tcp-https",
    }
    async with running(kind, tmp_path, options) as node:
        identities = (None, certs.stranger, certs.client)
        admitted = [await is_admitted(node, context_of(certs, each)) for each in identities]
        # The embedded broker verifies under each policy: docs/broker.md, "In place of nsqd".
        takes_any = policy == "require" and kind.startswith("nsqd")
        assert [False, takes_any, True] == admitted
        async with v2_peer(node.tcp_address) as clear:
            assert (ERROR, b"E_INVALID") == cut(await clear.ask(publish(b"t", b"x")))
        assert (200, b"OK") == await node.post("/pub?topic=t", b"x")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_policy_for_certificates_alone_requires_tls_everywhere(
    kind: str, tmp_path: Path, certs: Certificates
) -> None:
    options = {
        "tls_cert": certs.server.cert_file,
        "tls_key": certs.server.key_file,
        "tls_root_ca_file": certs.root_ca_file,
        "tls_client_auth_policy": "require-verify",
    }
    async with running(kind, tmp_path, options) as node, v2_peer(node.tcp_address) as clear:
        assert (ERROR, b"E_INVALID") == cut(await clear.ask(publish(b"t", b"x")))
        status, body = await node.post("/pub?topic=t", b"x")
        assert (403, "TLS_REQUIRED") == (status, json.loads(body)["message"])
