"""The embedded broker negotiates, encrypts, compresses and authorizes as a real nsqd does."""

from __future__ import annotations

import itertools
import json
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
import pytest_asyncio

from gateway.broker.broker import Broker, BrokerOptions
from tests.support.brokers.auth_server import AuthServer, Grant, auth_server
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.layered_peer import LayeredPeer, layered_peer
from tests.support.brokers.nsqd import RealNsqd, as_current_nsqd, is_older_nsqd, real_nsqd
from tests.support.brokers.v2_peer import (
    MESSAGE,
    Frame,
    identify,
    length_prefixed,
    multi_publish,
    publish,
)
from tests.support.certificates import Certificates, Identity, certificates
from tests.support.http.raw_http import exchange

pytestmark = [
    pytest.mark.nsqd,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(is_older_nsqd, reason="the embedded broker follows the current version"),
]


@dataclass(frozen=True)
class Upgrade:
    """Start the layer *name*: tls, snappy or deflate."""

    name: str


@dataclass(frozen=True)
class Raw:
    """Bytes to send beside the compression."""

    data: bytes


Step = bytes | int | Upgrade | Raw
"""Bytes to send, how many frames to wait for, or a layer to start."""

_NUMBERS = itertools.count(1)

TLS, SNAPPY, DEFLATE = Upgrade("tls"), Upgrade("snappy"), Upgrade("deflate")


@dataclass(frozen=True)
class Pair:
    """Both brokers with equal options, and how to verify them."""

    nsqd: RealNsqd
    embedded: Broker
    context: ssl.SSLContext
    auth: AuthServer

    @property
    def tcp_addresses(self) -> tuple[str, str]:
        """The TCP address of each."""
        return self.nsqd.tcp_address, self.embedded.tcp_address

    async def transcripts(self, *steps: Step) -> list[list[Frame]]:
        """Return what each of them says to *steps*, with a new topic for ``<topic>``."""
        topic = b"t%d" % next(_NUMBERS)
        named = [
            step.replace(b"<topic>", topic) if isinstance(step, bytes) else step for step in steps
        ]
        return [await transcript(address, named, self.context) for address in self.tcp_addresses]


@pytest.fixture(scope="module")
def certs() -> Iterator[Certificates]:
    """Return certificates for all tests of this module."""
    with certificates() as made:
        yield made


def client_context(certs: Certificates, identity: Identity | None = None) -> ssl.SSLContext:
    """Return the context of a client with the certificate *identity*, if any."""
    context = ssl.create_default_context(cafile=certs.root_ca_file)
    if identity is not None:
        context.load_cert_chain(identity.cert_file, identity.key_file)
    return context


def flags_of(options: BrokerOptions) -> list[str]:
    """Return nsqd's flags for *options*, as far as these tests use them."""
    flags = {
        "tls-cert": options.tls_cert,
        "tls-key": options.tls_key,
        "tls-client-auth-policy": options.tls_client_auth_policy,
        "tls-root-ca-file": options.tls_root_ca_file,
        "tls-required": options.tls_required,
        "snappy": str(options.snappy).lower(),
        "deflate": str(options.deflate).lower(),
        "max-deflate-level": str(options.max_deflate_level),
    }
    named = [f"--{name}={value}" for name, value in flags.items() if value]
    return named + [f"--auth-http-address={each}" for each in options.auth_http_address]


