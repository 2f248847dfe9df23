/**
 * The list of topics and channels: what /stats last said, what the filter lets through, and which one is chosen.
 */

import { announce, byId, part, setText, setTone, stamp } from "./elements.js";
import { count, plural, rate, shortCount, timeLeft } from "./format.js";

/**
 * @typedef {import("./report.js").Report} Report
 * @typedef {import("./report.js").TopicNow} TopicNow
 * @typedef {import("./report.js").ChannelNow} ChannelNow
 * @typedef {import("./report.js").Counts} Counts
 * @typedef {import("./stats_poll.js").Trouble} Trouble
 */

// More are found by the filter: a list of thousands would be slow to draw, and nobody reads it.
const SHOWN_TOPICS = 200;
/** @type {readonly (keyof Counts)[]} */
const COLUMNS = ["depth", "inFlight", "deferred", "requeued", "timedOut", "clients"];

/** One topic of the list, with its channels. */
class TopicEntry {
  root = stamp("topic-entry");
  /** @type {Map<string, HTMLElement>} */
  #channels = new Map();

  /** @param {string} name */
  constructor(name) {
    const button = part(this.root, "name");
    setText(button, name);
    button.title = name;
    button.dataset.topic = name;
  }

  /**
   * @param {TopicNow} topic
   * @param {(channel: string) => boolean} isShown
   * @param {boolean} isSpread Whether there are several nsqds, so that it matters which ones have it.
   */
  show(topic, isShown, isSpread) {
    setText(part(this.root, "depth"), shortCount(topic.depth));
    setText(part(this.root, "rate"), topic.perSecond === null ? "–" : `${rate(topic.perSecond)}/s`);
    part(this.root, "paused").hidden = !topic.paused;
    part(this.root, "nodes").hidden = !isSpread;
    setText(part(this.root, "nodes"), `on ${topic.nodes.join(", ")}`);
    const list = part(this.root, "channels");
    const channels = topic.channels.filter(({ name }) => isShown(name));
    const entries = channels.map((channel) => this.#channel(topic.name, channel));
    for (const name of this.#channels.keys()) {
      if (!topic.channels.some((channel) => channel.name === name)) this.#channels.delete(name);
    }
    replaceWhereDifferent(list, entries);
  }

  /**
   * @param {string} topic
   * @param {ChannelNow} channel
   */
  #channel(topic, channel) {
    let entry = this.#channels.get(channel.name);
    if (entry === undefined) {
      entry = stamp("channel-entry");
      const button = part(entry, "name");
      setText(button, channel.name);
      button.title = channel.name;
      button.dataset.topic = topic;
      button.dataset.channel = channel.name;
      this.#channels.set(channel.name, entry);
    }
    for (const column of COLUMNS) {
      const cell = part(entry, column);
      setText(cell, shortCount(channel[column]));
      cell.classList.toggle("zero", channel[column] === 0);
    }
    part(entry, "paused").hidden = !channel.paused;
    return entry;
  }
}

export class Topics {
  /** @type {Map<string, TopicEntry>} */
  #entries = new Map();
  /** @type {Report | null} */
  #report = null;
  #chosen = { topic: "", channel: "" };
  #list = byId("topic-list", HTMLUListElement);
  #filter = byId("filter", HTMLInputElement);
  #trouble = byId("stats-trouble", HTMLElement);
  #secretForm = byId("admin-secret-form", HTMLFormElement);

