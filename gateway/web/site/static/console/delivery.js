/** One delivery of a message, with its state. Uses no DOM. */

import { wholeDuration } from "./format.js";

/** @typedef {import("../nsq.js").Message} Message */
/** @typedef {"FIN" | "REQ" | "TOUCH"} Answer */

/**
 * `in flight`: not acknowledged yet. `answering`: FIN or REQ is sent and not confirmed yet. `shown`: needs no
 * acknowledgement. The other states are final.
 *
 * @typedef {"in flight" | "answering" | "shown" | "finished" | "requeued" | "refused" | "lost"} DeliveryState
 */

// Long enough for the user to see the result, and for nsqd to refuse the acknowledgement.
const LEAVES_AFTER_MS = 2_500;

export class Delivery {
  /** @type {DeliveryState} */
  state;
  /** Text shown with the state: a refusal, a delay. */
  note = "";
  /** When the row fades; infinite: the row stays until its place is needed. */
  leavesAtMs = Number.POSITIVE_INFINITY;
  #periodMs;

  /**
   * @param {Message} message
   * @param {number} atMs When the message was received.
   */
  constructor(message, atMs) {
    this.message = message;
    this.atMs = atMs;
    this.state = message.isAnswered ? "shown" : "in flight";
    this.#periodMs = message.deadline - atMs;
  }

  /** True if the delivery can still be acknowledged. */
  get isInFlight() {
    return this.state === "in flight";
  }

  /**
   * @param {number} nowMs
   * @returns {number} Remaining share of the message timeout, 1 to 0.
   */
  shareLeft(nowMs) {
    return Math.min(1, Math.max(0, (this.message.deadline - nowMs) / this.#periodMs));
  }

  /**
   * Checks the deadline and the connection. Requeues a delivery that has timed out, to free its place in the window.
   *
   * @param {number} nowMs
   */
  checkDeadline(nowMs) {
    if (!this.isInFlight) return;
    if (this.message.isAnswered) {
      this.#end("lost", "connection ended: NSQ delivers it again");
    } else if (this.message.deadline <= nowMs) {
      this.message.requeue();
      this.#end("lost", "timed out: NSQ delivers it again");
    }
  }

  /**
   * Ends a delivery whose message nsqd has dropped, and frees its place in the window.
   *
   * @param {string} why
   * @returns {boolean} False if it was answered before.
   */
  drop(why) {
    if (!this.isInFlight) return false;
    this.message.requeue();
    this.#end("lost", why);
    return true;
  }

  /** @param {number} nowMs @returns {Promise<boolean>} True if the gateway has confirmed the FIN. */
  finish(nowMs) {
    return this.#answer(() => this.message.finish(), "finished", "", nowMs);
  }

  /**
   * @param {number} delayMs
   * @param {number} nowMs
   * @returns {Promise<boolean>} As finish().
   */
  requeue(delayMs, nowMs) {
    const note = delayMs > 0 ? `after ${wholeDuration(delayMs / 1000)}` : "at once";
    return this.#answer(() => this.message.requeue(delayMs), "requeued", note, nowMs);
  }

  /** @returns {Promise<boolean>} As finish(). */
  async touch() {
    this.checkDeadline(Date.now());
    const isTaken = this.isInFlight && (await this.message.touch());
    if (isTaken) this.#periodMs = this.message.deadline - Date.now();
    return isTaken;
  }

  /** @param {string} why The error of nsqd or the gateway. */
  refuse(why) {
    this.state = "refused";
    this.note = why;
    this.leavesAtMs = Number.POSITIVE_INFINITY;
  }

  /**
   * @param {() => Promise<boolean>} send
   * @param {DeliveryState} state
   * @param {string} note
   * @param {number} nowMs
   */
  async #answer(send, state, note, nowMs) {
    // A row is drawn anew twice a second: it may have timed out since.
    this.checkDeadline(nowMs);
    if (!this.isInFlight) return false;
    this.state = "answering";
    const isTaken = await send();
    // A refusal by NSQ may arrive before the gateway's confirmation is processed.
    if (this.state !== "answering") return false;
    if (isTaken) this.#end(state, note, nowMs);
    else this.#end("lost", "not confirmed: NSQ may deliver it again");
    return isTaken;
  }

  /**
   * @param {DeliveryState} state
   * @param {string} note
   * @param {number} [nowMs]
   */
  #end(state, note, nowMs = Number.POSITIVE_INFINITY) {
    this.state = state;
    this.note = note;
    this.leavesAtMs = nowMs + LEAVES_AFTER_MS;
  }
}
