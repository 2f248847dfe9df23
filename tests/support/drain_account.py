"""What a gateway says of its drain in the last line of its log."""

from __future__ import annotations

import json

from tests.support.gateway import RunningGateway
from tests.support.subscriber_client import Json

NOTHING_CUT = {"cut_sockets": 0, "cut_messages": 0, "cut_requests": 0}


async def drained(gateway: RunningGateway) -> Json:
    """Return what became of those who were connected, but not how long it took."""
    line = json.loads((await gateway.program.said(r'.*"event": "drained".*'))[0])
    return {name: line[name] for name in ("sockets", "handed_back", *NOTHING_CUT)}
