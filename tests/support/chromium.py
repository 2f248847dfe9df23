"""
Debian's Chromium without a window, told what to do over the DevTools protocol.

A page is one tab: it is sent to an address, and runs JavaScript that may wait for what it likes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.nsqd import DaemonLog
from tests.support.subscriber_client import WAIT_S, Json

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # there is none for root, and the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-port=0",
)
_END_TIMEOUT_S = 10.0


def chromium_binary() -> Path | None:
    """Return where Chromium is, or None when nobody installed it."""
    found = shutil.which("chromium")
    return Path(found) if found else None


class Page:
    """One tab; make one with `Chromium.page`."""

    def __init__(self, browser: Chromium, target: str, session: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session

    async def run(self, script: str) -> Any:  # noqa: ANN401 - what JavaScript returns
        """
        Return what *script* returns, the body of an async function, as JSON gives it.

        Raises:
            AssertionError: It threw; the text is what.
        """
        answer = await self._browser.ask(
            "Runtime.evaluate",
            session=self._session,
            expression=f"(async () => {{ {script} }})()",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def close(self) -> None:
        """Close the tab, as its user does."""
        await self._browser.ask("Target.closeTarget", targetId=self._target)


class Chromium:
    """A running browser; make one with `chromium`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Json]] = {}
        self._loads: dict[str, asyncio.Event] = {}

    async def page(self, url: str) -> Page:
        """Return a new tab that has loaded *url*."""
        target = (await self.ask("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.ask("Target.attachToTarget", targetId=target, flatten=True)
        session = str(attached["sessionId"])
        await self.ask("Page.enable", session=session)
        loaded = self._loads[session] = asyncio.Event()
        gone = await self.ask("Page.navigate", session=session, url=url)
        assert "errorText" not in gone, gone
        async with asyncio.timeout(WAIT_S):
            await loaded.wait()
        return Page(self, target, session)

    async def ask(self, method: str, *, session: str | None = None, **params: object) -> Json:
        """Return the result of one command of the protocol."""
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        command: Json = {"id": number, "method": method, "params": params}
        await self._connection.send(
            json.dumps({**command, "sessionId": session} if session else command)
        )
        async with asyncio.timeout(WAIT_S):
            told = await answer
        assert "error" not in told, told
        result: Json = told["result"]
        return result

    async def listen(self) -> None:
        """Take answers and events until the browser hangs up."""
        # It ends without a closing handshake.
        with suppress(ConnectionClosed):
            while True:
                self._take(json.loads(await self._connection.recv()))

    def _take(self, told: Json) -> None:
        if (asked := self._asked.pop(told.get("id", 0), None)) is not None:
            if not asked.done():
                asked.set_result(told)
        elif told.get("method") == "Page.loadEventFired" and told["sessionId"] in self._loads:
            self._loads[told["sessionId"]].set()


@asynccontextmanager
async def chromium() -> AsyncIterator[Chromium]:
    """
    Run a browser with a profile of its own, and end it afterwards.

    Raises:
        RuntimeError: Nobody installed it, or it did not listen in time.
    """
    binary = chromium_binary()
    if binary is None:
        raise RuntimeError("no chromium to start: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            binary,
            *_FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            env={**os.environ, "HOME": profile},
        )
        assert process.stderr is not None
        log = DaemonLog(process.stderr)
        try:
            url = (await log.match(r"DevTools listening on (ws://\S+)"))[1]
            async with connect(url, proxy=None, max_size=None, compression=None) as connection:
                browser = Chromium(connection)
                async with asyncio.TaskGroup() as group:
                    group.create_task(browser.listen())
                    yield browser
                    # It hangs up, and `listen` ends.
                    await browser.ask("Browser.close")
        finally:
            await _end(process)
            await log.end()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait for *process* to end, which has been told to, or end it by its id."""
    try:
        await asyncio.wait_for(process.wait(), _END_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
