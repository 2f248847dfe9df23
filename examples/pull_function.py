"""
A cloud function that works on what waits in a channel, with the standard library only.

A scheduler calls `handle` every minute, say. It pulls batches until the channel is empty or its
time is nearly up, and finishes each message once `work` has returned. What fails is delivered again
after 5 s; what is not answered because the platform ended the function, at the end of the lease.

Settings: GATEWAY_URL, TOPIC, CHANNEL, and GATEWAY_SECRET if one is required.
"""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.request
from typing import Any
from urllib.parse import urlencode

BATCH = 50
LEASE_MS = 60_000
RUN_FOR_S = 45.0


def handle(_event: object = None, _context: object = None) -> dict[str, int]:
    """Work on what waits; return how many messages were finished and how many failed."""
    ends_at = time.monotonic() + RUN_FOR_S
    counts = {"finished": 0, "failed": 0}
    names = {"topic": os.environ["TOPIC"], "channel": os.environ["CHANNEL"]}
    query = urlencode({**names, "max": BATCH, "lease_ms": LEASE_MS})
    while time.monotonic() < ends_at:
        messages = post(f"/pull?{query}")["messages"]
        if not messages:
            break
        done, failed = [], []
        for message in messages:
            try:
                work(body_of(message))
            except Exception as error:
                print(f"message {message['id']}, attempt {message['attempts']}: {error}")
                failed.append({"lease": message["lease"], "timeout_ms": 5_000})
            else:
                done.append(message["lease"])
        result = post("/ack", {"fin": done, "req": failed})
        for refused in result["refused"]:
            print(f"{refused['code']}: {refused['message']}")
        counts["finished"] += len(done)
        counts["failed"] += len(failed)
    return counts


def work(body: bytes) -> None:
    """Replace this by what a message is for."""
    print(json.loads(body))


def body_of(message: dict[str, Any]) -> bytes:
    """Return the body as it was published."""
    if "body_base64" in message:
        return base64.b64decode(message["body_base64"])
    return str(message["body"]).encode()


def post(target: str, content: object = None) -> Any:
    """Return the JSON of a response; raises HTTPError for an error of the gateway."""
    body = b"" if content is None else json.dumps(content).encode()
    request = urllib.request.Request(os.environ["GATEWAY_URL"] + target, body, method="POST")
    if secret := os.environ.get("GATEWAY_SECRET"):
        request.add_header("Authorization", f"Bearer {secret}")
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


if __name__ == "__main__":
    print(handle())
