"""
Debian's Chromium and Firefox without a window, told what to do by playwright.

A `Visitor` is somebody at a browser: nothing is kept from one to the next, and what the browser's
log says and which addresses it asks is noted for as long as the visit lasts.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
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

BROWSERS = ("chromium", "firefox")
DESKTOP = ViewportSize(width=1280, height=800)
PHONE = ViewportSize(width=390, height=844)

_WAIT_S = 30.0
_START_MS = 120_000.0
_LOUD = {"error", "warning", "assert"}
_WITHOUT_HOST = {"about", "blob", "data"}
# Firefox over WebDriver BiDi takes no media of a context: "null" leaves them alone.
_AS_THE_BROWSER_IS = {
    "color_scheme": "null",
    "reduced_motion": "null",
    "forced_colors": "null",
    "contrast": "null",
}
_FIREFOX_DARK, _FIREFOX_LIGHT = 0, 1

# Of the whole process: as long for whoever runs first.
expect.set_options(timeout=_WAIT_S * 1_000)


def chromium_binary() -> Path | None:
    """Return where Chromium is, or None when nobody installed it."""
    found = shutil.which("chromium")
    return Path(found) if found else None


def firefox_binary() -> Path | None:
    """Return where Firefox is, the long-supported one, or None when nobody installed it."""
    found = shutil.which("firefox-esr")
    return Path(found) if found else None


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a visitor looks with."""

    is_phone: bool = False
    """PHONE and, in Chromium, touch; otherwise DESKTOP."""
    is_dark: bool = False
    """Which of the two color schemes the visitor likes."""


DESK = Look()


class Visitor:
    """Somebody at a browser, with one or more pages; make one with `Browsers.visitor`."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.complaints: list[str] = []
        """Errors and warnings of the browser's log, and exceptions that nobody caught."""
        self.asked: list[str] = []
        """The address of each request; in Chromium of each WebSocket too."""
        context.set_default_timeout(_WAIT_S * 1_000)
        context.on("page", self._watch)

    async def open(self, url: str) -> Page:
        """Return a new page that has loaded *url*."""
        page = await self.context.new_page()
        await page.goto(url)
        return page

    def found_nothing_wrong(self, *addresses: str, besides: str | None = None) -> None:
        """
        Check that the browser's log is clean, and that nobody but *addresses* was asked.

        Args:
            addresses: Host and port of each server that may be asked.
            besides: A regular expression of what the log may hold all the same.
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
    """The browsers of a run: each is started when it is first asked for."""

    def __init__(self, playwright: Playwright, life: AsyncExitStack) -> None:
        self._playwright = playwright
        self._life = life
        self._running: dict[tuple[str, bool], Browser] = {}

    @asynccontextmanager
    async def visitor(self, name: str, look: Look = DESK) -> AsyncIterator[Visitor]:
        """Let somebody come with the browser *name*, one of BROWSERS, and leave afterwards."""
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
        """Return a browser that runs; Firefox likes one color scheme through its whole life."""
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
    """Have browsers until the block ends; each that was started is ended then."""
    async with async_playwright() as playwright, AsyncExitStack() as life:
        yield Browsers(playwright, life)


async def run(page: Page, script: str, *given: object) -> Any:  # noqa: ANN401 - what JavaScript returns
    """
    Return what *script* returns, the body of an async function of ``given``, as JSON gives it.

    Raises:
        AssertionError: It threw; the text is what.
        TimeoutError: It has not returned in 30 s.
    """
    try:
        async with asyncio.timeout(_WAIT_S):
            return await page.evaluate(f"async (given) => {{ {script} }}", list(given))
    except Error as error:
        raise AssertionError(error.message) from None


@contextmanager
def frozen_tabs() -> Iterator[None]:
    """
    Stop every tab that this process has in a browser, and let them go on afterwards.

    As when a system puts tabs to sleep: no script of theirs runs, and what comes for them waits in
    the browser, whose own process lives. To ask a page for anything within the block would wait.
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
    """Return the processes that *pid* has started, and those that they have (Linux)."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _is_tab(pid: int) -> bool:
    """Whether a process runs the scripts of pages (Linux)."""
    # Those that were forked have rewritten it, with spaces.
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").split()
    return b"--type=renderer" in words or words[-1:] == [b"tab"]
