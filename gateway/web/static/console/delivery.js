/** One message as this page got it: whether it waits for an answer, and what became of it. Knows no clock and no page. */

/** @typedef {import("../nsq.js").Message} Message */
/** @typedef {"FIN" | "REQ" | "TOUCH"} Answer */

/**
 * `in hand`: it waits for FIN or REQ. `late`: the same, and its time is over, so nsqd will refuse.
 * `shown`: nobody has to answer it. The others tell the answer, or why there will be none.
 *
 * @typedef {"in hand" | "late" | "shown" | "finished" | "requeued" | "refused" | "lost"} DeliveryState
 */

// Long enough to see what was answered, and for nsqd to refuse it.
const LEAVES_AFTER_MS = 2_500;

export class Delivery {
  /** @type {DeliveryState} */
  state;
  /** What is told beside it: a refusal, a delay. */
  note = "";
  /** When it goes out of the way; none: it stays until others need its place. */
  leavesAtMs = Number.POSITIVE_INFINITY;
  #periodMs;

  /**
   * @param {Message} message
   * @param {number} atMs When it came.
   */
  constructor(message, atMs) {
    this.message = message;
    this.atMs = atMs;
    this.state = message.isAnswered ? "shown" : "in hand";
    this.#periodMs = message.deadline - atMs;
  }

  /** Whether FIN, REQ and TOUCH are for it. */
  get isInHand() {
    return this.state === "in hand" || this.state === "late";
  }

  /**
   * @param {number} nowMs
   * @returns {number} What is left of its time, 1 to 0.
   */
  shareLeft(nowMs) {
    return Math.min(1, Math.max(0, (this.message.deadline - nowMs) / this.#periodMs));
  }

  /**
   * Looks at the clock and the connection.
   *
   * @param {number} nowMs
   */
  look(nowMs) {
    if (!this.isInHand) return;
    if (this.message.isAnswered) {
      this.#end("lost", "the connection ended: NSQ gives it to somebody again");
    } else if (this.state === "in hand" && this.message.deadline <= nowMs) {
      this.state = "late";
      this.note = "its time is over: NSQ gives it to somebody again";
    }
  }

  /** @param {number} nowMs @returns {boolean} Whether the answer goes out. */
  finish(nowMs) {
    return this.isInHand && this.message.finish() && this.#end("finished", "", nowMs);
  }

  /**
   * @param {number} delayMs
   * @param {number} nowMs
   * @returns {boolean} As finish().
   */
  requeue(delayMs, nowMs) {
    const note = delayMs > 0 ? `after ${delayMs / 1000} s` : "at once";
    return this.isInHand && this.message.requeue(delayMs) && this.#end("requeued", note, nowMs);
  }

  /** @param {number} nowMs @returns {boolean} As finish(). */
  touch(nowMs) {
    if (!this.isInHand || !this.message.touch()) return false;
    this.state = "in hand";
    this.note = "";
    this.#periodMs = this.message.deadline - nowMs;
    return true;
  }

  /** @param {string} why What nsqd or the gateway says against an answer. */
  refuse(why) {
    this.state = "refused";
    this.note = why;
    this.leavesAtMs = Number.POSITIVE_INFINITY;
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
    return true;
  }
}
