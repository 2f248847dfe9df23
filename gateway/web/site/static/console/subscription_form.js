/**
 * The subscription form, with a hint about the effect of its values.
 */

import { MOST_DELIVERIES } from "./backlog.js";
import { byId, setText, setTone } from "./elements.js";

/** @typedef {import("./connection.js").SubscribeParams} SubscribeParams */

const RECONNECT_TITLE = "Requeues the messages in flight, and subscribes again with the values of the form";

export class SubscriptionForm {
  #form = byId("subscription-form", HTMLFormElement);
  #topic = byId("topic", HTMLInputElement);
  #channel = byId("channel", HTMLInputElement);
  #ack = byId("ack", HTMLSelectElement);
  #maxInFlight = byId("max-in-flight", HTMLInputElement);
  #secret = byId("secret", HTMLInputElement);
  #subscribe = byId("subscribe", HTMLButtonElement);
  #isAckChosen = false;
  #isActive = false;
  #handlers;

  /**
   * @param {object} handlers
   * @param {(params: SubscribeParams) => void} handlers.onSubscribe
   * @param {() => void} handlers.onStop
   * @param {(topic: string, channel: string) => void} handlers.onManage
   * @param {(topic: string, channel: string) => void} handlers.onChange Called when the topic or channel changes.
   * @param {(maxInFlight: number) => void} handlers.onWindow
   * @param {(topic: string, channel: string) => string} handlers.whyNot Returns why a subscription is not allowed.
   */
  constructor(handlers) {
    this.#handlers = handlers;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      handlers.onSubscribe(this.params);
    });
    byId("stop", HTMLButtonElement).addEventListener("click", () => handlers.onStop());
    byId("manage-open", HTMLButtonElement).addEventListener("click", () => {
      // Invalid names: the browser says why.
      if (!this.#form.reportValidity()) return;
      const { topic, channel } = this.params;
      handlers.onManage(topic, channel);
    });
    for (const field of [this.#topic, this.#channel]) field.addEventListener("input", () => this.#changed());
    this.#ack.addEventListener("change", () => {
      this.#isAckChosen = true;
      this.#hint();
    });
    this.#maxInFlight.addEventListener("change", () => {
      if (this.#maxInFlight.validity.valid) handlers.onWindow(this.#maxInFlight.valueAsNumber);
    });
    this.#hint();
  }

  /** @returns {SubscribeParams & { secret: string }} */
  get params() {
    return {
      topic: this.#topic.value.trim(),
      channel: this.#channel.value.trim(),
      ack: this.#ack.value === "client" ? "client" : "auto",
      maxInFlight: this.#maxInFlight.valueAsNumber || 1,
      secret: this.#secret.value,
    };
  }

  /**
   * Fills in a topic and a channel.
   *
   * @param {string} topic
   * @param {string} channel
   */
  fill(topic, channel) {
    this.#topic.value = topic;
    this.#channel.value = channel;
    this.#changed();
  }

  /** @param {boolean} isActive Whether there is a subscription to stop. */
  show(isActive) {
    const stop = byId("stop", HTMLButtonElement);
    this.#isActive = isActive;
    // A disabled button would lose the focus.
    if (!isActive && document.activeElement === stop) this.#subscribe.focus();
    stop.disabled = !isActive;
    setText(this.#subscribe, isActive ? "Reconnect" : "Subscribe");
    this.#subscribe.classList.toggle("primary", !isActive);
    this.#hint();
  }

  /** @param {boolean} isAsked False: the user signs in, and the field for a secret of nsqd's is hidden. */
  askSecret(isAsked) {
    const field = this.#secret.parentElement;
    if (field !== null) field.hidden = !isAsked;
    if (!isAsked) this.#secret.value = "";
    this.#hint();
  }

  /** Focuses the secret field. */
  askForSecret() {
    this.#secret.focus();
  }

  /** @param {import("./report.js").Report} report Offers its topic and channel names as suggestions. */
  offer(report) {
    offerNames(
      byId("known-topics", HTMLDataListElement),
      report.topics.map(({ name }) => name),
    );
    const topic = report.topics.find(({ name }) => name === this.#topic.value);
    offerNames(byId("known-channels", HTMLDataListElement), topic?.channels.map(({ name }) => name) ?? []);
  }

  #changed() {
    // Use the gateway's default until the user chooses.
    if (!this.#isAckChosen) this.#ack.value = this.#channel.value.trim() === "" ? "auto" : "client";
    this.#hint();
    this.#handlers.onChange(this.#topic.value.trim(), this.#channel.value.trim());
  }

  #hint() {
    const { topic, channel, ack } = this.params;
    const isViewer = channel === "" && ack === "auto";
    this.#maxInFlight.disabled = isViewer;
    // Each message in flight needs a row to be acknowledged.
    this.#maxInFlight.max = String(ack === "client" ? MOST_DELIVERIES : 2_500);
    const whyNot = this.#handlers.whyNot(topic, channel);
    this.#subscribe.disabled = whyNot !== "";
    this.#subscribe.title = whyNot || (this.#isActive ? RECONNECT_TITLE : "");
    const hint = byId("subscription-hint", HTMLElement);
    setTone(hint, whyNot === "" && (channel === "" || topic === "") ? "" : "warn");
    setText(hint, whyNot || hintFor(channel, ack));
  }
}

/**
 * @param {string} channel
 * @param {"client" | "auto"} ack
 * @returns {string}
 */
function hintFor(channel, ack) {
  if (channel === "") {
    return ack === "auto"
      ? "A viewer: receives every message from now on, without consuming any."
      : "A temporary channel: receives every message from now on; you finish each one (FIN).";
  }
  return ack === "auto"
    ? `Takes messages from other consumers of ${channel}: each is finished when it is sent to this page.`
    : `Takes messages from other consumers of ${channel}: you finish each one (FIN).`;
}

/**
 * @param {HTMLDataListElement} list
 * @param {readonly string[]} names
 */
function offerNames(list, names) {
  const known = [...list.options].map(({ value }) => value);
  if (known.length === names.length && known.every((name, at) => name === names[at])) return;
  list.replaceChildren(...names.map((name) => new Option(name, name)));
}
