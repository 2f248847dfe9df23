"""Options, percentiles and HTTPS of the embedded broker, beside those of a real nsqd."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from gateway.broker.broker import Broker, BrokerOptions
from gateway.broker.latency import LatencyOptions
from tests.support.brokers.embedded_broker import embedded_broker
from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.brokers.v2_peer import identify, publish, v2_peer
from tests.support.certificates import certificates
from tests.support.http.raw_http import RawAnswer, exchange

pytestmark = [pytest.mark.nsqd, pytest.mark.asyncio(loop_scope="module")]

OPTIONS: Sequence[str] = """
    id log_level log_prefix tcp_address http_address https_address broadcast_address
    broadcast_tcp_port broadcast_http_port nsqlookupd_tcp_addresses auth_http_addresses
    http_client_connect_timeout http_client_request_timeout data_path mem_queue_size
    max_bytes_per_file sync_every sync_timeout queue_scan_selection_count
    queue_scan_worker_pool_max msg_timeout max_msg_timeout max_msg_size max_body_size
    max_req_timeout max_heartbeat_interval max_rdy_count max_output_buffer_size
    max_output_buffer_timeout min_output_buffer_timeout output_buffer_timeout
    max_channel_consumers statsd_address statsd_prefix statsd_interval statsd_mem_stats
    statsd_udp_packet_size statsd_exclude_ephemeral e2e_processing_latency_window_time
    e2e_processing_latency_percentiles tls_cert tls_key tls_client_auth_policy tls_root_ca_file
    tls_required tls_min_version deflate max_deflate_level snappy
""".split()  # noqa: SIM905 - one column of fifty lines is harder to read
NO_OPTIONS = ("node_id", "worker_id", "verbose", "version", "config", "lookupd_tcp_address", "ID")


@dataclass(frozen=True)
class Pair:
    """Both brokers."""

    nsqd: RealNsqd
    embedded: Broker

    async def both(
        self, method: str, target: str, body: bytes = b""
    ) -> tuple[RawAnswer, RawAnswer]:
        """Return nsqd's answer, then that of the embedded broker."""
        addresses = self.nsqd.http_address, self.embedded.http_address
        first, second = [await exchange(each, method, target, body) for each in addresses]
        return first, second


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[Pair]:
    """Both brokers with the same options, and percentiles."""
    options = BrokerOptions(
        broadcast_address="127.0.0.1",
        https_address="127.0.0.1:0",
        latency=LatencyOptions(percentiles=(0.99, 0.5)),
    )
    flags = ("--e2e-processing-latency-percentile=0.99", "--e2e-processing-latency-percentile=0.5")
    async with real_nsqd(*flags) as nsqd, embedded_broker(options, has_http=True) as embedded:
        yield Pair(nsqd, embedded)


def shown(answer: RawAnswer) -> tuple[int, str | None, str | None, str]:
    """Return what has to be the same; ports, folders and statsd's prefix differ."""
    text = re.sub(r"127\.0\.0\.1:\d+|^\d{5}$|^/.*|^nsq\..*", "<own>", answer.body.decode())
    names = ("content-type", "x-nsq-content-type")
    kind, header = (answer.headers.get(name) for name in names)
    return answer.status, kind, header, text


@pytest.mark.parametrize("name", sorted({*OPTIONS, *NO_OPTIONS} - {"data_path"}))
async def test_an_option_has_nsqds_kind_and_default(pair: Pair, name: str) -> None:
    first, second = await pair.both("GET", f"/config/{name}")

    assert shown(first) == shown(second)


