/** Shows indented JSON so that objects and arrays can be folded. */

import { plural } from "./format.js";

// Each is an element that can have the focus: a huge body stays text from there on.
const MOST_FOLDS = 300;

/**
 * Shows the text of `indentedJson()`; each object and array in it can be folded, up to a bound.
 *
 * @param {HTMLElement} element Its children are replaced.
 * @param {string} text
 */
export function showFoldable(element, text) {
  const root = document.createDocumentFragment();
  /** The open objects and arrays; null: one that cannot be folded. @type {(Fold | null)[]} */
  const open = [];
  /** @type {string[]} */
  let lines = [];
  let folds = 0;
  const flush = () => {
    // Its neighbours are blocks, which need no line break before or after the text.
    if (lines.length > 0) (open.findLast((fold) => fold !== null)?.root ?? root).append(lines.join("\n"));
    lines = [];
  };
  // A string has no line break and ends with a quote, so that a bracket at the end or start of a line is JSON's own.
  for (const line of text.split("\n")) {
    const isEnd = /^ *[}\]]/.test(line);
    if (!isEnd) open.at(-1)?.count();
    if (!/[{[]$/.test(line)) {
      lines.push(line);
      if (!isEnd || open.at(-1) === null) {
        if (isEnd) open.pop();
        continue;
      }
      flush();
      open.pop();
    } else if (folds < MOST_FOLDS) {
      flush();
      const fold = new Fold(line);
      (open.at(-1)?.root ?? root).append(fold.root);
      open.push(fold);
      folds += 1;
    } else {
      lines.push(line);
      open.push(null);
    }
  }
  flush();
  element.replaceChildren(root);
}

/** One object or array. */
class Fold {
  root = document.createElement("details");
  #summary = document.createElement("summary");
  #isObject;
  #members = 0;

  /** @param {string} line Its first line. */
  constructor(line) {
    this.#isObject = line.endsWith("{");
    this.#summary.textContent = line;
    this.root.open = true;
    this.root.append(this.#summary);
  }

  /** Counts one more member, for the text that stands in place of them. */
  count() {
    this.#members += 1;
    const text = this.#isObject ? plural(this.#members, "member") : plural(this.#members, "element");
    this.#summary.dataset.folded = ` … ${text} ${this.#isObject ? "}" : "]"}`;
  }
}
