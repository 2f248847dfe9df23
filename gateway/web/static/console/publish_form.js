/**
 * The form that publishes: over the socket where there is one, else over HTTP. It tells what became of it.
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
const UNKNOWN = "It may or may not be published; publishing again may double it.";
// Where the gateway does not know itself: docs/http.md.
const UNKNOWN_CODES = ["OUTCOME_UNKNOWN", "INTERNAL_ERROR"];

export class PublishForm {
  #form = byId("publish-form", HTMLFormElement);
  #topic = byId("publish-topic", HTMLInputElement);
  #body = byId("publish-body", HTMLTextAreaElement);
  #defer = byId("publish-defer", HTMLInputElement);
  #areLines = byId("publish-lines", HTMLInputElement);
  #button = byId("publish", HTMLButtonElement);
  #isTopicTyped = false;
  #connection;
  #asked;

  /**
   * @param {import("./connection.js").Connection} connection
   * @param {object} asked
   * @param {() => string} asked.secret What to publish with over HTTP; empty: nothing.
   * @param {() => void} asked.onPublished
   */
  constructor(connection, asked) {
    this.#connection = connection;
    this.#asked = asked;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#publish();
    });
    this.#body.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#form.requestSubmit();
    });
    this.#topic.addEventListener("input", () => {
      this.#isTopicTyped = this.#topic.value !== "";
    });
    this.#areLines.addEventListener("change", () => {
      this.#defer.disabled = this.#areLines.checked; // NSQ has no MPUB for later
    });
  }

  /** @param {string} topic The one that is chosen; it does not replace what was typed. */
  suggest(topic) {
    if (!this.#isTopicTyped) this.#topic.value = topic;
  }

  async #publish() {
    if (this.#button.disabled) return;
    const topic = this.#topic.value.trim();
    const bodies = this.#areLines.checked
      ? this.#body.value.split("\n").filter((line) => line !== "")
      : [this.#body.value];
    const deferMs = this.#areLines.checked ? 0 : this.#defer.valueAsNumber || 0;
    this.#button.disabled = true;
    this.#tell(await this.#tryTo(topic, bodies, deferMs));
    this.#button.disabled = false;
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
      return outcomeOf(error);
    }
    this.#asked.onPublished();
    const bytes = bodies.reduce((sum, body) => sum + new TextEncoder().encode(body).length, 0);
    const later = deferMs > 0 ? `, to be delivered after ${deferMs} ms` : "";
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
    const secret = this.#asked.secret();
    const headers = new Headers(secret === "" ? [] : [["Authorization", `Bearer ${secret}`]]);
    const answer = await fetch(address, { method: "POST", body: bodies.join("\n"), headers });
    if (answer.ok) return;
    const problem = await answer.json().catch(() => ({}));
    const code = problem.message ?? (answer.status < 500 ? `HTTP ${answer.status}` : "OUTCOME_UNKNOWN");
    throw new NsqError(code, problem.detail ?? `the answer is ${answer.status}`);
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
  if (!(error instanceof NsqError)) return { tone: "warn", text: `No answer came. ${UNKNOWN}` };
  const isUnknown = UNKNOWN_CODES.includes(error.code);
  const text = describe(error).replace(/\.?$/, ".");
  return { tone: isUnknown ? "warn" : "bad", text: `${text} ${isUnknown ? UNKNOWN : NOTHING}` };
}
