/** PURE. The newest 200 messages, and all in flight: those in the list, and those not yet in it. */

/** @typedef {import("./delivery.js").Delivery} Delivery */

export const MOST_DELIVERIES = 200;

export class Backlog {
  /** Messages in the list, newest first. @type {Delivery[]} */
  listed = [];
  /** Whether older messages than those in the list have been dropped. */
  isCut = false;
  /** Number of messages received since the last update of the list. */
  news = 0;
  /** Messages not yet in the list, oldest first. @type {Delivery[]} */
  #coming = [];

  /** @param {Delivery} delivery */
  add(delivery) {
    this.#coming.push(delivery);
    this.news += 1;
    // Not for each message: shifting an array of 200 elements a thousand times a second is slow.
    if (this.#coming.length > 2 * MOST_DELIVERIES) this.#coming = this.#newest(this.#coming.reverse()).reverse();
  }

  /** Moves the new messages to the list. */
  update() {
    if (this.#coming.length > 0) this.listed = this.#newest([...this.#coming.reverse(), ...this.listed]);
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
    if (this.listed.length === 0) this.isCut = false;
    this.#coming = this.#coming.filter(isKept);
    this.news = this.#coming.length;
  }

  /**
   * @param {Delivery[]} deliveries Newest first.
   * @returns {Delivery[]} The newest 200, and all in flight, which the user must be able to acknowledge.
   */
  #newest(deliveries) {
    let surplus = deliveries.length - MOST_DELIVERIES;
    if (surplus <= 0) return deliveries;
    const kept = deliveries.reverse().filter(({ isInFlight }) => isInFlight || surplus-- <= 0);
    this.isCut ||= kept.length < deliveries.length;
    return kept.reverse();
  }
}
