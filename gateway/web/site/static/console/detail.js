/**
 * The details of one message: its attributes and its body.
 */

import { isText } from "./body_text.js";
import { BodyView } from "./body_view.js";
import { byId, part, setText } from "./elements.js";
import { dateAndTime, duration, size } from "./format.js";

/** @typedef {import("./delivery.js").Answer} Answer */
/** @typedef {import("./delivery.js").Delivery} Delivery */

export class Detail {
  #root = byId("detail", HTMLElement);
  #body = new BodyView(byId("detail-body", HTMLElement), byId("detail-tools", HTMLElement));
  #published = part(this.#root, "published");
  #again = byId("detail-publish", HTMLButtonElement);
  /** @type {Delivery | null} */
  #delivery = null;

  /**
   * @param {object} handlers
   * @param {(answer: Answer, delivery: Delivery) => void} handlers.onAnswer
   * @param {(body: string) => void} handlers.onPublish Called to publish the body again.
   */
  constructor({ onAnswer, onPublish }) {
    byId("detail-answers", HTMLElement).addEventListener("click", ({ target }) => {
      const { answer } = (target instanceof Element ? target.closest("button") : null)?.dataset ?? {};
      if (this.#delivery !== null && answer !== undefined) onAnswer(/** @type {Answer} */ (answer), this.#delivery);
    });
    this.#again.addEventListener("click", () => this.#delivery !== null && onPublish(this.#delivery.message.body));
    byId("detail-close", HTMLButtonElement).addEventListener("click", () => this.close());
  }

  /** Hides the details, and returns the focus to the list. */
  close() {
    const hadFocus = this.#root.contains(document.activeElement);
    this.show(null);
    if (hadFocus) byId("message-grid", HTMLElement).focus({ preventScroll: true });
  }

  get isOpen() {
    return this.#delivery !== null;
  }

  /** @param {Delivery | null} delivery */
  show(delivery) {
    this.#delivery = delivery;
    this.#root.hidden = delivery === null;
    if (delivery === null) return;
    const { message } = delivery;
    const publishedAtMs = Number(message.timestampNs / 1_000_000n);
    setText(byId("detail-id", HTMLElement), message.id);
    setText(this.#published, dateAndTime(publishedAtMs, Date.now()));
    this.#published.title = new Date(publishedAtMs).toISOString();
    setText(part(this.#root, "age"), duration(delivery.atMs - publishedAtMs));
    setText(part(this.#root, "attempts"), String(message.attempts));
    setText(part(this.#root, "size"), size(message.bytes.length));
    this.#again.disabled = !isText(message.bytes);
    this.update();
    this.#body.show(message);
  }

  /** Copies the body of the open message. */
  copy() {
    if (this.isOpen) this.#body.copy();
  }

  /** Shows the buttons while the delivery can be acknowledged, then the outcome. */
  update() {
    if (this.#delivery === null) return;
    const { isInFlight, state, note } = this.#delivery;
    byId("detail-answers", HTMLElement).hidden = !isInFlight;
    const word = state === "lost" ? "" : state;
    const outcome = state === "in flight" || state === "shown" ? "" : [word, note].filter(Boolean).join(": ");
    byId("detail-outcome", HTMLElement).hidden = outcome === "";
    setText(part(this.#root, "outcome"), outcome);
  }
}
