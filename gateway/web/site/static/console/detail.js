/**
 * The details of one message: its attributes, and its body as JSON, text or bytes.
 */

import { hexDump, indentedJson, isText, visible } from "./body_text.js";
import { showFoldable } from "./body_tree.js";
import { announce, byId, part, setText } from "./elements.js";
import { duration, size, timeOfDay } from "./format.js";

/** @typedef {import("./delivery.js").Answer} Answer */
/** @typedef {import("./delivery.js").Delivery} Delivery */
/** @typedef {"JSON" | "text" | "bytes"} View */

// More text in one element slows browsers; Copy copies everything.
const SHOWN_CHARACTERS = 256 * 1024;
const SHOWN_BYTES = 16 * 1024;

export class Detail {
  #root = byId("detail", HTMLElement);
  #body = byId("detail-body", HTMLElement);
  #views = byId("detail-views", HTMLElement);
  #again = byId("detail-publish", HTMLButtonElement);
  /** @type {Delivery | null} */
  #delivery = null;
  /** @type {View} */
  #view = "text";

  /**
   * @param {object} handlers
   * @param {(answer: Answer, delivery: Delivery) => void} handlers.onAnswer
   * @param {(body: string) => void} handlers.onPublish Called to publish the body again.
   */
  constructor({ onAnswer, onPublish }) {
    this.#root.addEventListener("click", ({ target }) => {
      const { answer, view } = (target instanceof Element ? target.closest("button") : null)?.dataset ?? {};
      if (this.#delivery === null) return;
      if (answer !== undefined) onAnswer(/** @type {Answer} */ (answer), this.#delivery);
      if (view !== undefined) this.#draw(/** @type {View} */ (view));
    });
    byId("detail-copy", HTMLButtonElement).addEventListener("click", () => this.#copy());
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
    setText(part(this.#root, "published"), timeOfDay(publishedAtMs));
    setText(part(this.#root, "age"), duration(delivery.atMs - publishedAtMs));
    setText(part(this.#root, "attempts"), String(message.attempts));
    setText(part(this.#root, "size"), size(message.bytes.length));
    this.#again.disabled = !isText(message.bytes);
    const json = indentedJson(message.body);
    for (const button of this.#views.querySelectorAll("button")) {
      button.disabled = button.dataset.view === "JSON" && json === null;
    }
    this.update();
    this.#body.scrollTop = 0;
    this.#draw(json !== null ? "JSON" : isText(message.bytes) ? "text" : "bytes");
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

  /** @param {View} view */
  #draw(view) {
    if (this.#delivery === null) return;
    this.#view = view;
    for (const button of this.#views.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.view === view));
    }
    if (view === "JSON") showFoldable(this.#body, this.#text());
    else setText(this.#body, this.#text());
  }

  #text() {
    if (this.#delivery === null) return "";
    const { body, bytes } = this.#delivery.message;
    if (this.#view === "bytes") {
      const shown = bytes.subarray(0, SHOWN_BYTES);
      return hexDump(shown) + cutNote(bytes.length - shown.length, "bytes");
    }
    const text = visible(this.#view === "JSON" ? (indentedJson(body) ?? body) : body);
    if (text.length <= SHOWN_CHARACTERS) return text;
    return text.slice(0, SHOWN_CHARACTERS) + cutNote(text.length - SHOWN_CHARACTERS, "characters");
  }

  /** Copies the body as it was published, or the hex dump if the view is `bytes`. */
  async #copy() {
    if (this.#delivery === null) return;
    const { body, bytes } = this.#delivery.message;
    try {
      await navigator.clipboard.writeText(this.#view === "bytes" ? hexDump(bytes) : body);
    } catch {
      // No clipboard API: the page came over plain HTTP from another machine. The user can copy the selection.
      getSelection()?.selectAllChildren(this.#body);
      this.#tellCopied("Selected: press Ctrl+C");
      return;
    }
    this.#tellCopied("Copied");
  }

  /** @param {string} text */
  #tellCopied(text) {
    const button = byId("detail-copy", HTMLButtonElement);
    setText(button, text);
    announce(text);
    setTimeout(() => setText(button, "Copy"), 2_000);
  }
}

/**
 * @param {number} more
 * @param {string} unit
 */
function cutNote(more, unit) {
  return more > 0 ? `\n… ${more} more ${unit}: Copy copies all` : "";
}
