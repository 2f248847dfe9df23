"""
Run a command for each message, with the body on its standard input, and FIN it on exit status 0.

    python examples/worker.py http://127.0.0.1:8080 orders resize ./resize.sh --width 200

The only dependency is `websockets`, which .venv/bin/python has. If the gateway requires a secret,
set NSQ_SECRET.
"""

import asyncio
import json
import logging
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE
from base64 import b64decode
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

AT_A_TIME = 4
FINAL, FIRST_FINAL = {1000, 1002, 1003, 1007, 1009, 4003}, 4500  # reconnecting would not help
FULL = 1013
STEADY_S = 10
log = logging.getLogger("worker")


async def handle(socket: ClientConnection, message: dict[str, Any], command: list[str]) -> None:
    """Run *command* for a message, and send FIN, or REQ if it fails; TOUCH meanwhile."""
    answer, half_s = {"id": message["id"]}, message["deadline_ms"] / 2_000
    body = message["body"].encode() if "body" in message else b64decode(message["body_base64"])
    # In its own session: Ctrl-C reaches only the worker, which lets the command end.
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, start_new_session=True)
    work = asyncio.create_task(process.communicate(body))
    with suppress(ConnectionClosed):  # NSQ redelivers the message
        while not (await asyncio.wait([work], timeout=half_s))[0]:
            await socket.send(json.dumps(answer | {"cmd": "TOUCH"}))
        requeue = {"cmd": "REQ", "timeout_ms": 1_000 * message["attempts"] ** 2}
        await socket.send(json.dumps(answer | (requeue if process.returncode else {"cmd": "FIN"})))
    await work


async def consume(socket: ClientConnection, command: list[str], stop: asyncio.Event) -> float:
    """
    Process messages until the connection ends.

    Return the seconds to wait before reconnecting, as announced by the gateway, or -1.
    """

    async def send_cls() -> None:
        await stop.wait()
        with suppress(ConnectionClosed):
            await socket.send('{"cmd":"CLS"}')  # stops deliveries; acks are accepted, then 1000

    reconnect_after_ms = -1_000
    async with asyncio.TaskGroup() as tasks:  # waits for all commands
        closing = tasks.create_task(send_cls())
        with suppress(ConnectionClosed):
            async for frame in socket:
                for event in map(json.loads, str(frame).split("\n")):
                    if event["type"] == "message":
                        tasks.create_task(handle(socket, event, command))
                    elif event["type"] == "error":
                        log.warning("%s: %s", event["code"], event["message"])
                    elif event["cmd"] == "CLS":
                        reconnect_after_ms = event["data"]["reconnect_after_ms"] or 0
        closing.cancel()
    return reconnect_after_ms / 1_000


async def main(gateway: str, topic: str, channel: str, *command: str) -> None:
    """Consume until SIGTERM, Ctrl-C, or an error that reconnecting cannot fix."""
    loop, stop, failures = asyncio.get_running_loop(), asyncio.Event(), 0
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    query = urlencode({"topic": topic, "channel": channel, "max_in_flight": AT_A_TIME})
    url = f"{gateway.rstrip('/').replace('http', 'ws', 1)}/sub?{query}"
    secret = os.environ.get("NSQ_SECRET")
    headers = {"Authorization": f"Bearer {secret}"} if secret else None
    while not stop.is_set():
        since, reconnect_s, least_s, code = loop.time(), -1.0, 0.0, 1006
        try:
            # No size limit: a message may be as large as nsqd allows.
            async with connect(url, additional_headers=headers, max_size=None) as socket:
                reconnect_s = await consume(socket, list(command), stop)
            code, reason = socket.close_code or code, socket.close_reason
        except InvalidStatus as error:  # refused before the upgrade
            reason = (error.response.body or b"").decode()
            if error.response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
                sys.exit(f"refused: {reason}")
            least_s = float(error.response.headers.get("Retry-After", 0))
        except (OSError, WebSocketException) as error:
            reason = str(error)
        if stop.is_set():
            return
        if code in FINAL or code >= FIRST_FINAL:
            sys.exit(f"closed with {code}: {reason}")
        # Full jitter: clients that were cut off together reconnect at different times.
        failures = 0 if loop.time() - since > STEADY_S else failures + 1
        most_s = min(30, (8 if code == FULL else 0.5) * 2 ** min(failures, 10))
        wait_s = reconnect_s if reconnect_s >= 0 else least_s + random.uniform(0, most_s)
        log.warning("%d %s: reconnecting in %.1f s", code, reason, wait_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait_s)


if __name__ == "__main__":
    if not sys.argv[4:]:
        sys.exit("usage: worker.py GATEWAY TOPIC CHANNEL COMMAND [ARGUMENT...]")
    asyncio.run(main(*sys.argv[1:]))
