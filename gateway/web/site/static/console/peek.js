/**
 * Looks at the messages of a channel: for free where the nsqd can, else by taking them and giving them back at once.
 */

import { preview } from "./body_text.js";
import { BodyView } from "./body_view.js";
import { part, setText } from "./elements.js";
import { ago, count, dateAndTime, plural } from "./format.js";
import { saveMessages } from "./message_file.js";
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

/**
 * @typedef {object} Waiting A message that waits.
 * @property {string} node
 * @property {string} state
 * @property {import("./message_file.js").ExportedMessage} message
 */

/** nsqd cannot show messages: the user decides whether they are taken. */
const COST =
  "nsqd cannot show messages without delivering them. They can be taken and given back at once: that adds 1 to their attempts, and puts them behind the others. Deferred ones cannot be.";
const CHARACTERS = 200;
/** Rows that are added at a time; the filter looks at all messages. */
const ROWS_AT_A_TIME = 100;

export class Peek {
  #root;
  #secret;
  #topic = "";
  #channel = "";
  #peek;
  #take;
  #export;
  #result;
  #table;
  #more;
  #opened;
  #body;
  #bodyView;
  #filter;
  #most;
  /** @type {readonly Waiting[]} */
  #messages = [];
  #rows = ROWS_AT_A_TIME;
  /** What was said about them. */
  #said = "";
  /** The peek that waits for its response; a later one replaces it. @type {symbol | null} */
  #pending = null;

