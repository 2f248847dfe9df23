/**
 * Says on every page which numbers are old, missing or incomplete, and why; asks for the administrator's secret.
 *
 * The pages have one copy, and the list of topics has the other: one of them is in sight.
 */

import { announce, part, setText, setTone, stamp } from "./elements.js";
import { clock, timeLeft } from "./format.js";

/**
 * @typedef {import("./report.js").Report} Report
 * @typedef {import("./stats_poll.js").Trouble} Trouble
 */

export class StatsNotice {
  #copies;
  #isSignedOut;
  /** @type {Report | null} */
  #report = null;
  /** Why there is no newer report. @type {Trouble | null} */
  #trouble = null;
  /** What is wrong with the numbers that the page itself asks for. */
  #ofPage = "";
  #shown = "";

  /**
   * @param {object} handlers
   * @param {(secret: string) => void} handlers.onSecret Called with the administrator's secret.
   * @param {() => boolean} handlers.isSignedOut
   */
  constructor({ onSecret, isSignedOut }) {
    this.#isSignedOut = isSignedOut;
    const places = [...document.querySelectorAll('[data-part="stats-notice"]')];
    this.#copies = places.map((place) => {
      const copy = stamp("stats-notice");
      place.replaceChildren(copy);
      part(copy, "secret-form").addEventListener("submit", (event) => {
        event.preventDefault();
        const secret = part(copy, "admin-secret");
        if (secret instanceof HTMLInputElement) onSecret(secret.value);
      });
      return copy;
    });
  }

  /** @param {Report} report */
  showReport(report) {
    if (this.#trouble !== null) announce("Numbers are up to date again.");
    this.#report = report;
    this.#trouble = null;
    this.#draw();
  }

  /** @param {Trouble} trouble Why there is no newer report; the last one stays. */
  showTrouble(trouble) {
    if (this.#trouble === null && !this.#isSignedOut()) announce(trouble.text);
    this.#trouble = trouble;
    this.#draw();
  }

  /**
   * @param {string} what Which numbers the page itself asks for.
   * @param {number | null} atMs When they were read; null: never.
   * @param {string} why Why they are not newer; empty: they are new.
   */
  showPageTrouble(what, atMs, why) {
    this.#ofPage = why === "" ? "" : `${ageOf(what, atMs)}${why} Trying again.`;
    this.#draw();
  }

  #draw() {
    const wantsSecret = this.#trouble?.wantsSecret === true;
    const text = this.#trouble === null ? this.#incomplete() : this.#old(this.#trouble);
    if (text === this.#shown) return;
    this.#shown = text;
    for (const copy of this.#copies) {
      copy.hidden = text === "";
      setTone(copy, wantsSecret ? "warn" : "bad");
      setText(part(copy, "what"), text);
      part(copy, "secret-form").hidden = !wantsSecret || this.#isSignedOut();
    }
  }

  /** @param {Trouble} trouble */
  #old({ wantsSecret, text, retryInMs }) {
    const age = ageOf("Numbers", this.#report?.atMs ?? null);
    if (wantsSecret && this.#isSignedOut()) return `${age}Sign in to see the topics.`;
    const then = wantsSecret ? "Subscribing and publishing do not need it." : `Retrying in ${timeLeft(retryInMs)}.`;
    return `${age}${text} ${then}`;
  }

  #incomplete() {
    const { silent = [], health = "OK" } = this.#report ?? {};
    const missing = silent.length > 0 ? `Numbers are missing: ${silent.map((nsqd) => `nsqd ${nsqd}`).join("; ")}` : "";
    return [missing || (health === "OK" ? "" : health), this.#ofPage].filter((text) => text !== "").join(" ");
  }
}

/**
 * @param {string} what
 * @param {number | null} atMs
 * @returns {string} `Numbers as of 14:03:07. `, or nothing where there are none.
 */
function ageOf(what, atMs) {
  return atMs === null ? "" : `${what} as of ${clock(atMs)}. `;
}
