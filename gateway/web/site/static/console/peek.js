/**
 * Looks at the messages of a channel: for free where the nsqd can, else by taking them and giving them back at once.
 */

import { indentedJson, preview, visible } from "./body_text.js";
import { showFoldable } from "./body_tree.js";
import { part, setText } from "./elements.js";
import { count, plural, timeOfDay } from "./format.js";
import { parseFilter } from "./message_filter.js";
import { getJson, postForJson } from "./requests.js";
import { Table } from "./table.js";

/**
 * @typedef {object} Peeked The response to /channel/peek.
 * @property {boolean} is_free
 * @property {boolean} more
 * @property {{ node: string, state: string, id: string, timestamp_ns: string, attempts: number, body?: string,
 *   body_base64?: string }[]} messages
 */

const CHARACTERS = 200;
/** Rows drawn; the filter looks at all. */
const SHOWN = 100;
const MOST_FOLDABLE = 256 * 1024;

/** @typedef {Peeked["messages"][number]} PeekedMessage */
/** @typedef {import("./message_filter.js").Matched} Matched */

export class Peek {
  #root;
  #secret;
  #topic = "";
  #channel = "";
  #take;
  #result;
  #table;
  #body;
  #filter;
  #most;
  /** The messages, each with what the filter looks at. @type {[PeekedMessage, Matched][]} */
  #messages = [];
  /** What was said about them. */
  #said = "";

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
    this.#body = part(root, "peeked-body");
    this.#filter = part(root, "peek-filter");
    this.#most = part(root, "peek-most");
    this.#filter.addEventListener("input", () => this.#draw());
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
    this.#show([], "");
  }

  /** @param {typeof getJson} request */
  async #look(request) {
    const { topic, channel } = { topic: this.#topic, channel: this.#channel };
    const max = this.#most instanceof HTMLSelectElement ? this.#most.value : "20";
    const answer = await request("channel/peek", { topic, channel, max }, this.#secret());
    if (topic !== this.#topic || channel !== this.#channel) return;
    if ("trouble" in answer) {
      // nsqd cannot show messages: the user decides whether they are taken.
      this.#take.hidden = !answer.trouble.startsWith("PEEK_TAKES");
      return this.#show(
        [],
        this.#take.hidden
          ? answer.trouble
          : "nsqd cannot show messages without delivering them. They can be taken and given back at once: that adds 1 to their attempts, and puts them behind the others.",
      );
    }
    /** @type {Peeked} */
    const { is_free: isFree, more, messages } = answer.data;
    this.#take.hidden = true;
    const cost = isFree ? "Nothing has changed." : "They were taken and given back.";
    this.#show(messages, `${plural(messages.length, "message")}${more ? ", and there are more" : ""}. ${cost}`);
  }

  /**
   * @param {Peeked["messages"]} messages
   * @param {string} said
   */
  #show(messages, said) {
    this.#messages = messages.map((each) => [each, asMatched(each)]);
    this.#said = said;
    this.#draw();
  }

  #draw() {
    const text = this.#filter instanceof HTMLInputElement ? this.#filter.value : "";
    const condition = parseFilter(text);
    const nowMs = Date.now();
    const found =
      condition === null ? this.#messages : this.#messages.filter(([, matched]) => condition(matched, nowMs));
    const matching = condition === null || this.#messages.length === 0 ? "" : ` ${count(found.length)} match.`;
    const cut = found.length > SHOWN ? ` The first ${SHOWN} are shown.` : "";
    this.#tell(this.#said + matching + cut);
    this.#body.hidden = true;
    part(this.#root, "peeked").hidden = found.length === 0;
    this.#table.show(found.slice(0, SHOWN).map(([message]) => this.#rowOf(message)));
  }

  /**
   * @param {PeekedMessage} message
   * @returns {import("./table.js").Row}
   */
  #rowOf(message) {
    const { node, state, id, timestamp_ns, attempts } = message;
    const published = timeOfDay(Number(BigInt(timestamp_ns) / 1_000_000n));
    const body = {
      text: preview(textOf(message), CHARACTERS) || "(empty)",
      onPress: () => this.#open(message),
      title: "Show it whole",
    };
    return { key: `${node} ${id}`, cells: [id, state.replace("_", " "), count(attempts), published, body, node] };
  }

  /** @param {PeekedMessage} message */
  #open(message) {
    const text = textOf(message);
    const json = indentedJson(text);
    if (json === null || json.length > MOST_FOLDABLE) setText(this.#body, visible(json ?? text));
    else showFoldable(this.#body, visible(json));
    this.#body.hidden = false;
    this.#body.scrollIntoView({ block: "nearest" });
    this.#body.focus({ preventScroll: true });
  }

  /** @param {string} text Empty hides it. */
  #tell(text) {
    this.#result.hidden = text === "";
    setText(this.#result, text);
  }
}

/** @param {PeekedMessage} message */
function textOf({ body, body_base64 }) {
  return body ?? `base64: ${body_base64 ?? ""}`;
}

/**
 * @param {PeekedMessage} message
 * @returns {Matched} As the filter sees a message.
 */
function asMatched(message) {
  const { id, attempts, timestamp_ns } = message;
  return { message: { id, attempts, timestampNs: BigInt(timestamp_ns), body: textOf(message) } };
}
