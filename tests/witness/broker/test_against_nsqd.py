"""The embedded broker says what a real nsqd says, frame by frame and answer by answer."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
import pytest_asyncio

from gateway.broker.broker import Broker, BrokerOptions
from tests.support.brokers.nsqd import RealNsqd, as_current_nsqd, real_nsqd
from tests.support.brokers.v2_peer import (
    MESSAGE,
    Frame,
    identify,
    length_prefixed,
    multi_publish,
    publish,
    v2_peer,
)
from tests.support.http.raw_http import RawAnswer, exchange
from tests.support.websocket.raw_socket import raw_socket

pytestmark = [pytest.mark.nsqd, pytest.mark.asyncio(loop_scope="module")]

NOT_THERE = b"0123456789abcdef"


@dataclass(frozen=True)
class Pair:
    """Both brokers, each in its first life."""

    nsqd: RealNsqd
    embedded: Broker


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["memory", "disk"])
async def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    """One nsqd and one embedded broker; each case has a topic of its own."""
    data_path = tmp_path_factory.mktemp("data") if request.param == "disk" else None
    embedded = Broker(
        BrokerOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", data_path=data_path)
    )
    async with real_nsqd("--max-channel-consumers=0") as nsqd:
        await embedded.start()
        yield Pair(nsqd, embedded)
        await embedded.stop()


Step = bytes | int
"""Bytes to send, or how many frames to wait for."""


async def transcript(address: str, steps: list[Step]) -> list[Frame]:
    """Return what a broker said to *steps*, with times and ids replaced by what is the same."""
    async with v2_peer(address, magic=b"") as peer:
        frames: list[Frame] = []
        for step in steps:
            if isinstance(step, bytes):
                await peer.send(step)
            else:
                frames += await peer.frames(step)
        # Unknown to any broker, so it ends the connection, unless a refusal has done it.
        with suppress(ConnectionError):
            await peer.send(b"END\n")
        frames += await peer.frames_to_end()
        return [comparable(frame, peer.message_ids) for frame in frames]


def comparable(frame: Frame, message_ids: list[bytes]) -> Frame:
    """Return *frame* without its time, and with the number of its message for its id."""
    kind, data = frame[0], as_current_nsqd(frame[1])
    if kind == MESSAGE:
        data = b"<time>" + data[8:]
    for number, message_id in enumerate(message_ids):
        data = data.replace(message_id, b"<id-%d>" % number)
    return kind, data


V2 = b"  V2"
TOO_BIG = struct.pack(">I", 1_048_577)

REFUSALS: dict[str, list[Step]] = {
    "another magic": [b"  V1"],
    "HTTP on the TCP port": [b"GET / HTTP/1.1\r\n\r\n"],
    "an empty line": [V2, b"\n"],
    "a line end of two bytes": [V2, b"NOP\r\nNOP\r\n"],
    "an unknown command": [V2, b"HELLO world\n"],
    "a command in small letters": [V2, b"nop\n"],
    "binary zeros": [V2, bytes(64) + b"\n"],
    "a byte that is not UTF-8": [V2, b"\xff\xfe\n"],
    "a line that is too long": [V2, b"A" * 16_384 + b"\n"],
    "PUB without topic": [V2, b"PUB\n"],
    "PUB to a bad topic": [V2, publish(b"a b\xff!", b"x")],
    "PUB to a topic with a tab": [V2, publish(b"a\tb", b"x")],
    "PUB to a topic of 65 bytes": [V2, publish(b"t" * 65, b"x")],
    "PUB with an empty body": [V2, publish(b"refused", b"")],
    "PUB with a negative size": [V2, b"PUB refused\n\xff\xff\xff\xff"],
    "PUB one byte too big": [V2, b"PUB refused\n" + TOO_BIG],
    "DPUB without delay": [V2, b"DPUB refused\n"],
    "DPUB with a delay that is no number": [V2, b"DPUB refused x\n"],
    "DPUB with a delay that is too long": [V2, b"DPUB refused 3600001\n" + length_prefixed(b"x")],
    "MPUB without topic": [V2, b"MPUB\n"],
    "MPUB to a bad topic": [V2, multi_publish(b"no!", b"x")],
    "MPUB with a size of zero": [V2, b"MPUB refused\n" + bytes(4)],
    "MPUB one byte too big": [V2, b"MPUB refused\n" + struct.pack(">I", 5_242_881)],
    "MPUB of nothing": [V2, multi_publish(b"refused")],
    "MPUB with an empty message": [V2, multi_publish(b"refused", b"x", b"")],
    "MPUB with a message one byte too big": [
        V2,
        b"MPUB refused\n" + struct.pack(">II", 2_000_000, 1) + TOO_BIG,
    ],
    "SUB without channel": [V2, b"SUB refused\n"],
    "SUB to a bad topic": [V2, b"SUB no! c\n"],
    "SUB to a bad channel": [V2, b"SUB refused no!\n"],
    "SUB twice": [V2, b"SUB refused c\n", 1, b"SUB refused c\n"],
    "SUB without heartbeats": [V2, identify(b'{"heartbeat_interval":-1}') + b"SUB refused c\n"],
    "RDY before SUB": [V2, b"RDY 1\n"],
    "FIN before SUB": [V2, b"FIN " + NOT_THERE + b"\n"],
    "REQ before SUB": [V2, b"REQ " + NOT_THERE + b" 0\n"],
    "TOUCH before SUB": [V2, b"TOUCH " + NOT_THERE + b"\n"],
    "CLS before SUB": [V2, b"CLS\n"],
    "RDY that is no number": [V2, b"SUB refused c\nRDY x\n"],
    "RDY that is negative": [V2, b"SUB refused c\nRDY -1\n"],
    "RDY over the limit": [V2, b"SUB refused c\nRDY 2501\n"],
    "FIN without id": [V2, b"SUB refused c\nFIN\n"],
    "FIN with a short id": [V2, b"SUB refused c\nFIN 0123\n"],
    "REQ without delay": [V2, b"SUB refused c\nREQ " + NOT_THERE + b"\n"],
    "REQ with a delay that is no number": [V2, b"SUB refused c\nREQ " + NOT_THERE + b" -1\n"],
    "FIN, REQ and TOUCH of nothing": [
        V2,
        b"SUB refused c\nFIN %b\nREQ %b 0\nTOUCH %b\n" % (NOT_THERE, NOT_THERE, NOT_THERE),
    ],
    "CLS twice": [V2, b"SUB refused c\nCLS\nCLS\n"],
    "IDENTIFY behind SUB": [V2, b"SUB refused c\n" + identify(b"{}")],
    "AUTH where none is wanted": [V2, b"AUTH\n" + length_prefixed(b"secret")],
    "AUTH with a parameter": [V2, b"AUTH x\n" + length_prefixed(b"secret")],
    "AUTH behind SUB": [V2, b"SUB refused c\nAUTH\n" + length_prefixed(b"secret")],
    "IDENTIFY with an empty body": [V2, identify(b"")],
    "IDENTIFY with garbage": [V2, identify(b"{")],
    "IDENTIFY with an array": [V2, identify(b"[]")],
    "IDENTIFY with a wrong type": [V2, identify(b'{"msg_timeout":"1000"}')],
    "IDENTIFY one byte too big": [V2, b"IDENTIFY\n" + struct.pack(">I", 5_242_881)],
    "a heartbeat interval out of range": [V2, identify(b'{"heartbeat_interval":999}')],
    "an output buffer timeout out of range": [V2, identify(b'{"output_buffer_timeout":24}')],
    "an output buffer size out of range": [V2, identify(b'{"output_buffer_size":63}')],
    "a sample rate out of range": [V2, identify(b'{"sample_rate":100}')],
    "a message timeout out of range": [V2, identify(b'{"msg_timeout":900001}')],
}

DIALOGUES: dict[str, list[Step]] = {
    "IDENTIFY without negotiation": [V2, identify(b"{}"), 1],
    "IDENTIFY with negotiation": [V2, identify(b'{"feature_negotiation":true}'), 1],
    "IDENTIFY with every value": [
        V2,
        identify(
            b'{"feature_negotiation":true,"client_id":"c","hostname":"h","user_agent":"u",'
            b'"heartbeat_interval":1000,"output_buffer_size":64,"output_buffer_timeout":25,'
            b'"sample_rate":99,"msg_timeout":1000,"tls_v1":true,"snappy":true,"deflate":true}'
        ),
        1,
    ],
    "IDENTIFY unbuffered": [
        V2,
        identify(b'{"feature_negotiation":true,"output_buffer_size":-1}'),
        1,
    ],
    "IDENTIFY twice": [V2, identify(b"{}") + identify(b'{"feature_negotiation":true}'), 2],
    "publishing in each way": [
        V2,
        publish(b"ways", b"x")
        + multi_publish(b"ways", b"x", b"y")
        + b"DPUB ways 1\n"
        + length_prefixed(b"z"),
        3,
    ],
    "a message that is finished": [
        V2 + publish(b"finish", b"hello"),
        1,
        b"SUB finish c\nRDY 1\n",
        2,
        b"FIN <id-0>\nFIN <id-0>\n",
        1,
    ],
    "a message that is requeued": [
        V2 + publish(b"requeue", b"hello"),
        1,
        b"SUB requeue c\nRDY 1\n",
        2,
        b"REQ <id-0> 0\n",
        1,
        b"REQ <id-0> 0\n",
        1,
        b"TOUCH <id-0>\nFIN <id-0>\n",
    ],
    "messages in order, as many as RDY": [
        V2 + multi_publish(b"order", b"a", b"b", b"c"),
        1,
        b"SUB order c\nRDY 2\n",
        3,
        b"FIN <id-0>\n",
        1,
        b"FIN <id-1>\nFIN <id-2>\n",
    ],
    "RDY without a number, and with an empty one": [
        V2 + publish(b"ready", b"a"),
        1,
        b"SUB ready c\nRDY \nRDY\n",
        2,
    ],
    "CLS with a message in flight": [
        V2 + publish(b"closing", b"a"),
        1,
        b"SUB closing c\nRDY 1\n",
        2,
        b"CLS\nRDY 99999\nREQ <id-0> 0\n",
        1,
    ],
    "publishing while subscribed": [V2 + b"SUB both c\n", 1, publish(b"both", b"x"), 1],
    "a REQ delay beyond the limit": [
        V2 + publish(b"clamp", b"a"),
        1,
        b"SUB clamp c\nRDY 1\n",
        2,
        b"REQ <id-0> 99999999999\nFIN <id-0>\n",
        1,
    ],
}


@pytest.mark.parametrize("steps", REFUSALS.values(), ids=REFUSALS)
async def test_an_error_has_nsqds_text(pair: Pair, steps: list[Step]) -> None:
    """Invalid commands get the same frames and the same end from both."""
    expected = await transcript(pair.nsqd.tcp_address, steps)

    assert expected == await transcript(pair.embedded.tcp_address, steps)


@pytest.mark.parametrize("steps", DIALOGUES.values(), ids=DIALOGUES)
async def test_a_dialogue_has_nsqds_frames(pair: Pair, steps: list[Step]) -> None:
    """Valid commands get the same frames in the same order from both."""
    expected = await transcript(pair.nsqd.tcp_address, steps)

    assert expected == await transcript(pair.embedded.tcp_address, steps)


REQUESTS: dict[str, tuple[str, str, bytes]] = {
    "ping": ("GET", "/ping", b""),
    "no path": ("GET", "/nothing", b""),
    "a wrong method": ("GET", "/pub?topic=a", b""),
    "OPTIONS": ("OPTIONS", "/mpub", b""),
    "pub": ("POST", "/pub?topic=h1", b"hello"),
    "pub, deferred": ("POST", "/pub?topic=h1&defer=10", b"hello"),
    "pub, deferred too long": ("POST", "/pub?topic=h1&defer=3600001", b"hello"),
    "pub without body and topic": ("POST", "/pub", b""),
    "pub without topic": ("POST", "/pub", b"x"),
    "pub to a bad topic": ("POST", "/pub?topic=no!", b"x"),
    "pub with a newline in the topic": ("POST", "/pub?topic=a%0a", b"x"),
    "pub with a bad escape": ("POST", "/pub?topic=%zz", b"x"),
    "pub of the most": ("POST", "/pub?topic=h1", b"x" * 1_048_576),
    "mpub": ("POST", "/mpub?topic=h2", b"a\n\nb\r\nc"),
    "mpub of nothing": ("POST", "/mpub?topic=h2", b""),
    "mpub, binary": (
        "POST",
        "/mpub?topic=h2&binary=true",
        struct.pack(">I", 1) + length_prefixed(b"x"),
    ),
    "mpub, broken binary": (
        "POST",
        "/mpub?topic=h2&binary=true",
        b"\0\0\0\2" + length_prefixed(b"x"),
    ),
    "mpub without count": ("POST", "/mpub?topic=h2&binary=1", b"\0"),
    "mpub with a line too long": ("POST", "/mpub?topic=h2", b"x" * 1_048_577),
    "topic create": ("POST", "/topic/create?topic=h3", b""),
    "topic create without topic": ("POST", "/topic/create", b""),
    "topic create with a bad name": ("POST", "/topic/create?topic=no!", b""),
    "topic pause": ("POST", "/topic/pause?topic=h3", b""),
    "topic unpause": ("POST", "/topic/unpause?topic=h3", b""),
    "topic pause of none": ("POST", "/topic/pause?topic=no!", b""),
    "topic empty": ("POST", "/topic/empty?topic=h3", b""),
    "topic empty of none": ("POST", "/topic/empty?topic=none", b""),
    "topic empty with a bad name": ("POST", "/topic/empty?topic=no!", b""),
    "topic delete of none": ("POST", "/topic/delete?topic=no!", b""),
    "channel create without its topic": ("POST", "/channel/create?topic=none&channel=c", b""),
    "channel create without channel": ("POST", "/channel/create?topic=h3", b""),
    "channel create with a bad name": ("POST", "/channel/create?topic=h3&channel=no!", b""),
    "channel create with a bad topic": ("POST", "/channel/create?topic=no!&channel=c", b""),
    "channel create": ("POST", "/channel/create?topic=h3&channel=c", b""),
    "channel pause": ("POST", "/channel/pause?topic=h3&channel=c", b""),
    "channel unpause": ("POST", "/channel/unpause?topic=h3&channel=c", b""),
    "channel empty": ("POST", "/channel/empty?topic=h3&channel=c", b""),
    "channel empty of none": ("POST", "/channel/empty?topic=h3&channel=none", b""),
    "channel delete of none": ("POST", "/channel/delete?topic=h3&channel=none", b""),
    "stats of no topic": ("GET", "/stats?format=json&topic=none&include_mem=0", b""),
    "stats with a bad query": ("GET", "/stats?format=json;topic=none", b""),
    "config max_msg_size": ("GET", "/config/max_msg_size", b""),
    "config max_body_size": ("GET", "/config/max_body_size", b""),
    "config max_req_timeout": ("GET", "/config/max_req_timeout", b""),
    "config unknown": ("GET", "/config/nothing", b""),
    "config set": ("PUT", "/config/max_msg_size", b"1"),
}


@pytest.mark.parametrize("request_line", REQUESTS.values(), ids=REQUESTS)
async def test_an_http_answer_is_nsqds(pair: Pair, request_line: tuple[str, str, bytes]) -> None:
    """Status, headers that clients read, and body are the same."""
    # Both have the topic and the channel that the pause and empty cases are about.
    for address in (pair.nsqd.http_address, pair.embedded.http_address):
        await exchange(address, "POST", "/topic/create?topic=h3")
        await exchange(address, "POST", "/channel/create?topic=h3&channel=c")
    method, target, body = request_line

    expected = await exchange(pair.nsqd.http_address, method, target, body)

    answer = await exchange(pair.embedded.http_address, method, target, body)
    assert same_parts(expected) == same_parts(answer)


@pytest.mark.parametrize(
    "path,size_bytes", [("/pub", 1_048_577), ("/mpub", 5_242_881)], ids=["pub", "mpub"]
)
async def test_a_body_that_is_announced_too_big_is_refused_unread(
    pair: Pair, path: str, size_bytes: int
) -> None:
    """Both answer 413 with the same words before one byte of the body has come."""
    head = f"POST {path}?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: {size_bytes}\r\n\r\n"
    answers = []
    for address in (pair.nsqd.http_address, pair.embedded.http_address):
        async with raw_socket(address) as raw:
            await raw.send(head.encode())
            answers.append((await raw.read_until(b"\r\n"), await raw.read_until(b'_BIG"}')))

    first_lines = {line.split(b" ")[1] for line, _ in answers}
    bodies = {rest.partition(b"\r\n\r\n")[2] for _, rest in answers}
    assert ({b"413"}, 1) == (first_lines, len(bodies))


def same_parts(answer: RawAnswer) -> tuple[int, dict[str, str | None], object]:
    """Return what has to be the same; the start of the process is not."""
    names = ("content-type", "x-nsq-content-type", "allow", "location", "content-length")
    body = as_current_nsqd(answer.body)
    if b"start_time" not in body:
        return answer.status, {name: answer.headers.get(name) for name in names}, body
    body = re.sub(rb'"start_time":\d+', b'"start_time":0', body)
    return answer.status, {name: answer.headers.get(name) for name in names[:-1]}, body


async def test_stats_have_nsqds_keys_in_nsqds_order(pair: Pair) -> None:
    """With a producer, a consumer and a message in flight, /stats has the same JSON text."""
    shown = [
        await stats_of_a_busy_topic(pair.nsqd.tcp_address, pair.nsqd.http_address),
        await stats_of_a_busy_topic(pair.embedded.tcp_address, pair.embedded.http_address),
    ]

    assert shown[0] == shown[1]


async def stats_of_a_busy_topic(tcp_address: str, http_address: str) -> str:
    """Return /stats of one topic with all counters in use, times and ports replaced."""
    add_waiting = identify(b'{"client_id":"me","hostname":"here","user_agent":"test/1"}')
    async with v2_peer(tcp_address) as consumer, v2_peer(tcp_address) as producer:
        await consumer.ask(add_waiting)
        await consumer.ask(b"SUB busy c\n")
        await producer.ask(multi_publish(b"busy", b"a", b"bb", b"ccc"))
        await consumer.send(b"RDY 2\n")
        await consumer.frames(2)
        await consumer.send(b"FIN <id-0>\n")
        await consumer.frame()
        await consumer.send(b"REQ <id-1> 60000\nRDY 1\nFIN %b\n" % NOT_THERE)
        await consumer.frame()
        target = "/stats?format=json&topic=busy&include_mem=false"
        answer = await exchange(http_address, "GET", target)
    text = json.dumps(json.loads(as_current_nsqd(answer.body)), indent=1)
    return re.sub(r'("(?:start_time|connect_ts)": |127.0.0.1:)\d+', r"\1<number>", text)


async def test_deleting_a_channel_closes_its_consumers_without_a_frame(pair: Pair) -> None:
    """Both close the connection, and no frame comes before that."""
    for address, http in (
        (pair.nsqd.tcp_address, pair.nsqd.http_address),
        (pair.embedded.tcp_address, pair.embedded.http_address),
    ):
        async with v2_peer(address) as consumer:
            await consumer.ask(b"SUB deleted c\n")
            await exchange(http, "POST", "/channel/delete?topic=deleted&channel=c")

            assert [] == await consumer.frames_to_end()
