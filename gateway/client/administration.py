"""
Topics and channels of a whole cluster: changed on every nsqd, made and deleted at nsqlookupd too.

nsqlookupd is told first. A deleted topic is then found nowhere while the nsqds are told, so that
no consumer comes back and makes it again; and an nsqd that makes a topic finds there which
channels it is to have. Source: nsq/internal/clusterinfo/data.go.
"""

from __future__ import annotations

import asyncio

from gateway.client.lookup import Discovery
from gateway.client.node_answers import NodeAnswer, Question, judge
from gateway.client.nsqd_http import NsqdHttp
from gateway.errors import NoKnownNsqd

_TOLD_TO_NSQLOOKUPD = frozenset({"create", "delete"})


class Administration:
    """
    Changes topics and channels; an *action* is the end of nsqd's path: create, delete, empty.

    Each method raises what `node_answers.judge` does, NoKnownNsqd and Full.
    """

    def __init__(self, nsqds: NsqdHttp, discovery: Discovery) -> None:
        self._nsqds = nsqds
        self._discovery = discovery

    async def topic(self, action: str, topic: bytes) -> None:
        """Do *action* to *topic*, as `judge` understands it."""
        await self._do(
            action, Question(method="POST", path=f"/topic/{action}", query=[("topic", topic)])
        )

    async def channel(self, action: str, topic: str, channel: str) -> None:
        """Do *action* to *channel*; create makes the *topic* too, where it is missing."""
        names = [("topic", topic.encode()), ("channel", channel.encode())]
        question = Question(method="POST", path=f"/channel/{action}", query=names)
        if action == "create":
            first = Question(method="POST", path="/topic/create", query=names[:1])
            await self._do(action, first, question)
        else:
            await self._do(action, question)

    async def _do(self, action: str, *questions: Question) -> None:
        if not self._nsqds.nodes:
            raise NoKnownNsqd
        lookupds: list[NodeAnswer] = []
        if action in _TOLD_TO_NSQLOOKUPD:
            # Its /channel/create makes the topic as well.
            told = questions[-1]
            lookupds = await asyncio.gather(
                *(lookupd.tell(told) for lookupd in self._discovery.lookupds)
            )
        judge(await self._nsqds.ask(*questions), lookupds)
