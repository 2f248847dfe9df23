"""
Administer topics and channels on every nsqd and nsqlookupd.

Requests go to nsqlookupd first. Then no consumer can find a deleted topic, subscribe and create it
again before the nsqds have deleted it, and an nsqd that creates a topic finds its channels there.
Source: nsq/internal/clusterinfo/data.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from gateway.client.discovery import Discovery
from gateway.client.lookupd import NODES
from gateway.client.node_report import describe_nodes
from gateway.client.nsqd_answers import (
    NodeAnswer,
    NodeRequest,
    NodeResponse,
    check_density,
    is_ok,
    raise_for_results,
    stats_request,
)
from gateway.client.nsqd_http import NsqdHttp, check_known
from gateway.errors import NoNsqdHttpAddress

_AUTH_ADDRESSES = NodeRequest(method="GET", path="/config/auth_http_addresses")
_CACHE_S = 60.0
"""Seconds for which an answer is cached; only a restart of nsqd changes its options."""


class AuthProbe:
    """
    Find out over HTTP whether an nsqd requires AUTH; answers are cached.

    nsqd's answer to IDENTIFY says the same, but it needs TCP. Where only HTTP works, administrative
    requests, which use HTTP, would otherwise bypass AUTH.
    """

    def __init__(self, nsqds: NsqdHttp, *, clock: Callable[[], float] | None = None) -> None:
        self._nsqds = nsqds
        self._clock = clock or asyncio.get_running_loop().time
        self._known: dict[str, tuple[bool, float]] = {}
        """By node: True if it requires AUTH, and the expiry of that entry, monotonic seconds."""

    async def probe_auth(self) -> bool:
        """
        Return True if any known nsqd requires AUTH.

        An unreachable nsqd counts as not requiring AUTH, and is probed again by the next call. An
        nsqd that does not know the option does not require it.

        Raises:
            LimitReached: See `NsqdHttp.request`.
        """
        now = self._clock()
        nodes = self._nsqds.http_addresses
        self._known = {
            node: known for node, known in self._known.items() if node in nodes and now < known[1]
        }
        unknown = [node for node in nodes if node not in self._known]
        if unknown:
            for answer in await self._nsqds.request_all(_AUTH_ADDRESSES, nodes=unknown):
                # Only answers are cached, so that an unreachable nsqd is probed again.
                if isinstance(answer, NodeResponse):
                    self._known[answer.node] = _requires_auth(answer), now + _CACHE_S
        return any(requires for requires, _ in self._known.values())


def _requires_auth(answer: NodeAnswer) -> bool:
    """Return True if *answer* names an auth server, or is a 200 that cannot be decoded."""
    if not isinstance(answer, NodeResponse) or not is_ok(answer):
        return False
    try:
        check_density(answer.body)
        return bool(msgspec.json.decode(answer.body))
    except (ValueError, RecursionError):
        # Unknown: require AUTH rather than let administration bypass it.
        return True


_NSQLOOKUPD_ACTIONS = frozenset({"create", "delete"})


class Administration:
    """
    Create, delete, empty, pause and unpause topics and channels; report nodes.

    *action* is the last part of the path in nsqd's HTTP API. Each method raises NoNsqdHttpAddress,
    LimitReached, and the errors of `raise_for_results`.
    """

    def __init__(self, nsqds: NsqdHttp, discovery: Discovery) -> None:
        self._nsqds = nsqds
        self._discovery = discovery

    async def change_topic(self, action: str, topic: bytes) -> None:
        """Apply *action* to *topic* on every nsqd."""
        await self._do(
            action, NodeRequest(method="POST", path=f"/topic/{action}", query=[("topic", topic)])
        )

    async def change_channel(self, action: str, topic: str, channel: str) -> None:
        """Apply *action* to *channel* on every nsqd; create also creates a missing *topic*."""
        names = [("topic", topic.encode()), ("channel", channel.encode())]
        request = NodeRequest(method="POST", path=f"/channel/{action}", query=names)
        if action == "create":
            # nsqd refuses to create a channel of a topic that it does not have.
            first = NodeRequest(method="POST", path="/topic/create", query=names[:1])
            await self._do(action, first, request)
        else:
            await self._do(action, request)

    async def tombstone(self, topic: str, node: str) -> None:
        """
        Remove *topic* from the nsqd at HTTP address *node*: consumers must not find it there again.

        Every nsqlookupd hides the topic at this nsqd for a while (45 s by default); meanwhile the
        nsqd deletes it, with its messages. A publish to this nsqd creates it again.

        Raises:
            NodeUnknown: No such nsqd is known.
            GatewayError: See the class.
        """
        check_known(node, self._nsqds)
        names = [("topic", topic.encode())]
        tombstone = NodeRequest(
            method="POST", path="/topic/tombstone", query=[*names, ("node", node.encode())]
        )
        delete = NodeRequest(method="POST", path="/topic/delete", query=names)
        lookupds = await asyncio.gather(
            *(lookupd.request(tombstone) for lookupd in self._discovery.lookupds)
        )
        raise_for_results(await self._nsqds.request_all(delete, nodes=[node]), lookupds)

    async def nodes(
        self,
        node: str | None = None,
        *,
        user_agent: str = "",
        is_shown: Callable[[str], bool] | None = None,
    ) -> bytes:
        """
        Return the document that `describe_nodes` makes: of all nsqds, or of one *node* by HTTP.

        Only that of one has producers: those that do not call themselves *user_agent*.

        Raises:
            NodeUnknown: No such nsqd is known.
            GatewayError: See the class.
        """
        if node is not None:
            check_known(node, self._nsqds)
        lookupds = await asyncio.gather(
            *(lookupd.request(NODES) for lookupd in self._discovery.lookupds)
        )
        describe = partial(
            describe_nodes,
            lookupds=lookupds,
            is_shown=is_shown,
            own_user_agent=None if node is None else user_agent,
        )
        request = stats_request(include_clients=node is not None)
        only = None if node is None else [node]
        return await self._nsqds.request_and_parse(request, describe, nodes=only)

    async def _do(self, action: str, *requests: NodeRequest) -> None:
        if not self._nsqds.http_addresses:
            raise NoNsqdHttpAddress
        lookupds: list[NodeAnswer] = []
        if action in _NSQLOOKUPD_ACTIONS:
            # Before the nsqds: no consumer may find a deleted topic and create it again.
            # The last one is enough: nsqlookupd's /channel/create creates the topic as well.
            last = requests[-1]
            lookupds = await asyncio.gather(
                *(lookupd.request(last) for lookupd in self._discovery.lookupds)
            )
        raise_for_results(await self._nsqds.request_all(*requests), lookupds)
