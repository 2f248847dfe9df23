"""
Debian's Chromium and Firefox without a window, driven by Playwright.

A `Visitor` is a fresh browser context. The browser's log and the addresses that it requests are
recorded for its lifetime.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Playwright,
    ViewportSize,
    async_playwright,
    expect,
)

from tests.support.browser.binaries import chromium_binary, firefox_binary

BROWSERS = ("chromium", "firefox")
DESKTOP = ViewportSize(width=1280, height=800)
PHONE = ViewportSize(width=390, height=844)

_WAIT_S = 90.0
_START_MS = 120_000.0
_LOUD = {"error", "warning", "assert"}
_WITHOUT_HOST = {"about", "blob", "data"}
# Firefox over WebDriver BiDi supports no emulated media; "null" disables the emulation.
_AS_THE_BROWSER_IS = {
    "color_scheme": "null",
    "reduced_motion": "null",
    "forced_colors": "null",
    "contrast": "null",
}
_FIREFOX_DARK, _FIREFOX_LIGHT = 0, 1

# Applies to the whole process, so it does not depend on the order of tests.
expect.set_options(timeout=_WAIT_S * 1_000)


@dataclass(frozen=True, kw_only=True)
class Device:
    """A kind of screen: colour scheme and size."""

    is_phone: bool = False
    """True: PHONE and, in Chromium, touch; otherwise DESKTOP."""
    is_dark: bool = False
    """True: the visitor prefers the dark color scheme."""


DESK = Device()


class Visitor:
    """A browser context with one or more pages; make one with `Browsers.visitor`."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.complaints: list[str] = []
        """Errors and warnings of the browser's log, and uncaught exceptions."""
        self.asked: list[str] = []
        """URL of each request, and in Chromium of each WebSocket."""
        context.set_default_timeout(_WAIT_S * 1_000)
        context.on("page", self._watch)

    async def open(self, url: str) -> Page:
        """Return a new page that has loaded *url*."""
        page = await self.context.new_page()
        await page.goto(url)
        return page

    def found_nothing_wrong(self, *addresses: str, besides: str | None = None) -> None:
        """
        Check that the browser's log is clean, and that only *addresses* were requested.

        Args:
            addresses: Host and port of each allowed server.
            besides: Regular expression of log lines to ignore.
        """
        allowed = re.compile(besides) if besides else None
        complaints = [each for each in self.complaints if not (allowed and allowed.search(each))]
        assert [] == complaints, complaints
        parts = [urlsplit(each) for each in self.asked]
        foreign = {each.netloc for each in parts if each.scheme not in _WITHOUT_HOST}
        assert set() == foreign - set(addresses)

    def _watch(self, page: Page) -> None:
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(f"pageerror: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("websocket", lambda socket: self.asked.append(socket.url))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in _LOUD:
            self.complaints.append(f"{message.type}: {message.text}")


class Browsers:
    """The browsers of a test run; each is started on first use."""

    def __init__(self, playwright: Playwright, life: AsyncExitStack) -> None:
        self._playwright = playwright
        self._life = life
        self._running: dict[tuple[str, bool], Browser] = {}

    @asynccontextmanager
    async def visitor(self, name: str, look: Device = DESK) -> AsyncIterator[Visitor]:
        """Open a visitor with the browser *name*, one of BROWSERS; close it when the block ends."""
        viewport = PHONE if look.is_phone else DESKTOP
        options: dict[str, Any] = {"viewport": viewport}
        if name == "chromium":
            browser = await self._browser(name, is_dark=False)
            options["color_scheme"] = "dark" if look.is_dark else "light"
            options["has_touch"] = look.is_phone
        else:
            browser = await self._browser(name, is_dark=look.is_dark)
            options |= _AS_THE_BROWSER_IS
        context = await browser.new_context(**options)
        try:
            yield Visitor(context)
        finally:
            await context.close()

    async def _browser(self, name: str, *, is_dark: bool) -> Browser:
        """Return a running browser; Firefox has one color scheme for its lifetime."""
        if (name, is_dark) not in self._running:
            launched = await self._launch(name, is_dark=is_dark)
            self._life.push_async_callback(launched.close)
            self._running[name, is_dark] = launched
        return self._running[name, is_dark]

    async def _launch(self, name: str, *, is_dark: bool) -> Browser:
        home = tempfile.TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True)
        environment: dict[str, str | float | bool] = {
            **os.environ,
            "HOME": self._life.enter_context(home),
        }
        if name == "chromium":
            return await self._playwright.chromium.launch(
                executable_path=chromium_binary(),
                args=["--no-proxy-server"],
                env=environment,
                timeout=_START_MS,
            )
        return await self._playwright.firefox.launch(
            channel="moz-firefox",
            executable_path=firefox_binary(),
            env=environment,
            timeout=_START_MS,
            firefox_user_prefs={
                "network.proxy.type": 0,
                "layout.css.prefers-color-scheme.content-override": (
                    _FIREFOX_DARK if is_dark else _FIREFOX_LIGHT
                ),
            },
        )


@asynccontextmanager
async def browsers() -> AsyncIterator[Browsers]:
    """Yield the browsers; stop the started ones at the end of the block."""
    async with async_playwright() as playwright, AsyncExitStack() as life:
        yield Browsers(playwright, life)


async def run(page: Page, script: str, *given: object) -> Any:  # noqa: ANN401 - what JavaScript returns
    """
    Return the JSON value of *script*, the body of an async function of ``given``.

    Raises:
        AssertionError: The script threw; the message is that of its exception.
        TimeoutError: The script has not returned in 90 s.
    """
    try:
        async with asyncio.timeout(_WAIT_S):
            return await page.evaluate(f"async (given) => {{ {script} }}", list(given))
    except Error as error:
        raise AssertionError(error.message) from None


@contextmanager
def frozen_tabs() -> Iterator[None]:
    """
    Suspend every tab process of this process; resume them afterwards.

    This simulates an operating system that suspends tabs: their scripts do not run, and the main
    process of the browser buffers their network data. Calls to a page within the block would hang.
    """
    pids = [pid for pid in _descendants(os.getpid()) if _is_tab(pid)]
    assert pids
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _descendants(pid: int) -> set[int]:
    """Return the child processes of *pid*, recursively (Linux)."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _is_tab(pid: int) -> bool:
    """Return whether a process runs the scripts of pages (Linux)."""
    # Forked processes have rewritten their command line, with spaces.
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").split()
    return b"--type=renderer" in words or words[-1:] == [b"tab"]
