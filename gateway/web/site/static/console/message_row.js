/**
 * One row of the message list. Rows are reused, because creating one per message would take most of the time.
 */

import { preview } from "./body_text.js";
import { part, setText, stamp } from "./elements.js";
import { dateAndTime, dateOrTime, shortName, timeLeft, timeOfDay } from "./format.js";
import { membersAt } from "./message_filter.js";

/** @typedef {import("./delivery.js").Delivery} Delivery */

const ID_CHARACTERS = 13;
/** @type {Record<import("./delivery.js").DeliveryState, string>} */
const WORDS = {
  "in flight": "",
  answering: "sent",
  shown: "",
  finished: "FIN",
  requeued: "REQ",
  refused: "refused",
  lost: "",
};

let lastNumber = 0;

export class MessageRow {
  root = stamp("message-row");
  /** @type {Delivery | null} */
  delivery = null;
  #time = part(this.root, "time");
  #id = part(this.root, "id");
  #attempts = part(this.root, "attempts");
  #left = part(this.root, "left");
  #bar = part(this.root, "bar");
  #leftText = part(this.root, "left-text");
  #body = part(this.root, "body");
  #outcome = part(this.root, "outcome");

  constructor() {
    lastNumber += 1;
    this.root.id = `message-${lastNumber}`;
  }

  /**
   * Shows another delivery.
   *
   * @param {Delivery} delivery
   * @param {number} nowMs
   * @param {number} characters Maximum length of the body preview.
   * @param {readonly import("./message_filter.js").Path[]} paths Members of the body to show in place of its start.
   */
  show(delivery, nowMs, characters, paths) {
    const { message } = delivery;
    this.delivery = delivery;
    this.root.classList.remove("leaving");
    const publishedMs = Number(message.timestampNs / 1_000_000n);
    setText(this.#time, dateOrTime(publishedMs, nowMs));
    this.#time.title = `published ${dateAndTime(publishedMs, nowMs)}, received ${timeOfDay(delivery.atMs)}`;
    setText(this.#id, shortName(message.id, ID_CHARACTERS));
    this.#id.title = message.id;
    setText(this.#attempts, String(message.attempts));
    this.#attempts.classList.toggle("again", message.attempts > 1);
    const members = membersAt(delivery, paths);
    if (members.length === 0) setText(this.#body, preview(message.body, characters));
    else this.#body.replaceChildren(...members.map(({ name, value }) => member(name, preview(value, characters))));
    this.update(nowMs);
  }

  /**
   * Shows its state and the remaining time.
   *
   * @param {number} nowMs
   */
  update(nowMs) {
    const { delivery } = this;
    if (delivery === null) return;
    if (this.root.dataset.state !== delivery.state) this.root.dataset.state = delivery.state;
    setText(this.#outcome, `${WORDS[delivery.state]} ${delivery.note}`.trim());
    if (!delivery.isInFlight) return;
    this.#left.style.setProperty("--left", delivery.shareLeft(nowMs).toFixed(3));
    this.#bar.classList.toggle("short", delivery.shareLeft(nowMs) < 0.2);
    const leftMs = delivery.message.deadline - nowMs;
    setText(this.#leftText, leftMs > 0 ? timeLeft(leftMs) : "timed out");
  }

  /** Number of body characters that fit; 0 if the row is not visible. */
  get room() {
    const style = getComputedStyle(this.#body);
    const lines = Number(style.getPropertyValue("--lines")) || 1;
    return lines * Math.floor(this.#body.clientWidth / glyphWidth(style.font));
  }

  /** @param {boolean} isLeaving Whether it will be removed. */
  fade(isLeaving) {
    this.root.classList.toggle("leaving", isLeaving);
  }

  /** @param {boolean} isSelected */
  select(isSelected) {
    this.root.setAttribute("aria-selected", String(isSelected));
  }
}

/**
 * @param {string} name
 * @param {string} value
 */
function member(name, value) {
  const element = document.createElement("span");
  const label = document.createElement("span");
  element.className = "member";
  label.textContent = `${name}: `;
  // The space separates it from the next one, also where it is copied or read aloud.
  element.append(label, `${value} `);
  return element;
}

const ruler = new OffscreenCanvas(1, 1).getContext("2d");

/**
 * @param {string} font A monospaced font.
 * @returns {number} Width of a character, in px.
 */
function glyphWidth(font) {
  if (ruler === null) return 1;
  ruler.font = font;
  return ruler.measureText("0").width;
}
