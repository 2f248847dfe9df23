/**
 * Who the user is by the gateway's access file. Without such a file nobody signs in, and secrets are nsqd's.
 *
 * The token or key is kept in this object only: no cookie, no storage.
 */

import { fullName } from "./format.js";
import { allowsAdmin, allowsPublish, allowsSubscribe } from "./grants.js";

/**
 * @typedef {object} Identity
 * @property {string} name
 * @property {string} issuer
 * @property {number} endsAtMs In the time of `Date.now()`; Infinity: never.
 * @property {number} warnAtMs
 * @property {readonly import("./grants.js").Grant[]} grants
 */

const ADDRESS = new URL("../whoami", import.meta.url);
const TIMEOUT_MS = 10_000;
const EVERY_MS = 60_000;
const RETRY_MS = 5_000;
const WARN_MS = 300_000;
const WARN_SHARE = 0.2;
// RFC 6750 and the gateway: visible ASCII, at most 4096 bytes.
const SECRET = /^[\x21-\x7e]{1,4096}$/;
const INVALID = "A token or key has 1 to 4096 visible ASCII characters.";
const REFUSED = "The gateway refused it: it is not valid here, or no longer.";

export class Access {
  /** True if the gateway has an access file, so that a token or key is required. */
  isRequired = false;
  /** @type {Identity | null} */
  identity = null;
  /** True if there was an identity that has ended. */
  hasEnded = false;
  #secret = "";
  #onChange;
  #number = 0;
  #isSigningIn = false;
  #checkAtMs = Infinity;

  /** @param {() => void} onChange Called when any of this changes. */
  constructor(onChange) {
    this.#onChange = onChange;
  }

  /** True if requests need a token or key, and there is none. */
  get isMissing() {
    return this.isRequired && this.identity === null;
  }

  /** The token or key for requests; empty: none. */
  get secret() {
    return this.#secret;
  }

  /**
   * Returns the token or key for a socket, which may be renewed after the user has entered another.
   *
   * @throws {Error} There is none.
   */
  socketSecret() {
    if (this.isMissing) throw new Error("a token or API key is required: sign in");
    return this.#secret;
  }

  /** Asks the gateway who the user is; without a response the last one counts, and it asks again. */
  async check() {
    if (!this.#isSigningIn) await this.#ask(this.#secret);
  }

  /**
   * Signs in, or replaces the token of the same user.
   *
   * @param {string} entered A token or an API key.
   * @returns {Promise<string>} Why that has failed; empty if it has not.
   */
  async signIn(entered) {
    const secret = entered.trim();
    if (!SECRET.test(secret)) return INVALID;
    this.#isSigningIn = true;
    const trouble = await this.#ask(secret);
    this.#isSigningIn = false;
    return trouble;
  }

  /**
   * @param {string} topic Empty: any topic.
   * @returns {string} Why publishing is not allowed; empty if it is.
   */
  whyNotPublish(topic) {
    return this.#why((grants) => allowsPublish(grants, topic), `publish to ${topic || "any topic"}`);
  }

  /**
   * @param {string} topic Empty: any topic.
   * @param {string} channel Empty: a viewer, or a temporary channel.
   * @returns {string} Why the subscription is not allowed; empty if it is.
   */
  whyNotSubscribe(topic, channel) {
    const what = topic || "any topic";
    const act = channel === "" ? `watch ${what}` : `subscribe to ${fullName(what, channel)}`;
    return this.#why((grants) => allowsSubscribe(grants, topic, channel), act);
  }

  /**
   * @param {string} topic
   * @param {string} channel Empty: the topic itself.
   * @returns {string} Why administration is not allowed; empty if it is.
   */
  whyNotAdmin(topic, channel) {
    return this.#why((grants) => allowsAdmin(grants, topic, channel), `administer ${fullName(topic, channel)}`);
  }

  /**
   * Ends the identity when it is due, and asks the gateway from time to time: rights change, keys are removed.
   *
   * @param {number} nowMs
   */
  tick(nowMs) {
    if (this.identity !== null && nowMs >= this.identity.endsAtMs) this.#end();
    if (document.hidden || nowMs < this.#checkAtMs) return;
    this.#checkAtMs = Infinity;
    this.check();
  }

  /**
   * @param {(grants: Identity["grants"]) => boolean} allows
   * @param {string} act
   */
  #why(allows, act) {
    if (!this.isRequired) return "";
    if (this.identity === null) return "Sign in first.";
    return allows(this.identity.grants) ? "" : `${this.identity.name} may not ${act}: no grant allows it.`;
  }

  /** @param {string} secret @returns {Promise<string>} Why it has failed; empty if it has not. */
  async #ask(secret) {
    this.#number += 1;
    const number = this.#number;
    let trouble = "";
    let nextMs = EVERY_MS;
    try {
      const headers = new Headers(secret === "" ? [] : [["Authorization", `Bearer ${secret}`]]);
      const signal = AbortSignal.timeout(TIMEOUT_MS);
      const answer = await fetch(ADDRESS, { cache: "no-store", headers, signal });
      const body = await answer.json();
      if (number !== this.#number) return ""; // signing in has replaced this question
      if (answer.ok) trouble = this.#accept(secret, body, answer.headers.get("date"));
      else if (answer.status === 401) trouble = this.#refuse(secret);
      else trouble = body.detail ?? `The gateway responded with ${answer.status}.`;
    } catch {
      if (number !== this.#number) return "";
      trouble = "The gateway does not respond.";
      nextMs = RETRY_MS;
    }
    const isKnown = this.identity === null && (trouble === "" || trouble === REFUSED);
    this.#checkAtMs = isKnown ? Infinity : Date.now() + nextMs;
    this.#onChange();
    return trouble;
  }

  /**
   * @param {string} secret
   * @param {{ identity: string | null, issuer: string, expires_at: number | null, grants: Identity["grants"] }} body
   * @param {string | null} date
   */
  #accept(secret, { identity: name, issuer, expires_at, grants }, date) {
    this.isRequired = name !== null;
    if (name === null) {
      this.identity = null;
      this.#secret = "";
      return "";
    }
    const { identity } = this;
    if (identity !== null && (identity.name !== name || identity.issuer !== issuer)) {
      return `It belongs to ${name} (${issuer}): sign out first.`;
    }
    // The gateway's clock counts; this machine's may be wrong.
    const leftMs = expires_at === null ? Infinity : expires_at * 1000 - (Date.parse(date ?? "") || Date.now());
    const isSame = identity !== null && secret === this.#secret;
    const warnAtMs = Date.now() + leftMs - Math.min(WARN_MS, WARN_SHARE * leftMs);
    const endsAtMs = isSame ? identity.endsAtMs : Date.now() + leftMs;
    this.identity = { name, issuer, grants, endsAtMs, warnAtMs: isSame ? identity.warnAtMs : warnAtMs };
    this.#secret = secret;
    this.hasEnded = false;
    return "";
  }

  /** @param {string} secret */
  #refuse(secret) {
    this.isRequired = true;
    if (secret === this.#secret && this.identity !== null) this.#end();
    return secret === "" ? "" : REFUSED;
  }

  #end() {
    this.identity = null;
    this.#secret = "";
    this.hasEnded = true;
    this.#onChange();
  }
}
