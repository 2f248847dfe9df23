"""The summary of a drain in the last line of a gateway's log."""

from __future__ import annotations

import json

from tests.support.gateways.gateway import RunningGateway
from tests.support.websocket.subscriber_client import Json

NOTHING_ABORTED = {"aborted_sockets": 0, "aborted_messages": 0, "aborted_requests": 0}


async def drain_result(gateway: RunningGateway) -> Json:
    """Return the numbers of the summary, without the duration."""
    line = json.loads((await gateway.program.said(r'.*"event": "drained".*'))[0])
    return {name: line[name] for name in ("sockets", "requeued_on_close", *NOTHING_ABORTED)}
