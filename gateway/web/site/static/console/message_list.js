/**
 * The list of messages, newest first: drawn in batches at a limited rate, and only as far as visible.
 */

import { Backlog } from "./backlog.js";
import { PREVIEW_CHARACTERS } from "./body_text.js";
import { byId, setText } from "./elements.js";
import { count } from "./format.js";
import { MessageRow } from "./message_row.js";
import { NARROW } from "./tabs.js";

/** @typedef {import("./delivery.js").Delivery} Delivery */
/** @typedef {import("./delivery.js").Answer} Answer */

// Nobody can follow faster changes, and drawing each frame would take most of the time.
const DRAW_EVERY_MS = 100;
// Do not move rows while the pointer is about to press one.
const STILL_MS = 1_000;
// Beyond the visible ones; scrolling creates more.
const ROWS_BELOW = 8;
const NEAR_PX = 100;

export class MessageList {
  #grid = byId("message-grid", HTMLElement);
  #body = byId("message-rows", HTMLElement);
  #pauseButton = byId("pause", HTMLButtonElement);
  #narrow = matchMedia(NARROW);
  #backlog = new Backlog();
  /** Of the newest deliveries, one each. @type {MessageRow[]} */
  #rows = [];
  /** @type {MessageRow[]} */
  #spare = [];
  /** @type {Delivery | null} */
  #selected = null;
  #selectedAt = 0;
  #isPaused = false;
  #isPlanned = false;
  #isTopSeen = true;
  #drawnAtMs = 0;
  #stillUntilMs = 0;
  #characters = PREVIEW_CHARACTERS;
  #rowsAtATime = 40;
  /** @type {import("./message_filter.js").Condition | null} */
  #condition = null;
  /** @type {readonly import("./message_filter.js").Path[]} */
  #paths = [];
  #handlers;

