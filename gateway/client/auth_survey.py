"""
Which nsqds ask for AUTH, as their own configuration says it over HTTP.

Connections know it too, of the nsqds that they reach by TCP. What is administered is reached by
HTTP, and may be there while TCP is not, or is not yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from gateway.client.node_answers import NodeAnswer, Question, Reached, is_done
from gateway.client.nsqd_http import NsqdHttp

_QUESTION = Question(method="GET", path="/config/auth_http_addresses")
_HOLDS_S = 60.0
"""How long an answer counts; an nsqd takes new options only when it is started anew."""


class AuthSurvey:
    """Asks each nsqd once in a while."""

    def __init__(self, nsqds: NsqdHttp, *, clock: Callable[[], float] | None = None) -> None:
        self._nsqds = nsqds
        self._clock = clock or asyncio.get_running_loop().time
        self._known: dict[str, tuple[bool, float]] = {}
        """By node: whether it asks for AUTH, and until when that counts, in monotonic seconds."""

    async def finds_auth(self) -> bool:
        """
        Return whether a known nsqd asks for AUTH.

        One that cannot be reached says nothing, and is asked again next time. An nsqd without
        this option says so, and asks for none.

        Raises:
            Full: See `NsqdHttp.ask`.
        """
        now = self._clock()
        nodes = self._nsqds.nodes
        self._known = {
            node: known for node, known in self._known.items() if node in nodes and now < known[1]
        }
        unknown = [node for node in nodes if node not in self._known]
        if unknown:
            for answer in await self._nsqds.ask(_QUESTION, nodes=unknown):
                if isinstance(answer, Reached):
                    self._known[answer.node] = _asks_for_auth(answer), now + _HOLDS_S
        return any(asks for asks, _ in self._known.values())


def _asks_for_auth(answer: NodeAnswer) -> bool:
    """Tell whether *answer* names an auth server; what cannot be read may name one."""
    if not isinstance(answer, Reached) or not is_done(answer):
        return False
    try:
        return bool(msgspec.json.decode(answer.body))
    except (ValueError, RecursionError):
        return True
