"""A thousand channels on three nsqds: metrics of the nsqds, pauses, and the console's overview."""

from __future__ import annotations

import contextlib
import http.client
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from playwright.sync_api import Browser

from benchmarks.console import chromium
from benchmarks.harness import Server, free_port, gateway, real_nsqd
from benchmarks.operation import ask_metrics, pause_file, pause_ms
from benchmarks.table import Benchmark, Row, compare

_NSQDS = 3
_CHANNELS_PER_TOPIC = 10
_METRICS_MS, _PAUSE_MS, _OVERVIEW_MS = 50.0, 5.0, 1_000.0
_LOOKS = 10
_READ_EVERY_S = 1.0
_TIMEOUT_MS = 30_000
# From the start of the navigation to the first frame with a row, and to that in which a filter has
# been answered; then the longest task while the console reads the statistics twice more.
_OVERVIEW = """async () => {
  let longestMs = 0;
  const watch = (list) => {
    for (const { duration } of list.getEntries()) longestMs = Math.max(longestMs, duration);
  };
  new PerformanceObserver(watch).observe({ type: "longtask", buffered: true });
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  while (document.querySelector("#overview tbody tr") === null) await frame();
  await frame();
  const rowMs = performance.now();
  const filter = document.querySelector("#overview [data-part=filter]");
  filter.value = "topic-1";
  filter.dispatchEvent(new Event("input"));
  await frame();
  await frame();
  const usableMs = performance.now();
  filter.value = "";
  filter.dispatchEvent(new Event("input"));
  await new Promise((resolve) => setTimeout(resolve, 5_000));
  return [rowMs, usableMs, longestMs];
}"""


@dataclass(frozen=True)
class _Run:
    metrics_ms: float
    metrics_bytes: int
    pause_ms: float
    idle_pause_ms: float
    overview_ms: tuple[float, float, float]
    """Until the first row, until a filter is answered, and the longest task."""


def plan(*, quick: bool) -> Benchmark:
    """Return the benchmark."""
    channels, rounds = (100, 1) if quick else (1_000, 3)
    about = (
        f"{channels:,} channels on each of {_NSQDS} nsqds, whose statistics are read every "
        f"{_READ_EVERY_S:g} s: /metrics asked {_LOOKS} times (the slowest), the longest pause of "
        "the event loop meanwhile, and the console's overview in Chromium until its first row; "
        f"beside the limits we have set; {rounds} fresh gateways"
    )
    return Benchmark(about, _rows(channels, rounds))


def _rows(channels: int, rounds: int) -> Iterator[Row]:
    with contextlib.ExitStack() as stack:
        nsqds = [stack.enter_context(real_nsqd()) for _ in range(_NSQDS)]
        for nsqd in nsqds:
            _create(nsqd, channels)
        browser = stack.enter_context(chromium())
        runs = [_run(nsqds, browser) for _ in range(rounds)]
    size = statistics.median(run.metrics_bytes for run in runs)
    idle = statistics.median(run.idle_pause_ms for run in runs)
    limits = [_METRICS_MS] * rounds
    ours = [run.metrics_ms for run in runs]
    yield compare("one answer to /metrics ÷ limit", "ms", ours, limits, f"{size / 1_024:.0f} KiB")
    ours = [run.pause_ms for run in runs]
    note = f"{idle:.1f} ms in as long a time without"
    yield compare("longest pause beside it ÷ limit", "ms", ours, [_PAUSE_MS] * rounds, note)
    limits = [_OVERVIEW_MS] * rounds
    ours = [run.overview_ms[0] for run in runs]
    yield compare("overview, first row ÷ limit", "ms", ours, limits)
    ours = [run.overview_ms[1] for run in runs]
    longest_ms = max(run.overview_ms[2] for run in runs)
    note = f"longest task of the page, with two readings more: {longest_ms:.0f} ms"
    yield compare("overview, a filter is answered ÷ limit", "ms", ours, limits, note)


def _run(nsqds: list[Server], browser: Browser) -> _Run:
    first, *others = nsqds
    flags = [f"--broker-metrics-interval-s={_READ_EVERY_S:g}"]
    for nsqd in others:
        flags += [f"--nsqd-tcp-address={nsqd.tcp}", f"--nsqd-http-address={nsqd.http}"]
    management = free_port()
    watched = "benchmarks.clients.watched"
    with (
        pause_file() as path,
        gateway(first, *flags, module=watched, management=management) as ours,
    ):
        pause_ms(ours, path)
        time.sleep(_LOOKS * _READ_EVERY_S / 2)
        idle_ms = pause_ms(ours, path)
        answers: list[tuple[float, int]] = []
        while len(answers) < _LOOKS:
            time.sleep(_READ_EVERY_S / 2)
            answers.append(ask_metrics(management))
        longest_ms = pause_ms(ours, path)
        overview_ms = _overview_ms(ours, browser)
    # The first answer waits for the first reading.
    later = answers[1:]
    return _Run(
        metrics_ms=max(seconds for seconds, _ in later) * 1_000,
        metrics_bytes=later[-1][1],
        pause_ms=longest_ms,
        idle_pause_ms=idle_ms,
        overview_ms=overview_ms,
    )


def _overview_ms(ours: Server, browser: Browser) -> tuple[float, float, float]:
    page = browser.new_page()
    try:
        page.set_default_timeout(_TIMEOUT_MS)
        page.goto(f"http://{ours.http}/console#/", wait_until="commit")
        row_ms, usable_ms, longest_ms = page.evaluate(_OVERVIEW)
        return row_ms, usable_ms, longest_ms
    finally:
        page.close()


def _create(nsqd: Server, channels: int) -> None:
    """Create topics with *channels* channels together, each with a message."""
    connection = http.client.HTTPConnection(nsqd.http)
    with contextlib.closing(connection):

        def post(target: str, body: bytes = b"") -> None:
            connection.request("POST", target, body)
            answer = connection.getresponse()
            answer.read()
            if answer.status != http.client.OK:
                raise SystemExit(f"nsqd answered {answer.status} to {target}")

        for number in range(channels // _CHANNELS_PER_TOPIC):
            topic = f"topic-{number}"
            post(f"/topic/create?topic={topic}")
            for channel in range(_CHANNELS_PER_TOPIC):
                post(f"/channel/create?topic={topic}&channel=channel-{channel}")
            post(f"/pub?topic={topic}", b"x")
