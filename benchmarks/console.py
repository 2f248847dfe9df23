"""A console tab on a busy topic, compared with a minimal page on the same module."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.backlog import CHANNEL, TOPIC, wait_until_alone
from benchmarks.harness import Server, fetch, gateway, real_nsqd
from benchmarks.latency import publishing
from benchmarks.table import Benchmark, Row, compare

_RATE = 1_000
_WINDOW = 2_500
# The list holds 200 messages: it is full before anything is measured.
_WARM = 400
_GOAL_MS = 50
_WAIT_S = 30.0
_STEP_MS = 4
_BARE = """<!doctype html>
<meta charset="utf-8">
<title>A page that counts</title>
<script type="module">
  import { subscribe } from "/nsq.js";

  globalThis.received = 0;
  const asked = new URLSearchParams(location.search);
  const options = { topic: asked.get("topic") };
  if (asked.has("channel"))
    Object.assign(options, { channel: asked.get("channel"), ack: "auto", maxInFlight: 2500 });
  const subscription = subscribe(options);
  subscription.ready.then(() => { document.title = "ready"; });
  for await (const _message of subscription) globalThis.received += 1;
</script>
"""
# What the page itself notices: blocks of more than 50 ms, and the longest wait for a short timer.
_WATCH = """([stepMs]) => {
  globalThis.seen = { blocks: 0, blockedMs: 0, longestTaskMs: 0, longestMs: 0 };
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) {
      seen.blocks += 1;
      seen.blockedMs += duration;
      seen.longestTaskMs = Math.max(seen.longestTaskMs, duration);
    }
  }).observe({ type: "longtask" });
  let lastMs = performance.now();
  const step = () => {
    const nowMs = performance.now();
    seen.longestMs = Math.max(seen.longestMs, nowMs - lastMs - stepMs);
    lastMs = nowMs;
    setTimeout(step, stepMs);
  };
  setTimeout(step, stepMs);
}"""
_COUNTED = """() => globalThis.received ??
  Number(document.querySelector("#count-received").textContent.replaceAll(",", ""))"""


@dataclass(frozen=True)
class _TabUsage:
    """The CPU time and delays of a tab in one run."""

    count: int
    task_s: float
    """Main-thread time, measured by the browser."""
    script_s: float
    longest_ms: float
    """The longest delay of a short timer."""
    blocks: int
    """Tasks of more than 50 ms."""
    blocked_ms: float
    longest_task_ms: float
    """The longest of them; 0 where there was none."""

    @property
    def task_us(self) -> float:
        """Main-thread microseconds per message."""
        return self.task_s / self.count * 1e6

    @property
    def script_us(self) -> float:
        """JavaScript microseconds per message."""
        return self.script_s / self.count * 1e6


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    if shutil.which("chromium") is None:
        raise SystemExit("chromium is missing; on Debian: apt install chromium")
    seconds, rounds = (3, 1) if quick else (20, 3)
    about = (
        f"/console in Chromium, {_RATE:,} messages/s of 200 B for {seconds} s, beside a bare page "
        f"on the same nsq.js that only counts; {rounds} rounds; goal: no block of the page's "
        f"thread above {_GOAL_MS} ms"
    )
    return Benchmark(about, _rows(seconds, rounds))


def _rows(seconds: int, rounds: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        (Path(folder) / "index.html").write_text(_BARE)
        nsqd = stack.enter_context(real_nsqd())
        ours = stack.enter_context(gateway(nsqd, f"--static-dir={folder}"))
        browser = stack.enter_context(chromium())
        for name, channel, is_open in (
            ("a viewer", "", False),
            ("a viewer with an open message", "", True),
            (f"a consumer, window {_WINDOW:,}, finished by the gateway", CHANNEL, False),
        ):
            consoles, bares = [], []
            for _ in range(rounds):
                work = (channel, seconds)
                mine = _measure(nsqd, ours, browser, work, is_bare=False, is_open=is_open)
                consoles.append(mine)
                bares.append(_measure(nsqd, ours, browser, work, is_bare=True))
            yield from _compare(name, consoles, bares)


def _compare(name: str, consoles: Sequence[_TabUsage], bares: Sequence[_TabUsage]) -> Iterator[Row]:
    sides = (consoles, bares)
    scripts = " ÷ ".join(
        f"{statistics.median(each.script_us for each in side):.0f}" for side in sides
    )
    ours, bare = ([each.task_us for each in side] for side in sides)
    note = f"of it JavaScript {scripts}"
    yield compare(f"{name}: main thread", "µs a message", ours, bare, note)
    blocks = sum(each.blocks for each in consoles)
    blocked_ms = sum(each.blocked_ms for each in consoles)
    worst_ms = max(each.longest_ms for each in consoles)
    longest_task_ms = max(each.longest_task_ms for each in consoles)
    note = (
        f"{worst_ms:.0f} ms in the worst round; tasks of more than {_GOAL_MS} ms in all rounds: "
        f"{blocks}, {blocked_ms:.0f} ms together, the longest {longest_task_ms:.0f} ms"
    )
    ours, bare = ([each.longest_ms for each in side] for side in sides)
    yield compare(f"{name}: longest block of the thread", "ms", ours, bare, note)


def _measure(
    nsqd: Server,
    ours: Server,
    browser: Browser,
    work: tuple[str, int],
    *,
    is_bare: bool,
    is_open: bool = False,
) -> _TabUsage:
    """
    Publish to an open tab for some seconds; return its usage. It must receive every message.

    *is_open*: one message is open meanwhile.
    """
    channel, seconds = work
    fetch(nsqd, f"/topic/create?topic={TOPIC}", method="POST")
    if channel:
        fetch(nsqd, f"/channel/create?topic={TOPIC}&channel={channel}", method="POST")
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        page = context.new_page()
        _subscribe(page, ours, channel, is_bare=is_bare)
        with publishing(nsqd, _RATE, _WARM):
            pass
        _wait_for(page, _WARM)
        if is_open:
            page.locator("#message-rows .row").first.click()
        devtools = context.new_cdp_session(page)
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})  # of the processor
        page.evaluate(_WATCH, [_STEP_MS])
        before = _metrics(devtools.send("Performance.getMetrics"))
        count = _RATE * seconds
        with publishing(nsqd, _RATE, count):
            pass
        _wait_for(page, _WARM + count)
        after = _metrics(devtools.send("Performance.getMetrics"))
        seen = page.evaluate("seen")
    finally:
        context.close()
    wait_until_alone(nsqd)
    fetch(nsqd, f"/topic/delete?topic={TOPIC}", method="POST")
    task_s, script_s = (after[name] - before[name] for name in ("TaskDuration", "ScriptDuration"))
    longest_ms, blocked_ms = seen["longestMs"], seen["blockedMs"]
    blocks, longest_task_ms = seen["blocks"], seen["longestTaskMs"]
    return _TabUsage(count, task_s, script_s, longest_ms, blocks, blocked_ms, longest_task_ms)


def _subscribe(page: Page, ours: Server, channel: str, *, is_bare: bool) -> None:
    names = f"topic={TOPIC}" + (f"&channel={channel}" if channel else "")
    if is_bare:
        page.goto(f"http://{ours.http}/?{names}")
        page.wait_for_function("document.title === 'ready'")
        return
    page.goto(f"http://{ours.http}/console?{names}")
    if channel:
        page.select_option("#ack", "auto")
        page.fill("#max-in-flight", str(_WINDOW))
    page.click("#subscribe")
    page.locator("#connection-state").get_by_text("connected", exact=True).wait_for()


def _wait_for(page: Page, count: int) -> None:
    """Wait until the page shows *count* messages; exit if it does not."""
    end = time.monotonic() + _WAIT_S
    while (counted := page.evaluate(_COUNTED)) != count:
        if time.monotonic() > end:
            raise SystemExit(f"the page counts {counted} messages; {count} were published")
        time.sleep(0.1)


def _metrics(told: dict[str, Any]) -> dict[str, float]:
    return {each["name"]: each["value"] for each in told["metrics"]}


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-proxy-server"]
        )
        try:
            yield browser
        finally:
            browser.close()
