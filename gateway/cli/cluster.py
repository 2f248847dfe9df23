"""
The cluster that a command shows or changes: by way of a gateway, or at the nsqds themselves.

Both return the statistics in one form: that of the gateway's /stats, which is nsqd's with the node
named on every topic.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Protocol

import httpx
import msgspec

from gateway.cli.stdio import untrusted_certificate_error
from gateway.client.admin import Administration
from gateway.client.discovery import Discovery, LookupOptions
from gateway.client.from_settings import read_secret
from gateway.client.handshake import DEFAULT_USER_AGENT
from gateway.client.node_drains import DrainMarks
from gateway.client.nsqd_answers import NodeRequest
from gateway.client.nsqd_http import NsqdHttp, NsqdHttpOptions
from gateway.credentials import Secret, bearer_headers
from gateway.errors import (
    AuthRequired,
    Forbidden,
    GatewayError,
    InvalidRequest,
    NoBroker,
    NoNsqdHttpAddress,
    SettingRefused,
)
from gateway.settings.commands import OperateSettings
from gateway.web.admin.merge import merge_stats

_MAX_STATS_BYTES = 256 * 1_048_576
"""Maximum size of a gateway's statistics; a channel takes about 400 bytes on each nsqd."""


class Cluster(Protocol):
    """What a command needs of a cluster. Each method raises a GatewayError if it fails."""

    async def stats(self, topic: str | None = None) -> bytes:
        """Return the merged /stats as JSON, without clients: of all topics, or of one."""

    async def change(self, action: str, topic: str, channel: str | None) -> None:
        """Do *action* (create, pause, unpause, empty, delete) to a topic, or to a channel of it."""

    async def tombstone(self, topic: str, node: str) -> None:
        """Delete *topic* at the nsqd with the HTTP address *node*, unseen by consumers."""

    async def nodes(self, node: str | None = None) -> bytes:
        """Return the response to GET /nodes, for all nsqds or for one *node*."""

    async def peek(self, topic: str, channel: str, count: int, *, may_take: bool) -> bytes:
        """Return the response to GET /channel/peek, or to POST if it *may_take* messages."""

    async def drain(self, node: str) -> None:
        """Let gateways publish to other nsqds than *node*."""

    async def undrain(self, node: str) -> None:
        """Let gateways publish to *node* again."""


@asynccontextmanager
async def open_cluster(settings: OperateSettings) -> AsyncIterator[Cluster]:
    """
    Open the cluster that *settings* name.

    Raises:
        SettingsError: The file of the secret is missing or invalid.
        NoNsqdHttpAddress: No nsqlookupd answered, or they know no nsqd.
    """
    secret = read_secret(settings.auth_secret, settings.auth_secret_file)
    if settings.gateway_url is not None:
        async with _gateway(settings.gateway_url, settings.timeout_s, secret) as cluster:
            yield cluster
        return
    lookup = LookupOptions(
        lookupd_http_addresses=settings.lookupd_http_address,
        timeout_s=settings.timeout_s,
        secret=secret,
    )
    discovery = Discovery((), lookup)
    http = NsqdHttp(
        settings.nsqd_http_address, discovery, NsqdHttpOptions(timeout_s=settings.timeout_s)
    )
    await discovery.start()
    try:
        await http.start()
        with closing(discovery.watch_nodes(lambda _: None)) as watch:
            await watch.first_answer()
            if not http.http_addresses:
                raise NoNsqdHttpAddress
            yield _NsqdCluster(http, discovery)
    finally:
        await http.stop()
        await discovery.stop()


class _NsqdCluster:
    """The nsqds themselves; see `Cluster`."""

    def __init__(self, http: NsqdHttp, discovery: Discovery) -> None:
        self._http = http
        self._administration = Administration(http, discovery)
        self._drain_marks = DrainMarks(http, discovery)

    async def stats(self, topic: str | None = None) -> bytes:
        """Return the merged statistics; an nsqd that does not answer has an error in ``nodes``."""
        query = _stats_query(topic)
        request = NodeRequest(
            method="GET", path="/stats", query=[(key, each.encode()) for key, each in query.items()]
        )
        return b"".join(await self._http.request_and_parse(request, merge_stats))

    async def change(self, action: str, topic: str, channel: str | None) -> None:
        """Do *action* at every nsqd, and at every nsqlookupd where it knows the action."""
        if channel is None:
            await self._administration.change_topic(action, topic.encode())
        else:
            await self._administration.change_channel(action, topic, channel)

    async def tombstone(self, topic: str, node: str) -> None:
        """Hide *topic* of *node* at every nsqlookupd, and delete it at the nsqd."""
        await self._administration.tombstone(topic, node)

    async def nodes(self, node: str | None = None) -> bytes:
        """Ask every nsqd, or *node*, and every nsqlookupd."""
        return await self._administration.nodes(node, user_agent=DEFAULT_USER_AGENT)

    async def peek(self, topic: str, channel: str, count: int, *, may_take: bool) -> bytes:
        """Fail: only a gateway has the connections for this."""
        del topic, channel, count, may_take
        raise SettingRefused("peek", "it needs a gateway; use --url")

    async def drain(self, node: str) -> None:
        """Mark *node*; gateways find the mark within twice their --node-drain-poll-s."""
        await self._drain_marks.add(node)

    async def undrain(self, node: str) -> None:
        """Remove the mark of *node*."""
        await self._drain_marks.remove(node)


