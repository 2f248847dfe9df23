/** PURE. Parse GET /stats, and add up topics and channels over all nsqds. */

import { plural } from "./format.js";

/** The topic that marks a draining nsqd while it is paused there: who may administer it may drain. */
export const DRAIN_TOPIC = "gw.draining";

/**
 * @typedef {object} Counts The counts of a channel, or of a topic with all its channels.
 * @property {number} depth
 * @property {number} inFlight
 * @property {number} deferred
 * @property {number} requeued
 * @property {number} timedOut
 * @property {number} clients
 */

/** @typedef {Counts & { name: string, paused: boolean, nodes: number }} ChannelNow `nodes`: nsqds that have it. */

/**
 * @typedef {object} TopicNow
 * @property {string} name
 * @property {number} depth Messages in the topic itself, not yet in a channel.
 * @property {number} messages Total, by nsqd's count.
 * @property {number | null} perSecond Since the previous report; null in the first.
 * @property {boolean} paused True if paused on any nsqd.
 * @property {string[]} nodes The nsqds that have the topic.
 * @property {ChannelNow[]} channels
 * @property {TopicPart[]} parts What each of these nsqds has.
 */

/**
 * @typedef {object} TopicPart A topic on one nsqd.
 * @property {string} node
 * @property {number} depth Messages in the topic itself.
 * @property {number} messages
 * @property {Map<string, Counts>} channels By name.
 */

/**
 * @typedef {object} Report
 * @property {number} atMs
 * @property {string} version The lowest version of all nsqds.
 * @property {string} health `OK`, or the errors of nsqds.
 * @property {number} nsqds Number that responded.
 * @property {string[]} silent The nsqds that did not respond, each with the reason.
 * @property {TopicNow[]} topics Sorted by name.
 */

/**
 * Parses the response of `GET /stats?format=json`. Missing members count as 0: older versions of nsqd omit some.
 *
 * @param {any} stats
 * @param {number} atMs
 * @param {Report | null} before The previous report, for rates.
 * @returns {Report}
 */
export function readReport(stats, atMs, before) {
  /** @type {Map<string, TopicNow>} */
  const topics = new Map();
  for (const said of stats.topics ?? []) if (!isDrainMark(said)) addTopic(topics, said);
  const report = {
    atMs,
    version: String(stats.version ?? ""),
    health: String(stats.health ?? "OK"),
    ...readNodes(stats.nodes ?? []),
    topics: [...topics.values()],
  };
  if (before !== null) setRates(report, before);
  return report;
}

/** @param {any} said A topic. @returns {boolean} True if it only marks its nsqd: the page of nodes shows that. */
function isDrainMark({ topic_name, paused, depth = 0, channels = [] }) {
  return topic_name === DRAIN_TOPIC && paused === true && depth === 0 && channels.length === 0;
}

/**
 * Returns where an nsqd has messages, the most first.
 *
 * @param {Report} report
 * @param {string} node
 * @returns {{ topic: string, channel: string, messages: number, clients: number }[]} With an empty channel, in the topic
 *   itself.
 */
export function messagesOn({ topics }, node) {
  const found = [];
  for (const { name: topic, parts } of topics) {
    const here = parts.find((each) => each.node === node);
    if (here === undefined) continue;
    found.push({ topic, channel: "", messages: here.depth, clients: 0 });
    for (const [channel, counts] of here.channels) {
      found.push({ topic, channel, messages: allMessages(counts), clients: counts.clients });
    }
  }
  return found.filter(({ messages }) => messages > 0).sort((one, other) => other.messages - one.messages);
}

/**
 * Adds up a topic, or one channel of it.
 *
 * @param {Report} report
 * @param {string} topicName
 * @param {string} channelName Empty: the topic and all its channels.
 * @returns {Counts | null} Null if there is no such topic or channel.
 */
export function countsOf(report, topicName, channelName) {
  const topic = report.topics.find(({ name }) => name === topicName);
  if (topic === undefined) return null;
  if (channelName !== "") return topic.channels.find(({ name }) => name === channelName) ?? null;
  return sumOf(topic);
}

/** @param {TopicNow} topic @returns {Counts} Those of the topic and all its channels. */
export function sumOf(topic) {
  const sum = noCounts();
  sum.depth = topic.depth;
  for (const channel of topic.channels) add(sum, channel);
  return sum;
}

/**
 * Returns a key for maps.
 *
 * @param {string} topic
 * @param {string} channel Empty: the topic.
 */
export function keyOf(topic, channel) {
  return `${topic}/${channel}`; // no name has a slash
}

/**
 * Returns the number of messages that a new consumer of this channel would receive at once.
 *
 * @param {Report} report
 * @param {string} topicName
 * @param {string} channelName
 * @returns {number}
 */
export function waitingFor(report, topicName, channelName) {
  const topic = report.topics.find(({ name }) => name === topicName);
  if (topic === undefined) return 0;
  // A topic keeps its messages until its first channel is created, and while it is paused.
  const isFed = topic.channels.length === 0 || topic.paused;
  const channel = topic.channels.find(({ name }) => name === channelName);
  return (channel?.depth ?? 0) + (isFed ? topic.depth : 0);
}

