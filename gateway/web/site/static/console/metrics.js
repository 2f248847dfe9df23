/**
 * PURE. Parse messages of `nsq-gateway pipeline metrics`: one per topic and window, repeated while the window grows.
 */

/**
 * @typedef {object} Metric One window of one topic.
 * @property {string} topic
 * @property {number} atMs When the window begins.
 * @property {number} spanMs Length of the window.
 * @property {number} count Messages in the window.
 * @property {number} redelivered Redelivered messages in the window.
 * @property {readonly (number | null)[]} latenciesMs p50, p95 and p99 from publish to receive; null if unknown.
 */

export const MOST_WINDOWS = 120;
export const MOST_TOPICS = 20;
const LONGEST_BODY = 2_048;
const LONGEST_TOPIC = 128;

/**
 * @param {string} body Body of any message; bodies that are not metrics are rejected quickly.
 * @returns {Metric | null} Null if it is not a metric.
 */
export function readMetric(body) {
  if (body.length > LONGEST_BODY || !body.startsWith("{") || !body.includes('"window_start"')) return null;
  const told = parse(body);
  if (told === null) return null;
  const { topic, window_start: start, window_end: end, count, redelivered = 0 } = told;
  if (typeof topic !== "string" || topic === "" || topic.length > LONGEST_TOPIC) return null;
  const atMs = Date.parse(String(start));
  const spanMs = Date.parse(String(end)) - atMs;
  if (!(spanMs > 0) || !isAmount(count) || !isAmount(redelivered)) return null;
  const latenciesMs = [told.p50_ms, told.p95_ms, told.p99_ms].map((each) => each ?? null);
  if (!latenciesMs.every((each) => each === null || isAmount(each))) return null;
  return { topic, atMs, spanMs, count, redelivered, latenciesMs: /** @type {(number | null)[]} */ (latenciesMs) };
}

/** @param {string} body @returns {Record<string, unknown> | null} */
function parse(body) {
  try {
    return JSON.parse(body);
  } catch {
    return null;
  }
}

/** @param {unknown} value @returns {value is number} */
function isAmount(value) {
  return typeof value === "number" && Number.isFinite(value) && value >= 0;
}

/** The newest windows of each topic. */
export class MetricsBook {
  /** By topic, the most recently updated last; then by the start of the window. @type {Map<string, Map<number, Metric>>} */
  #topics = new Map();

  /** @type {string[]} */
  get topics() {
    return [...this.#topics.keys()].sort();
  }

  clear() {
    this.#topics.clear();
  }

  /**
   * Adds a window, or replaces its previous values. NSQ does not keep the order, and a window only grows: values with
   * a lower count are older, and are ignored.
   *
   * @param {Metric} metric
   */
  put(metric) {
    const windows = this.#topics.get(metric.topic) ?? new Map();
    this.#topics.delete(metric.topic);
    this.#topics.set(metric.topic, windows);
    const before = windows.get(metric.atMs);
    if (before === undefined || before.count <= metric.count) windows.set(metric.atMs, metric);
    if (windows.size > MOST_WINDOWS) windows.delete(Math.min(...windows.keys()));
    const [oldest] = this.#topics.keys();
    if (this.#topics.size > MOST_TOPICS && oldest !== undefined) this.#topics.delete(oldest);
  }

  /** @param {string} topic @returns {Metric[]} The topic's windows, oldest first. */
  windows(topic) {
    return [...(this.#topics.get(topic)?.values() ?? [])].sort((one, other) => one.atMs - other.atMs);
  }
}
