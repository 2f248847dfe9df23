"""Read everything that an nsqd has stored, over TCP."""

from __future__ import annotations

import asyncio
from collections import Counter
from urllib.parse import quote

import httpx

from tests.support.brokers.nsqd import RealNsqd
from tests.support.brokers.v2_peer import ERROR, MESSAGE, OK, identify, v2_peer
from tests.support.http.raw_http import exchange

_CHANNEL = "the-reader"
_LAST = b"this was the last one"
_WINDOW = 2_500


async def stored_messages(*nsqds: RealNsqd) -> Counter[bytes]:
    """
    Return how often each body is stored, in all topics of *nsqds*, which must be idle.

    This requires topics that never had a channel, and ``--mem-queue-size=0``: only then nsqd reads
    in order, so that a final marker message arrives last. nsqd's own counts are too low after a
    SIGKILL (go-diskqueue, retrieveMetaData).
    """
    readings = [_read(nsqd, topic) for nsqd in nsqds for topic in await _topics(nsqd)]
    total: Counter[bytes] = Counter()
    for bodies in await asyncio.gather(*readings):
        total.update(bodies)
    return total


async def _topics(nsqd: RealNsqd) -> list[str]:
    async with httpx.AsyncClient(trust_env=False) as http:
        stats = await http.get(f"http://{nsqd.http_address}/stats", params={"format": "json"})
    return [topic["topic_name"] for topic in stats.json()["topics"] or []]


async def _read(nsqd: RealNsqd, topic: str) -> list[bytes]:
    """Return the bodies of *topic*, each as often as it is stored."""
    last = await exchange(nsqd.http_address, "POST", f"/pub?topic={quote(topic)}", _LAST)
    assert last.status == 200
    bodies: list[bytes] = []
    async with v2_peer(nsqd.tcp_address) as peer:
        await peer.send(identify(b'{"output_buffer_timeout": 25}'))
        await peer.send(b"SUB %b %b\nRDY %d\n" % (topic.encode(), _CHANNEL.encode(), _WINDOW))
        while True:
            kind, data = await peer.frame()
            assert kind != ERROR, data
            if kind != MESSAGE:
                assert data in (OK[1], b"_heartbeat_")
                continue
            await peer.raw.send(b"FIN %b\n" % data[10:26])
            if data[26:] == _LAST:
                return bodies
            bodies.append(data[26:])