  /**
   * @param {HTMLElement} root
   * @param {() => string} secret
   */
  constructor(root, secret) {
    this.#root = root;
    this.#secret = secret;
    this.#peek = buttonOf(root, "peek");
    this.#take = buttonOf(root, "take");
    this.#export = buttonOf(root, "peek-export");
    this.#result = part(root, "peek-result");
    this.#table = new Table(part(root, "peeked"), [
      { label: "id" },
      { label: "state" },
      { label: "attempts", isNumber: true },
      { label: "published" },
      { label: "age", isNumber: true },
      { label: "body" },
      { label: "nsqd" },
    ]);
    this.#more = part(root, "peek-more");
    this.#opened = part(root, "peeked-message");
    this.#body = part(root, "peeked-body");
    this.#bodyView = new BodyView(this.#body, part(root, "peeked-head"));
    this.#filter = part(root, "peek-filter");
    this.#most = part(root, "peek-most");
    this.#filter.addEventListener("input", () => this.#draw(ROWS_AT_A_TIME));
    this.#more.addEventListener("click", () => this.#draw(this.#rows + ROWS_AT_A_TIME));
    this.#peek.addEventListener("click", () => this.#look(getJson));
    this.#take.addEventListener("click", () => this.#look(postForJson));
    this.#export.addEventListener("click", () => this.#save());
  }

  /**
   * @param {string} topic
   * @param {string} channel Empty: a topic has no messages of its own to look at.
   */
  open(topic, channel) {
    const isOther = topic !== this.#topic || channel !== this.#channel;
    if (isOther && this.#filter instanceof HTMLInputElement) this.#filter.value = "";
    this.#topic = topic;
    this.#channel = channel;
    this.#root.hidden = channel === "";
    this.#take.hidden = true;
    this.#wait(null);
    this.#show([], "");
  }

  /** @param {typeof getJson} request */
  async #look(request) {
    const { topic, channel } = { topic: this.#topic, channel: this.#channel };
    const max = this.#most instanceof HTMLSelectElement ? this.#most.value : "20";
    const mine = Symbol();
    const hadFocus = this.#root.contains(document.activeElement);
    this.#wait(mine);
    const answer = await request("channel/peek", { topic, channel, max }, this.#secret());
    if (this.#pending !== mine) return;
    this.#wait(null);
    this.#take.hidden = !("trouble" in answer) || !answer.trouble.startsWith("PEEK_TAKES");
    // A disabled button has lost the focus. Not the one that takes: a second Enter would press it.
    if (hadFocus && document.activeElement === document.body) this.#peek.focus();
    if ("trouble" in answer) {
      this.#show([], this.#take.hidden ? answer.trouble : COST);
      this.#take.scrollIntoView({ block: "nearest" });
      return;
    }
    /** @type {Peeked} */
    const { is_free: isFree, more, messages } = answer.data;
    const cost = isFree ? "Nothing has changed." : "They were taken and given back.";
    this.#show(
      messages.map(waiting),
      `${plural(messages.length, "message")}${more ? ", and there are more" : ""}. ${cost}`,
    );
  }

  /** @param {symbol | null} pending */
  #wait(pending) {
    this.#pending = pending;
    this.#peek.disabled = this.#take.disabled = pending !== null;
  }

  /**
   * @param {readonly Waiting[]} messages
   * @param {string} said
   */
  #show(messages, said) {
    this.#messages = messages;
    this.#said = said;
    this.#draw(ROWS_AT_A_TIME);
  }

  /** The messages that match the filter. @returns {readonly Waiting[]} */
  #found() {
    const condition = parseFilter(this.#filter instanceof HTMLInputElement ? this.#filter.value : "");
    const nowMs = Date.now();
    return condition === null ? this.#messages : this.#messages.filter((each) => condition(each, nowMs));
  }

  /** @param {number} rows How many are shown at most. */
  #draw(rows) {
    this.#rows = rows;
    const found = this.#found();
    const nowMs = Date.now();
    const matching = found.length === this.#messages.length ? "" : ` ${count(found.length)} match.`;
    const cut = found.length > rows ? ` The first ${count(rows)} are shown.` : "";
    this.#tell(this.#said + matching + cut);
    this.#opened.hidden = true;
    this.#export.disabled = found.length === 0;
    this.#more.hidden = found.length <= rows;
    part(this.#root, "peeked").hidden = found.length === 0;
    this.#table.show(found.slice(0, rows).map((each) => this.#rowOf(each, nowMs)));
  }

  /**
   * @param {Waiting} waiting
   * @param {number} nowMs
   * @returns {import("./table.js").Row}
   */
  #rowOf({ node, state, message }, nowMs) {
    const { id, timestampNs, attempts } = message;
    const publishedAtMs = Number(timestampNs / 1_000_000n);
    const published = { text: dateAndTime(publishedAtMs, nowMs), title: new Date(publishedAtMs).toISOString() };
    const body = {
      text: preview(message.body, CHARACTERS) || "(empty)",
      onPress: () => this.#open(message),
      title: "Show it whole",
    };
    return {
      key: `${node} ${id}`,
      cells: [id, state.replace("_", " "), count(attempts), published, ago(nowMs - publishedAtMs), body, node],
    };
  }

  /** @param {Waiting["message"]} message */
  #open(message) {
    setText(part(this.#root, "peeked-id"), message.id);
    this.#opened.hidden = false;
    this.#bodyView.show(message);
    this.#opened.scrollIntoView({ block: "nearest" });
    this.#body.focus({ preventScroll: true });
  }

  #save() {
    const messages = this.#found().map(({ message }) => message);
    const name = saveMessages(messages, this.#topic, this.#channel);
    this.#tell(`${plural(messages.length, "message")} exported to ${name}.`);
  }

  /** @param {string} text Empty hides it. */
  #tell(text) {
    this.#result.hidden = text === "";
    setText(this.#result, text);
  }
}

/**
 * @param {HTMLElement} root
 * @param {string} name
 * @returns {HTMLButtonElement}
 */
function buttonOf(root, name) {
  return /** @type {HTMLButtonElement} */ (part(root, name));
}

/** @param {Peeked["messages"][number]} peeked @returns {Waiting} */
function waiting({ node, state, id, timestamp_ns, attempts, body, body_base64 = "" }) {
  const bytes =
    body === undefined
      ? Uint8Array.from(atob(body_base64), (each) => each.charCodeAt(0))
      : new TextEncoder().encode(body);
  const text = body ?? new TextDecoder().decode(bytes);
  return { node, state, message: { id, timestampNs: BigInt(timestamp_ns), attempts, body: text, bytes } };
}
