/**
 * The button in the head of the page that tells who the user is, and the dialog to sign in and out.
 */

import { announce, byId, part, setText, setTone, stamp } from "./elements.js";
import { timeLeft } from "./format.js";

/** @typedef {import("./access.js").Access} Access */

const moments = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export class SignIn {
  #access;
  #button = byId("account", HTMLButtonElement);
  #dialog = byId("sign-in", HTMLDialogElement);
  #form = byId("sign-in-form", HTMLFormElement);
  #secret = byId("sign-in-secret", HTMLInputElement);
  #submit = byId("sign-in-submit", HTMLButtonElement);
  #trouble = byId("sign-in-trouble", HTMLElement);
  #isWarned = false;

  /** @param {Access} access */
  constructor(access) {
    this.#access = access;
    this.#button.addEventListener("click", () => this.open());
    byId("sign-in-close", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("close", () => this.#clear());
    // The page keeps everything in memory: a reload forgets the token, and what it has shown.
    byId("sign-out", HTMLButtonElement).addEventListener("click", () => location.reload());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#enter();
    });
  }

  /** Opens the dialog. */
  open() {
    if (!this.#dialog.open) this.#dialog.showModal();
  }

  /** Shows the identity, or that there is none. */
  show() {
    const { identity, isRequired, hasEnded } = this.#access;
    this.#button.hidden = !isRequired;
    this.#button.classList.toggle("primary", identity === null);
    const again = hasEnded ? "Sign in again" : "Sign in";
    setText(part(this.#button, "name"), identity?.name ?? again);
    setText(byId("sign-in-title", HTMLElement), identity === null ? again : "Signed in");
    setText(this.#submit, identity === null ? "Sign in" : "Replace");
    setText(byId("sign-in-label", HTMLElement), identity === null ? "Token or API key" : "Newer token");
    byId("sign-in-ended", HTMLElement).hidden = !hasEnded;
    byId("sign-out", HTMLElement).hidden = identity === null;
    const facts = byId("sign-in-identity", HTMLElement);
    facts.hidden = identity === null;
    if (identity !== null) {
      setText(part(facts, "name"), identity.name);
      setText(part(facts, "issuer"), identity.issuer === "key" ? "API key" : identity.issuer);
      part(facts, "grants").replaceChildren(...identity.grants.map(grantRow));
    }
    this.tick(Date.now());
  }

  /** @param {number} nowMs Updates the time left; warns before the end. */
  tick(nowMs) {
    const { identity } = this.#access;
    const left = identity === null || identity.endsAtMs === Infinity ? "" : timeLeft(identity.endsAtMs - nowMs);
    const isLate = identity !== null && nowMs >= identity.warnAtMs;
    setText(part(this.#button, "left"), isLate ? `${left} left` : "");
    setTone(this.#button, isLate ? "warn" : "");
    if (isLate && !this.#isWarned) announce(`You are signed in for ${left} only. Enter a newer token to continue.`);
    this.#isWarned = isLate;
    if (identity === null) return;
    const until = left === "" ? "no end" : `${moments.format(identity.endsAtMs)}, in ${left}`;
    setText(part(byId("sign-in-identity", HTMLElement), "until"), until);
  }

  async #enter() {
    if (this.#submit.disabled) return;
    this.#submit.disabled = true;
    const trouble = await this.#access.signIn(this.#secret.value);
    this.#submit.disabled = false;
    this.#trouble.hidden = trouble === "";
    setText(this.#trouble, trouble);
    if (trouble !== "") {
      this.#secret.select();
      return;
    }
    this.#dialog.close();
    const { identity } = this.#access;
    if (identity !== null) announce(`Signed in as ${identity.name}.`);
  }

  #clear() {
    this.#form.reset();
    this.#trouble.hidden = true;
    setText(this.#trouble, "");
  }
}

/** @param {import("./grants.js").Grant} grant */
function grantRow({ topic, channels, permissions }) {
  const row = stamp("grant-row");
  setText(part(row, "permissions"), permissions.join(", "));
  setText(part(row, "topic"), topic);
  part(row, "channels-of").hidden = channels.length === 0;
  setText(part(row, "channels"), channels.join(", "));
  return row;
}
