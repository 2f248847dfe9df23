/** PURE. How a subscription stands, in words. What the codes mean: docs/websocket.md, "Close codes". */

import { plural, timeLeft } from "./format.js";

/**
 * @typedef {object} Standing
 * @property {import("../nsq.js").State | "idle"} state
 * @property {number | undefined} [nsqds] Behind the socket; none: not told yet.
 * @property {number} [code] Of the last close, or the HTTP status of the refusal.
 * @property {string} [reason]
 * @property {number} [retryAtMs] When the next try is, with `waiting`.
 * @property {string} [refusal] Why there is no coming back.
 */

/**
 * @typedef {object} Words
 * @property {"" | "good" | "warn" | "bad"} tone
 * @property {string} word The state itself.
 * @property {string} more What it means now.
 */

/** The code of a close for want of a secret. */
export const SECRET_WANTED = 4501;

/** @type {Record<number, string>} */
const MEANINGS = {
  1000: "it was stopped",
  1001: "the page was left",
  1002: "a frame broke RFC 6455",
  1003: "a binary frame was sent",
  1005: "no code was sent",
  1006: "the connection broke, or none could be made",
  1007: "a frame was not UTF-8",
  1009: "a frame was too large",
  1011: "the gateway failed",
  1012: "the gateway is stopping or restarting",
  1013: "nsqd takes no further consumer",
  1014: "no nsqd could be reached for too long",
  4000: "this page did not answer a ping in time",
  4001: "this page did not read fast enough",
  4003: "the secret is not good any more",
  4004: "the channel was deleted",
  4500: "a request could not be used",
  [SECRET_WANTED]: "a secret is wanted: fill it in and subscribe again",
  4503: "the secret was refused",
  4508: "too many bad commands, or too fast",
};

/**
 * @param {number} code
 * @returns {string} What a close code means.
 */
function meaningOf(code) {
  return MEANINGS[code] ?? "not one of the gateway's codes";
}

/**
 * @param {Standing} standing
 * @param {number} nowMs
 * @returns {Words}
 */
export function wordsOf(standing, nowMs) {
  const nsqds = standing.nsqds === undefined ? "" : plural(standing.nsqds, "nsqd");
  switch (standing.state) {
    case "idle":
      return { tone: "", word: "not subscribed", more: "" };
    case "connecting":
      return { tone: "warn", word: "connecting", more: "" };
    case "connected":
      return { tone: "good", word: "connected", more: nsqds };
    case "disconnected":
      return { tone: "warn", word: "disconnected", more: "no nsqd is reachable; the gateway looks for one" };
    case "channel_paused":
      return { tone: "warn", word: "paused", more: `the channel or its topic is paused${nsqds && `; ${nsqds}`}` };
    case "waiting":
      return { tone: "warn", word: "waiting", more: `${whyLost(standing)}; next try in ${countdown(standing, nowMs)}` };
    case "closing":
      return { tone: "warn", word: "closing", more: "answers are still taken" };
    case "closed":
      return { tone: standing.code === 1000 ? "" : "bad", word: "closed", more: whyClosed(standing) };
  }
}

/** @param {Standing} standing @returns {string} */
function whyLost({ code, reason }) {
  if (code === undefined) return reason ?? "";
  return `${code}: ${code === 1006 && reason ? reason : meaningOf(code)}`;
}

/** @param {Standing} standing @returns {string} */
function whyClosed({ code, refusal }) {
  const parts = [];
  if (code !== undefined) parts.push(code < 1000 ? `HTTP ${code}` : `${code}: ${meaningOf(code)}`);
  // NSQ's words for 4501 are the same once more.
  if (refusal && code !== SECRET_WANTED) parts.push(refusal.replace(` (closed with ${code})`, ""));
  return parts.join("; ");
}

/**
 * @param {Standing} standing
 * @param {number} nowMs
 */
function countdown({ retryAtMs = 0 }, nowMs) {
  return timeLeft(retryAtMs - nowMs);
}