def _stats_query(topic: str | None) -> dict[str, str]:
    query = {"format": "json", "include_clients": "false", "include_mem": "false"}
    return query if topic is None else {**query, "topic": topic}


class _ErrorBody(msgspec.Struct):
    """The members used of a gateway's problem body."""

    detail: str = ""
    message: str = ""


@asynccontextmanager
async def _gateway(url: str, timeout_s: float, secret: Secret | None) -> AsyncIterator[Cluster]:
    """Open the gateway at *url*."""
    async with httpx.AsyncClient(
        base_url=url,
        headers=bearer_headers(secret),
        timeout=timeout_s,
        # Ignore proxies and .netrc files of the environment; see `cli.pub`.
        trust_env=False,
        verify=ssl.create_default_context(),
    ) as http:
        yield _GatewayCluster(url, http)


class _GatewayCluster:
    """The nsqds of a gateway; see `Cluster`."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url = url
        self._http = http

    async def stats(self, topic: str | None = None) -> bytes:
        """Return the statistics that the gateway shows to this caller."""
        query = _stats_query(topic)
        return await self._request("GET", "/stats", query)

    async def change(self, action: str, topic: str, channel: str | None) -> None:
        """Do *action* by the gateway."""
        if channel is None:
            await self._request("POST", f"/topic/{action}", {"topic": topic})
        else:
            await self._request("POST", f"/channel/{action}", {"topic": topic, "channel": channel})

    async def tombstone(self, topic: str, node: str) -> None:
        """Do it by the gateway."""
        await self._request("POST", "/topic/tombstone", {"topic": topic, "node": node})

    async def nodes(self, node: str | None = None) -> bytes:
        """Return what the gateway shows to this caller."""
        return await self._request("GET", "/nodes", {} if node is None else {"node": node})

    async def peek(self, topic: str, channel: str, count: int, *, may_take: bool) -> bytes:
        """Return what the gateway shows to this caller."""
        query = {"topic": topic, "channel": channel, "max": str(count)}
        return await self._request("POST" if may_take else "GET", "/channel/peek", query)

    async def drain(self, node: str) -> None:
        """Do it by the gateway."""
        await self._request("POST", "/nodes/drain", {"node": node})

    async def undrain(self, node: str) -> None:
        """Do it by the gateway."""
        await self._request("POST", "/nodes/undrain", {"node": node})

    async def _request(self, method: str, path: str, query: dict[str, str]) -> bytes:
        body = b""
        try:
            async with self._http.stream(method, path, params=query) as response:
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > _MAX_STATS_BYTES:
                        raise NoBroker(
                            f"the answer of {self._url} is larger than {_MAX_STATS_BYTES} bytes; "
                            "name a topic"
                        )
        except httpx.HTTPError as error:
            if (tls_error := untrusted_certificate_error(self._url, error)) is not None:
                raise tls_error from error
            why = str(error) or type(error).__name__
            raise NoBroker(f"no answer from the gateway at {self._url}: {why}") from error
        if response.status_code == httpx.codes.OK:
            return body
        raise _error(self._url, response.status_code, body)


def _error(url: str, status: int, body: bytes) -> GatewayError:
    """Return the exception for a *status* other than 200."""
    try:
        read = msgspec.json.decode(body, type=_ErrorBody)
    except msgspec.DecodeError:
        read = _ErrorBody()
    detail = read.detail or read.message or "not a response of a gateway; check --url"
    text = f"{url} answered {status}: {detail}"
    match status:
        case httpx.codes.UNAUTHORIZED:
            return AuthRequired(text)
        case httpx.codes.FORBIDDEN:
            return Forbidden(text)
        case _ if httpx.codes.is_client_error(status):
            return InvalidRequest(read.message, text)
        case _:
            return NoBroker(text)
