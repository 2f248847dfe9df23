/**
 * A table whose rows are updated in place, so that the focus and a selection survive a refresh.
 *
 * A table with a name is sorted by the buttons in its head, and the address remembers its order. Rows keep their places
 * while the pointer is over them or one has the focus: nobody presses a link that has just moved there.
 *
 * Where it is narrow, pages.css shows each row as a block of labelled values. The roles keep it a table there.
 */

import { getParameter, setParameter } from "./address.js";
import { setChildren, setText, setTone } from "./elements.js";
import { count } from "./format.js";

/**
 * @typedef {object} Column
 * @property {string} label
 * @property {string} [title] What the values mean.
 * @property {boolean} [isNumber] Numbers are on the right.
 * @property {boolean} [isHead] Its cells name the rows; by default those of the first column do.
 * @property {boolean} [isAction] Its cells are buttons, and no order of rows.
 */

/**
 * @typedef {object} Value What a cell shows; a plain string is its text, a plain number is written with all its digits.
 * @property {string} text
 * @property {number | null} [sortBy] In place of the text; null: comes last.
 * @property {string} [href] The text is a link to this address.
 * @property {string} [title]
 * @property {"" | "good" | "warn" | "bad"} [tone]
 * @property {() => void} [onPress] The text is a button; a new function replaces the last one.
 * @property {string} [whyNot] Why the button is disabled; empty: it is not.
 */

/** @typedef {{ key: string, cells: readonly (string | number | Value)[] }} Row */

/** The cell of a number that is not known. @type {Value} */
export const UNKNOWN = { text: "–", sortBy: null };

// With its layout a row takes up to 1 ms.
const CREATED_A_FRAME = 20;
// A pointer that lies still for so long was left there, and nobody is about to press.
const LEFT_MS = 30_000;

const texts = new Intl.Collator("en", { numeric: true });

/** The number of rows that all tables together may still create in this frame. */
let creatable = CREATED_A_FRAME;

/** @returns {boolean} True if there is time for one more row in this frame. */
function mayCreate() {
  if (creatable === CREATED_A_FRAME) {
    requestAnimationFrame(() => {
      creatable = CREATED_A_FRAME;
    });
  }
  creatable -= 1;
  return creatable >= 0;
}

export class Table {
  #body = document.createElement("tbody");
  #columns;
  #name;
  /** @type {HTMLTableCellElement[]} */
  #heads = [];
  #choice = document.createElement("select");
  /** The column that is sorted by; null: the order in which the rows are given. */
  #order = /** @type {{ at: number, isDescending: boolean } | null} */ (null);
  /** @type {readonly Row[]} */
  #given = [];
  #most = Number.POSITIVE_INFINITY;
  /** Of the rows that are shown, from top to bottom. @type {readonly string[]} */
  #keys = [];
  /** @type {Map<string, TableRow>} */
  #rows = new Map();
  #frame = 0;
  #isPointedAt = false;
  #movedAtMs = 0;