PUTS = {
    "a level": ("log_level", b"info"),
    "a level in capitals": ("log_level", b"INFO"),
    "no level": ("log_level", b"warning"),
    "a level with a newline": ("log_level", b"info\n"),
    "a level that is no text": ("log_level", b"\xff"),
    "nothing": ("log_level", b""),
    "nothing for no option": ("nothing", b""),
    "too much": ("nothing", b"x" * 1_048_577),
    "no option": ("nothing", b"x"),
    "an option that stays": ("msg_timeout", b"1"),
    "no lookupds": ("nsqlookupd_tcp_addresses", b"[]"),
    "one lookupd": ("nsqlookupd_tcp_addresses", b'["127.0.0.1:1"]'),
    "a lookupd twice": ("nsqlookupd_tcp_addresses", b' ["127.0.0.1:1", "127.0.0.1:1"]'),
    "lookupds that are no list": ("nsqlookupd_tcp_addresses", b'"127.0.0.1:1"'),
    "lookupds that are no texts": ("nsqlookupd_tcp_addresses", b"[1]"),
    "lookupds that are no JSON": ("nsqlookupd_tcp_addresses", b"127.0.0.1:1"),
}


@pytest.mark.parametrize("case", PUTS.values(), ids=PUTS)
async def test_an_option_is_changed_as_in_nsqd(pair: Pair, case: tuple[str, bytes]) -> None:
    name, body = case
    try:
        first, second = await pair.both("PUT", f"/config/{name}", body)

        assert shown(first) == shown(second)
        after = await pair.both("GET", f"/config/{name}")
        assert shown(after[0]) == shown(after[1])
    finally:
        await pair.both("PUT", "/config/nsqlookupd_tcp_addresses", b"[]")


async def test_percentiles_have_nsqds_form(pair: Pair) -> None:
    shapes = []
    for tcp, http in (
        (pair.nsqd.tcp_address, pair.nsqd.http_address),
        (pair.embedded.tcp_address, pair.embedded.http_address),
    ):
        await exchange(http, "POST", "/topic/create?topic=empty")
        async with v2_peer(tcp) as consumer:
            await consumer.ask(b"SUB timed c\n")
            await consumer.ask(publish(b"timed", b"x"))
            await consumer.send(b"RDY 1\n")
            await consumer.frame()
            await consumer.send(b"FIN <id-0>\n")
            async with asyncio.timeout(30):
                while True:
                    body = (await exchange(http, "GET", "/stats?format=json")).body
                    stats = json.loads(body)
                    if stats["topics"][-1]["channels"][0]["e2e_processing_latency"]["count"]:
                        break
        text = (await exchange(http, "GET", "/stats")).body.decode()
        latencies = re.findall(r'"e2e_processing_latency":\{.*?\]?\}(?=[,}])', body.decode())
        shapes.append(
            [re.sub(r'"value":[1-9][\d.e+]*', '"value":<time>', each) for each in latencies]
            + re.findall(r"e2e%: ?(.*)", re.sub(r"[\d.]+(us|ms|s)\b", "<time>", text))
        )

    assert shapes[0] == shapes[1]
    assert sum("<time>" in each for each in shapes[1]) == 4


async def test_the_text_of_stats_is_nsqds(pair: Pair) -> None:
    texts = [
        await text_of_a_busy_broker(pair.nsqd.tcp_address, pair.nsqd.http_address),
        await text_of_a_busy_broker(pair.embedded.tcp_address, pair.embedded.http_address),
    ]

    assert texts[0] == texts[1]