@asynccontextmanager
async def both(options: BrokerOptions, context: ssl.SSLContext) -> AsyncIterator[Pair]:
    """Run nsqd and the embedded broker with equal *options*."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(auth_server())
        if options.auth_http_address:
            object.__setattr__(options, "auth_http_address", (server.address,))
        nsqd = await stack.enter_async_context(real_nsqd(*flags_of(options)))
        ours = await stack.enter_async_context(embedded_broker(options, has_http=True))
        yield Pair(nsqd, ours, context, server)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(certs: Certificates) -> AsyncIterator[Pair]:
    """Both with TLS and compression."""
    options = BrokerOptions(tls_cert=certs.server.cert_file, tls_key=certs.server.key_file)
    async with both(options, client_context(certs)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict(certs: Certificates) -> AsyncIterator[Pair]:
    """Both with TLS required, and without deflate."""
    options = BrokerOptions(
        tls_cert=certs.server.cert_file,
        tls_key=certs.server.key_file,
        tls_required="tcp-https",
        deflate=False,
        max_deflate_level=3,
    )
    async with both(options, client_context(certs)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(certs: Certificates) -> AsyncIterator[Pair]:
    """Both with AUTH, and with client certificates."""
    options = BrokerOptions(
        tls_cert=certs.server.cert_file,
        tls_key=certs.server.key_file,
        tls_root_ca_file=certs.root_ca_file,
        auth_http_address=("the auth server of `both`",),
    )
    async with both(options, client_context(certs)) as running:
        running.auth.grant("all", Grant(), identity="me", identity_url="https://me.example")
        running.auth.grant("two", Grant(topic="a"), Grant(topic="^b$", channels=("^c$", "x")))
        running.auth.grant("none")
        running.auth.grant("no publish", Grant(channels=("foo",)))
        running.auth.grant("no channels", Grant(channels=()))
        running.auth.grant("subscribe", Grant(permissions=("subscribe",)))
        running.auth.grant("publish", Grant(permissions=("publish",)))
        running.auth.grant("odd", Grant(permissions=("publish", "drink")))
        running.auth.grant("look-ahead", Grant(topic="a(?=b)"))
        running.auth.grant("broken channel", Grant(channels=("[",)))
        running.auth.grant("no ttl", Grant(), ttl_s=0)
        yield running


async def transcript(address: str, steps: Sequence[Step], context: ssl.SSLContext) -> list[Frame]:
    """Return what a broker said to *steps*, with times and ids replaced by what is the same."""
    async with layered_peer(address) as peer:
        frames: list[Frame] = []
        with suppress(EOFError, ConnectionError):
            for step in steps:
                frames += await take(peer, step, context)
            await peer.send(b"END\n")
        # It ends the connection, unless a refusal has done so.
        frames += await peer.frames_to_end()
        return [comparable(frame, peer.message_ids) for frame in frames]


async def take(peer: LayeredPeer, step: Step, context: ssl.SSLContext) -> list[Frame]:
    """Take one step; return the frames that it waits for."""
    if isinstance(step, int):
        return await peer.frames(step)
    if isinstance(step, Upgrade):
        await peer.upgrade(step.name, context)
    elif isinstance(step, Raw):
        await peer.layers.send_raw(step.data)
    else:
        await peer.send(step)
    return []


def comparable(frame: Frame, message_ids: list[bytes]) -> Frame:
    """Return *frame* without its time, and with the number of its message for its id."""
    kind, data = frame[0], as_current_nsqd(frame[1])
    if kind == MESSAGE:
        data = b"<time>" + data[8:]
    for number, message_id in enumerate(message_ids):
        data = data.replace(message_id, b"<id-%d>" % number)
    # The reason is the TLS library's.
    text, mark, _ = data.partition(b"IDENTIFY failed ")
    data = (text + mark) if text.startswith(b"E_IDENTIFY_FAILED") else data
    # What differs in a long body shows in its checksum.
    return kind, data if len(data) < 1_000 else data[:100] + b"%d" % zlib.crc32(data)


def offer(**values: object) -> bytes:
    """Return an IDENTIFY with feature negotiation."""
    return identify(json.dumps({"feature_negotiation": True, **values}).encode())


NEGOTIATIONS: dict[str, list[Step]] = {
    "nothing": [offer(), 1],
    "TLS": [offer(tls_v1=True), 1, TLS, 1],
    "snappy": [offer(snappy=True), 1, SNAPPY, 1],
    "deflate": [offer(deflate=True), 1, DEFLATE, 1],
    "TLS and snappy": [offer(tls_v1=True, snappy=True), 1, TLS, 1, SNAPPY, 1],
    "TLS and deflate": [offer(tls_v1=True, deflate=True), 1, TLS, 1, DEFLATE, 1],
}
BEHIND: list[Step] = [
    publish(b"<topic>", b"x" * 100_000),
    1,
    b"SUB <topic> c\nRDY 1\n",
    2,
    b"FIN <id-0>\nFIN <id-0>\n",
    1,
    # RDY 0, so that no message comes before the answer to MPUB.
    b"RDY 0\n" + multi_publish(b"<topic>", *[b"y" * 1_000] * 50),
    1,
    b"RDY 3\n",
    3,
    b"FIN <id-1>\n",
    1,
    b"CLS\n",
    1,
]


@pytest.mark.parametrize("steps", NEGOTIATIONS.values(), ids=NEGOTIATIONS)
async def test_every_layer_carries_the_same_frames(pair: Pair, steps: list[Step]) -> None:
    """After each upgrade, commands get nsqd's frames in nsqd's order."""
    expected, ours = await pair.transcripts(*steps, *BEHIND)

    assert expected == ours
    assert (1, b"E_INVALID invalid command END") == expected[-1]


OFFERS: dict[str, list[Step]] = {
    "no negotiation": [identify(b'{"tls_v1":true,"snappy":true,"deflate":true}'), 1],
    "both codecs": [offer(snappy=True, deflate=True)],
    "both codecs and TLS": [offer(tls_v1=True, snappy=True, deflate=True)],
    **{
        f"deflate level {level}": [offer(deflate=True, deflate_level=level), 1, DEFLATE, 1]
        for level in (-1, 0, 1, 6, 7, 9, 99)
    },
    "a level without deflate": [offer(deflate_level=2), 1],
    "IDENTIFY twice, with values": [
        offer(
            heartbeat_interval=2_000,
            msg_timeout=5_000,
            output_buffer_size=100,
            output_buffer_timeout=30,
            sample_rate=7,
        )
        + offer(),
        2,
    ],
    "IDENTIFY twice, unbuffered": [offer(output_buffer_size=-1) + offer(), 2],
    "IDENTIFY twice, without heartbeats": [offer(heartbeat_interval=-1) + offer(), 2, b"SUB a b\n"],
    "IDENTIFY under snappy": [offer(snappy=True), 1, SNAPPY, 1, offer(), 1, b"NOP\n"],
    "TLS in the second IDENTIFY": [offer(), 1, offer(tls_v1=True), 1, TLS, 1, *BEHIND],
    "an error under deflate": [offer(deflate=True), 1, DEFLATE, 1, b"RDY 1\n"],
    "not snappy": [offer(snappy=True), 1, SNAPPY, 1, Raw(b"\xff\xff\xff\xff" * 8)],
    "not deflate": [offer(deflate=True), 1, DEFLATE, 1, Raw(b"\xff\xff\xff\xff" * 8)],
    "no ClientHello": [offer(tls_v1=True), 1, Raw(b"PUB t\n" * 20)],
}


@pytest.mark.parametrize("steps", OFFERS.values(), ids=OFFERS)
async def test_an_offer_is_answered_the_same(pair: Pair, steps: list[Step]) -> None:
    """Values, levels, refusals and broken layers get the same frames and the same end."""
    expected, ours = await pair.transcripts(*steps)

    assert expected == ours


STRICT: dict[str, list[Step]] = {
    "NOP": [b"NOP\n"],
    "an unknown command": [b"HELLO world\n"],
    "a byte that is not UTF-8": [b"\xff\n"],
    "PUB without a topic": [b"PUB\n"],
    "AUTH": [b"AUTH\n" + length_prefixed(b"x")],
    "PUB behind IDENTIFY": [offer(), 1, publish(b"t", b"x")],
    "SUB behind IDENTIFY": [offer(snappy=True), 1, SNAPPY, 1, b"SUB t c\n"],
    "IDENTIFY twice": [offer() + offer(), 2, b"NOP\n"],
    "under TLS": [offer(tls_v1=True, deflate=True, deflate_level=9), 1, TLS, 1, *BEHIND],
}


@pytest.mark.parametrize("steps", STRICT.values(), ids=STRICT)
async def test_clear_text_is_refused_where_tls_is_required(strict: Pair, steps: list[Step]) -> None:
    """Everything but IDENTIFY is refused with nsqd's words, and HTTP stays open."""
    expected, ours = await strict.transcripts(*steps)

    assert expected == ours
    for address in (strict.nsqd.http_address, strict.embedded.http_address):
        assert 200 == (await exchange(address, "GET", "/ping")).status


