/**
 * The dividers between the columns: they resize a side by pointer or keys, and collapse it. Its width is kept in the
 * browser's storage.
 */

import { recall, remember } from "./storage.js";

const STEP_PX = 16;
/** A side narrower than this is collapsed. */
const NARROWEST_PX = 160;
/** Share of the page that a side may take. */
const WIDEST_SHARE = 0.45;
/** Prefix of the names under which widths are kept. */
const WIDTH = "width.";

/** @param {HTMLElement} root Has the dividers, each with the id of its side in `aria-controls`. */
export function offerDividers(root) {
  for (const handle of root.querySelectorAll('[role="separator"]')) {
    if (handle instanceof HTMLElement) new Divider(root, handle);
  }
}

class Divider {
  #root;
  #handle;
  #side;
  /** 1 if the side is to the left of its divider, -1 if it is to the right. */
  #direction;
  /** Null: as wide as the style sheet says. @type {number | null} */
  #widthPx = null;
  /** Whether the last press has moved it: then it was no click. */
  #isDragged = false;

  /**
   * @param {HTMLElement} root
   * @param {HTMLElement} handle
   */
  constructor(root, handle) {
    const side = document.getElementById(handle.getAttribute("aria-controls") ?? "");
    if (side === null) throw new Error(`the divider ${handle.id} has no side: reload the page`);
    this.#root = root;
    this.#handle = handle;
    this.#side = side;
    this.#direction = handle.compareDocumentPosition(side) & Node.DOCUMENT_POSITION_PRECEDING ? 1 : -1;
    handle.addEventListener("pointerdown", (event) => this.#drag(event));
    handle.addEventListener("dblclick", () => this.#isDragged || this.#toggle());
    handle.addEventListener("keydown", (event) => this.#key(event));
    this.#show(remembered(side.id));
    // Until the first layout, and while the page shows something else, the side has no width to tell.
    new ResizeObserver(() => this.#tell()).observe(side);
  }

  /** @param {number | null} widthPx 0 collapses; null: as the style sheet says. */
  #show(widthPx) {
    this.#widthPx = widthPx;
    const name = `--${this.#side.id}-width`;
    if (widthPx === null) this.#root.style.removeProperty(name);
    else this.#root.style.setProperty(name, `${widthPx}px`);
    this.#side.classList.toggle("collapsed", widthPx === 0);
    this.#tell();
  }

  /** @param {number | null} widthPx */
  #set(widthPx) {
    const widest = this.#root.clientWidth * WIDEST_SHARE;
    const bounded = widthPx === null ? null : Math.round(Math.min(widthPx, widest));
    this.#show(bounded !== null && bounded < NARROWEST_PX ? 0 : bounded);
    remember(WIDTH + this.#side.id, this.#widthPx === null ? null : String(this.#widthPx));
  }

  #toggle() {
    this.#set(this.#widthPx === 0 ? null : 0);
  }

  #tell() {
    const share = this.#widthPx === 0 ? 0 : this.#side.offsetWidth / (this.#root.clientWidth || 1);
    this.#handle.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    const title = this.#widthPx === 0 ? "Enter or a double click opens it" : "Drag it; a double click closes it";
    this.#handle.title = title;
  }

  /** @param {PointerEvent} event */
  #drag(event) {
    if (event.button !== 0) return;
    this.#handle.focus();
    this.#handle.setPointerCapture(event.pointerId);
    const startPx = this.#widthPx === 0 ? 0 : this.#side.offsetWidth;
    const ending = new AbortController();
    const { signal } = ending;
    const fromPx = event.clientX;
    this.#isDragged = false;
    this.#handle.addEventListener(
      "pointermove",
      ({ clientX }) => {
        // A click that trembles is no drag.
        this.#isDragged ||= Math.abs(clientX - fromPx) > 2;
        if (this.#isDragged) this.#set(startPx + this.#direction * (clientX - fromPx));
      },
      { signal },
    );
    for (const name of /** @type {const} */ (["pointerup", "pointercancel"])) {
      this.#handle.addEventListener(name, () => ending.abort(), { signal });
    }
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const { key } = event;
    const steps = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (steps !== undefined) {
      const isOpening = this.#widthPx === 0 && steps === this.#direction;
      const widthPx = this.#side.offsetWidth + this.#direction * steps * STEP_PX;
      this.#set(isOpening ? NARROWEST_PX : widthPx);
    } else if (key === "Enter") this.#toggle();
    else if (key === "Home" || key === "End") this.#set(key === "Home" ? 0 : this.#root.clientWidth);
    else return;
    event.preventDefault();
    // Else the keys of the list act as well.
    event.stopPropagation();
  }
}

/** @param {string} side @returns {number | null} */
function remembered(side) {
  const text = recall(WIDTH + side);
  const widthPx = text === null ? Number.NaN : Number(text);
  return Number.isFinite(widthPx) && widthPx >= 0 ? widthPx : null;
}
