/**
 * The overview: totals of the cluster, the channels that fall behind, and all topics.
 */

import { getParameter, setParameter } from "./address.js";
import { byId, part, setText } from "./elements.js";
import { count, plural, rate, shortCount, shortName } from "./format.js";
import { add, keyOf, noCounts } from "./report.js";
import { Table, UNKNOWN } from "./table.js";
import { judgeTopics, Trends } from "./trouble.js";
import { addressOf } from "./views.js";

/**
 * @typedef {import("./report.js").Report} Report
 * @typedef {import("./trouble.js").ChannelTrouble} ChannelTrouble
 * @typedef {import("./trouble.js").TopicTrouble} TopicTrouble
 */

const SHOWN_AT_FIRST = 20;
// Use the filter to find others: a table of thousands would be slow to draw.
const SHOWN = 100;
const DEPTH = { label: "depth", title: "Messages that wait", isNumber: true };

export class Overview {
  #root = byId("overview", HTMLElement);
  #trends = new Trends();
  /** @type {Report | null} */
  #report = null;
  /** By topic and channel, those that fall behind first. @type {Map<string, ChannelTrouble>} */
  #found = new Map();
  #isOpen = false;
  #filter = /** @type {HTMLInputElement} */ (part(this.#root, "filter"));
  #channels = new LongTable(part(this.#root, "channels-part"), "channel", [
    { label: "topic" },
    { label: "channel", isHead: true },
    { label: "state" },
    DEPTH,
    {
      label: "+/min",
      title: "Change of its messages a minute, with those in flight and deferred, over the last minute",
      isNumber: true,
    },
    { label: "in flight", isNumber: true },
    { label: "deferred", isNumber: true },
    { label: "consumers", isNumber: true },
  ]);
  #topics = new LongTable(part(this.#root, "topics-part"), "topic", [
    { label: "topic" },
    { label: "state" },
    { label: "published", title: "Messages published a second", isNumber: true },
    { ...DEPTH, title: "Messages that wait, in the topic and in its channels" },
    { label: "channels", isNumber: true },
    { label: "nsqds", title: "How many nsqds have it", isNumber: true },
  ]);

  /**
   * @param {object} handlers
   * @param {() => void} handlers.onCreate Called to create a topic.
   */
  constructor({ onCreate }) {
    this.#filter.addEventListener("input", () => {
      setParameter("filter", this.#filter.value);
      for (const table of [this.#channels, this.#topics]) table.release();
      this.#draw();
    });
    part(this.#root, "create").addEventListener("click", onCreate);
  }

  /** Shows it with the filter and the orders of the address. */
  open() {
    this.#isOpen = true;
    this.#filter.value = getParameter("filter");
    for (const table of [this.#channels, this.#topics]) table.open();
    this.#draw();
  }

  /** Another page is shown: until it is opened again nothing is drawn. */
  close() {
    this.#isOpen = false;
  }

  /** @param {Report} report */
  show(report) {
    this.#report = report;
    this.#found = new Map(this.#trends.judge(report).map((found) => [keyOf(found.topic, found.channel.name), found]));
    this.#draw();
  }

  /**
   * @param {string} topic
   * @param {string} channel
   * @returns {ChannelTrouble | undefined}
   */
  find(topic, channel) {
    return this.#found.get(keyOf(topic, channel));
  }

  #draw() {
    if (this.#report === null || !this.#isOpen) return;
    this.#showTotals(this.#report);
    const wanted = this.#filter.value.trim().toLowerCase();
    const found = [...this.#found.values()];
    const channels = found.filter(({ topic, channel: { name } }) => `${topic} ${name}`.toLowerCase().includes(wanted));
    this.#channels.show(channels.map(channelRow), found.length);
    const topics = judgeTopics(this.#report, found).filter(({ topic: { name, channels } }) =>
      [name, ...channels.map((channel) => channel.name)].some((each) => each.toLowerCase().includes(wanted)),
    );
    this.#topics.show(topics.map(topicRow), this.#report.topics.length);
  }

  /** @param {Report} report */
  #showTotals({ topics, nsqds, silent }) {
    const sum = noCounts();
    let perSecond = 0;
    for (const topic of topics) {
      sum.depth += topic.depth;
      perSecond += topic.perSecond ?? 0;
    }
    for (const topic of topics) for (const channel of topic.channels) add(sum, channel);
    const totals = {
      nsqds: silent.length === 0 ? count(nsqds) : `${nsqds} of ${nsqds + silent.length}`,
      topics: count(topics.length),
      channels: count(topics.reduce((channels, topic) => channels + topic.channels.length, 0)),
      rate: `${rate(perSecond)}/s`,
      depth: shortCount(sum.depth),
      "in-flight": shortCount(sum.inFlight),
      deferred: shortCount(sum.deferred),
      consumers: shortCount(sum.clients),
    };
    for (const [name, text] of Object.entries(totals)) setText(part(this.#root, name), text);
  }
}

/** A table that draws its first rows only, and says how many there are more. */
class LongTable {
  #root;
  #word;
  #table;
  #most = SHOWN_AT_FIRST;
  /** @type {readonly import("./table.js").Row[]} */
  #rows = [];
  #all = 0;

  /**
   * @param {HTMLElement} root
   * @param {string} word What a row is.
   * @param {readonly import("./table.js").Column[]} columns
   */
  constructor(root, word, columns) {
    this.#root = root;
    this.#word = word;
    this.#table = new Table(part(root, "table"), columns, `${word}s`);
    part(root, "more-show").addEventListener("click", () => {
      this.#most = SHOWN;
      this.#draw();
    });
  }

  open() {
    this.#most = SHOWN_AT_FIRST;
    this.#table.open();
  }

  release() {
    this.#table.release();
  }

  /**
   * @param {readonly import("./table.js").Row[]} rows Those that match the filter.
   * @param {number} all The number of rows without a filter.
   */
  show(rows, all) {
    this.#rows = rows;
    this.#all = all;
    this.#draw();
  }

  #draw() {
    const most = this.#most;
    const left = this.#rows.length - most;
    const isMissed = this.#rows.length === 0 && this.#all > 0;
    this.#table.show(this.#rows, most);
    part(this.#root, "empty").hidden = this.#all > 0;
    part(this.#root, "more").hidden = left <= 0 && !isMissed;
    part(this.#root, "more-show").hidden = left <= 0 || most === SHOWN;
    const more = `${plural(left, `more ${this.#word}`)}${most === SHOWN ? ": use the filter to find them" : ""}.`;
    setText(part(this.#root, "more-what"), isMissed ? `No ${this.#word} matches.` : more);
  }
}

/**
 * @param {ChannelTrouble} found
 * @returns {import("./table.js").Row}
 */
function channelRow({ topic, channel, growth, why, tone }) {
  const { name, depth, inFlight, deferred, clients } = channel;
  return {
    key: keyOf(topic, name),
    cells: [
      { text: shortName(topic), href: addressOf(topic, ""), title: topic },
      name === "" ? UNKNOWN : { text: shortName(name), href: addressOf(topic, name), title: name },
      { text: why, tone },
      depth,
      growth === null ? UNKNOWN : { text: signed(growth), sortBy: growth },
      inFlight,
      deferred,
      clients,
    ],
  };
}

/**
 * @param {TopicTrouble} found
 * @returns {import("./table.js").Row}
 */
function topicRow({ topic: { name, perSecond, channels, nodes }, depth, why, tone }) {
  return {
    key: name,
    cells: [
      { text: shortName(name), href: addressOf(name, ""), title: name },
      { text: why, tone },
      perSecond === null ? UNKNOWN : { text: `${rate(perSecond)}/s`, sortBy: perSecond },
      depth,
      channels.length,
      { text: count(nodes.length), sortBy: nodes.length, title: nodes.join(", ") },
    ],
  };
}

/** @param {number} value */
function signed(value) {
  const rounded = Math.round(value);
  return rounded > 0 ? `+${shortCount(rounded)}` : shortCount(rounded);
}
