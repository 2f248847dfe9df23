/**
 * The list of messages, newest first: drawn together once in a while however fast they come, and no further than one looks.
 */

import { Backlog } from "./backlog.js";
import { PREVIEW_CHARACTERS } from "./body_text.js";
import { byId, setText } from "./elements.js";
import { count } from "./format.js";
import { MessageRow } from "./message_row.js";

/** @typedef {import("./delivery.js").Delivery} Delivery */
/** @typedef {import("./delivery.js").Answer} Answer */

// No eye follows a list that changes more often; drawing each frame would take the time for the rest.
const DRAW_EVERY_MS = 100;
// Rows do not move away under a pointer that is about to press one.
const STILL_MS = 1_000;
// Beyond a screenful; more are made when one scrolls there.
const ROWS_BELOW = 8;
const NEAR_PX = 100;

export class MessageList {
  #grid = byId("message-grid", HTMLElement);
  #body = byId("message-rows", HTMLElement);
  #holdButton = byId("hold", HTMLButtonElement);
  #backlog = new Backlog();
  /** Of the newest deliveries, one each. @type {MessageRow[]} */
  #rows = [];
  /** @type {MessageRow[]} */
  #spare = [];
  /** @type {Delivery | null} */
  #selected = null;
  #selectedAt = 0;
  #isHeld = false;
  #isPlanned = false;
  #isTopSeen = true;
  #drawnAtMs = 0;
  #stillUntilMs = 0;
  #characters = PREVIEW_CHARACTERS;
  #rowsAtATime = 40;
  #asked;

