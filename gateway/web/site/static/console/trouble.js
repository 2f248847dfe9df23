/** PURE. Find the channels that fall behind, and say why. */

import { duration, plural, shortCount } from "./format.js";
import { allMessages, keyOf, noCounts, sumOf } from "./report.js";

/**
 * @typedef {import("./report.js").Report} Report
 * @typedef {import("./report.js").ChannelNow} ChannelNow
 */

/**
 * @typedef {object} ChannelTrouble
 * @property {string} topic
 * @property {ChannelNow} channel Its name is empty for a topic without channels.
 * @property {number | null} growth Change of its messages a minute; null before there are two reports. What a consumer
 *   has in flight counts: it is not done.
 * @property {string} why Empty: nothing is wrong.
 * @property {"" | "warn" | "bad"} tone
 */

/**
 * @typedef {object} TopicTrouble
 * @property {import("./report.js").TopicNow} topic
 * @property {number} depth Of the topic and all its channels.
 * @property {string} why Empty: nothing is wrong.
 * @property {"" | "warn" | "bad"} tone
 */

/** @typedef {{ messages: number, timedOut: number }} Past */
/** @typedef {{ atMs: number, channels: Map<string, Past> }} Snapshot */

const KEEP_MS = 60_000;
const EVERY_MS = 10_000;
const MINUTE_MS = 60_000;
// A change of fewer messages a minute is no trend.
const GROWTH = 10;
// A backlog of fewer messages, or one that is gone sooner, is everyday work.
const BACKLOG = 100;
const SLOW_MINUTES = 30;

/** Remembers the last minute, so that trends can be told from single values. */
export class Trends {
  /** Oldest first. @type {Snapshot[]} */
  #past = [];

  /**
   * Returns every channel, those that fall behind first.
   *
   * @param {Report} report
   * @returns {ChannelTrouble[]}
   */
  judge(report) {
    const [oldest] = this.#past;
    const found = [];
    for (const topic of report.topics) {
      if (topic.channels.length === 0 && topic.depth > 0) found.push(withoutChannels(topic));
      for (const channel of topic.channels) {
        const past = oldest?.channels.get(keyOf(topic.name, channel.name));
        const minutes = oldest === undefined ? 0 : (report.atMs - oldest.atMs) / MINUTE_MS;
        found.push(judgeChannel(topic.name, channel, topic.paused, past, minutes));
      }
    }
    this.#remember(report);
    return found.sort(compare);
  }

  /** @param {Report} report */
  #remember({ atMs, topics }) {
    const last = this.#past.at(-1);
    if (last !== undefined && atMs - last.atMs < EVERY_MS) return;
    const channels = new Map();
    for (const topic of topics) {
      for (const channel of topic.channels) {
        const past = { messages: allMessages(channel), timedOut: channel.timedOut };
        channels.set(keyOf(topic.name, channel.name), past);
      }
    }
    this.#past.push({ atMs, channels });
    while (this.#past.length > 1 && (this.#past[1]?.atMs ?? atMs) <= atMs - KEEP_MS) this.#past.shift();
  }
}

/**
 * Returns every topic, those with channels that fall behind first.
 *
 * @param {Report} report
 * @param {readonly ChannelTrouble[]} found What is known of its channels.
 * @returns {TopicTrouble[]}
 */
export function judgeTopics({ topics }, found) {
  /** @type {Map<string, ChannelTrouble[]>} */
  const behind = new Map();
  for (const each of found) {
    if (each.tone === "") continue;
    const others = behind.get(each.topic);
    if (others === undefined) behind.set(each.topic, [each]);
    else others.push(each);
  }
  const judged = topics.map((topic) => {
    const { depth } = sumOf(topic);
    const [why, tone] = reasonOfTopic(topic, behind.get(topic.name) ?? []);
    return { topic, depth, why, tone };
  });
  return judged.sort(
    (one, other) =>
      ORDER[one.tone] - ORDER[other.tone] || other.depth - one.depth || order(one.topic.name, other.topic.name),
  );
}

/**
 * @param {import("./report.js").TopicNow} topic
 * @param {readonly ChannelTrouble[]} behind Those of its channels that fall behind, or the topic itself.
 * @returns {[string, "" | "warn" | "bad"]}
 */
function reasonOfTopic({ paused, channels }, behind) {
  const tone = behind.some((each) => each.tone === "bad") ? "bad" : behind.length > 0 || paused ? "warn" : "";
  if (channels.length === 0) return ["no channels", tone];
  if (paused) return ["paused", tone];
  if (behind.length === 0) return ["", ""];
  return [`${plural(behind.length, "channel falls", "channels fall")} behind`, tone];
}

/**
 * Its messages wait for a first channel, which would get all of them.
 *
 * @param {import("./report.js").TopicNow} topic
 * @returns {ChannelTrouble}
 */
function withoutChannels({ name, depth, paused }) {
  const channel = { ...noCounts(), name: "", depth, paused, nodes: 0 };
  return { topic: name, channel, growth: null, why: "no channels", tone: "warn" };
}

/**
 * @param {string} topic
 * @param {ChannelNow} channel
 * @param {boolean} isTopicPaused
 * @param {Past | undefined} past
 * @param {number} minutes Since *past*.
 * @returns {ChannelTrouble}
 */
function judgeChannel(topic, channel, isTopicPaused, past, minutes) {
  const growth = past === undefined || minutes <= 0 ? null : (allMessages(channel) - past.messages) / minutes;
  const timeouts = past === undefined || minutes <= 0 ? 0 : (channel.timedOut - past.timedOut) / minutes;
  const [why, tone] = reasonOf(channel, isTopicPaused, growth ?? 0, timeouts);
  return { topic, channel, growth, why, tone };
}

/**
 * @param {ChannelNow} channel
 * @param {boolean} isTopicPaused
 * @param {number} growth
 * @param {number} timeouts
 * @returns {[string, "" | "warn" | "bad"]}
 */
function reasonOf(channel, isTopicPaused, growth, timeouts) {
  const { depth, clients, paused } = channel;
  if (depth > 0 && paused) return ["paused", "warn"];
  if (depth > 0 && clients === 0) return ["no consumers", "bad"];
  if (timeouts >= 1) return [`${plural(Math.round(timeouts), "timeout")} a minute`, "bad"];
  // With a small depth, consumers only happen to have more in flight.
  if (depth >= GROWTH && growth >= GROWTH) return [`grows by ${shortCount(Math.round(growth))} a minute`, "bad"];
  if (isTopicPaused) return ["topic paused", "warn"];
  const minutes = allMessages(channel) / -growth;
  if (depth >= BACKLOG && growth < 0 && minutes > SLOW_MINUTES) {
    return [`shrinks slowly: empty in ${duration(minutes * MINUTE_MS)}`, "warn"];
  }
  return ["", ""];
}

const ORDER = { bad: 0, warn: 1, "": 2 };

/**
 * @param {ChannelTrouble} one
 * @param {ChannelTrouble} other
 */
function compare(one, other) {
  return (
    ORDER[one.tone] - ORDER[other.tone] ||
    other.channel.depth - one.channel.depth ||
    other.channel.inFlight - one.channel.inFlight ||
    order(one.topic, other.topic) ||
    order(one.channel.name, other.channel.name)
  );
}

/**
 * @param {string} one
 * @param {string} other
 */
function order(one, other) {
  return one < other ? -1 : Number(one > other);
}
