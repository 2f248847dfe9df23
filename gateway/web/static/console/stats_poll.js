/**
 * Asks for /stats every 2 s while the page is seen: one question at a time, less often while it fails.
 */

import { readReport } from "./report.js";

/** @typedef {import("./report.js").Report} Report */

/**
 * @typedef {object} Trouble Why there is no report.
 * @property {boolean} wantsSecret An administrator's secret may help; without one nobody is asked again.
 * @property {string} text
 * @property {number} retryInMs When the next question goes out, from now.
 */

const EVERY_MS = 2_000;
const SLOWEST_MS = 30_000;
const PATIENCE_MS = 10_000;
// Only what the page shows: a busy nsqd lists thousands of clients.
const ADDRESS = new URL("../stats?format=json&include_clients=false&include_mem=false", import.meta.url);

export class StatsPoll {
  #asked;
  /** @type {Report | null} */
  #last = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #isAsking = false;
  #isRefused = false;
  #failures = 0;
  #secret = "";

  /**
   * @param {object} asked
   * @param {(report: Report) => void} asked.onReport
   * @param {(trouble: Trouble) => void} asked.onTrouble
   */
  constructor(asked) {
    this.#asked = asked;
  }

  /** Begins, and goes on for as long as the page lives. */
  start() {
    document.addEventListener("visibilitychange", () => this.#plan(0));
    this.#plan(0);
  }

  /** @param {string} secret The administrator's; it is asked with at once, and kept nowhere else. */
  useSecret(secret) {
    this.#secret = secret;
    this.askNow();
  }

  /** Asks without waiting for the next turn, for something was just changed. */
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
    const nextMs = await this.#look();
    this.#isAsking = false;
    this.#plan(nextMs);
  }

  /** @returns {Promise<number>} How long to wait until the next question. */
  async #look() {
    try {
      const headers = this.#secret === "" ? undefined : { Authorization: `Bearer ${this.#secret}` };
      const signal = AbortSignal.timeout(PATIENCE_MS);
      const answer = await fetch(ADDRESS, { cache: "no-store", signal, ...(headers && { headers }) });
      if (!answer.ok) return this.#fail(answer.status, await problemOf(answer));
      this.#last = readReport(await answer.json(), Date.now(), this.#last);
    } catch (error) {
      const why = error instanceof Error && error.name === "TimeoutError" ? "within 10 s" : "at all";
      return this.#fail(0, `The gateway does not answer ${why}.`);
    }
    this.#failures = 0;
    this.#asked.onReport(this.#last);
    return EVERY_MS;
  }

  /**
   * @param {number} status
   * @param {string} text
   */
  #fail(status, text) {
    this.#failures += 1;
    const wantsSecret = status === 401 || status === 403;
    if (status === 401) text = "Only the administrator is shown topics.";
    this.#isRefused = wantsSecret;
    const retryInMs = Math.min(SLOWEST_MS, EVERY_MS * 2 ** (this.#failures - 1));
    this.#asked.onTrouble({ wantsSecret, text, retryInMs });
    return retryInMs;
  }
}

/**
 * @param {Response} answer
 * @returns {Promise<string>} What the problem body says, or the status where there is none.
 */
async function problemOf(answer) {
  try {
    const { message, detail } = await answer.json();
    return `${message}: ${detail}.`;
  } catch {
    return `The answer is ${answer.status}.`;
  }
}
