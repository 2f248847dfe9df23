/**
 * The page of a topic or of a channel: its numbers, where it is, and who uses it.
 */

import { Chart } from "./chart.js";
import { byId, part, setText, setTone } from "./elements.js";
import { count, duration, plural, rate, shortCount, shortName } from "./format.js";
import { Peek } from "./peek.js";
import { add, countsOf, isPaused, noCounts } from "./report.js";
import { getJson, Repeated } from "./requests.js";
import { Series } from "./series.js";
import { readClients } from "./subject_report.js";
import { Table } from "./table.js";
import { addressOf, crumbs } from "./views.js";

/**
 * @typedef {import("./report.js").Report} Report
 * @typedef {import("./report.js").TopicNow} TopicNow
 * @typedef {import("./report.js").Counts} Counts
 * @typedef {{ topic: string, channel: string }} Subject A channel, or with an empty channel a topic.
 */

const CLIENTS_EVERY_MS = 3_000;
const COUNTED = [
  { label: "depth", title: "Messages that wait", isNumber: true },
  { label: "in flight", isNumber: true },
  { label: "deferred", isNumber: true },
  { label: "requeued", title: "Number of requeues", isNumber: true },
  { label: "timed out", title: "Number of message timeouts", isNumber: true },
];

export class SubjectPage {
  #root = byId("subject", HTMLElement);
  #handlers;
  /** @type {Subject} */
  #subject = { topic: "", channel: "" };
  /** @type {Report | null} */
  #report = null;
  /** When the clients of this subject were last read; null: never. @type {number | null} */
  #clientsAtMs = null;
  #chart = new Chart(
    byId("subject-chart", HTMLElement),
    [
      { name: "depth", unit: "", series: new Series(), part: "depth" },
      { name: "in flight", unit: "", series: new Series(), part: "in-flight" },
    ],
    shortCount,
    () => {},
  );
  #channels = new Table(
    part(this.#root, "channels"),
    [{ label: "channel" }, ...COUNTED, { label: "consumers", isNumber: true }, { label: "state" }],
    "channels",
  );
  #consumers = new Table(
    part(this.#root, "consumers-table"),
    [
      { label: "consumer" },
      { label: "address" },
      { label: "user agent" },
      { label: "in flight", isNumber: true },
      { label: "RDY", title: "How many messages it takes at a time", isNumber: true },
      { label: "delivered", isNumber: true },
      { label: "finished", isNumber: true },
      { label: "requeued", isNumber: true },
      { label: "connected", isNumber: true },
      { label: "nsqd" },
    ],
    "consumers",
  );
  #nodes = new Table(
    part(this.#root, "nodes"),
    [
      { label: "nsqd" },
      { label: "action", isAction: true },
      ...COUNTED,
      { label: "published", title: "Messages published there since its start", isNumber: true },
    ],
    "nodes",
  );
  #producers = new Table(
    part(this.#root, "producers"),
    [
      { label: "producer" },
      { label: "address" },
      { label: "user agent" },
      { label: "published", title: "Messages of this topic", isNumber: true },
      { label: "nsqd" },
    ],
    "producers",
  );
  #peek = new Peek(part(this.#root, "peek-part"), () => this.#handlers.secret());
  #clients = new Repeated(CLIENTS_EVERY_MS, (isCurrent) => this.#askClients(isCurrent));

  /**
   * @param {object} handlers
   * @param {import("./series.js").QueueHistory} handlers.history
   * @param {() => string} handlers.secret
   * @param {(topic: string, channel: string) => import("./trouble.js").ChannelTrouble | undefined} handlers.troubleOf
   * @param {(topic: string, channel: string) => string} handlers.whyNotAdmin
   * @param {(topic: string, channel: string) => void} handlers.onMessages Called to look at its messages.
   * @param {(topic: string, channel: string) => void} handlers.onManage
   * @param {(topic: string, node: string) => void} handlers.onTombstone
   * @param {(what: string, atMs: number | null, why: string) => void} handlers.onTrouble Called with the reason why the
   *   clients are not newer, and with an empty one when they are.
   */
  constructor(handlers) {
    this.#handlers = handlers;
    part(this.#root, "messages").addEventListener("click", () => this.#call(handlers.onMessages));
    part(this.#root, "manage").addEventListener("click", () => this.#call(handlers.onManage));
  }

  /** @param {Subject} subject Shows it from now on. */
  open(subject) {
    this.#subject = subject;
    const { topic, channel } = subject;
    setText(byId("subject-title", HTMLElement), channel === "" ? `Topic ${topic}` : `Channel ${channel}`);
    this.#showTrail();
    part(this.#root, "channels-part").hidden = channel !== "";
    part(this.#root, "producers-part").hidden = channel !== "";
    part(this.#root, "consumers-part").hidden = channel === "";
    part(this.#root, "rate-total").hidden = channel !== "";
    part(this.#root, "nodes").classList.toggle("no-action", channel !== "");
    this.#peek.open(topic, channel);
    this.#clientsAtMs = null;
    this.#consumers.show([]);
    this.#producers.show([]);
    part(this.#root, "no-consumers").hidden = true;
    part(this.#root, "no-producers").hidden = true;
    for (const table of [this.#channels, this.#consumers, this.#nodes, this.#producers]) table.open();
    if (this.#report !== null) this.show(this.#report);
    this.#clients.start();
  }

  /** Another page is shown. */
  close() {
    if (!this.#clients.isOn) return;
    this.#clients.stop();
    this.#handlers.onTrouble("Clients", this.#clientsAtMs, "");
  }

  /** @param {Report} report */
  show(report) {
    this.#report = report;
    const { topic: name, channel } = this.#subject;
    if (name === "") return;
    const counts = countsOf(report, name, channel);
    const topic = report.topics.find((each) => each.name === name);
    const what = channel === "" ? "topic" : "channel";
    const found = this.#handlers.troubleOf(name, channel);
    if (counts === null) this.#tell(`No nsqd has this ${what}. “Manage…” creates it.`, "");
    else this.#tell(found === undefined ? "" : explain(found), found?.tone ?? "");
    part(this.#root, "no-channels").hidden = topic === undefined || topic.channels.length > 0;
    part(this.#root, "paused").hidden = !isPaused(report, name, channel);
    this.#showTotals(topic, counts ?? noCounts());
    this.#chart.series = this.#handlers.history.of(name, channel);
    this.#chart.draw(report.atMs);
    this.#channels.show(channel === "" ? (topic?.channels ?? []).map((each) => this.#channelRow(name, each)) : []);
    this.#nodes.show((topic?.parts ?? []).flatMap((each) => this.#nodeRow(each)));
  }

  /** @param {(topic: string, channel: string) => void} handler */
  #call(handler) {
    handler(this.#subject.topic, this.#subject.channel);
  }

  #showTrail() {
    const { topic, channel } = this.#subject;
    part(this.#root, "trail").replaceChildren("› ", ...crumbs(topic, channel, true));
  }

  /**
   * @param {string} text Empty hides it.
   * @param {"" | "warn" | "bad"} tone
   */
  #tell(text, tone) {
    const trouble = part(this.#root, "trouble");
    trouble.hidden = text === "";
    setText(trouble, text);
    setTone(trouble, tone);
  }

  /**
   * @param {TopicNow | undefined} topic
   * @param {Counts} counts
   */
  #showTotals(topic, counts) {
    const perSecond = topic?.perSecond ?? null;
    const totals = {
      rate: perSecond === null ? "–" : `${rate(perSecond)}/s`,
      depth: count(counts.depth),
      "in-flight": count(counts.inFlight),
      deferred: count(counts.deferred),
      requeued: count(counts.requeued),
      "timed-out": count(counts.timedOut),
      consumers: count(counts.clients),
    };
    const list = this.#root.querySelector("dl");
    for (const [name, text] of Object.entries(totals)) if (list !== null) setText(part(list, name), text);
  }

  /**
   * @param {string} topic
   * @param {import("./report.js").ChannelNow} channel
   * @returns {import("./table.js").Row}
   */
  #channelRow(topic, channel) {
    const { name, clients, paused } = channel;
    const { why = "", tone = "" } = this.#handlers.troubleOf(topic, name) ?? {};
    /** @type {import("./table.js").Value} */
    const state = paused ? { text: "paused", tone: "warn" } : { text: why, tone };
    const link = { text: shortName(name), href: addressOf(topic, name), title: name };
    return { key: name, cells: [link, ...countCells(channel), clients, state] };
  }

  /**
   * @param {import("./report.js").TopicPart} found
   * @returns {import("./table.js").Row[]} None if this nsqd does not have the channel.
   */
  #nodeRow({ node, depth, messages, channels }) {
    const { topic, channel } = this.#subject;
    const counts = noCounts();
    if (channel === "") {
      counts.depth = depth;
      for (const each of channels.values()) add(counts, each);
    } else {
      const found = channels.get(channel);
      if (found === undefined) return [];
      add(counts, found);
    }
    const tombstone = {
      text: channel === "" ? "Tombstone…" : "",
      onPress: () => this.#handlers.onTombstone(topic, node),
      whyNot: this.#handlers.whyNotAdmin(topic, ""),
      title: "Delete the topic on this nsqd only",
    };
    return [{ key: node, cells: [node, tombstone, ...countCells(counts), messages] }];
  }

  /** @param {() => boolean} isCurrent */
  async #askClients(isCurrent) {
    const { topic, channel } = this.#subject;
    const query = { format: "json", include_clients: "true", include_mem: "false", topic };
    const answer = await getJson("stats", channel === "" ? query : { ...query, channel }, this.#handlers.secret());
    if (!isCurrent()) return;
    const what = channel === "" ? "Producers" : "Consumers";
    this.#handlers.onTrouble(what, this.#clientsAtMs, "trouble" in answer ? answer.trouble : "");
    if ("trouble" in answer) return;
    const { consumers, producers } = readClients(answer.data, topic, channel);
    const nowMs = Date.now();
    this.#clientsAtMs = nowMs;
    this.#consumers.show(consumers.map((each) => consumerRow(each, nowMs)));
    this.#producers.show(producers.map(producerRow));
    part(this.#root, "no-consumers").hidden = consumers.length > 0;
    part(this.#root, "no-producers").hidden = producers.length > 0;
  }
}

/**
 * @param {import("./trouble.js").ChannelTrouble} found
 * @returns {string} What is wrong, and what is known of its cause; empty: nothing is.
 */
function explain({ why, channel: { depth, inFlight, clients } }) {
  if (why === "") return "";
  const waiting = `${plural(depth, "message")} waiting`;
  const busy = clients === 0 ? "" : `; ${plural(clients, "consumer")} with ${count(inFlight)} in flight`;
  return `${why[0]?.toUpperCase()}${why.slice(1)}: ${waiting}${busy}.`;
}

/** @param {Counts} counts */
function countCells({ depth, inFlight, deferred, requeued, timedOut }) {
  return [depth, inFlight, deferred, requeued, timedOut];
}

/**
 * @param {import("./subject_report.js").Consumer} consumer
 * @param {number} nowMs
 * @returns {import("./table.js").Row}
 */
function consumerRow({ key, name, address, userAgent, node, connectedAtMs, ...counts }, nowMs) {
  const { inFlight, ready, messages, finished, requeued } = counts;
  const connectedMs = nowMs - connectedAtMs;
  const connected = { text: duration(connectedMs), sortBy: connectedMs };
  return {
    key,
    cells: [name, address, userAgent, inFlight, ready, messages, finished, requeued, connected, node],
  };
}

/**
 * @param {import("./subject_report.js").Producer} producer
 * @returns {import("./table.js").Row}
 */
function producerRow({ key, name, address, userAgent, node, messages }) {
  return { key, cells: [name, address, userAgent, messages, node] };
}
