/**
 * The one subscription of this page: starts it, passes messages on, counts them, and tracks its status.
 */

import { NsqError, subscribe } from "../nsq.js";
import { Delivery } from "./delivery.js";

/**
 * @typedef {import("../nsq.js").Subscription} Subscription
 * @typedef {import("./status.js").Status} Status
 */

/**
 * @typedef {object} SubscribeParams
 * @property {string} topic
 * @property {string} channel Empty: a viewer, or with `client` a temporary channel.
 * @property {"client" | "auto"} ack
 * @property {number} maxInFlight
 * @property {string | (() => string)} secret Empty: none. A function is asked for each connection, and to renew it.
 */

/**
 * @typedef {object} Listener
 * @property {(delivery: Delivery) => void} onDelivery
 * @property {() => void} onStatus Called when the status changes.
 * @property {(error: Error, refused: readonly Delivery[]) => void} onError
 */

/** Counters since the last Subscribe. */
export class Counters {
  received = 0;
  finished = 0;
  requeued = 0;
  touched = 0;
  refused = 0;
  lost = 0;
}

// The number of deliveries kept, since refusals may arrive late.
const KNOWN_DELIVERIES = 1_000;

export class Connection {
  counters = new Counters();
  /** @type {Status} */
  status = { state: "idle" };
  /** @type {SubscribeParams | null} */
  params = null;
  /** @type {Subscription | null} */
  #subscription = null;
  /** @type {Map<string, Delivery>} */
  #known = new Map();
  #listener;

  /** @param {Listener} listener */
  constructor(listener) {
    this.#listener = listener;
  }

  /** True if there is a subscription, connected or reconnecting. */
  get isActive() {
    return this.status.state !== "idle" && this.status.state !== "closed";
  }

  /** True if a publish can use the socket now. */
  get isOpen() {
    return this.status.state === "connected" || this.status.state === "channel_paused";
  }

  /** True if the user acknowledges messages by hand. */
  get isByHand() {
    return this.params?.ack === "client";
  }

