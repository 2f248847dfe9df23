/**
 * The form that says what to subscribe to, and tells before it is sent what that will do.
 */

import { MOST_DELIVERIES } from "./backlog.js";
import { byId, setText, setTone } from "./elements.js";

/** @typedef {import("./connection.js").Wish} Wish */

const ANEW = "Gives back what is not answered, ends this subscription, and begins one with what stands in the form";

export class SubscriptionForm {
  #form = byId("subscription-form", HTMLFormElement);
  #topic = byId("topic", HTMLInputElement);
  #channel = byId("channel", HTMLInputElement);
  #ack = byId("ack", HTMLSelectElement);
  #maxInFlight = byId("max-in-flight", HTMLInputElement);
  #secret = byId("secret", HTMLInputElement);
  #isAckChosen = false;
  #asked;

  /**
   * @param {object} asked
   * @param {(wish: Wish) => void} asked.onSubscribe
   * @param {() => void} asked.onStop
   * @param {(topic: string, channel: string) => void} asked.onChange Another topic or channel stands there.
   * @param {(maxInFlight: number) => void} asked.onWindow
   */
  constructor(asked) {
    this.#asked = asked;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      asked.onSubscribe(this.wish);
    });
    byId("stop", HTMLButtonElement).addEventListener("click", () => asked.onStop());
    for (const field of [this.#topic, this.#channel]) field.addEventListener("input", () => this.#changed());
    this.#ack.addEventListener("change", () => {
      this.#isAckChosen = true;
      this.#hint();
    });
    this.#maxInFlight.addEventListener("change", () => {
      if (this.#maxInFlight.validity.valid) asked.onWindow(this.#maxInFlight.valueAsNumber);
    });
    this.#hint();
  }

  /** @returns {Wish} */
  get wish() {
    return {
      topic: this.#topic.value.trim(),
      channel: this.#channel.value.trim(),
      ack: this.#ack.value === "client" ? "client" : "auto",
      maxInFlight: this.#maxInFlight.valueAsNumber || 1,
      secret: this.#secret.value,
    };
  }

  /**
   * Fills in what was chosen.
   *
   * @param {string} topic
   * @param {string} channel
   */
  fill(topic, channel) {
    this.#topic.value = topic;
    this.#channel.value = channel;
    this.#changed();
  }

  /** @param {boolean} isActive Whether there is something to stop. */
  show(isActive) {
    byId("stop", HTMLButtonElement).disabled = !isActive;
    const subscribe = byId("subscribe", HTMLButtonElement);
    setText(subscribe, isActive ? "Subscribe anew" : "Subscribe");
    subscribe.title = isActive ? ANEW : "";
    subscribe.classList.toggle("primary", !isActive);
  }

  /** Puts the cursor where a secret is missing. */
  askForSecret() {
    this.#secret.focus();
  }

  /** @param {import("./report.js").Report} report Its names are offered while typing. */
  offer(report) {
    offerNames(
      byId("known-topics", HTMLDataListElement),
      report.topics.map(({ name }) => name),
    );
    const topic = report.topics.find(({ name }) => name === this.#topic.value);
    offerNames(byId("known-channels", HTMLDataListElement), topic?.channels.map(({ name }) => name) ?? []);
  }

  #changed() {
    // As the gateway does it, until somebody says otherwise.
    if (!this.#isAckChosen) this.#ack.value = this.#channel.value.trim() === "" ? "auto" : "client";
    this.#hint();
    this.#asked.onChange(this.#topic.value.trim(), this.#channel.value.trim());
  }

  #hint() {
    const { topic, channel, ack } = this.wish;
    const isViewer = channel === "" && ack === "auto";
    this.#maxInFlight.disabled = isViewer;
    // What waits for an answer has to have a row, or nobody could give it.
    this.#maxInFlight.max = String(ack === "client" ? MOST_DELIVERIES : 2_500);
    const hint = byId("subscription-hint", HTMLElement);
    setTone(hint, channel === "" || topic === "" ? "" : "warn");
    setText(hint, hintFor(channel, ack));
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
      ? "A viewer: it sees every message from now on and takes none from anybody."
      : "A channel of its own: every message from now on, each waits for your FIN.";
  }
  return ack === "auto"
    ? `Takes messages from the other consumers of ${channel}: each is finished once it is sent here.`
    : `Takes messages from the other consumers of ${channel}: each waits for your FIN.`;
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
