"""nsq.js in Node: a program that runs pieces of JavaScript for a test."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.gateways.scripted_sockets import Peer, ScriptedSockets
from tests.support.websocket.subscriber_client import WAIT_S

_PROGRAM = Path(__file__).with_suffix(".mjs")
_LONGEST_LINE_BYTES = 16 * 1_048_576
NOBODY = "ws://127.0.0.1:9"
"""An address for scripts that connect to nothing real."""
BEGIN = """
Math.random = () => 0.5;
globalThis.s = subscribe({ topic: "t", channel: "c", ...given[0] });
"""
"""A script that subscribes as ``s`` with the given options, and replaces Math.random() by 0.5."""
STANDS = "await stands(s, given[0]); return s.details.at(-1)"
"""A script that waits until ``s`` is in a state, and returns the detail of its `state` event."""


class ModuleClient:
    """One Node process; make one with `module_client`. The `.mjs` lists a script's variables."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout

    async def run(self, script: str, *given: object) -> Any:  # noqa: ANN401 - what JavaScript returns
        """Run the body of an async function with *given* as a list; return its result."""
        async with asyncio.timeout(WAIT_S):
            return await self._said(script, given)

    async def leave(self) -> int | None:
        """Close the input; return the exit status once the program has ended by itself."""
        self._stdin.close()
        async with asyncio.timeout(WAIT_S):
            return await self._process.wait()

    async def _said(self, script: str, given: object) -> Any:  # noqa: ANN401 - the same
        self._stdin.write(json.dumps({"script": script, "given": given}).encode() + b"\n")
        line = await self._stdout.readline()
        assert line, "Node ended"
        told = json.loads(line)
        assert "fault" not in told, told["fault"]
        assert [] == told["faults"]
        return told.get("value")


@asynccontextmanager
async def module_client(url: str = NOBODY, *flags: str) -> AsyncIterator[ModuleClient]:
    """
    Run Node with the module; *url* is the default address of `subscribe`.

    *flags* are Node's own.
    """
    arguments = ("--no-warnings", "--expose-gc", *flags, str(_PROGRAM), url)
    process = await asyncio.create_subprocess_exec(
        "node", *arguments, stdin=PIPE, stdout=PIPE, limit=_LONGEST_LINE_BYTES
    )
    try:
        yield ModuleClient(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def subscribe_client(
    client: ModuleClient, sockets: ScriptedSockets, **options: object
) -> Peer:
    """Subscribe with *client*; return its first socket, once subscribed."""
    await client.run(BEGIN, options)
    peer = await sockets.subscribed()
    await client.run(STANDS, "connected")
    return peer
