/**
 * Polls /stats every 2 s while the page is visible: one request at a time, less often after failures.
 */

import { readReport } from "./report.js";

/** @typedef {import("./report.js").Report} Report */

/**
 * @typedef {object} Trouble Why there is no report.
 * @property {boolean} wantsSecret An administrator's secret is required; polling stops until the user enters it.
 * @property {string} text
 * @property {number} retryInMs Time until the next request.
 */

const EVERY_MS = 2_000;
const SLOWEST_MS = 30_000;
const TIMEOUT_MS = 10_000;
// Without clients: a busy nsqd lists thousands of them.
const ADDRESS = new URL("../stats?format=json&include_clients=false&include_mem=false", import.meta.url);

export class StatsPoll {
  #handlers;
  /** @type {Report | null} */
  #last = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #isAsking = false;
  #isRefused = false;
  #failures = 0;
  #adminSecret = "";

  /**
   * @param {object} handlers
   * @param {() => string} handlers.secret Returns the user's token or key; empty: none.
   * @param {(report: Report) => void} handlers.onReport
   * @param {(trouble: Trouble) => void} handlers.onTrouble
   */
  constructor(handlers) {
    this.#handlers = handlers;
  }

  /** Starts polling, for as long as the page is open. */
  start() {
    document.addEventListener("visibilitychange", () => this.#plan(0));
    this.#plan(0);
  }

  /** The secret for statistics and administration; empty: none. */
  get secret() {
    return this.#adminSecret || this.#handlers.secret();
  }

  /** @param {string} secret The administrator's secret, used for a request at once and kept in memory only. */
  useSecret(secret) {
    this.#adminSecret = secret;
    this.askNow();
  }

  /** Sends a request at once, because something has just changed. */
  askNow() {
    this.#isRefused = false;
    this.#plan(0);
  }

  /** @param {number} delayMs */
  #plan(delayMs) {
    clearTimeout(this.#timer);
    if (document.hidden || this.#isRefused) return;
    this.#timer = setTimeout(() => this.#ask(), delayMs);
  }

  async #ask() {
    if (this.#isAsking) return;
    this.#isAsking = true;
    const nextMs = await this.#poll();
    this.#isAsking = false;
    this.#plan(nextMs);
  }

  /** @returns {Promise<number>} Delay until the next request. */
  async #poll() {
    try {
      const { secret } = this;
      const headers = secret === "" ? undefined : { Authorization: `Bearer ${secret}` };
      const signal = AbortSignal.timeout(TIMEOUT_MS);
      const answer = await fetch(ADDRESS, { cache: "no-store", signal, ...(headers && { headers }) });
      if (!answer.ok) return this.#fail(answer.status, await problemOf(answer));
      this.#last = readReport(await answer.json(), Date.now(), this.#last);
    } catch (error) {
      const why = error instanceof Error && error.name === "TimeoutError" ? "within 10 s" : "at all";
      return this.#fail(0, `The gateway does not respond ${why}.`);
    }
    this.#failures = 0;
    this.#handlers.onReport(this.#last);
    return EVERY_MS;
  }

  /**
   * @param {number} status
   * @param {string} text
   */
  #fail(status, text) {
    this.#failures += 1;
    const wantsSecret = status === 401 || status === 403;
    if (status === 401) text = "Topics are shown to administrators only.";
    this.#isRefused = wantsSecret;
    const retryInMs = Math.min(SLOWEST_MS, EVERY_MS * 2 ** (this.#failures - 1));
    this.#handlers.onTrouble({ wantsSecret, text, retryInMs });
    return retryInMs;
  }
}

/**
 * @param {Response} answer
 * @returns {Promise<string>} The text of the problem body, or the status.
 */
export async function problemOf(answer) {
  try {
    const { message, detail } = await answer.json();
    return `${message}: ${detail}.`;
  } catch {
    return `The gateway responded with ${answer.status}.`;
  }
}
