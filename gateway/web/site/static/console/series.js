/** PURE. Values over the last three minutes. */

import { keyOf, sumOf } from "./report.js";

export const SPAN_MS = 180_000;
// With a reading every 2 s, 1,000 of them take up to 6 MB.
const KEPT = 2_000;

/** @typedef {{ atMs: number, value: number }} Point */

export class Series {
  /** Oldest first. @type {Point[]} */
  points = [];

  /**
   * Adds a value, and drops values older than three minutes.
   *
   * @param {number} atMs
   * @param {number} value
   */
  add(atMs, value) {
    this.points.push({ atMs, value });
    const first = this.points.findIndex((point) => point.atMs >= atMs - SPAN_MS);
    if (first > 0) this.points.splice(0, first);
  }

  /** @type {number | null} */
  get last() {
    return this.points.at(-1)?.value ?? null;
  }

  /** @type {number} */
  get most() {
    return this.points.reduce((most, { value }) => Math.max(most, value), 0);
  }

  /** @type {number} */
  get least() {
    return this.points.reduce((least, { value }) => Math.min(least, value), Number.POSITIVE_INFINITY);
  }

  /**
   * @param {number} atMs
   * @returns {Point | null} The value nearest to this time.
   */
  nearest(atMs) {
    /** @type {Point | null} */
    let nearest = null;
    for (const point of this.points) {
      if (nearest === null || Math.abs(point.atMs - atMs) <= Math.abs(nearest.atMs - atMs)) nearest = point;
    }
    return nearest;
  }
}

/** Depth and messages in flight of topics and channels, whether they are shown or not. */
export class QueueHistory {
  /** By topic and channel. @type {Map<string, readonly [Series, Series]>} */
  #kept = new Map();

  /** @param {import("./report.js").Report} report Topics and channels that it does not have are forgotten. */
  add({ atMs, topics }) {
    const here = new Set();
    for (const topic of topics) {
      for (const channel of topic.channels) here.add(this.#addOne(keyOf(topic.name, channel.name), atMs, channel));
      here.add(this.#addOne(keyOf(topic.name, ""), atMs, sumOf(topic)));
    }
    for (const key of this.#kept.keys()) if (!here.has(key)) this.#kept.delete(key);
  }

  /**
   * Returns depth and messages in flight, which are kept from now on if they were too many before.
   *
   * @param {string} topic
   * @param {string} channel Empty: the topic and all its channels.
   */
  of(topic, channel) {
    const key = keyOf(topic, channel);
    const found = this.#kept.get(key);
    if (found !== undefined) return found;
    /** @type {readonly [Series, Series]} */
    const begun = [new Series(), new Series()];
    this.#kept.set(key, begun);
    return begun;
  }

  /**
   * @param {string} key
   * @param {number} atMs
   * @param {import("./report.js").Counts} counts
   */
  #addOne(key, atMs, { depth, inFlight }) {
    let series = this.#kept.get(key);
    if (series === undefined) {
      if (this.#kept.size >= KEPT) return key;
      series = [new Series(), new Series()];
      this.#kept.set(key, series);
    }
    series[0].add(atMs, depth);
    series[1].add(atMs, inFlight);
    return key;
  }
}

/** Converts a counter into a rate per second. */
export class Meter {
  #countBefore = 0;
  #atMs = Number.NaN;

  /**
   * @param {number} atMs
   * @param {number} counted
   * @returns {number} Per second, since the previous call; 0 on the first call and after a reset of the counter.
   */
  read(atMs, counted) {
    const seconds = (atMs - this.#atMs) / 1000;
    const more = counted - this.#countBefore;
    this.#atMs = atMs;
    this.#countBefore = counted;
    return seconds > 0 && more > 0 ? more / seconds : 0;
  }
}
