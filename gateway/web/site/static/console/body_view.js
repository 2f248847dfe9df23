/**
 * The body of one message as JSON, text or bytes, with the buttons that switch between them and copy it.
 */

import { hexDump, indentedJson, isText, visible } from "./body_text.js";
import { areUnfolded, foldsOf, showFoldable, toggleFolds } from "./body_tree.js";
import { announce, part, setText, stamp } from "./elements.js";

/** @typedef {"JSON" | "text" | "bytes"} View */
/** @typedef {{ body: string, bytes: Uint8Array }} WithBody */

// More text in one element slows browsers; Copy copies everything.
const SHOWN_CHARACTERS = 256 * 1024;
const SHOWN_BYTES = 16 * 1024;

export class BodyView {
  #element;
  #tools = stamp("body-tools");
  #views = [...part(this.#tools, "views").querySelectorAll("button")];
  #copy = part(this.#tools, "copy");
  #fold = part(this.#tools, "fold");
  /** @type {WithBody | null} */
  #message = null;
  /** @type {View} */
  #view = "text";

  /**
   * @param {HTMLElement} element Shows the body.
   * @param {HTMLElement} head Gets the buttons.
   */
  constructor(element, head) {
    this.#element = element;
    head.append(this.#tools);
    for (const button of this.#views) {
      button.addEventListener("click", () => this.#draw(/** @type {View} */ (button.dataset.view)));
    }
    this.#copy.addEventListener("click", () => this.copy());
    this.#fold.addEventListener("click", () => toggleFolds(this.#element));
    // It does not bubble.
    this.#element.addEventListener("toggle", () => this.#updateFold(), { capture: true });
  }

  /** @param {WithBody} message Shown as JSON if it is JSON, else as text, else as bytes. */
  show(message) {
    this.#message = message;
    const json = indentedJson(message.body);
    for (const button of this.#views) button.disabled = button.dataset.view === "JSON" && json === null;
    this.#element.scrollTop = 0;
    this.#draw(json !== null ? "JSON" : isText(message.bytes) ? "text" : "bytes");
  }

  /** Copies the body as it was published, or the hex dump if the view is `bytes`. */
  async copy() {
    if (this.#message === null) return;
    const { body, bytes } = this.#message;
    try {
      await navigator.clipboard.writeText(this.#view === "bytes" ? hexDump(bytes) : body);
    } catch {
      // No clipboard API: the page came over plain HTTP from another machine. The user can copy the selection.
      getSelection()?.selectAllChildren(this.#element);
      this.#tellCopied("Selected: press Ctrl+C");
      return;
    }
    this.#tellCopied("Copied");
  }

  /** @param {View} view */
  #draw(view) {
    if (this.#message === null) return;
    this.#view = view;
    for (const button of this.#views) button.setAttribute("aria-pressed", String(button.dataset.view === view));
    const text = textOf(this.#message, view);
    if (view === "JSON") showFoldable(this.#element, text);
    else setText(this.#element, text);
    this.#fold.hidden = foldsOf(this.#element).length === 0;
    this.#updateFold();
  }

  #updateFold() {
    setText(this.#fold, areUnfolded(this.#element) ? "Fold all" : "Unfold all");
  }

  /** @param {string} text */
  #tellCopied(text) {
    setText(this.#copy, text);
    announce(text);
    setTimeout(() => setText(this.#copy, "Copy"), 2_000);
  }
}

/**
 * @param {WithBody} message
 * @param {View} view
 * @returns {string} What is shown of the body, and how much more there is.
 */
function textOf({ body, bytes }, view) {
  if (view === "bytes") {
    const shown = bytes.subarray(0, SHOWN_BYTES);
    return hexDump(shown) + cutNote(bytes.length - shown.length, "bytes");
  }
  const text = visible(view === "JSON" ? (indentedJson(body) ?? body) : body);
  if (text.length <= SHOWN_CHARACTERS) return text;
  return text.slice(0, SHOWN_CHARACTERS) + cutNote(text.length - SHOWN_CHARACTERS, "characters");
}

/**
 * @param {number} more
 * @param {string} unit
 */
function cutNote(more, unit) {
  return more > 0 ? `\n… ${more} more ${unit}: Copy copies all` : "";
}
