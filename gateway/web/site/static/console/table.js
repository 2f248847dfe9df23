/**
 * A table whose rows are updated in place, so that the focus and a selection survive a refresh.
 *
 * Where it is narrow, pages.css shows each row as a block of labelled values. The roles keep it a table there.
 */

import { setChildren, setText, setTone } from "./elements.js";

/**
 * @typedef {object} Column
 * @property {string} label
 * @property {string} [title] What the values mean.
 * @property {boolean} [isNumber] Numbers are on the right.
 */

/**
 * @typedef {object} Value What a cell shows; a plain string is its text.
 * @property {string} text
 * @property {string} [href] The text is a link to this address.
 * @property {string} [title]
 * @property {"" | "good" | "warn" | "bad"} [tone]
 * @property {() => void} [onPress] The text is a button; a new function replaces the last one.
 * @property {string} [whyNot] Why the button is disabled; empty: it is not.
 */

/** @typedef {{ key: string, cells: readonly (string | Value)[] }} Row The first cell names the row. */

// With its layout a row takes up to 1 ms.
const CREATED_A_FRAME = 20;

export class Table {
  #body = document.createElement("tbody");
  #columns;
  /** @type {Map<string, TableRow>} */
  #rows = new Map();
  #frame = 0;

  /**
   * @param {HTMLElement} root An empty element, which gets the table.
   * @param {readonly Column[]} columns
   */
  constructor(root, columns) {
    this.#columns = columns;
    const table = document.createElement("table");
    table.role = "table";
    this.#body.role = "rowgroup";
    const head = document.createElement("tr");
    head.role = "row";
    for (const { label, title, isNumber } of columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.role = "columnheader";
      cell.textContent = label;
      cell.classList.toggle("number", isNumber === true);
      if (title !== undefined) cell.title = title;
      head.append(cell);
    }
    const top = document.createElement("thead");
    top.role = "rowgroup";
    top.append(head);
    table.append(top, this.#body);
    root.replaceChildren(table);
  }

  /**
   * Shows *rows* in this order. Rows that are new are created some in each frame.
   *
   * @param {readonly Row[]} rows
   */
  show(rows) {
    cancelAnimationFrame(this.#frame);
    let left = CREATED_A_FRAME;
    const shown = [];
    for (const { key, cells } of rows) {
      let row = this.#rows.get(key);
      if (row === undefined) {
        left -= 1;
        if (left < 0) continue;
        row = new TableRow(this.#columns);
        this.#rows.set(key, row);
      }
      row.show(cells);
      shown.push(row.root);
    }
    const keys = new Set(rows.map(({ key }) => key));
    for (const key of this.#rows.keys()) if (!keys.has(key)) this.#rows.delete(key);
    setChildren(this.#body, shown);
    if (left < 0) this.#frame = requestAnimationFrame(() => this.show(rows));
  }
}

class TableRow {
  root = document.createElement("tr");
  /** @type {Cell[]} */
  #cells;

  /** @param {readonly Column[]} columns */
  constructor(columns) {
    this.root.role = "row";
    this.#cells = columns.map((column, at) => new Cell(column, at === 0));
    this.root.append(...this.#cells.map(({ root }) => root));
  }

  /** @param {readonly (string | Value)[]} values */
  show(values) {
    for (const [at, cell] of this.#cells.entries()) cell.show(values[at] ?? "");
  }
}

class Cell {
  root;
  /** Holds the text: the cell itself, a link or a button. @type {HTMLElement} */
  #holder;
  /** @type {(() => void) | undefined} */
  #onPress;

  /**
   * @param {Column} column
   * @param {boolean} isHead Whether it names the row.
   */
  constructor({ label, isNumber }, isHead) {
    this.root = document.createElement(isHead ? "th" : "td");
    this.root.role = isHead ? "rowheader" : "cell";
    this.root.dataset.label = label;
    if (this.root instanceof HTMLTableCellElement && isHead) this.root.scope = "row";
    this.root.classList.toggle("number", isNumber === true);
    this.#holder = this.root;
  }

  /** @param {string | Value} value */
  show(value) {
    const { text, href, title, tone, onPress, whyNot } = typeof value === "string" ? { text: value } : value;
    this.#hold(href === undefined ? (onPress === undefined || text === "" ? "" : "button") : "a");
    this.#onPress = onPress;
    const holder = this.#holder;
    if (holder instanceof HTMLAnchorElement && href !== undefined && holder.getAttribute("href") !== href)
      holder.href = href;
    if (holder instanceof HTMLButtonElement) holder.disabled = whyNot !== undefined && whyNot !== "";
    setText(holder, text);
    holder.title = whyNot || title || "";
    setTone(this.root, tone ?? "");
  }

  /** @param {"" | "a" | "button"} kind */
  #hold(kind) {
    const now = this.#holder === this.root ? "" : this.#holder.localName;
    if (now === kind) return;
    this.root.replaceChildren();
    this.#holder = this.root;
    if (kind === "") return;
    this.#holder = document.createElement(kind);
    if (this.#holder instanceof HTMLButtonElement) this.#holder.type = "button";
    if (kind === "button") this.#holder.addEventListener("click", () => this.#onPress?.());
    this.root.append(this.#holder);
  }
}
