/**
 * The overview: totals of the cluster, and the channels that fall behind.
 */

import { byId, part, setText } from "./elements.js";
import { count, plural, rate, shortCount, shortName } from "./format.js";
import { add, noCounts } from "./report.js";
import { Table } from "./table.js";
import { Trends } from "./trouble.js";
import { addressOf } from "./views.js";

/**
 * @typedef {import("./report.js").Report} Report
 * @typedef {import("./trouble.js").ChannelTrouble} ChannelTrouble
 */

// Use the filter to find others: a table of thousands would be slow to draw.
const SHOWN = 100;

export class Overview {
  #root = byId("overview", HTMLElement);
  #trends = new Trends();
  /** @type {ChannelTrouble[]} */
  #found = [];
  #filter = part(this.#root, "filter");
  #table = new Table(part(this.#root, "table"), [
    { label: "channel" },
    { label: "topic" },
    { label: "trouble" },
    { label: "depth", title: "Messages that wait", isNumber: true },
    { label: "+/min", title: "Change of the depth a minute", isNumber: true },
    { label: "in flight", isNumber: true },
    { label: "deferred", isNumber: true },
    { label: "consumers", isNumber: true },
  ]);

  constructor() {
    this.#filter.addEventListener("input", () => this.#draw());
  }

  /** @param {Report} report */
  show(report) {
    this.#found = this.#trends.judge(report);
    this.#showTotals(report);
    this.#draw();
  }

  /**
   * @param {string} topic
   * @param {string} channel
   * @returns {ChannelTrouble | undefined}
   */
  find(topic, channel) {
    return this.#found.find((found) => found.topic === topic && found.channel.name === channel);
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

  #draw() {
    const typed = this.#filter instanceof HTMLInputElement ? this.#filter.value.trim().toLowerCase() : "";
    const matching = this.#found.filter(({ topic, channel }) =>
      `${topic} ${channel.name}`.toLowerCase().includes(typed),
    );
    this.#table.show(matching.slice(0, SHOWN).map(rowOf));
    part(this.#root, "empty").hidden = this.#found.length > 0;
    const more = part(this.#root, "more");
    more.hidden = matching.length <= SHOWN && (matching.length > 0 || this.#found.length === 0);
    const left = plural(matching.length - SHOWN, "more channel");
    setText(more, matching.length === 0 ? "No channel matches." : `${left}: use the filter to find them.`);
  }
}

/**
 * @param {ChannelTrouble} found
 * @returns {import("./table.js").Row}
 */
function rowOf({ topic, channel, growth, why, tone }) {
  const { name, depth, inFlight, deferred, clients } = channel;
  return {
    key: `${topic}/${name}`,
    cells: [
      name === "" ? "–" : { text: shortName(name), href: addressOf(topic, name), title: name },
      { text: shortName(topic), href: addressOf(topic, ""), title: topic },
      { text: why, tone },
      count(depth),
      growth === null ? "–" : signed(growth),
      count(inFlight),
      count(deferred),
      count(clients),
    ],
  };
}

/** @param {number} value */
function signed(value) {
  const rounded = Math.round(value);
  return rounded > 0 ? `+${shortCount(rounded)}` : shortCount(rounded);
}