  /**
   * @param {HTMLElement} root An empty element, which gets the table.
   * @param {readonly Column[]} columns
   * @param {string} [name] What the address calls it; without a name it cannot be sorted.
   */
  constructor(root, columns, name = "") {
    this.#columns = columns;
    this.#name = name;
    const table = document.createElement("table");
    table.role = "table";
    this.#body.role = "rowgroup";
    const head = document.createElement("tr");
    head.role = "row";
    this.#heads = columns.map((column, at) => this.#headOf(column, at));
    head.append(...this.#heads);
    const top = document.createElement("thead");
    top.role = "rowgroup";
    top.append(head);
    table.append(top, this.#body);
    root.replaceChildren(...(name === "" ? [] : [this.#makeChoice()]), table);
    root.style.setProperty("--numbers-a-line", String(numbersALine(columns)));
    this.#watch();
  }

  /** Takes the order from the address, because it has changed. */
  open() {
    this.#sort(getParameter(this.#name));
  }

  /**
   * Shows *rows*, in this order unless the user has chosen another one. Rows that are new are created some in each frame.
   *
   * @param {readonly Row[]} rows
   * @param {number} [most] Shows no more of them.
   */
  show(rows, most = Number.POSITIVE_INFINITY) {
    this.#given = rows;
    this.#most = most;
    for (const control of [this.#choice, ...this.#buttons()]) control.disabled = rows.length < 2;
    this.#draw();
  }

  /** Puts the rows in order even if they are held, because the user has asked for others. */
  release() {
    this.#keys = [];
  }

  #draw() {
    cancelAnimationFrame(this.#frame);
    const rows = this.#arrange();
    const shown = [];
    let isWhole = true;
    for (const { key, cells } of rows) {
      let row = this.#rows.get(key);
      if (row === undefined) {
        isWhole &&= mayCreate();
        if (!isWhole) continue;
        row = new TableRow(this.#columns);
        this.#rows.set(key, row);
      }
      row.show(cells);
      shown.push(row.root);
    }
    this.#keys = rows.map(({ key }) => key);
    const keys = new Set(this.#keys);
    for (const key of this.#rows.keys()) if (!keys.has(key)) this.#rows.delete(key);
    setChildren(this.#body, shown);
    if (!isWhole) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  /** @returns {readonly Row[]} The rows to show, in their order. */
  #arrange() {
    const order = this.#order;
    const sorted = order === null ? this.#given : this.#given.toSorted((one, other) => compare(one, other, order));
    if (!this.#isHeld) return sorted.slice(0, this.#most);
    const rows = new Map(sorted.map((row) => [row.key, row]));
    const held = this.#keys.flatMap((key) => rows.get(key) ?? []);
    for (const { key } of held) rows.delete(key);
    return [...held, ...rows.values()].slice(0, this.#most);
  }

  get #isHeld() {
    if (this.#body.contains(document.activeElement)) return true;
    return this.#isPointedAt && Date.now() - this.#movedAtMs < LEFT_MS;
  }

  /** Holds the rows in their places, and puts them in order when the pointer and the focus have left them. */
  #watch() {
    const body = this.#body;
    for (const name of /** @type {const} */ (["pointerenter", "pointermove"])) {
      body.addEventListener(
        name,
        () => {
          this.#isPointedAt = true;
          this.#movedAtMs = Date.now();
        },
        { passive: true },
      );
    }
    body.addEventListener("pointerleave", () => {
      this.#isPointedAt = false;
      this.#draw();
    });
    body.addEventListener("focusout", ({ relatedTarget }) => {
      if (!(relatedTarget instanceof Node && body.contains(relatedTarget))) requestAnimationFrame(() => this.#draw());
    });
  }

  /**
   * @param {Column} column
   * @param {number} at
   */
  #headOf({ label, title, isNumber, isAction }, at) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.role = "columnheader";
    cell.classList.toggle("number", isNumber === true);
    if (title !== undefined) cell.title = title;
    if (this.#name === "" || isAction) {
      cell.textContent = label;
      return cell;
    }
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.addEventListener("click", () => this.#press(at));
    cell.ariaSort = "none";
    cell.append(button);
    return cell;
  }

  #buttons() {
    return this.#heads.flatMap((head) => [...head.querySelectorAll("button")]);
  }

  /** @param {number} at The column whose head was pressed: sorts by it, then the other way round, then not any more. */
  #press(at) {
    const [first, second] = waysOf(/** @type {Column} */ (this.#columns[at]));
    const now = getParameter(this.#name);
    this.#choose(now === first.order ? second.order : now === second.order ? "" : first.order);
  }

  /** @param {string} order As in the address. */
  #choose(order) {
    setParameter(this.#name, order);
    this.#sort(order);
  }

  /** @param {string} order As in the address; one that is not known is that in which the rows are given. */
  #sort(order) {
    const isDescending = order.startsWith("-");
    const label = isDescending ? order.slice(1) : order;
    const at = this.#columns.findIndex((column) => column.label === label && column.isAction !== true);
    this.#order = at === -1 ? null : { at, isDescending };
    this.#choice.value = at === -1 ? "" : order;
    for (const [each, head] of this.#heads.entries()) {
      if (head.ariaSort !== null) head.ariaSort = each !== at ? "none" : isDescending ? "descending" : "ascending";
    }
    this.release();
    this.#draw();
  }

  /** @returns {HTMLElement} What sorts where the table is narrow, and its head out of sight. */
  #makeChoice() {
    const label = document.createElement("label");
    label.className = "sort-choice";
    label.append("Sort by ", this.#choice);
    this.#choice.append(new Option("default order", ""));
    for (const column of this.#columns) {
      if (column.isAction) continue;
      for (const { order, words } of waysOf(column))
        this.#choice.append(new Option(`${column.label}, ${words}`, order));
    }
    this.#choice.addEventListener("change", () => this.#choose(this.#choice.value));
    return label;
  }
}

/**
 * @param {Column} column
 * @returns {readonly [{ order: string, words: string }, { order: string, words: string }]} The two orders by it, as in
 *   the address and in words; that which is looked for more often comes first.
 */
function waysOf({ label, isNumber }) {
  const up = { order: label, words: isNumber ? "least first" : "a to z" };
  const down = { order: `-${label}`, words: isNumber ? "most first" : "z to a" };
  return isNumber ? [down, up] : [up, down];
}

/**
 * @param {Row} one
 * @param {Row} other
 * @param {{ at: number, isDescending: boolean }} order
 */
function compare(one, other, { at, isDescending }) {
  const [first, second] = [sortValueOf(one.cells[at]), sortValueOf(other.cells[at])];
  if (first === null || second === null) return Number(first === null) - Number(second === null);
  const isNumeric = typeof first === "number" && typeof second === "number";
  const difference = isNumeric ? first - second : texts.compare(String(first), String(second));
  return isDescending ? -difference : difference;
}

/**
 * @param {string | number | Value | undefined} cell
 * @returns {string | number | null} Null: nothing to sort by, which comes last.
 */
function sortValueOf(cell = "") {
  if (typeof cell === "number") return cell;
  if (typeof cell === "string") return cell || null;
  return cell.sortBy === undefined ? cell.text || null : cell.sortBy;
}

/**
 * @param {readonly Column[]} columns
 * @returns {number} How many numbers a narrow table has in each line: below one another in all rows, and none left alone.
 */
function numbersALine(columns) {
  const numbers = columns.filter(({ isNumber }) => isNumber).length;
  return numbers <= 5 ? Math.max(4, numbers) : Math.ceil(numbers / 2);
}

class TableRow {
  root = document.createElement("tr");
  /** @type {Cell[]} */
  #cells;

  /** @param {readonly Column[]} columns */
  constructor(columns) {
    this.root.role = "row";
    const head = Math.max(
      0,
      columns.findIndex(({ isHead }) => isHead),
    );
    this.#cells = columns.map((column, at) => new Cell(column, at === head));
    this.root.append(...this.#cells.map(({ root }) => root));
  }

  /** @param {readonly (string | number | Value)[]} values */
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

  /** @param {string | number | Value} value */
  show(value) {
    const { text, href, title, tone, onPress, whyNot } = asValue(value);
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

/**
 * @param {string | number | Value} value
 * @returns {Value}
 */
function asValue(value) {
  if (typeof value === "number") return { text: count(value) };
  return typeof value === "string" ? { text: value } : value;
}
