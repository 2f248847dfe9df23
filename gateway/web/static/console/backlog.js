/** PURE. The last 200 messages, and all that wait for an answer: which ones the list has, and which ones are on their way to it. */

/** @typedef {import("./delivery.js").Delivery} Delivery */

export const MOST_DELIVERIES = 200;

export class Backlog {
  /** What the list has, newest first. @type {Delivery[]} */
  listed = [];
  /** How many came since the list was last brought up to date. */
  news = 0;
  /** What is on its way to the list, oldest first. @type {Delivery[]} */
  #coming = [];

  /** @param {Delivery} delivery */
  add(delivery) {
    this.#coming.push(delivery);
    this.news += 1;
    // Not at each one: to shift an array of 200 a thousand times a second is work for nothing.
    if (this.#coming.length > 2 * MOST_DELIVERIES) this.#coming = newest(this.#coming.reverse()).reverse();
  }

  /** Brings the list up to date. */
  update() {
    if (this.#coming.length > 0) this.listed = newest([...this.#coming.reverse(), ...this.listed]);
    this.#coming = [];
    this.news = 0;
  }

  /**
   * Keeps what `isKept` names, of both.
   *
   * @param {(delivery: Delivery) => boolean} isKept
   */
  keep(isKept) {
    this.listed = this.listed.filter(isKept);
    this.#coming = this.#coming.filter(isKept);
    this.news = this.#coming.length;
  }
}

/**
 * @param {Delivery[]} deliveries Newest first.
 * @returns {Delivery[]} The newest 200. What waits for an answer stays: without it in sight nobody could give one.
 */
function newest(deliveries) {
  let surplus = deliveries.length - MOST_DELIVERIES;
  if (surplus <= 0) return deliveries;
  return deliveries
    .reverse()
    .filter(({ isInHand }) => isInHand || surplus-- <= 0)
    .reverse();
}