  /**
   * @param {object} handlers
   * @param {(answer: Answer, delivery: Delivery) => void} handlers.onAnswer
   * @param {(delivery: Delivery | null) => void} handlers.onSelect
   * @param {() => boolean} handlers.isOpen Whether the selected message is open: its row then stays in the list.
   */
  constructor(handlers) {
    this.#handlers = handlers;
    this.#body.addEventListener("click", (event) => this.#click(event));
    for (const name of /** @type {const} */ (["pointermove", "pointerdown"])) {
      this.#body.addEventListener(name, () => this.#keepStill(), { passive: true });
    }
    this.#pauseButton.addEventListener("click", () => this.togglePause());
    byId("clear", HTMLButtonElement).addEventListener("click", () => this.clear(({ isInFlight }) => isInFlight));
    const sizes = new ResizeObserver(() => this.#fit());
    sizes.observe(this.#body);
    sizes.observe(this.#grid);
    this.#watchEnds();
  }

  /** @type {Delivery | null} */
  get selected() {
    return this.#selected;
  }

  /** The deliveries that the list shows, newest first. @returns {readonly Delivery[]} */
  get shown() {
    const { listed } = this.#backlog;
    const condition = this.#condition;
    if (condition === null) return listed;
    const nowMs = Date.now();
    return listed.filter((delivery) => condition(delivery, nowMs));
  }

  /** @param {import("./message_filter.js").Condition | null} condition Shows only those for which it holds; null: all. */
  filter(condition) {
    this.#condition = condition;
    const { selected } = this;
    if (selected !== null && condition !== null && !condition(selected, Date.now())) this.select(null);
    this.#arrange(this.#rowsAtATime);
  }

  /** @param {readonly import("./message_filter.js").Path[]} paths The members of bodies that rows show; none: their start. */
  showMembers(paths) {
    this.#paths = paths;
    this.#showAgain();
  }

  /** @param {Delivery} delivery A new delivery, to be drawn soon. */
  add(delivery) {
    this.#backlog.add(delivery);
    this.#plan();
  }

  /**
   * Removes all deliveries for which `isKept` returns false, drawn or not.
   *
   * @param {(delivery: Delivery) => boolean} isKept
   */
  clear(isKept) {
    this.#backlog.keep(isKept);
    if (this.#selected !== null && !isKept(this.#selected)) this.select(null);
    this.#arrange(this.#rowsAtATime);
  }

  /** @param {boolean} isPaused True freezes the list; messages are still counted. */
  pause(isPaused) {
    this.#isPaused = isPaused;
    this.#pauseButton.setAttribute("aria-pressed", String(isPaused));
    this.#showPausedCount();
    this.#plan();
  }

  /** Pauses or resumes the view. */
  togglePause() {
    this.pause(!this.#isPaused);
  }

  /**
   * Moves the selection.
   *
   * @param {number} rows 1: to an older message.
   */
  move(rows) {
    const from = this.#rows.findIndex(({ delivery }) => delivery === this.#selected);
    // The selected row may be gone: continue from its position.
    const to = from === -1 ? (this.#selected === null ? 0 : this.#selectedAt) : from + rows;
    if (to >= this.#rows.length) this.#makeMore();
    this.#show(this.#rows[Math.min(this.#rows.length - 1, Math.max(0, to))]);
  }

  /** Moves the selection to the next unacknowledged message, preferably an older one. */
  moveOn() {
    const listed = this.shown;
    const from = this.#selected === null ? -1 : listed.indexOf(this.#selected);
    const older = listed.findIndex(({ isInFlight }, at) => at > from && isInFlight);
    const newer = listed.findLastIndex(({ isInFlight }, at) => at < from && isInFlight);
    const to = older === -1 ? newer : older;
    if (to >= this.#rows.length) this.#arrange(to + this.#rowsAtATime);
    this.#show(this.#rows[to]);
  }

  /**
   * Updates remaining times and states, and removes rows that have faded.
   *
   * @param {number} nowMs
   */
  tick(nowMs) {
    for (const row of this.#rows) if (row.delivery?.state !== "shown") row.update(nowMs);
    if (this.#isPaused || nowMs < this.#stillUntilMs) return;
    const isLeaving = (/** @type {Delivery} */ delivery) => delivery !== this.#selected && delivery.leavesAtMs <= nowMs;
    // Rows fade first, and are removed at the next tick.
    const gone = this.#rows.filter(({ root }) => root.classList.contains("leaving")).map(({ delivery }) => delivery);
    for (const row of this.#rows) row.fade(row.delivery !== null && isLeaving(row.delivery));
    if (gone.length > 0) {
      this.#backlog.keep((delivery) => !gone.includes(delivery) || !isLeaving(delivery));
      this.#arrange(this.#rows.length);
    }
    this.#plan();
  }

  /** @param {Delivery} delivery Its state or note has changed. */
  update(delivery) {
    const row = this.#rows.find((each) => each.delivery === delivery);
    row?.fade(false);
    row?.update(Date.now());
  }

  /** @param {MessageRow | null} row The row that keys act on, and whose details are shown. */
  select(row) {
    this.#rows.find(({ delivery }) => delivery === this.#selected)?.select(false);
    this.#selected = row?.delivery ?? null;
    if (row === null) this.#grid.removeAttribute("aria-activedescendant");
    else {
      row.select(true);
      this.#selectedAt = this.#rows.indexOf(row);
      this.#grid.setAttribute("aria-activedescendant", row.root.id);
    }
    this.#handlers.onSelect(this.#selected);
    if (row !== null && this.#narrow.matches) this.#makeRoom();
  }

  /** Scrolls the rows to the top, where the selected one stays above its details (detail.css). */
  #makeRoom() {
    const page = this.#body.closest("main");
    if (page === null || this.#body.getBoundingClientRect().top <= page.getBoundingClientRect().top) return;
    this.#body.scrollIntoView({ block: "start" });
  }

  /** Draws in the next frame, or a little later if the list was drawn just before. */
  #plan() {
    if (this.#isPlanned || this.#backlog.news === 0) return;
    const nowMs = Date.now();
    if (this.#isPaused || (nowMs < this.#stillUntilMs && this.#rows.length > 0)) return this.#showPausedCount();
    this.#isPlanned = true;
    const atNextFrame = () => requestAnimationFrame(() => this.#draw());
    const waitMs = this.#drawnAtMs + DRAW_EVERY_MS - nowMs;
    if (waitMs > 0) setTimeout(atNextFrame, waitMs);
    else atNextFrame();
  }

  #draw() {
    this.#isPlanned = false;
    if (this.#isPaused) return this.#showPausedCount();
    this.#drawnAtMs = Date.now();
    const { news } = this.#backlog;
    this.#backlog.update();
    // After scrolling down, keep the visible rows; otherwise create rows below only when needed.
    const isTopSeen = this.#isTopSeen || this.#grid.hidden;
    this.#arrange(isTopSeen ? this.#rowsAtATime : this.#rows.length + news);
  }

  /**
   * Makes the rows show the newest deliveries, and below them the one whose message is open.
   *
   * @param {number} most
   */
  #arrange(most) {
    const { shown } = this;
    const deliveries = shown.slice(0, most);
    const wanted = new Set(deliveries);
    const pinned = this.#takePinned(wanted);
    if (this.#rows.some(({ delivery }) => delivery !== null && wanted.has(delivery))) this.#insert(deliveries, wanted);
    else this.#replaceAll(deliveries);
    if (pinned !== null) {
      this.#rows.push(pinned);
      if (this.#body.lastChild !== pinned.root) this.#body.append(pinned.root);
    }
    this.#tellRows(shown.length);
  }

  /**
   * Takes the row of the open message out of the rows if it is older than those wanted.
   *
   * @param {ReadonlySet<Delivery>} wanted
   * @returns {MessageRow | null}
   */
  #takePinned(wanted) {
    if (this.#selected === null || wanted.has(this.#selected) || !this.#handlers.isOpen()) return null;
    const at = this.#rows.findIndex(({ delivery }) => delivery === this.#selected);
    return at === -1 ? null : (this.#rows.splice(at, 1)[0] ?? null);
  }

  /**
   * Keeps the rows of deliveries that are still wanted, and adds new rows around them.
   *
   * @param {readonly Delivery[]} deliveries
   * @param {ReadonlySet<Delivery>} wanted
   */
  #insert(deliveries, wanted) {
    const rows = new Map();
    for (const row of this.#rows) {
      if (row.delivery !== null && wanted.has(row.delivery)) rows.set(row.delivery, row);
      else this.#spareRow(row);
    }
    const nowMs = Date.now();
    this.#rows = deliveries.map((delivery) => rows.get(delivery) ?? this.#newRow(delivery, nowMs));
    /** @type {Node | null} */
    let next = null;
    for (const { root } of this.#rows.toReversed()) {
      if (root.parentNode === null || root.nextSibling !== next) this.#body.insertBefore(root, next);
      next = root;
    }
  }

  /**
   * Assigns a delivery to each row in place: removing and inserting all rows would be slow.
   *
   * @param {readonly Delivery[]} deliveries
   */
  #replaceAll(deliveries) {
    const nowMs = Date.now();
    for (const row of this.#rows.splice(deliveries.length)) this.#spareRow(row);
    this.#rows.forEach((row, at) => {
      this.#release(row);
      const delivery = /** @type {Delivery} */ (deliveries[at]);
      row.select(delivery === this.#selected);
      row.show(delivery, nowMs, this.#characters, this.#paths);
    });
    const more = deliveries.slice(this.#rows.length).map((delivery) => this.#newRow(delivery, nowMs));
    this.#body.append(...more.map(({ root }) => root));
    this.#rows.push(...more);
  }

  /** @param {number} matching */
  #tellRows(matching) {
    this.#showPausedCount();
    const { listed, isCut } = this.#backlog;
    const isFiltered = this.#condition !== null && listed.length > 0;
    const matches = isFiltered ? [`${count(matching)} of ${count(listed.length)} match`] : [];
    const kept = isCut ? [`newest ${count(listed.length)} kept`] : [];
    setText(byId("list-count", HTMLElement), [...matches, ...kept].join(", "));
    byId("no-messages", HTMLElement).hidden = this.#rows.length > 0 || isFiltered;
    byId("no-message-matches", HTMLElement).hidden = this.#rows.length > 0 || !isFiltered;
    this.#grid.hidden = this.#rows.length === 0;
  }

  /**
   * @param {Delivery} delivery
   * @param {number} nowMs
   */
  #newRow(delivery, nowMs) {
    const row = this.#spare.pop() ?? new MessageRow();
    row.select(delivery === this.#selected);
    row.show(delivery, nowMs, this.#characters, this.#paths);
    return row;
  }

  /** @param {MessageRow} row */
  #spareRow(row) {
    this.#release(row);
    row.root.remove();
    row.delivery = null;
    this.#spare.push(row);
  }

  /** @param {MessageRow} row The row to reset before it shows another delivery. */
  #release(row) {
    if (this.#grid.getAttribute("aria-activedescendant") === row.root.id) {
      this.#grid.removeAttribute("aria-activedescendant");
    }
  }

  #makeMore() {
    if (this.#rows.length < this.shown.length) this.#arrange(this.#rows.length + this.#rowsAtATime);
  }

  /** Tracks whether the top of the list is visible, and creates more rows near its end. */
  #watchEnds() {
    const end = byId("message-end", HTMLElement);
    const watch = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          if (target !== end) this.#isTopSeen = isIntersecting;
          else if (isIntersecting) this.#makeMore();
        }
      },
      { rootMargin: `${NEAR_PX}px` },
    );
    watch.observe(end);
    watch.observe(byId("message-top", HTMLElement));
  }

  /** Limits rows to what is visible, and bodies to the width of their column: layout takes most of a frame. */
  #fit() {
    const row = this.#rows.find(({ delivery }) => delivery?.isInFlight || delivery?.state === "shown");
    if (row === undefined || row.room === 0) return;
    // On a phone the list does not scroll, and is higher than the screen.
    const heightPx = Math.min(innerHeight, this.#grid.clientHeight);
    this.#rowsAtATime = Math.ceil(heightPx / row.root.offsetHeight) + ROWS_BELOW;
    const characters = Math.min(PREVIEW_CHARACTERS, row.room);
    if (characters === this.#characters) return;
    this.#characters = characters;
    this.#showAgain();
  }

  /** Shows each row's delivery in another way. */
  #showAgain() {
    const nowMs = Date.now();
    for (const row of this.#rows) {
      if (row.delivery !== null) row.show(row.delivery, nowMs, this.#characters, this.#paths);
    }
  }

  #keepStill() {
    this.#stillUntilMs = Date.now() + STILL_MS;
  }

  /** @param {Event} event */
  #click({ target }) {
    if (!(target instanceof Element)) return;
    const root = target.closest(".row");
    const row = this.#rows.find((each) => each.root === root);
    if (row?.delivery == null) return;
    const answer = target.closest("button")?.dataset.answer;
    if (answer === undefined) this.select(row);
    else this.#handlers.onAnswer(/** @type {Answer} */ (answer), row.delivery);
  }

  /** @param {MessageRow | undefined} row The row to select, announce and scroll into view. */
  #show(row) {
    if (row === undefined) return;
    // Before it is selected: then it stays in view by itself, and nothing would scroll.
    row.root.scrollIntoView({ block: "nearest" });
    this.select(row);
    this.#grid.focus({ preventScroll: true });
  }

  #showPausedCount() {
    const { news } = this.#backlog;
    setText(byId("paused-count", HTMLElement), news > 0 ? `${count(news)} more` : "");
  }
}
