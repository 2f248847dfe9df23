"""
Random pipelines to the running program, in front of a real nsqd, with and without TLS.

The streams and what must come of them are those of tests/unit/web/http/test_protocol_model.py.
`make fuzz` tries new seeds for as long as NSQ_GATEWAY_FUZZ_S says.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import NamedTuple

import httpx
import pytest

from tests.support.brokers.nsqd import real_nsqd
from tests.support.certificates import certificates
from tests.support.fuzz import fuzz_seeds, print_seed
from tests.support.gateways.gateway import ON_FREE_PORTS, poll_until
from tests.support.gateways.gauges import gauges_become_zero
from tests.support.gateways.programs import nsq_gateway
from tests.support.http.http_model import (
    MAX_BODY_BYTES,
    MAX_MSG_BYTES,
    Request,
    check_with_h11,
    draw_cuts,
    draw_stream,
    read_answers,
)

SEEDS = 60
TIME_LIMIT_S = 60.0
LIMITS = (f"--max-msg-size={MAX_MSG_BYTES}", f"--max-body-size={MAX_BODY_BYTES}")
LAST = Request(
    "the last one",
    b"GET /ping HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n",
    frozenset({200}),
    must_close=True,
)


class Asked(NamedTuple):
    """Where the gateway answers, and by what it is trusted."""

    host: str
    port: int
    trust: ssl.SSLContext | None


async def talk(asked: Asked, pieces: list[bytes]) -> bytes:
    """Send *pieces* on one connection; return all that comes until the gateway closes."""
    reader, writer = await asyncio.open_connection(asked.host, asked.port, ssl=asked.trust)
    reading = asyncio.ensure_future(reader.read())
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.wait({reading}, timeout=0)
            if reading.done():
                break
        return await reading
    except ConnectionError:
        return b""
    finally:
        reading.cancel()
        writer.close()


def stored_of(requests: list[Request], answers: bytes) -> int:
    """Walk the model beside *answers*; return how many messages must be stored."""
    seen = iter(read_answers(answers)[0])
    stored = 0
    for request in requests:
        answer = next(seen, None)
        assert answer is not None, f"no answer to {request.kind}: {request.data[:200]!r}"
        assert answer.status in request.statuses - {503, 504}, (answer, request.data[:200])
        stored += len(request.bodies)
        if answer.closes:
            break
        assert not request.must_close, f"{request.kind} left the connection open"
    assert next(seen, None) is None, "an answer that nobody asked for"
    return stored


async def check_pipelines(asked: Asked, management: httpx.AsyncClient, nsqd_http: str) -> None:
    """Play one stream after the other; count what nsqd has stored, and what is left behind."""
    stored = 0
    for seed in fuzz_seeds(SEEDS):
        rng = random.Random(seed)
        requests = [*draw_stream(rng), LAST]
        check_with_h11(requests)
        # What follows a WebSocket's upgrade are frames, and its end is not the gateway's to say.
        if any(request.is_upgrade for request in requests):
            continue
        with print_seed(seed):
            async with asyncio.timeout(TIME_LIMIT_S):
                pieces = draw_cuts(rng, b"".join(request.data for request in requests))
                stored += stored_of(requests, await talk(asked, pieces))
    async with httpx.AsyncClient(base_url=f"http://{nsqd_http}", trust_env=False) as nsqd:

        async def count() -> int:
            topics = (await nsqd.get("/stats?format=json&topic=t")).json()["topics"]
            return sum(topic["message_count"] for topic in topics)

        assert stored == await poll_until(count, stored)

    await gauges_become_zero(
        management, "publish_buffer_bytes", "sockets_open", "http_connections_open"
    )


@pytest.mark.fuzz
@pytest.mark.nsqd
@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
async def test_a_message_is_in_nsqd_exactly_when_its_answer_is_200(has_tls: bool) -> None:  # noqa: FBT001
    """In pipelines of right and wrong requests; nothing is left behind, and no error in the log."""
    with certificates() as pem:
        flags = (f"--tls-cert={pem.server.cert_file}", f"--tls-key={pem.server.key_file}")
        trust = ssl.create_default_context(cafile=pem.root_ca_file) if has_tls else None
        async with real_nsqd(*LIMITS) as nsqd:
            where = (
                f"--nsqd-tcp-address={nsqd.tcp_address}",
                f"--nsqd-http-address={nsqd.http_address}",
            )
            async with nsq_gateway(
                "serve", *ON_FREE_PORTS, *where, *(flags if has_tls else ())
            ) as program:
                said = await program.said(
                    r"listening on https?://([\d.]+):(\d+) \(management: (http://[\d.:]+)"
                )
                asked = Asked("localhost" if has_tls else said[1], int(said[2]), trust)
                async with httpx.AsyncClient(base_url=said[3], trust_env=False) as management:
                    await check_pipelines(asked, management, nsqd.http_address)
