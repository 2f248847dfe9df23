"""Caller identity behind trusted and untrusted proxies, and limits per caller."""

from __future__ import annotations

import json

import httpx

from tests.support.gateways.gateway import gateway_alone
from tests.support.websocket.subscriber_client import open_socket, refused_upgrade, sub_url

ONE_EACH = "--max-sockets-per-address=1"


async def test_sockets_behind_a_trusted_proxy_are_counted_for_their_callers() -> None:
    """Each caller has its own count; addresses that untrusted clients claim are ignored."""
    async with gateway_alone("--trusted-proxy=127.0.0.1", ONE_EACH) as gateway:
        url = sub_url(gateway.url, "t", "c")
        async with (
            open_socket(url, headers={"X-Forwarded-For": "203.0.113.1"}) as first,
            open_socket(url, headers={"X-Forwarded-For": "203.0.113.1, 203.0.113.2"}) as second,
        ):
            told = [(await socket.receive())["cmd"] for socket in (first, second)]
            status, body = await refused_upgrade(
                url, headers={"X-Forwarded-For": "9.9.9.9, 203.0.113.1"}
            )
        await gateway.program.said(r'"client": "203\.0\.113\.2", "event": "subscriber connected"')
        async with httpx.AsyncClient(trust_env=False) as http:
            metrics = (await http.get(f"{gateway.management_url}/metrics")).text

    assert ["SUB", "SUB"] == told
    assert (503, "FULL") == (status, body["message"])
    assert "203.0.113.1 has 1 open socket," in body["detail"]
    assert 'nsq_gateway_sockets_refused_total{reason="address_full"} 1.0' in metrics
    assert 'nsq_gateway_rate_limited_total{scope="socket"} 1.0' in metrics


async def test_forwarded_headers_of_untrusted_clients_are_ignored() -> None:
    """A client that no trusted proxy forwards is counted by its own address."""
    async with gateway_alone("--trusted-proxy=10.0.0.0/8", ONE_EACH) as gateway:
        url = sub_url(gateway.url, "t", "c")
        async with open_socket(url, headers={"X-Forwarded-For": "203.0.113.1"}) as socket:
            await socket.receive()
            status, body = await refused_upgrade(url, headers={"X-Forwarded-For": "203.0.113.2"})

    assert (503, True) == (status, "127.0.0.1 has 1 open socket," in body["detail"])


async def test_a_page_without_tls_is_another_origin_behind_a_tls_proxy() -> None:
    """For sockets, for publishing, and for a page that asks why."""
    async with gateway_alone("--trusted-proxy=127.0.0.1") as gateway:
        page = {"X-Forwarded-Proto": "https", "Origin": gateway.url}
        answers = [
            await gateway.http.post("/pub?topic=t", content=b"x", headers=page),
            await gateway.http.get("/sub?topic=t&channel=c", headers=page),
        ]
        status, body = await refused_upgrade(sub_url(gateway.url, "t", "c"), headers=page)

    assert [403, 403, 403] == [status, *(answer.status_code for answer in answers)]
    assert "was loaded over http, but this port uses https" in body["detail"]


async def test_sockets_per_secret_are_limited() -> None:
    """From whatever address it comes, in a header or in a frame."""
    bearer = {"Authorization": "Bearer alice"}
    async with gateway_alone("--max-sockets-per-secret=1", "--require-auth") as gateway:
        url = sub_url(gateway.url, "t", "c")
        async with open_socket(url, headers=bearer) as first:
            await first.receive()
            by_header = await refused_upgrade(url, headers=bearer)
            async with open_socket(url) as late:
                await late.send({"cmd": "AUTH", "secret": "alice"})
                error = await late.receive()
                code, _ = await late.closed()
            async with open_socket(url) as other:
                await other.send({"cmd": "AUTH", "secret": "bob"})
                answer = await other.receive()
        async with open_socket(url) as again:
            await again.send({"cmd": "AUTH", "secret": "alice"})
            back = await again.receive()

    assert (503, "FULL") == (by_header[0], by_header[1]["message"])
    assert ("error", "FULL", 1013) == (error["type"], error["code"], code)
    assert ["AUTH", "AUTH"] == [answer["cmd"], back["cmd"]]
    assert "alice" not in json.dumps([by_header, error])
