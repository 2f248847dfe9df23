/**
 * The views of the page: overview, topic, channel, nodes and messages. The address after # names the one that is shown.
 */

import { splitHash } from "./address.js";
import { byId } from "./elements.js";
import { fullName, shortName } from "./format.js";

/**
 * @typedef {object} View
 * @property {"overview" | "subject" | "nodes" | "messages"} name
 * @property {string} topic Only of a subject.
 * @property {string} channel Of a subject; empty: the topic.
 */

/**
 * PURE. Returns the view that an address names; an unknown one is the overview.
 *
 * @param {string} hash For example `#/topics/orders/billing`.
 * @param {boolean} hasTopic Whether the query names a topic: without a hash, its messages are shown.
 * @returns {View}
 */
export function parseView(hash, hasTopic) {
  const [kind = "", topic = "", channel = ""] = splitHash(hash).path.replace(/^#\/?/, "").split("/").map(decoded);
  if (kind === "topics" && topic !== "") return { name: "subject", topic, channel };
  const name = kind === "nodes" || kind === "messages" ? kind : "overview";
  return { name: kind === "" && hasTopic && hash === "" ? "messages" : name, topic: "", channel: "" };
}

/**
 * PURE. Returns the address of the page of a topic or channel.
 *
 * @param {string} topic
 * @param {string} channel Empty: the topic.
 */
export function addressOf(topic, channel) {
  const names = channel === "" ? [topic] : [topic, channel];
  return `#/topics/${names.map(encodeURIComponent).join("/")}`;
}

/**
 * Returns the names of a topic and its channel, each a link to its page.
 *
 * @param {string} topic
 * @param {string} channel Empty: the topic.
 * @param {boolean} [isHere] The last one is the page that is shown, and no link.
 * @returns {(HTMLElement | string)[]}
 */
export function crumbs(topic, channel, isHere = false) {
  const names = channel === "" ? [topic] : [topic, channel];
  return names.flatMap((name, at) => {
    const isLast = at === names.length - 1;
    const crumb = document.createElement(isLast && isHere ? "span" : "a");
    if (crumb instanceof HTMLAnchorElement) crumb.href = addressOf(topic, at === 0 ? "" : channel);
    else crumb.setAttribute("aria-current", "page");
    crumb.textContent = shortName(name);
    crumb.title = name;
    return isLast ? [crumb] : [crumb, " › "];
  });
}

/** @param {View} view */
function titleOf({ name, topic, channel }) {
  return name === "subject" ? fullName(topic, channel) : `${name[0]?.toUpperCase()}${name.slice(1)}`;
}

/** @param {string} text Returned as it is if it is not percent-encoded. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export class Views {
  #onShow;
  #links = [...document.querySelectorAll("#views a")].filter((link) => link instanceof HTMLAnchorElement);
  #view = this.#read();

  /** @param {(view: View) => void} onShow Called after the view has changed. */
  constructor(onShow) {
    this.#onShow = onShow;
    addEventListener("hashchange", () => this.#change());
  }

  get view() {
    return this.#view;
  }

  /** Shows the view of the address, for the first time. */
  start() {
    this.#change();
  }

  /** Shows the messages, for example because one is looked for. */
  openMessages() {
    if (this.#view.name === "messages") return;
    location.hash = "#/messages";
    // Now, and not with the event: the caller goes on with what the view shows.
    this.#change();
  }

  #read() {
    return parseView(location.hash, new URLSearchParams(location.search).has("topic"));
  }

  #change() {
    this.#view = this.#read();
    const { name } = this.#view;
    const isMessages = name === "messages";
    byId("workbench", HTMLElement).hidden = !isMessages;
    byId("parts", HTMLElement).hidden = !isMessages;
    document.body.classList.toggle("is-messages", isMessages);
    byId("pages", HTMLElement).hidden = isMessages;
    for (const page of document.querySelectorAll("#pages > .page")) {
      if (page instanceof HTMLElement) page.hidden = page.id !== name;
    }
    for (const link of this.#links) {
      const isShown = link.dataset.view === (name === "subject" ? "overview" : name);
      if (isShown) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    byId("pages", HTMLElement).scrollTop = 0;
    document.title = `${titleOf(this.#view)} – nsq-gateway`;
    this.#onShow(this.#view);
  }
}
