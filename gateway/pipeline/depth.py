"""How much waits for a stream: asks the HTTP of all nsqd that it reads from."""

from __future__ import annotations

import asyncio

from gateway.client.lookup import Discovery, Watch
from gateway.client.nsqd_http import NsqdHttp
from gateway.errors import GatewayError
from gateway.pipeline.depth_account import Account, depth_question, read_depth
from gateway.settings_pipeline import SourceSettings
from gateway.telemetry import spawn

_FRESH_S = 5.0
"""How old an answer may be that progress shows."""
_HAND_S = 0.1
"""Longer than nsqd takes from a topic to its channels; what it moves then is in no count."""


class DepthSurvey:
    """Asks; `start` first, `stop` last."""

    def __init__(self, settings: SourceSettings, discovery: Discovery) -> None:
        self._settings = settings
        self._discovery = discovery
        self._http = NsqdHttp(settings.nsqd_http_address, discovery)
        self._watch: Watch | None = None
        self._asking: asyncio.Task[Account | None] | None = None
        self._asked_at = -_FRESH_S
        self.last: Account | None = None
        """What the last question came to; None: not every nsqd has told."""

    async def start(self) -> None:
        """Get ready to ask."""
        self._watch = self._discovery.watch_nodes(lambda _addresses: None)
        await self._http.start()

    async def stop(self) -> None:
        """Ask no more; idempotent."""
        if self._asking is not None:
            self._asking.cancel()
        if self._watch is not None:
            self._watch.close()
        await self._http.stop()

    def refresh(self) -> None:
        """Ask in the background, unless that was done a moment ago; `last` has what it came to."""
        now = asyncio.get_running_loop().time()
        if self._asking is None and now - self._asked_at >= _FRESH_S:
            self._asking = spawn("ask for depth", self.ask())
            self._asking.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[Account | None]) -> None:
        del task
        self._asking = None

    async def ask(self) -> Account | None:
        """Return what waits now, in flight and deferred; None unless every nsqd tells."""
        watch = self._watch
        assert watch is not None  # noqa: S101 - started before
        if self._discovery.has_lookups:
            await watch.first_answer()
        self._asked_at = asyncio.get_running_loop().time()
        self.last = await self._sum() if self._knows_all(watch) else None
        return self.last

    async def ask_at_start(self) -> Account | None:
        """Return what there is, as `ask`, though nsqd has a message in its hand for a moment."""
        first = await self.ask()
        if first is None:
            return None
        await asyncio.sleep(_HAND_S)
        second = await self.ask()
        return None if second is None else max(first, second, key=lambda account: account.total)

    def _knows_all(self, watch: Watch) -> bool:
        nodes = self._http.nodes
        return bool(nodes) and len(nodes) >= len(watch.addresses)

    async def _sum(self) -> Account | None:
        channel, accounts = self._settings.channel, []
        for topic in self._settings.topic:
            try:
                answers = await self._http.ask(depth_question(topic))
            except GatewayError:
                return None
            account = read_depth(answers, topic, channel)
            if account is None:
                return None
            accounts.append(account)
        return Account(*map(sum, zip(*accounts, strict=True)))
