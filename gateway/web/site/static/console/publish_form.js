/**
 * The publish form: publishes over the socket if there is one, else over HTTP, and shows the outcome.
 */

import { NsqError } from "../nsq.js";
import { describe } from "./connection.js";
import { byId, setText, setTone } from "./elements.js";
import { plural, size } from "./format.js";

/**
 * @typedef {object} Outcome
 * @property {"good" | "warn" | "bad"} tone
 * @property {string} text
 */

const NOTHING = "Nothing was published.";
const UNKNOWN = "It may or may not be published; publishing again may duplicate it.";
// Codes with an unknown outcome: docs/http.md.
const UNKNOWN_CODES = ["OUTCOME_UNKNOWN", "INTERNAL_ERROR"];
// nsqd's default; a refusal contains the nsqds' --max-req-timeout.
const DEFER_LIMIT = /^defer.*; allowed: 0 to (\d+) ms/;

export class PublishForm {
  #form = byId("publish-form", HTMLFormElement);
  #topic = byId("publish-topic", HTMLInputElement);
  #body = byId("publish-body", HTMLTextAreaElement);
  #defer = byId("publish-defer", HTMLInputElement);
  #areLines = byId("publish-lines", HTMLInputElement);
  #button = byId("publish", HTMLButtonElement);
  #isTopicTyped = false;
  #isPublishing = false;
  #connection;
  #handlers;

  /**
   * @param {import("./connection.js").Connection} connection
   * @param {object} handlers
   * @param {() => string} handlers.secret Returns the secret for publishing over HTTP; empty: none.
   * @param {() => void} handlers.onPublished
   * @param {(topic: string) => string} handlers.whyNot Returns why publishing is not allowed.
   */
  constructor(connection, handlers) {
    this.#connection = connection;
    this.#handlers = handlers;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#publish();
    });
    this.#body.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#form.requestSubmit();
    });
    this.#topic.addEventListener("input", () => {
      this.#isTopicTyped = this.#topic.value !== "";
      this.update();
    });
    this.#areLines.addEventListener("change", () => {
      this.#defer.disabled = this.#areLines.checked; // NSQ has no deferred MPUB
    });
  }

  /** @param {string} topic The selected topic; it does not replace a topic that the user has typed. */
  suggest(topic) {
    if (!this.#isTopicTyped) this.#topic.value = topic;
    this.update();
  }

  /** @param {string} body Put into the form, to be published again; the user chooses the topic. */
  fill(body) {
    this.#areLines.checked = false;
    this.#defer.disabled = false;
    this.#body.value = body;
    this.#topic.focus();
    this.#topic.select();
  }

  /** Disables the button while publishing is not possible or not allowed, and shows why it is not allowed. */
  update() {
    const whyNot = this.#handlers.whyNot(this.#topic.value.trim());
    this.#button.disabled = this.#isPublishing || whyNot !== "";
    this.#button.title = whyNot;
    const denied = byId("publish-denied", HTMLElement);
    denied.hidden = whyNot === "";
    setText(denied, whyNot);
  }

  async #publish() {
    if (this.#button.disabled) return;
    const topic = this.#topic.value.trim();
    const bodies = this.#areLines.checked
      ? this.#body.value.split("\n").filter((line) => line !== "")
      : [this.#body.value];
    const deferMs = this.#areLines.checked ? 0 : this.#defer.valueAsNumber || 0;
    const hadFocus = document.activeElement === this.#button;
    this.#isPublishing = true;
    this.update();
    this.#tell(await this.#tryTo(topic, bodies, deferMs));
    this.#isPublishing = false;
    this.update();
    // A disabled button would lose the focus.
    if (hadFocus && document.activeElement === document.body) this.#button.focus();
  }

  /**
   * @param {string} topic
   * @param {readonly string[]} bodies
   * @param {number} deferMs
   * @returns {Promise<Outcome>}
   */
  async #tryTo(topic, bodies, deferMs) {
    if (bodies.every((body) => body === "")) return { tone: "bad", text: `The body is empty. ${NOTHING}` };
    const isOverSocket = this.#connection.isOpen;
    try {
      if (isOverSocket) await this.#connection.publish(topic, bodies, deferMs);
      else await this.#post(topic, bodies, deferMs);
    } catch (error) {
      const [, limitMs] = (error instanceof NsqError && error.message.match(DEFER_LIMIT)) || [];
      if (limitMs !== undefined) this.#defer.max = limitMs;
      return outcomeOf(error);
    }
    this.#handlers.onPublished();
    const bytes = bodies.reduce((sum, body) => sum + new TextEncoder().encode(body).length, 0);
    const later = deferMs > 0 ? `, deferred by ${deferMs} ms` : "";
    const way = isOverSocket ? "over the socket" : "over HTTP";
    return {
      tone: "good",
      text: `OK: ${plural(bodies.length, "message")} to ${topic}, ${size(bytes)}, ${way}${later}.`,
    };
  }

  /**
   * @param {string} topic
   * @param {readonly string[]} bodies
   * @param {number} deferMs
   */
  async #post(topic, bodies, deferMs) {
    const address = new URL(bodies.length > 1 ? "../mpub" : "../pub", import.meta.url);
    address.searchParams.set("topic", topic);
    if (deferMs > 0) address.searchParams.set("defer", String(deferMs));
    const secret = this.#handlers.secret();
    const headers = new Headers(secret === "" ? [] : [["Authorization", `Bearer ${secret}`]]);
    const answer = await fetch(address, { method: "POST", body: bodies.join("\n"), headers });
    if (answer.ok) return;
    const problem = await answer.json().catch(() => ({}));
    const code = problem.message ?? (answer.status < 500 ? `HTTP ${answer.status}` : "OUTCOME_UNKNOWN");
    throw new NsqError(code, problem.detail ?? `the gateway responded with ${answer.status}`);
  }

  /** @param {Outcome} outcome */
  #tell({ tone, text }) {
    const result = byId("publish-result", HTMLElement);
    result.hidden = false;
    setTone(result, tone);
    setText(result, text);
  }
}

/**
 * @param {unknown} error
 * @returns {Outcome}
 */
function outcomeOf(error) {
  if (!(error instanceof NsqError)) return { tone: "warn", text: `No response. ${UNKNOWN}` };
  const isUnknown = UNKNOWN_CODES.includes(error.code);
  const text = describe(error).replace(/\.?$/, ".");
  return { tone: isUnknown ? "warn" : "bad", text: `${text} ${isUnknown ? UNKNOWN : NOTHING}` };
}
