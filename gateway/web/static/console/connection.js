/**
 * The one subscription of this page: begins it, hands on what arrives, counts, and tells how it stands.
 */

import { NsqError, subscribe } from "../nsq.js";
import { Delivery } from "./delivery.js";

/**
 * @typedef {import("../nsq.js").Subscription} Subscription
 * @typedef {import("./standing.js").Standing} Standing
 */

/**
 * @typedef {object} Wish What to subscribe to.
 * @property {string} topic
 * @property {string} channel Empty: a viewer, or with `client` a channel of its own.
 * @property {"client" | "auto"} ack
 * @property {number} maxInFlight
 * @property {string} secret Empty: none.
 */

/**
 * @typedef {object} Listener
 * @property {(delivery: Delivery) => void} delivered
 * @property {() => void} stood It stands differently now.
 * @property {(error: Error, refused: readonly Delivery[]) => void} failed
 */

/** What was counted since the last Subscribe. */
export class Tally {
  received = 0;
  finished = 0;
  requeued = 0;
  touched = 0;
  refused = 0;
  lost = 0;
}

// Refusals come late; a delivery that was answered so long ago has none.
const KNOWN_DELIVERIES = 1_000;

export class Connection {
  tally = new Tally();
  /** @type {Standing} */
  standing = { state: "idle" };
  /** @type {Wish | null} */
  wish = null;
  /** @type {Subscription | null} */
  #subscription = null;
  /** @type {Map<string, Delivery>} */
  #known = new Map();
  #listener;

  /** @param {Listener} listener */
  constructor(listener) {
    this.#listener = listener;
  }

  /** Whether there is one, connected or on its way back. */
  get isActive() {
    return this.standing.state !== "idle" && this.standing.state !== "closed";
  }

  /** Whether a publish could go over it now. */
  get isOpen() {
    return this.standing.state === "connected" || this.standing.state === "channel_paused";
  }

  /** Whether messages are answered here, by hand. */
  get isByHand() {
    return this.wish?.ack === "client";
  }

