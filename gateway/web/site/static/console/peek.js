/**
 * Looks at the messages of a channel: for free where the nsqd can, else by taking them and giving them back at once.
 */

import { preview } from "./body_text.js";
import { part, setText } from "./elements.js";
import { count, plural, timeOfDay } from "./format.js";
import { getJson, postForJson } from "./requests.js";
import { Table } from "./table.js";

/**
 * @typedef {object} Peeked The response to /channel/peek.
 * @property {boolean} is_free
 * @property {boolean} more
 * @property {{ node: string, state: string, id: string, timestamp_ns: string, attempts: number, body?: string,
 *   body_base64?: string }[]} messages
 */

const MOST = "20";
const CHARACTERS = 200;

export class Peek {
  #root;
  #secret;
  #topic = "";
  #channel = "";
  #take;
  #result;
  #table;

  /**
   * @param {HTMLElement} root
   * @param {() => string} secret
   */
  constructor(root, secret) {
    this.#root = root;
    this.#secret = secret;
    this.#take = part(root, "take");
    this.#result = part(root, "peek-result");
    this.#table = new Table(part(root, "peeked"), [
      { label: "id" },
      { label: "state" },
      { label: "attempts", isNumber: true },
      { label: "published", isNumber: true },
      { label: "body" },
      { label: "nsqd" },
    ]);
    part(root, "peek").addEventListener("click", () => this.#look(getJson));
    this.#take.addEventListener("click", () => this.#look(postForJson));
  }

  /**
   * @param {string} topic
   * @param {string} channel Empty: a topic has no messages of its own to look at.
   */
  open(topic, channel) {
    this.#topic = topic;
    this.#channel = channel;
    this.#root.hidden = channel === "";
    this.#take.hidden = true;
    this.#tell("");
    this.#show([]);
  }

  /** @param {typeof getJson} request */
  async #look(request) {
    const { topic, channel } = { topic: this.#topic, channel: this.#channel };
    const answer = await request("channel/peek", { topic, channel, max: MOST }, this.#secret());
    if (topic !== this.#topic || channel !== this.#channel) return;
    if ("trouble" in answer) {
      // nsqd cannot show messages: the user decides whether they are taken.
      this.#take.hidden = !answer.trouble.startsWith("PEEK_TAKES");
      this.#tell(
        this.#take.hidden
          ? answer.trouble
          : "nsqd cannot show messages without delivering them. They can be taken and given back at once: that adds 1 to their attempts, and puts them behind the others.",
      );
      return this.#show([]);
    }
    /** @type {Peeked} */
    const { is_free: isFree, more, messages } = answer.data;
    this.#take.hidden = true;
    const cost = isFree ? "Nothing has changed." : "They were taken and given back.";
    this.#tell(`${plural(messages.length, "message")}${more ? ", and there are more" : ""}. ${cost}`);
    this.#show(messages);
  }

  /** @param {Peeked["messages"]} messages */
  #show(messages) {
    part(this.#root, "peeked").hidden = messages.length === 0;
    this.#table.show(
      messages.map(({ node, state, id, timestamp_ns, attempts, body, body_base64 }) => ({
        key: `${node} ${id}`,
        cells: [
          id,
          state.replace("_", " "),
          count(attempts),
          timeOfDay(Number(BigInt(timestamp_ns) / 1_000_000n)),
          preview(body ?? `base64: ${body_base64 ?? ""}`, CHARACTERS),
          node,
        ],
      })),
    );
  }

  /** @param {string} text Empty hides it. */
  #tell(text) {
    this.#result.hidden = text === "";
    setText(this.#result, text);
  }
}