def auth(secret: str) -> bytes:
    """Return an AUTH."""
    return b"AUTH\n" + length_prefixed(secret.encode())


AUTHS: dict[str, list[Step]] = {
    "IDENTIFY": [offer(), 1],
    "PUB before AUTH": [publish(b"a", b"x")],
    "DPUB before AUTH": [b"DPUB a 1\n" + length_prefixed(b"x")],
    "MPUB before AUTH": [multi_publish(b"a", b"x")],
    "MPUB before AUTH, only its line": [b"MPUB a\n"],
    "MPUB before AUTH, to a bad topic": [multi_publish(b"a!", b"x")],
    "PUB before AUTH, without a body": [publish(b"a", b"")],
    "SUB before AUTH": [b"SUB a c\n"],
    "SUB before AUTH, without heartbeats": [offer(heartbeat_interval=-1), 1, b"SUB a c\n"],
    "NOP before AUTH": [b"NOP\nRDY 1\n"],
    "everything": [auth("all"), 1, *BEHIND],
    "pipelined": [
        auth("all") + publish(b"<topic>", b"x") + b"SUB <topic> c\nRDY 1\n",
        4,
        b"FIN <id-0>\n",
    ],
    "AUTH twice": [auth("all") + auth("all"), 1],
    "AUTH with a parameter": [b"AUTH x\n" + length_prefixed(b"all")],
    "AUTH without a body": [b"AUTH\n" + length_prefixed(b"")],
    "AUTH behind SUB": [auth("all") + b"SUB a c\n" + auth("all"), 2],
    "an unknown secret": [auth("unknown")],
    "a secret of any bytes": [auth("ü &=?%+\n")],
    "nothing granted": [auth("none")],
    "a permission that is unknown": [auth("odd")],
    "a pattern that RE2 refuses": [auth("look-ahead")],
    "a pattern that is broken": [auth("broken channel")],
    "a ttl of zero": [auth("no ttl")],
    "a topic matched anywhere": [auth("two") + publish(b"xay", b"x"), 2],
    "a topic not matched": [auth("two") + publish(b"bb", b"x"), 1],
    "a channel matched anywhere": [auth("two") + b"SUB b axb\n", 2],
    "a channel not matched": [auth("two") + b"SUB b cc\n", 1],
    "a publish without the empty channel": [auth("no publish") + publish(b"t", b"x"), 1],
    "a publish without channels": [auth("no channels") + multi_publish(b"t", b"x"), 1],
    "a subscribe without channels": [auth("no channels") + b"SUB t c\n", 1],
    "a publish without permission": [auth("subscribe") + b"DPUB t 1\n" + length_prefixed(b"x"), 1],
    "MPUB without permission, and without a body": [auth("subscribe") + b"MPUB t\n", 1],
    "MPUB with permission, and with a bad body": [
        auth("all") + b"MPUB t\n" + struct.pack(">II", 8, 0),
        1,
    ],
    "a subscribe without permission": [auth("publish") + b"SUB t c\n", 1],
    "under TLS and snappy": [
        offer(tls_v1=True, snappy=True),
        1,
        TLS,
        1,
        SNAPPY,
        1,
        auth("all"),
        1,
        *BEHIND,
    ],
}