async def text_of_a_busy_broker(tcp_address: str, http_address: str) -> str:
    """Return /stats with topics, channels, a consumer and a producer; times and ports replaced."""
    for target in ("topic/create?topic=idle", "topic/create?topic=text"):
        await exchange(http_address, "POST", f"/{target}")
    await exchange(http_address, "POST", "/topic/pause?topic=idle")
    await exchange(http_address, "POST", "/channel/create?topic=text&channel=a")
    await exchange(http_address, "POST", "/channel/pause?topic=text&channel=a")
    async with v2_peer(tcp_address) as consumer, v2_peer(tcp_address) as producer:
        me = b'{"client_id":"me","hostname":"here","user_agent":"test/1"}'
        await consumer.ask(identify(me))
        await consumer.ask(b"SUB text c\nRDY 1\n")
        await producer.ask(publish(b"text", b"x"))
        await consumer.frame()
        full = (await exchange(http_address, "GET", "/stats?include_mem=0")).body.decode()
        one = (await exchange(http_address, "GET", "/stats?topic=idle&include_mem=0")).body.decode()
        none = (
            await exchange(http_address, "GET", "/stats?topic=no&include_clients=0")
        ).body.decode()
    text = full[full.index("\n   [text ") :] + one + none
    text = re.sub(r"(?m)^nsqd .*|^   (heap|gc|next_gc)_.*", "<own>", text)
    text = re.sub(r"uptime \S+s$", "uptime <time>", text, flags=re.MULTILINE)
    return re.sub(r"start_time \S+|connected: \d+s|:\d{4,5} |[\d.]+(ns|us|ms|s)\b", "<own>", text)


async def test_plain_http_is_refused_where_tls_is_required() -> None:
    requests = (("GET", "/ping"), ("POST", "/pub?topic=t"), ("OPTIONS", "/pub"), ("GET", "/no"))
    with certificates() as issued:
        identity = issued.server
        options = BrokerOptions(
            https_address="127.0.0.1:0",
            tls_cert=identity.cert_file,
            tls_key=identity.key_file,
            tls_required="true",
            tls_min_version="tls1.2",
        )
        async with (
            real_nsqd(*identity.nsqd_flags, "--tls-required") as nsqd,
            embedded_broker(options, has_http=True) as embedded,
        ):
            https = [await https_of(nsqd), embedded.https_address]
            for method, target in requests:
                first, second = [
                    await exchange(each, method, target, b"x")
                    for each in (nsqd.http_address, embedded.http_address)
                ]
                for answer, address in zip((first, second), https, strict=True):
                    port = int(address.rpartition(":")[2])
                    expected = b'{"message": "TLS_REQUIRED", "https_port": %d}' % port
                    assert expected == answer.body
                assert shown(first)[:3] == shown(second)[:3]

            trust = ssl.create_default_context(cafile=issued.root_ca_file)
            async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
                for address in https:
                    answers = [
                        await client.post(f"https://{address}/pub?topic=t", content=b"x"),
                        await client.get(f"https://{address}/config/tls_required"),
                    ]
                    assert [(200, b"OK"), (200, b"2")] == [
                        (each.status_code, each.content) for each in answers
                    ]


async def test_https_asks_for_client_certificates_by_the_same_policy() -> None:
    with certificates() as issued:
        options = BrokerOptions(
            https_address="127.0.0.1:0",
            tls_cert=issued.server.cert_file,
            tls_key=issued.server.key_file,
            tls_client_auth_policy="require-verify",
            tls_root_ca_file=issued.root_ca_file,
            tls_min_version="tls1.2",
        )
        async with (
            real_nsqd(*issued.mutual_flags()) as nsqd,
            embedded_broker(options, has_http=True) as embedded,
        ):
            https = [await https_of(nsqd), embedded.https_address]
            for client, is_served in ((issued.client, True), (issued.stranger, False)):
                trust = ssl.create_default_context(cafile=issued.root_ca_file)
                trust.load_cert_chain(client.cert_file, client.key_file)
                for address in https:
                    assert is_served is await is_answered(f"https://{address}/ping", trust)


async def is_answered(url: str, trust: ssl.SSLContext) -> bool:
    """Return whether there is an answer, and not the end of the connection."""
    async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
        try:
            return (await client.get(url)).status_code == 200
        except (httpx.TransportError, ssl.SSLError):
            return False


async def https_of(nsqd: RealNsqd) -> str:
    """Return the address of nsqd's HTTPS."""
    return (await nsqd.log.match(r"HTTPS: listening on (\S+)$"))[1]
