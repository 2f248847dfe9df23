/**
 * Requests to the gateway, limited in time, with the user's secret.
 */

import { problemOf } from "./stats_poll.js";

const TIMEOUT_MS = 30_000;
const POLL_TIMEOUT_MS = 10_000;

/**
 * @param {string} path For example `topic/create`.
 * @param {Readonly<Record<string, string>>} query
 * @param {string} secret Empty: none.
 * @returns {Promise<string>} Why it has failed; empty if it has not.
 */
export async function post(path, query, secret) {
  try {
    const answer = await send("POST", path, query, secret, TIMEOUT_MS);
    return answer.ok ? "" : await problemOf(answer);
  } catch {
    return "The gateway does not respond: whether it is done is not known.";
  }
}

/**
 * @param {string} path
 * @param {Readonly<Record<string, string>>} query
 * @param {string} secret Empty: none.
 * @returns {Promise<{ data: any } | { trouble: string }>}
 */
export function getJson(path, query, secret) {
  return askForJson("GET", path, query, secret);
}

/**
 * As getJson, for a request that changes something and is answered with a document.
 *
 * @type {typeof getJson}
 */
export function postForJson(path, query, secret) {
  return askForJson("POST", path, query, secret);
}

/**
 * @param {string} method
 * @param {string} path
 * @param {Readonly<Record<string, string>>} query
 * @param {string} secret
 * @returns {Promise<{ data: any } | { trouble: string }>}
 */
async function askForJson(method, path, query, secret) {
  try {
    const answer = await send(method, path, query, secret, POLL_TIMEOUT_MS);
    return answer.ok ? { data: await answer.json() } : { trouble: await problemOf(answer) };
  } catch {
    return { trouble: "The gateway does not respond." };
  }
}

/**
 * @param {string} method
 * @param {string} path
 * @param {Readonly<Record<string, string>>} query
 * @param {string} secret
 * @param {number} timeoutMs
 */
function send(method, path, query, secret, timeoutMs) {
  const address = new URL(`../${path}`, import.meta.url);
  for (const [name, value] of Object.entries(query)) address.searchParams.set(name, value);
  const headers = new Headers(secret === "" ? [] : [["Authorization", `Bearer ${secret}`]]);
  return fetch(address, { method, headers, cache: "no-store", signal: AbortSignal.timeout(timeoutMs) });
}

/** Repeats a request while its page is shown and visible: one at a time. */
export class Repeated {
  #work;
  #everyMs;
  #isOn = false;
  /** Counts the starts, so that the answer for an earlier page is not used. */
  #turn = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /**
   * @param {number} everyMs
   * @param {(isCurrent: () => boolean) => Promise<void>} work Uses its answer only while `isCurrent()`.
   */
  constructor(everyMs, work) {
    this.#everyMs = everyMs;
    this.#work = work;
    document.addEventListener("visibilitychange", () => this.#isOn && this.start());
  }

  get isOn() {
    return this.#isOn;
  }

  /** Sends a request at once, and then at the interval. */
  start() {
    this.#isOn = true;
    this.#turn += 1;
    this.#run(this.#turn);
  }

  stop() {
    this.#isOn = false;
    this.#turn += 1;
    clearTimeout(this.#timer);
  }

  /** @param {number} turn */
  async #run(turn) {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    const isCurrent = () => turn === this.#turn;
    await this.#work(isCurrent);
    if (isCurrent()) this.#timer = setTimeout(() => this.#run(turn), this.#everyMs);
  }
}