@pytest.mark.parametrize("steps", AUTHS.values(), ids=AUTHS)
async def test_a_secret_opens_what_it_opens_at_nsqd(guarded: Pair, steps: list[Step]) -> None:
    """Grants and refusals have nsqd's frames."""
    expected, ours = await guarded.transcripts(*steps)

    assert expected == ours
    assert expected


async def test_an_auth_server_is_told_the_same(guarded: Pair) -> None:
    """Both tell the secret, the address and TLS."""
    told = []
    for address in guarded.tcp_addresses:
        guarded.auth.counts.clear()
        steps: list[Step] = [offer(tls_v1=True), 1, TLS, 1, auth("s p+ä&"), 1]
        await transcript(address, steps, guarded.context)
        question = await guarded.auth.asked()
        while question.secret != "s p+ä&":
            question = await guarded.auth.asked()
        told.append(question)

    assert told[0] == told[1]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_stats_show_the_same_of_a_client(
    guarded: Pair, certs: Certificates, version: ssl.TLSVersion
) -> None:
    """Layers, their versions and the identity have nsqd's names, in nsqd's order."""
    context = client_context(certs)
    context.maximum_version = version
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256")
    shown = []
    for address, http in zip(
        guarded.tcp_addresses,
        (guarded.nsqd.http_address, guarded.embedded.http_address),
        strict=True,
    ):
        async with layered_peer(address) as peer:
            values = {"client_id": "c", "hostname": "h", "user_agent": "u", "sample_rate": 5}
            await peer.ask(offer(tls_v1=True, deflate=True, **values))
            await peer.upgrade("tls", context)
            await peer.frame()
            await peer.upgrade("deflate", guarded.context)
            await peer.frame()
            await peer.ask(auth("all"))
            await peer.ask(b"SUB shown c\n")
            answer = await exchange(http, "GET", "/stats?format=json&topic=shown")
        (topic,) = json.loads(answer.body)["topics"]
        (client,) = topic["channels"][0]["clients"]
        if version is ssl.TLSVersion.TLSv1_3:
            # Each TLS library prefers another one; nsqd has no name for any of them.
            client["tls_cipher_suite"] = client["tls_cipher_suite"].replace("4866", "4865")
        shown.append({**client, "connect_ts": 0, "remote_address": ""})

    assert list(shown[0].items()) == list(shown[1].items())
    assert (True, True, "me") == (shown[0]["tls"], shown[0]["deflate"], shown[0]["auth_identity"])