/**
 * @param {Report} report
 * @param {string} topicName
 * @param {string} channelName Empty: only the topic.
 * @returns {boolean} True if the topic or channel is paused.
 */
export function isPaused(report, topicName, channelName) {
  const topic = report.topics.find(({ name }) => name === topicName);
  const channel = topic?.channels.find(({ name }) => name === channelName);
  return topic?.paused === true || channel?.paused === true;
}

/**
 * Describes what is lost when a topic or channel is emptied or deleted.
 *
 * @param {Report} report
 * @param {string} topicName
 * @param {string} channelName Empty: the topic.
 * @param {"empty" | "delete"} action
 * @returns {string} For example `1,002 messages in 3 channels on 2 nsqds`.
 */
export function describeLoss({ topics, silent }, topicName, channelName, action) {
  const topic = topics.find(({ name }) => name === topicName);
  const loss = topic === undefined ? "no messages" : lossOf(topic, channelName, action);
  if (silent.length === 0) return loss;
  // They may be back when it is done.
  return `at least ${loss}, and what is on ${plural(silent.length, "nsqd")} that did not answer`;
}

/**
 * @param {TopicNow} topic
 * @param {string} channelName
 * @param {"empty" | "delete"} action
 */
function lossOf(topic, channelName, action) {
  if (channelName !== "") {
    const channel = topic.channels.find(({ name }) => name === channelName);
    if (channel === undefined) return "no messages";
    return `${plural(allMessages(channel), "message")} on ${plural(channel.nodes, "nsqd")}`;
  }
  const nodes = plural(topic.nodes.length, "nsqd");
  // Emptying a topic leaves the messages of its channels.
  if (action === "empty") return `${plural(topic.depth, "message")} of the topic itself on ${nodes}`;
  const messages = topic.channels.reduce((sum, channel) => sum + allMessages(channel), topic.depth);
  return `${plural(messages, "message")} in ${plural(topic.channels.length, "channel")} on ${nodes}`;
}

/** @param {Counts} counts @returns {number} The messages that are not finished: waiting, in flight and deferred. */
export function allMessages({ depth, inFlight, deferred }) {
  return depth + inFlight + deferred;
}

/**
 * @param {Map<string, TopicNow>} topics
 * @param {any} said
 */
function addTopic(topics, said) {
  const name = String(said.topic_name);
  let topic = topics.get(name);
  if (topic === undefined) {
    topic = { name, depth: 0, messages: 0, perSecond: null, paused: false, nodes: [], channels: [], parts: [] };
    topics.set(name, topic);
  }
  topic.depth += said.depth ?? 0;
  topic.messages += said.message_count ?? 0;
  topic.paused ||= said.paused === true;
  const node = String(said.node ?? "");
  const channels = new Map();
  topic.nodes.push(node);
  topic.parts.push({ node, depth: said.depth ?? 0, messages: said.message_count ?? 0, channels });
  for (const channel of said.channels ?? []) {
    const counts = readCounts(channel);
    channels.set(String(channel.channel_name), counts);
    addChannel(topic.channels, channel, counts);
  }
}

/**
 * @param {ChannelNow[]} channels
 * @param {any} said
 * @param {Counts} counts
 */
function addChannel(channels, said, counts) {
  const name = String(said.channel_name);
  let channel = channels.find((known) => known.name === name);
  if (channel === undefined) {
    channel = { name, paused: false, nodes: 0, ...noCounts() };
    channels.push(channel);
  }
  channel.paused ||= said.paused === true;
  channel.nodes += 1;
  add(channel, counts);
}

/**
 * @param {any} said A channel.
 * @returns {Counts}
 */
function readCounts(said) {
  return {
    depth: said.depth ?? 0,
    inFlight: said.in_flight_count ?? 0,
    deferred: said.deferred_count ?? 0,
    requeued: said.requeue_count ?? 0,
    timedOut: said.timeout_count ?? 0,
    clients: said.client_count ?? 0,
  };
}

/** @param {any[]} nodes */
function readNodes(nodes) {
  const silent = nodes.filter(({ error }) => error !== undefined).map(({ node, error }) => `${node}: ${error}`);
  return { nsqds: nodes.length - silent.length, silent };
}

/**
 * @param {Report} report
 * @param {Report} before
 */
function setRates(report, before) {
  const seconds = (report.atMs - before.atMs) / 1000;
  const counted = new Map(before.topics.map(({ name, messages }) => [name, messages]));
  for (const topic of report.topics) {
    // A new topic has no previous count; after a restart of nsqd the count restarts at 0.
    const more = topic.messages - (counted.get(topic.name) ?? 0);
    topic.perSecond = seconds > 0 ? Math.max(0, more) / seconds : 0;
  }
}

/** @returns {Counts} */
export function noCounts() {
  return { depth: 0, inFlight: 0, deferred: 0, requeued: 0, timedOut: 0, clients: 0 };
}

/**
 * Adds *more* to *sum*.
 *
 * @param {Counts} sum
 * @param {Counts} more
 */
export function add(sum, more) {
  sum.depth += more.depth;
  sum.inFlight += more.inFlight;
  sum.deferred += more.deferred;
  sum.requeued += more.requeued;
  sum.timedOut += more.timedOut;
  sum.clients += more.clients;
}