  /** Messages that wait for an answer. */
  get inHand() {
    let sum = 0;
    for (const delivery of this.#known.values()) if (delivery.isInHand) sum += 1;
    return sum;
  }

  /** Messages of a viewer that were thrown away, for the page was too slow. */
  get dropped() {
    return this.#subscription?.dropped ?? 0;
  }

  /**
   * Begins another subscription, in place of one that there is.
   *
   * @param {Wish} wish
   */
  start(wish) {
    this.stop();
    this.wish = wish;
    this.tally = new Tally();
    this.#known.clear();
    const subscription = subscribe({
      topic: wish.topic,
      ack: wish.ack,
      ...(wish.channel !== "" && { channel: wish.channel }),
      ...(wish.channel !== "" || wish.ack === "client" ? { maxInFlight: wish.maxInFlight } : {}),
      ...(wish.secret !== "" && { secret: wish.secret }),
    });
    this.#subscription = subscription;
    subscription.addEventListener("state", ({ detail }) => this.#stand(subscription, detail));
    subscription.addEventListener("error", (event) => {
      event.preventDefault(); // it is told on the page
      if (subscription === this.#subscription) this.#fail(event.detail);
    });
    this.#stand(subscription, { state: subscription.state });
    this.#read(subscription);
  }

  /** Gives back what is in hand, and ends. */
  stop() {
    if (!this.isActive) return;
    const nowMs = Date.now();
    for (const delivery of this.#known.values()) if (delivery.requeue(0, nowMs)) this.tally.requeued += 1;
    this.#subscription?.close().catch(() => {}); // the state tells
  }

  /** @param {number} maxInFlight The window, from now on. */
  setMaxInFlight(maxInFlight) {
    if (this.wish === null || (this.wish.channel === "" && !this.isByHand)) return;
    this.wish = { ...this.wish, maxInFlight };
    this.#subscription?.setMaxInFlight(maxInFlight);
  }

  /**
   * Publishes over the socket.
   *
   * @param {string} topic
   * @param {readonly string[]} bodies
   * @param {number} deferMs Of a single body; 0: at once.
   * @returns {Promise<void>}
   */
  async publish(topic, bodies, deferMs) {
    if (this.#subscription === null) throw new Error("there is no subscription to publish over");
    const [body = ""] = bodies;
    if (bodies.length > 1) await this.#subscription.publishAll(topic, bodies);
    else await this.#subscription.publish(topic, body, deferMs > 0 ? { deferMs } : {});
  }

  /** @param {Delivery} delivery @param {number} nowMs */
  finish(delivery, nowMs) {
    const isSent = delivery.finish(nowMs);
    if (isSent) this.tally.finished += 1;
    return isSent;
  }

  /** @param {Delivery} delivery @param {number} delayMs @param {number} nowMs */
  requeue(delivery, delayMs, nowMs) {
    const isSent = delivery.requeue(delayMs, nowMs);
    if (isSent) this.tally.requeued += 1;
    return isSent;
  }

  /** @param {Delivery} delivery @param {number} nowMs */
  touch(delivery, nowMs) {
    const isSent = delivery.touch(nowMs);
    if (isSent) this.tally.touched += 1;
    return isSent;
  }

  /**
   * Looks after deadlines and lost connections; called now and then.
   *
   * @param {number} nowMs
   */
  look(nowMs) {
    for (const delivery of this.#known.values()) {
      if (!delivery.isInHand) continue;
      delivery.look(nowMs);
      if (delivery.state === "lost") this.tally.lost += 1;
    }
  }

  /** @param {Subscription} subscription */
  async #read(subscription) {
    try {
      for await (const message of subscription) {
        if (subscription !== this.#subscription) message.requeue();
        else this.#take(new Delivery(message, Date.now()));
      }
    } catch {
      // There is no coming back; the state and the error tell why.
    }
  }

  /** @param {Delivery} delivery */
  #take(delivery) {
    this.tally.received += 1;
    if (this.isByHand) this.#know(delivery);
    else if (this.wish?.channel !== "") this.tally.finished += 1; // by the gateway
    this.#listener.delivered(delivery);
  }

  /** @param {Delivery} delivery */
  #know(delivery) {
    this.#known.set(delivery.message.id, delivery);
    if (this.#known.size <= KNOWN_DELIVERIES) return;
    for (const [id, old] of this.#known) {
      if (old.isInHand) continue;
      this.#known.delete(id);
      return;
    }
  }

  /**
   * @param {Subscription} subscription
   * @param {{ state: import("../nsq.js").State, retryInMs?: number, code?: number, reason?: string }} told
   */
  #stand(subscription, { state, retryInMs, code, reason }) {
    if (subscription !== this.#subscription) return;
    this.standing = { ...this.standing, state, nsqds: subscription.nsqds };
    if (state === "connecting") this.standing = { state, nsqds: subscription.nsqds };
    if (code !== undefined) this.standing.code = code;
    if (reason !== undefined) this.standing.reason = reason;
    if (retryInMs !== undefined) this.standing.retryAtMs = Date.now() + retryInMs;
    this.#listener.stood();
  }

  /** @param {Error} error */
  #fail(error) {
    if (!(error instanceof NsqError)) return this.#listener.failed(error, []);
    if (this.standing.state === "closed") return this.#endWith(error);
    if (error.code === "NO_CONNECTION") return; // so does the state
    const ids = error.ids ?? [];
    const refused = ids.map((id) => this.#known.get(id)).filter((delivery) => delivery !== undefined);
    for (const delivery of refused) delivery.refuse(describe(error));
    this.tally.refused += refused.length;
    this.#listener.failed(error, refused);
  }

  /** @param {NsqError} error Why there is no coming back. */
  #endWith(error) {
    this.standing = { ...this.standing, refusal: describe(error) };
    if (error.status !== undefined) this.standing.code = error.status;
    this.#listener.stood();
  }
}

/**
 * @param {Error} error
 * @returns {string} Its word and its text.
 */
export function describe(error) {
  return error instanceof NsqError ? `${error.code}: ${error.message}` : error.message;
}
