/** PURE. Describe the status of a subscription. docs/websocket.md, "Close codes", explains the codes. */

import { plural, timeLeft } from "./format.js";

/**
 * @typedef {object} Status
 * @property {import("../nsq.js").State | "idle"} state
 * @property {number | undefined} [nsqds] Number behind the socket; undefined: not reported yet.
 * @property {number} [code] The last close code, or the HTTP status of a refused upgrade.
 * @property {string} [reason]
 * @property {number} [retryAtMs] Time of the next attempt, with `waiting`.
 * @property {string} [refusal] The permanent error that ended the subscription.
 */

/**
 * @typedef {object} StatusText
 * @property {"" | "good" | "warn" | "bad"} tone
 * @property {string} word Name of the state.
 * @property {string} more Explanation.
 */

/** The close code for a missing secret. */
export const SECRET_WANTED = 4501;

/** @type {Record<number, string>} */
const MEANINGS = {
  1000: "ended by Stop",
  1001: "the page was closed",
  1002: "a frame violated RFC 6455",
  1003: "a binary frame was sent",
  1005: "no close code",
  1006: "the connection was lost or refused",
  1007: "a frame was not UTF-8",
  1009: "a frame was too large",
  1011: "internal error in the gateway",
  1012: "the gateway is stopping or restarting",
  1013: "a limit of consumers or sockets is reached",
  1014: "no nsqd was reachable for too long",
  4000: "this page did not answer a ping in time",
  4001: "this page did not read fast enough",
  4003: "the secret is no longer valid",
  4004: "the channel was deleted",
  4500: "a request was invalid",
  [SECRET_WANTED]: "a secret is required: enter it and subscribe again",
  4503: "the secret was refused",
  4508: "too many invalid commands, or commands too fast",
};

/**
 * @param {number} code
 * @returns {string} What a close code means.
 */
function meaningOf(code) {
  return MEANINGS[code] ?? "unknown close code";
}

/**
 * @param {Status} status
 * @param {number} nowMs
 * @returns {StatusText}
 */
export function describeStatus(status, nowMs) {
  const nsqds = status.nsqds === undefined ? "" : plural(status.nsqds, "nsqd");
  switch (status.state) {
    case "idle":
      return { tone: "", word: "not subscribed", more: "" };
    case "connecting":
      return { tone: "warn", word: "connecting", more: "" };
    case "connected":
      return { tone: "good", word: "connected", more: nsqds };
    case "disconnected":
      return { tone: "warn", word: "disconnected", more: "no nsqd is reachable; the gateway keeps trying" };
    case "channel_paused":
      return { tone: "warn", word: "paused", more: `the channel or its topic is paused${nsqds && `; ${nsqds}`}` };
    case "draining":
      return {
        tone: "warn",
        word: "draining",
        more: "the gateway closes this connection soon; acknowledgements are still accepted, then the page reconnects",
      };
    case "waiting":
      return { tone: "warn", word: "waiting", more: `${whyLost(status)}; reconnecting in ${countdown(status, nowMs)}` };
    case "closing":
      return { tone: "warn", word: "closing", more: "acknowledgements are still accepted" };
    case "closed":
      return { tone: status.code === 1000 ? "" : "bad", word: "closed", more: whyClosed(status) };
  }
}

/** @param {Status} status @returns {string} */
function whyLost({ code, reason }) {
  if (code === undefined) return reason ?? "";
  return `${code}: ${code === 1006 && reason ? reason : meaningOf(code)}`;
}

/** @param {Status} status @returns {string} */
function whyClosed({ code, refusal }) {
  const parts = [];
  if (code !== undefined) parts.push(code < 1000 ? `HTTP ${code}` : `${code}: ${meaningOf(code)}`);
  // The refusal of 4501 would repeat the same text.
  if (refusal && code !== SECRET_WANTED) parts.push(refusal.replace(` (closed with ${code})`, ""));
  return parts.join("; ");
}

/**
 * @param {Status} status
 * @param {number} nowMs
 */
function countdown({ retryAtMs = 0 }, nowMs) {
  return timeLeft(retryAtMs - nowMs);
}
