/** PURE. The newest 200 messages, and all in flight: those in the list, and those not yet in it. */

/** @typedef {import("./delivery.js").Delivery} Delivery */

export const MOST_DELIVERIES = 200;

export class Backlog {
  /** Messages in the list, newest first. @type {Delivery[]} */
  listed = [];
  /** Number of messages received since the last update of the list. */
  news = 0;
  /** Messages not yet in the list, oldest first. @type {Delivery[]} */
  #coming = [];

  /** @param {Delivery} delivery */
  add(delivery) {
    this.#coming.push(delivery);
    this.news += 1;
    // Not for each message: shifting an array of 200 elements a thousand times a second is slow.
    if (this.#coming.length > 2 * MOST_DELIVERIES) this.#coming = newest(this.#coming.reverse()).reverse();
  }

  /** Moves the new messages to the list. */
  update() {
    if (this.#coming.length > 0) this.listed = newest([...this.#coming.reverse(), ...this.listed]);
    this.#coming = [];
    this.news = 0;
  }

  /**
   * Removes all messages for which `isKept` returns false, listed or not.
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
 * @returns {Delivery[]} The newest 200, and all in flight, which the user must be able to acknowledge.
 */
function newest(deliveries) {
  let surplus = deliveries.length - MOST_DELIVERIES;
  if (surplus <= 0) return deliveries;
  return deliveries
    .reverse()
    .filter(({ isInFlight }) => isInFlight || surplus-- <= 0)
    .reverse();
}
