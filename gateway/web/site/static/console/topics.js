/**
 * The list of topics and channels from the last /stats, with a filter and a selection.
 */

import { byId, part, setChildren, setText, setTone, stamp } from "./elements.js";
import { count, plural, rate, shortCount } from "./format.js";
import { sumOf } from "./report.js";

/**
 * @typedef {import("./report.js").Report} Report
 * @typedef {import("./report.js").TopicNow} TopicNow
 * @typedef {import("./report.js").ChannelNow} ChannelNow
 * @typedef {import("./report.js").Counts} Counts
 * @typedef {import("./stats_poll.js").Trouble} Trouble
 */

// Use the filter to find others: a list of thousands would be slow to draw.
const SHOWN_TOPICS = 200;
/** @type {readonly (keyof Counts)[]} */
const COLUMNS = ["depth", "inFlight", "deferred", "requeued", "timedOut", "clients"];

// Creating and laying out the entry of a channel takes up to 0.5 ms: a frame has time for so many.
const CREATED_A_FRAME = 40;

/** One channel of a topic. */
class ChannelEntry {
  root = stamp("channel-entry");
  #cells = COLUMNS.map((column) => part(this.root, column));
  #paused = part(this.root, "paused");

  /**
   * @param {string} topic
   * @param {string} name
   */
  constructor(topic, name) {
    const button = part(this.root, "name");
    setText(button, name);
    button.title = name;
    button.dataset.topic = topic;
    button.dataset.channel = name;
  }

  /** @param {ChannelNow} channel */
  show(channel) {
    for (const [at, column] of COLUMNS.entries()) {
      const cell = /** @type {HTMLElement} */ (this.#cells[at]);
      setText(cell, shortCount(channel[column]));
      cell.classList.toggle("zero", channel[column] === 0);
    }
    this.#paused.hidden = !channel.paused;
  }
}

/** One topic of the list, with its channels. */
class TopicEntry {
  root = stamp("topic-entry");
  #depth = part(this.root, "depth");
  #rate = part(this.root, "rate");
  #paused = part(this.root, "paused");
  #nodes = part(this.root, "nodes");
  #list = part(this.root, "channels");
  /** @type {Map<string, ChannelEntry>} */
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
   * @param {number} nsqds Where not all of them have the topic, the entry names those that do.
   * @param {number} most Number of channels to create at most; the others are left out.
   * @returns {number} Number of channels created, or that would be: more than `most` if some are left out.
   */
  show(topic, isShown, nsqds, most) {
    setText(this.#depth, shortCount(sumOf(topic).depth));
    setText(this.#rate, topic.perSecond === null ? "–" : `${rate(topic.perSecond)}/s`);
    this.#paused.hidden = !topic.paused;
    this.#nodes.hidden = topic.nodes.length === nsqds;
    setText(this.#nodes, `on ${topic.nodes.join(", ")}`);
    for (const name of this.#channels.keys()) {
      if (!topic.channels.some((channel) => channel.name === name)) this.#channels.delete(name);
    }
    let created = 0;
    const roots = [];
    for (const channel of topic.channels) {
      if (!isShown(channel.name)) continue;
      let entry = this.#channels.get(channel.name);
      if (entry === undefined) {
        created += 1;
        if (created > most) continue;
        entry = new ChannelEntry(topic.name, channel.name);
        this.#channels.set(channel.name, entry);
      }
      entry.show(channel);
      roots.push(entry.root);
    }
    setChildren(this.#list, roots);
    return created;
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
  #isOpen = false;
  #frame = 0;

  /**
   * @param {object} handlers
   * @param {(topic: string, channel: string) => void} handlers.onChosen
   */
  constructor({ onChosen }) {
    this.#list.addEventListener("click", (event) => {
      const line = event.target instanceof Element ? event.target.closest(".topic-line, .channel") : null;
      const button = line?.querySelector("button");
      if (button?.dataset.topic) onChosen(button.dataset.topic, button.dataset.channel ?? "");
    });
    this.#filter.addEventListener("input", () => this.#draw());
    this.#filter.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#leaveFilter(event);
    });
  }

  /** @param {Report} report */
  show(report) {
    this.#report = report;
    this.#draw();
  }

  /** @param {boolean} isOpen Whether the list is in sight; until then it is not drawn. */
  open(isOpen) {
    this.#isOpen = isOpen;
    this.#draw();
  }

  /** @param {Trouble} trouble Why there is no newer report; the last one stays. */
  showTrouble({ wantsSecret }) {
    byId("no-topics", HTMLElement).hidden = true;
    setText(byId("nsqd-health", HTMLElement), wantsSecret ? "" : "no report");
  }

  /**
   * Marks the selection, even if /stats does not list it.
   *
   * @param {string} topic
   * @param {string} channel
   */
  choose(topic, channel) {
    this.#chosen = { topic, channel };
    this.#mark();
  }

  /** @param {Event} event Esc clears the filter; a second Esc leaves the field. */
  #leaveFilter(event) {
    event.preventDefault(); // some browsers clear it, others do not
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
    this.#showSummary(found.length);
    cancelAnimationFrame(this.#frame);
    if (this.#isOpen) this.#drawList(found.slice(0, SHOWN_TOPICS), has, nsqds + silent.length);
  }

  /**
   * Updates the entries, and creates those that are missing, some in each frame.
   *
   * @param {readonly TopicNow[]} shown
   * @param {(name: string) => boolean} has
   * @param {number} nsqds
   */
  #drawList(shown, has, nsqds) {
    let left = CREATED_A_FRAME;
    const roots = [];
    for (const topic of shown) {
      let entry = this.#entries.get(topic.name);
      if (entry === undefined) {
        left -= 1;
        if (left < 0) continue;
        entry = new TopicEntry(topic.name);
        this.#entries.set(topic.name, entry);
      }
      left -= entry.show(topic, has(topic.name) ? () => true : has, nsqds, Math.max(0, left));
      roots.push(entry.root);
    }
    const names = new Set(shown.map(({ name }) => name));
    for (const name of this.#entries.keys()) if (!names.has(name)) this.#entries.delete(name);
    setChildren(this.#list, roots);
    this.#mark();
    if (left < 0) this.#frame = requestAnimationFrame(() => this.#drawList(shown, has, nsqds));
  }

  /** @param {number} found */
  #showSummary(found) {
    if (this.#report === null) return;
    const { topics, nsqds, silent, health, version } = this.#report;
    byId("no-topics", HTMLElement).hidden = topics.length > 0;
    byId("topic-head", HTMLElement).hidden = found === 0;
    const isMissed = found === 0 && topics.length > 0;
    byId("no-match", HTMLElement).hidden = !isMissed;
    const wanted = this.#filter.value.trim();
    setText(byId("no-match", HTMLElement), isMissed ? `No topic or channel name contains “${wanted}”.` : "");
    const parts = [];
    if (found < topics.length) parts.push(`${count(found)} of ${plural(topics.length, "topic")}`);
    if (found > SHOWN_TOPICS) parts.push(`the first ${SHOWN_TOPICS} shown: use the filter for others`);
    setText(byId("topic-count", HTMLElement), parts.join("; "));
    const isHealthy = health === "OK" && silent.length === 0;
    const nodes = byId("nsqd-health", HTMLElement);
    setText(nodes, `${plural(nsqds, "nsqd")} · ${version}${isHealthy ? "" : ", unhealthy"}`);
    setTone(nodes, isHealthy ? "" : "bad");
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