  /**
   * @param {object} asked
   * @param {(answer: Answer, delivery: Delivery) => void} asked.onAnswer
   * @param {(delivery: Delivery | null) => void} asked.onSelect
   */
  constructor(asked) {
    this.#asked = asked;
    this.#body.addEventListener("click", (event) => this.#click(event));
    for (const name of /** @type {const} */ (["pointermove", "pointerdown"])) {
      this.#body.addEventListener(name, () => this.#keepStill(), { passive: true });
    }
    this.#holdButton.addEventListener("click", () => this.toggleHold());
    byId("clear", HTMLButtonElement).addEventListener("click", () => this.clear(({ isInHand }) => isInHand));
    new ResizeObserver(() => this.#fit()).observe(this.#body);
    this.#watchEnds();
  }

  /** @type {Delivery | null} */
  get selected() {
    return this.#selected;
  }

  /** @param {Delivery} delivery One more, to be drawn soon. */
  add(delivery) {
    this.#backlog.add(delivery);
    this.#plan();
  }

  /**
   * Takes all away but what `isKept` names, what is not drawn yet included.
   *
   * @param {(delivery: Delivery) => boolean} isKept
   */
  clear(isKept) {
    this.#backlog.keep(isKept);
    this.#arrange(this.#rowsAtATime);
    if (this.#selected !== null && !isKept(this.#selected)) this.select(null);
  }

  /** @param {boolean} isHeld Whether the list stands still; what comes is counted all the same. */
  hold(isHeld) {
    this.#isHeld = isHeld;
    this.#holdButton.setAttribute("aria-pressed", String(isHeld));
    this.#tellWaiting();
    this.#plan();
  }

  /** Hold, or its end. */
  toggleHold() {
    this.hold(!this.#isHeld);
  }

  /**
   * Moves the selection.
   *
   * @param {number} rows 1: to an older message.
   */
  move(rows) {
    const from = this.#rows.findIndex(({ delivery }) => delivery === this.#selected);
    // What was selected may be gone: go on from where it was.
    const to = from === -1 ? (this.#selected === null ? 0 : this.#selectedAt) : from + rows;
    if (to >= this.#rows.length) this.#makeMore();
    this.#show(this.#rows[Math.min(this.#rows.length - 1, Math.max(0, to))]);
  }

  /** Moves the selection to the next message that waits for an answer, an older one first. */
  moveOn() {
    const { listed } = this.#backlog;
    const from = this.#selected === null ? -1 : listed.indexOf(this.#selected);
    const older = listed.findIndex(({ isInHand }, at) => at > from && isInHand);
    const newer = listed.findLastIndex(({ isInHand }, at) => at < from && isInHand);
    const to = older === -1 ? newer : older;
    if (to >= this.#rows.length) this.#arrange(to + this.#rowsAtATime);
    this.#show(this.#rows[to]);
  }

  /**
   * Shows the time that is left and what became of each, and lets answered ones go.
   *
   * @param {number} nowMs
   */
  tick(nowMs) {
    for (const row of this.#rows) if (row.delivery?.state !== "shown") row.update(nowMs);
    if (this.#isHeld || nowMs < this.#stillUntilMs) return;
    const isLeaving = (/** @type {Delivery} */ delivery) => delivery !== this.#selected && delivery.leavesAtMs <= nowMs;
    // First they fade; at the next tick they are gone.
    const gone = this.#rows.filter(({ root }) => root.classList.contains("leaving")).map(({ delivery }) => delivery);
    for (const row of this.#rows) row.fade(row.delivery !== null && isLeaving(row.delivery));
    if (gone.length > 0) {
      this.#backlog.keep((delivery) => !gone.includes(delivery) || !isLeaving(delivery));
      this.#arrange(this.#rows.length);
    }
    this.#plan();
  }

  /** @param {Delivery} delivery Something was said about it. */
  update(delivery) {
    const row = this.#rows.find((each) => each.delivery === delivery);
    row?.fade(false);
    row?.update(Date.now());
  }

  /** @param {MessageRow | null} row The one that keys act on, and that is told in full. */
  select(row) {
    this.#rows.find(({ delivery }) => delivery === this.#selected)?.select(false);
    this.#selected = row?.delivery ?? null;
    if (row === null) this.#grid.removeAttribute("aria-activedescendant");
    else {
      row.select(true);
      this.#selectedAt = this.#rows.indexOf(row);
      this.#grid.setAttribute("aria-activedescendant", row.root.id);
    }
    this.#asked.onSelect(this.#selected);
  }

  /** Draws at the next frame, or a little later when that was just done. */
  #plan() {
    if (this.#isPlanned || this.#backlog.news === 0) return;
    const nowMs = Date.now();
    if (this.#isHeld || (nowMs < this.#stillUntilMs && this.#rows.length > 0)) return this.#tellWaiting();
    this.#isPlanned = true;
    const atNextFrame = () => requestAnimationFrame(() => this.#draw());
    const waitMs = this.#drawnAtMs + DRAW_EVERY_MS - nowMs;
    if (waitMs > 0) setTimeout(atNextFrame, waitMs);
    else atNextFrame();
  }

  #draw() {
    this.#isPlanned = false;
    if (this.#isHeld) return this.#tellWaiting();
    this.#drawnAtMs = Date.now();
    const { news } = this.#backlog;
    this.#backlog.update();
    // Who has scrolled down keeps what is in sight; else what lies below is made when one gets there.
    const isTopSeen = this.#isTopSeen || this.#grid.hidden;
    this.#arrange(isTopSeen ? this.#rowsAtATime : this.#rows.length + news);
  }

  /**
   * Makes the rows those of the newest deliveries.
   *
   * @param {number} most
   */
  #arrange(most) {
    const deliveries = this.#backlog.listed.slice(0, most);
    const wanted = new Set(deliveries);
    if (this.#rows.some(({ delivery }) => delivery !== null && wanted.has(delivery))) this.#insert(deliveries, wanted);
    else this.#replaceAll(deliveries);
    this.#tellRows();
  }

  /**
   * Lets the rows of what is wanted still stand, and puts new ones before and behind.
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
    const firstKept = this.#rows.findIndex(({ root }) => root.isConnected);
    const lastKept = this.#rows.findLastIndex(({ root }) => root.isConnected);
    this.#body.prepend(...this.#rows.slice(0, firstKept).map(({ root }) => root));
    this.#body.append(...this.#rows.slice(lastKept + 1).map(({ root }) => root));
  }

  /**
   * Gives each row another delivery where it stands: to take all of them out and in again is what costs.
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
      row.show(delivery, nowMs, this.#characters);
    });
    const more = deliveries.slice(this.#rows.length).map((delivery) => this.#newRow(delivery, nowMs));
    this.#body.append(...more.map(({ root }) => root));
    this.#rows.push(...more);
  }

  #tellRows() {
    this.#tellWaiting();
    byId("no-messages", HTMLElement).hidden = this.#rows.length > 0;
    this.#grid.hidden = this.#rows.length === 0;
  }

  /**
   * @param {Delivery} delivery
   * @param {number} nowMs
   */
  #newRow(delivery, nowMs) {
    const row = this.#spare.pop() ?? new MessageRow();
    row.select(delivery === this.#selected);
    row.show(delivery, nowMs, this.#characters);
    return row;
  }

  /** @param {MessageRow} row */
  #spareRow(row) {
    this.#release(row);
    row.root.remove();
    row.delivery = null;
    this.#spare.push(row);
  }

  /** @param {MessageRow} row It will show another delivery: what was told of it holds no more. */
  #release(row) {
    if (this.#grid.getAttribute("aria-activedescendant") === row.root.id) {
      this.#grid.removeAttribute("aria-activedescendant");
    }
  }

  #makeMore() {
    if (this.#rows.length < this.#backlog.listed.length) this.#arrange(this.#rows.length + this.#rowsAtATime);
  }

  /** Looks whether one sees the top of the list, or has scrolled to the last row there is. */
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

  /** Makes no more rows than a screen holds, and cuts bodies where their column ends: all else would be laid out for nothing. */
  #fit() {
    const row = this.#rows.find(({ delivery }) => delivery?.isInHand || delivery?.state === "shown");
    if (row === undefined || row.room === 0) return;
    this.#rowsAtATime = Math.ceil(innerHeight / row.root.offsetHeight) + ROWS_BELOW;
    const characters = Math.min(PREVIEW_CHARACTERS, row.room);
    if (characters === this.#characters) return;
    this.#characters = characters;
    const nowMs = Date.now();
    for (const row of this.#rows) if (row.delivery !== null) row.show(row.delivery, nowMs, characters);
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
    else this.#asked.onAnswer(/** @type {Answer} */ (answer), row.delivery);
  }

  /** @param {MessageRow | undefined} row To be selected by a key, so it has to be seen and heard. */
  #show(row) {
    if (row === undefined) return;
    this.select(row);
    this.#grid.focus({ preventScroll: true });
    row.root.scrollIntoView({ block: "nearest" });
  }

  #tellWaiting() {
    const { news } = this.#backlog;
    setText(byId("held-back", HTMLElement), news > 0 ? `${count(news)} more` : "");
  }
}
