/** Shows indented JSON so that objects and arrays can be folded, with the values in the colour of their type. */

import { plural } from "./format.js";

// Each is an element that can have the focus: a huge body stays text from there on.
const MOST_FOLDS = 300;
// Likewise: values without a colour are quicker to lay out.
const MOST_COLOURED = 2_000;
/** A line with a value that is no object or array: indent and name, value, comma. */
const VALUE_LINE = /^( *(?:"(?:[^"\\]|\\.)*": )?)("(?:[^"\\]|\\.)*"|[-\d][^,]*|true|false|null)(,?)$/s;

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
  /** What is not in a block yet: coloured values with the text before them, and the text after them. @type {Node[]} */
  let parts = [];
  let rest = "";
  let folds = 0;
  let coloured = 0;
  const flush = () => {
    // Its neighbours are blocks, which need no line break before or after the text.
    (open.findLast((fold) => fold !== null)?.root ?? root).append(...parts, rest.replace(/\n$/, ""));
    parts = [];
    rest = "";
  };
  /** @param {string} line */
  const add = (line) => {
    const [, before = "", value = "", after = ""] = (coloured < MOST_COLOURED && line.match(VALUE_LINE)) || [];
    if (value !== "") {
      coloured += 1;
      parts.push(new Text(rest + before), colouredValue(value));
      rest = "";
    }
    rest += `${value === "" ? line : after}\n`;
  };
  // A string has no line break and ends with a quote, so that a bracket at the end or start of a line is JSON's own.
  for (const line of text.split("\n")) {
    const isEnd = /^ *[}\]]/.test(line);
    if (!isEnd) open.at(-1)?.count();
    if (!/[{[]$/.test(line)) {
      add(line);
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
      add(line);
      open.push(null);
    }
  }
  flush();
  element.replaceChildren(root);
}

/**
 * Folds all objects and arrays but the outermost one, or unfolds all.
 *
 * @param {HTMLElement} element Shows JSON.
 */
export function toggleFolds(element) {
  const isFolding = areUnfolded(element);
  for (const fold of foldsOf(element)) fold.open = !isFolding;
}

/** @param {HTMLElement} element @returns {boolean} Whether it has an object or array to fold within the outermost one. */
export function areUnfolded(element) {
  return foldsOf(element).some(({ open }) => open);
}

/** @param {HTMLElement} element @returns {HTMLDetailsElement[]} */
export function foldsOf(element) {
  return [...element.querySelectorAll("details details")].filter((each) => each instanceof HTMLDetailsElement);
}

/** @param {string} value As JSON. */
function colouredValue(value) {
  const element = document.createElement("span");
  element.dataset.type = typeOf(value);
  element.textContent = value;
  return element;
}

/** @param {string} value */
function typeOf(value) {
  if (value.startsWith('"')) return "string";
  if (value === "null") return "null";
  return /^[tf]/.test(value) ? "boolean" : "number";
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