  /**
   * @param {object} asked
   * @param {(topic: string, channel: string) => void} asked.onChosen
   * @param {(secret: string) => void} asked.onSecret The administrator's.
   */
  constructor({ onChosen, onSecret }) {
    this.#list.addEventListener("click", (event) => {
      const line = event.target instanceof Element ? event.target.closest(".topic-line, .channel") : null;
      const button = line?.querySelector("button");
      if (button?.dataset.topic) onChosen(button.dataset.topic, button.dataset.channel ?? "");
    });
    this.#filter.addEventListener("input", () => this.#draw());
    this.#filter.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#leaveFilter(event);
    });
    this.#secretForm.addEventListener("submit", (event) => {
      event.preventDefault();
      onSecret(byId("admin-secret", HTMLInputElement).value);
    });
  }

  /** @param {Report} report */
  show(report) {
    if (!this.#trouble.hidden) announce("Topics are read again.");
    this.#trouble.hidden = true;
    this.#secretForm.hidden = true;
    this.#report = report;
    this.#draw();
  }

  /**
   * Says why there is nothing new; what was last known stays.
   *
   * @param {Trouble} trouble
   */
  showTrouble({ wantsSecret, text, retryInMs }) {
    const then = wantsSecret ? "Subscribing and publishing work without." : `Next try in ${timeLeft(retryInMs)}.`;
    if (this.#trouble.hidden) announce(text);
    this.#trouble.hidden = false;
    setTone(this.#trouble, wantsSecret ? "warn" : "bad");
    setText(this.#trouble, `${text} ${then}`);
    this.#secretForm.hidden = !wantsSecret;
    byId("no-topics", HTMLElement).hidden = true;
    setText(byId("nsqd-health", HTMLElement), wantsSecret ? "" : "no report");
  }

  /**
   * Marks what is chosen, whether /stats knows it or not.
   *
   * @param {string} topic
   * @param {string} channel
   */
  choose(topic, channel) {
    this.#chosen = { topic, channel };
    this.#mark();
  }

  /** @param {Event} event Esc: once to see all topics again, once more to be out of the field. */
  #leaveFilter(event) {
    event.preventDefault(); // some browsers empty it by themselves, others do not
    if (this.#filter.value === "") return this.#filter.blur();
    this.#filter.value = "";
    this.#draw();
  }

  #draw() {
    if (this.#report === null) return;
    const { topics, nsqds, silent } = this.#report;
    const wanted = this.#filter.value.trim().toLowerCase();
    const has = (/** @type {string} */ name) => name.toLowerCase().includes(wanted);
    const found = topics.filter(({ name, channels }) => has(name) || channels.some((channel) => has(channel.name)));
    const shown = found.slice(0, SHOWN_TOPICS);
    const roots = shown.map((topic) => {
      const entry = this.#entries.get(topic.name) ?? new TopicEntry(topic.name);
      this.#entries.set(topic.name, entry);
      entry.show(topic, has(topic.name) ? () => true : has, nsqds + silent.length > 1);
      return entry.root;
    });
    const names = new Set(shown.map(({ name }) => name));
    for (const name of this.#entries.keys()) if (!names.has(name)) this.#entries.delete(name);
    replaceWhereDifferent(this.#list, roots);
    this.#tell(found.length);
    this.#mark();
  }

  /** @param {number} found */
  #tell(found) {
    if (this.#report === null) return;
    const { topics, nsqds, silent, health, version } = this.#report;
    byId("no-topics", HTMLElement).hidden = topics.length > 0;
    byId("topic-head", HTMLElement).hidden = found === 0;
    const isMissed = found === 0 && topics.length > 0;
    byId("no-match", HTMLElement).hidden = !isMissed;
    const wanted = this.#filter.value.trim();
    setText(byId("no-match", HTMLElement), isMissed ? `No topic or channel has “${wanted}” in its name.` : "");
    const parts = [];
    if (found < topics.length) parts.push(`${count(found)} of ${plural(topics.length, "topic")}`);
    if (found > SHOWN_TOPICS) parts.push(`the first ${SHOWN_TOPICS} shown: filter for the others`);
    setText(byId("topic-count", HTMLElement), parts.join("; "));
    const isWell = health === "OK" && silent.length === 0;
    const nodes = byId("nsqd-health", HTMLElement);
    setText(nodes, `${plural(nsqds, "nsqd")} · ${version}${isWell ? "" : ", not well"}`);
    setTone(nodes, isWell ? "" : "bad");
    const notice = byId("nsqd-notice", HTMLElement);
    notice.hidden = isWell;
    setText(notice, silent.length > 0 ? silent.map((node) => `nsqd ${node}`).join("; ") : health);
  }

  #mark() {
    const { topic, channel } = this.#chosen;
    for (const button of this.#list.querySelectorAll("button")) {
      const isChosen = button.dataset.topic === topic && (button.dataset.channel ?? "") === channel;
      if (isChosen) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
  }
}

/**
 * Gives a list these children, and leaves it alone where it has them: a list that is set anew loses focus and scrolling.
 *
 * @param {HTMLElement} list
 * @param {readonly HTMLElement[]} children
 */
function replaceWhereDifferent(list, children) {
  const isSame = list.children.length === children.length && children.every((child, at) => list.children[at] === child);
  if (isSame) return;
  const focused = document.activeElement;
  list.replaceChildren(...children);
  if (focused instanceof HTMLElement && list.contains(focused)) focused.focus({ preventScroll: true });
}
