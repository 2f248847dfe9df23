/**
 * PURE. What `nsq-gateway pipeline metrics` publishes: one message for each topic and window, told again while it grows.
 */

/**
 * @typedef {object} Metric One window of one topic.
 * @property {string} topic
 * @property {number} atMs When the window begins.
 * @property {number} spanMs How long it is.
 * @property {number} count Messages in it.
 * @property {number} redelivered Of them, those that came more than once.
 * @property {readonly (number | null)[]} latenciesMs p50, p95 and p99 of publish to arrival; none where it is not told.
 */

export const MOST_WINDOWS = 120;
export const MOST_TOPICS = 20;
const LONGEST_BODY = 2_048;
const LONGEST_TOPIC = 128;

/**
 * @param {string} body Of any message; most are no metric, and cost next to nothing here.
 * @returns {Metric | null} None where it has not the shape of one.
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
  /** By topic, the one that was told of last at the end; then by the beginning of the window. @type {Map<string, Map<number, Metric>>} */
  #topics = new Map();

  /** @type {string[]} */
  get topics() {
    return [...this.#topics.keys()].sort();
  }

  clear() {
    this.#topics.clear();
  }

  /**
   * Puts a window in, or in the place of what was told of it before. NSQ keeps no order, and a window only grows: what
   * counts less came late.
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

  /** @param {string} topic @returns {Metric[]} Its windows, the oldest first. */
  windows(topic) {
    return [...(this.#topics.get(topic)?.values() ?? [])].sort((one, other) => one.atMs - other.atMs);
  }
}
