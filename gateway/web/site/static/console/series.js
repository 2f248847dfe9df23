/** PURE. Values over the last three minutes. */

export const SPAN_MS = 180_000;

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

  clear() {
    this.points = [];
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
