/**
 * The dialog that deletes a topic on one nsqd, once the topic's name has been typed.
 */

import { announce, byId, part, setText } from "./elements.js";
import { plural } from "./format.js";
import { allMessages } from "./report.js";
import { post } from "./requests.js";

/** @typedef {import("./report.js").Report} Report */

export class Tombstone {
  #dialog = byId("tombstone", HTMLDialogElement);
  #typed = part(this.#dialog, "typed");
  #go = part(this.#dialog, "go");
  #result = part(this.#dialog, "result");
  #handlers;
  #topic = "";
  #node = "";

  /**
   * @param {object} handlers
   * @param {() => string} handlers.secret
   * @param {() => void} handlers.onDone
   */
  constructor(handlers) {
    this.#handlers = handlers;
    this.#typed.addEventListener("input", () => this.#check());
    part(this.#dialog, "cancel").addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#do();
    });
  }

  /**
   * @param {Report | null} report
   * @param {string} topic
   * @param {string} node HTTP address of the nsqd.
   */
  open(report, topic, node) {
    this.#topic = topic;
    this.#node = node;
    setText(part(this.#dialog, "what"), describe(report, topic, node));
    setText(part(this.#dialog, "word"), topic);
    if (this.#typed instanceof HTMLInputElement) this.#typed.value = "";
    this.#result.hidden = true;
    this.#check();
    this.#dialog.showModal();
    this.#typed.focus();
  }

  get #isConfirmed() {
    return this.#typed instanceof HTMLInputElement && this.#typed.value === this.#topic;
  }

  #check() {
    if (this.#go instanceof HTMLButtonElement) this.#go.disabled = !this.#isConfirmed;
  }

  async #do() {
    if (!this.#isConfirmed) return;
    if (this.#go instanceof HTMLButtonElement) this.#go.disabled = true;
    const names = { topic: this.#topic, node: this.#node };
    const trouble = await post("topic/tombstone", names, this.#handlers.secret());
    this.#check();
    this.#result.hidden = trouble === "";
    setText(this.#result, trouble);
    if (trouble === "") this.#dialog.close();
    announce(trouble || `Deleted topic ${names.topic} on ${names.node}.`);
    this.#handlers.onDone();
  }
}

/**
 * @param {Report | null} report
 * @param {string} topic
 * @param {string} node
 */
function describe(report, topic, node) {
  const found = report?.topics.find(({ name }) => name === topic)?.parts.find((each) => each.node === node);
  const channels = found === undefined ? [] : [...found.channels.values()];
  const messages = channels.reduce((sum, counts) => sum + allMessages(counts), found?.depth ?? 0);
  const loss =
    found === undefined
      ? "all its messages"
      : `${plural(messages, "message")} in ${plural(channels.length, "channel")}`;
  return `Deletes topic ${topic} on ${node} only: ${loss}. This cannot be undone. A publish to this nsqd creates the topic again; drain it first.`;
}