  /** Number of messages in flight. */
  get inFlight() {
    let sum = 0;
    for (const delivery of this.#known.values()) if (delivery.isInFlight) sum += 1;
    return sum;
  }

  /** Number of a viewer's messages dropped because the page was too slow. */
  get dropped() {
    return this.#subscription?.dropped ?? 0;
  }

  /**
   * Starts a subscription, and stops the current one.
   *
   * @param {SubscribeParams} params
   */
  start(params) {
    this.stop();
    this.params = params;
    this.counters = new Counters();
    this.#known.clear();
    const subscription = subscribe({
      topic: params.topic,
      ack: params.ack,
      ...(params.channel !== "" && { channel: params.channel }),
      ...(params.channel !== "" || params.ack === "client" ? { maxInFlight: params.maxInFlight } : {}),
      ...(params.secret !== "" && { secret: params.secret }),
    });
    this.#subscription = subscription;
    subscription.addEventListener("state", ({ detail }) => this.#update(subscription, detail));
    subscription.addEventListener("error", (event) => {
      event.preventDefault(); // shown on the page instead
      if (subscription === this.#subscription) this.#fail(event.detail);
    });
    this.#update(subscription, { state: subscription.state });
    this.#read(subscription);
  }

  /** Requeues the messages in flight, and closes. */
  stop() {
    if (!this.isActive) return;
    const nowMs = Date.now();
    // CLS goes before the REQs: nsqd would deliver them here again.
    this.#subscription?.close().catch(() => {}); // reported by the state
    for (const delivery of this.#known.values()) this.requeue(delivery, 0, nowMs);
  }

  /**
   * Ends the deliveries in flight, because nsqd has dropped their messages.
   *
   * @param {string} topic
   * @param {string} channel The emptied channel.
   */
  onEmptied(topic, channel) {
    if (!this.isActive || topic !== this.params?.topic || channel !== this.params.channel) return;
    for (const delivery of this.#known.values()) if (delivery.drop("the channel was emptied")) this.counters.lost += 1;
  }

  /**
   * @param {SubscribeParams} params
   * @returns {boolean} True if the open subscription has all of these.
   */
  has({ topic, channel, ack, maxInFlight, secret }) {
    const now = this.params;
    if (now === null || !this.isOpen || topic !== now.topic || channel !== now.channel || ack !== now.ack) return false;
    // A function asks for a secret each time.
    return maxInFlight === now.maxInFlight && (typeof now.secret !== "string" || secret === now.secret);
  }

  /** @param {number} maxInFlight The new window. */
  setMaxInFlight(maxInFlight) {
    if (this.params === null || (this.params.channel === "" && !this.isByHand)) return;
    this.params = { ...this.params, maxInFlight };
    this.#subscription?.setMaxInFlight(maxInFlight);
  }

  /**
   * Publishes over the socket.
   *
   * @param {string} topic
   * @param {readonly string[]} bodies
   * @param {number} deferMs Delay of a single body; 0: none.
   * @returns {Promise<void>}
   */
  async publish(topic, bodies, deferMs) {
    if (this.#subscription === null) throw new Error("there is no subscription to publish with");
    const [body = ""] = bodies;
    if (bodies.length > 1) await this.#subscription.publishAll(topic, bodies);
    else await this.#subscription.publish(topic, body, deferMs > 0 ? { deferMs } : {});
  }

  /** @param {Delivery} delivery @param {number} nowMs */
  finish(delivery, nowMs) {
    return this.#count("finished", delivery, () => delivery.finish(nowMs));
  }

  /** @param {Delivery} delivery @param {number} delayMs @param {number} nowMs */
  requeue(delivery, delayMs, nowMs) {
    return this.#count("requeued", delivery, () => delivery.requeue(delayMs, nowMs));
  }

  /** @param {Delivery} delivery */
  touch(delivery) {
    return this.#count("touched", delivery, () => delivery.touch());
  }

  /**
   * Counts an acknowledgement once the gateway has confirmed it.
   *
   * @param {"finished" | "requeued" | "touched"} name
   * @param {Delivery} delivery
   * @param {() => Promise<boolean>} answer
   */
  async #count(name, delivery, answer) {
    if (!delivery.isInFlight) return false;
    const { counters } = this; // a new subscription may replace it meanwhile
    const isTaken = await answer();
    if (isTaken) counters[name] += 1;
    else if (delivery.state === "lost") counters.lost += 1;
    return isTaken;
  }

  /**
   * Checks deadlines and lost connections; called periodically.
   *
   * @param {number} nowMs
   */
  checkDeadlines(nowMs) {
    for (const delivery of this.#known.values()) {
      if (!delivery.isInFlight) continue;
      delivery.checkDeadline(nowMs);
      if (delivery.state === "lost") this.counters.lost += 1;
    }
  }

  /** @param {Subscription} subscription */
  async #read(subscription) {
    try {
      for await (const message of subscription) {
        if (subscription !== this.#subscription) message.requeue();
        else this.#receive(new Delivery(message, Date.now()));
      }
    } catch {
      // A permanent error: reported by the state and the error event.
    }
  }

  /** @param {Delivery} delivery */
  #receive(delivery) {
    this.counters.received += 1;
    if (this.isByHand) this.#remember(delivery);
    else if (this.params?.channel !== "") this.counters.finished += 1; // by the gateway
    this.#listener.onDelivery(delivery);
  }

  /** @param {Delivery} delivery */
  #remember(delivery) {
    this.#known.set(delivery.message.id, delivery);
    if (this.#known.size <= KNOWN_DELIVERIES) return;
    for (const [id, old] of this.#known) {
      if (old.isInFlight) continue;
      this.#known.delete(id);
      return;
    }
  }

  /**
   * @param {Subscription} subscription
   * @param {{ state: import("../nsq.js").State, retryInMs?: number, code?: number, reason?: string }} detail
   */
  #update(subscription, { state, retryInMs, code, reason }) {
    if (subscription !== this.#subscription) return;
    this.status = { ...this.status, state, nsqds: subscription.nsqds };
    if (state === "connecting") this.status = { state, nsqds: subscription.nsqds };
    if (code !== undefined) this.status.code = code;
    if (reason !== undefined) this.status.reason = reason;
    if (retryInMs !== undefined) this.status.retryAtMs = Date.now() + retryInMs;
    this.#listener.onStatus();
  }

  /** @param {Error} error */
  #fail(error) {
    if (!(error instanceof NsqError)) return this.#listener.onError(error, []);
    if (this.status.state === "closed") return this.#endWith(error);
    if (error.code === "NO_CONNECTION") return; // reported by the state
    const ids = error.ids ?? [];
    const known = ids.map((id) => this.#known.get(id)).filter((delivery) => delivery !== undefined);
    // The requeue of a delivery that has timed out is refused, as expected.
    const refused = known.filter(({ state }) => state !== "lost");
    if (known.length > 0 && refused.length === 0) return;
    for (const delivery of refused) {
      // It was counted when the gateway had confirmed it; nsqd's refusal came later.
      if (delivery.state === "finished" || delivery.state === "requeued") this.counters[delivery.state] -= 1;
      delivery.refuse(describe(error));
    }
    this.counters.refused += refused.length;
    this.#listener.onError(error, refused);
  }

  /** @param {NsqError} error The permanent error. */
  #endWith(error) {
    this.status = { ...this.status, refusal: describe(error) };
    if (error.status !== undefined) this.status.code = error.status;
    this.#listener.onStatus();
  }
}

/**
 * @param {Error} error
 * @returns {string} Its code and its text.
 */
export function describe(error) {
  return error instanceof NsqError ? `${error.code}: ${error.message}` : error.message;
}
