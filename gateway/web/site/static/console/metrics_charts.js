/**
 * Two charts of pipeline metrics, shown once the subscribed topic contains some: messages per window, and their
 * latency.
 */

import { Chart } from "./chart.js";
import { byId, setText } from "./elements.js";
import { clock, duration, rate, shortCount } from "./format.js";
import { MetricsBook, readMetric } from "./metrics.js";
import { Series } from "./series.js";

/** @typedef {import("./metrics.js").Metric} Metric */
/** @typedef {import("./chart.js").Scale} Scale */

const SHOWN_WINDOWS = 30;
const MINUTE_MS = 60_000;

export class MetricsCharts {
  #root = byId("metrics", HTMLElement);
  #choice = byId("metrics-topic", HTMLSelectElement);
  #book = new MetricsBook();
  #isChanged = false;
  #count = new Series();
  #redelivered = new Series();
  /** p50, p95, p99. @type {readonly [Series, Series, Series]} */
  #latencies = [new Series(), new Series(), new Series()];
  #counts = new Chart(
    byId("metrics-counts", HTMLElement),
    [
      { name: "messages", unit: "", series: this.#count, part: "count" },
      { name: "redelivered", unit: "", series: this.#redelivered, part: "redelivered" },
    ],
    shortCount,
    (agoMs) => this.#times.follow(agoMs),
    scaleOf(MINUTE_MS),
  );
  #times = new Chart(
    byId("metrics-times", HTMLElement),
    [
      { name: "p50", unit: " ms", series: this.#latencies[0], part: "p50" },
      { name: "p95", unit: " ms", series: this.#latencies[1], part: "p95" },
      { name: "p99", unit: " ms", series: this.#latencies[2], part: "p99" },
    ],
    rate,
    (agoMs) => this.#counts.follow(agoMs),
    scaleOf(MINUTE_MS),
  );

  constructor() {
    this.#choice.addEventListener("change", () => this.#show());
  }

  /** Resets the charts, for another subscription. */
  clear() {
    this.#book.clear();
    this.#root.hidden = true;
    this.#choice.replaceChildren();
  }

  /** @param {string} body Body of a received message; ignored if it is not a metric. */
  add(body) {
    const metric = readMetric(body);
    if (metric === null) return;
    this.#book.put(metric);
    this.#isChanged = true;
  }

  /** Draws the received metrics; called once a second. */
  tick() {
    if (!this.#isChanged) return;
    this.#isChanged = false;
    this.#root.hidden = false;
    this.#offer();
    this.#show();
  }

  #offer() {
    const { topics } = this.#book;
    const offered = [...this.#choice.options].map(({ value }) => value);
    if (topics.join() === offered.join()) return;
    const chosen = this.#choice.value;
    this.#choice.replaceChildren(...topics.map((topic) => new Option(topic, topic)));
    if (topics.includes(chosen)) this.#choice.value = chosen;
  }

  #show() {
    const windows = this.#book.windows(this.#choice.value).slice(-SHOWN_WINDOWS);
    const last = windows.at(-1);
    if (last === undefined) return;
    this.#count.points = windows.map(({ atMs, count }) => ({ atMs, value: count }));
    this.#redelivered.points = windows.map(({ atMs, redelivered }) => ({ atMs, value: redelivered }));
    this.#latencies.forEach((series, at) => {
      series.points = windows.flatMap(({ atMs, latenciesMs }) => {
        const value = latenciesMs[at];
        return value == null ? [] : [{ atMs, value }];
      });
    });
    setText(byId("metrics-window", HTMLElement), `each ${duration(last.spanMs).replace(/ 0 (s|min)$/, "")}`);
    for (const chart of [this.#counts, this.#times]) {
      chart.scale = scaleOf(last.spanMs);
      chart.draw(last.atMs);
    }
  }
}

/**
 * @param {number} windowMs
 * @returns {Scale} The windows up to the newest one; each point is at the start of its window.
 */
function scaleOf(windowMs) {
  const spanMs = (SHOWN_WINDOWS - 1) * windowMs;
  return {
    spanMs,
    stepMs: windowMs,
    gapMs: 1.5 * windowMs,
    hasDots: true,
    tell: clock,
    ticks: (nowMs) => [spanMs, spanMs / 2, 0].map((agoMs) => ({ agoMs, text: clock(nowMs - agoMs) })),
  };
}
