/**
 * A line chart on a canvas. The pointer or arrow keys select a time, whose values are also shown as text.
 */

import { part, setText } from "./elements.js";
import { clock } from "./format.js";
import { SPAN_MS } from "./series.js";

/** @typedef {import("./series.js").Series} Series */
/** @typedef {{ name: string, unit: string, series: Series, part: string }} Line */
/** @typedef {{ width: number, height: number, top: number }} Frame Size in px; `top` is the value at the upper edge. */

/**
 * @typedef {object} Scale The time axis.
 * @property {number} spanMs Length of the axis.
 * @property {number} stepMs Step of an arrow key.
 * @property {number} gapMs Longer gaps in the data break the line.
 * @property {boolean} hasDots Whether each value is drawn as a dot.
 * @property {(atMs: number) => string} tell Formats a time.
 * @property {(nowMs: number) => { agoMs: number, text: string }[]} ticks The labels of the axis, from left to right.
 */

const MARGIN = { top: 8, right: 8, bottom: 20, left: 48 };
const TICK_PX = 4;
const DOT_PX = 2;
const LABELS_PX = 8;
/** In place of a value that is not known. */
const NONE = "–";

/** @type {Scale} */
const LAST_MINUTES = {
  spanMs: SPAN_MS,
  stepMs: 2_000,
  gapMs: 8_000,
  hasDots: false,
  tell: clock,
  ticks: () =>
    [3, 2, 1, 0].map((minutes) => ({ agoMs: minutes * 60_000, text: ["now", "−1", "−2", "−3 min"][minutes] ?? "" })),
};

export class Chart {
  #root;
  #lines;
  #format;
  #onRead;
  #plot;
  #canvas;
  #scale;
  #nowMs = Date.now();
  /** Age of the selected time in ms; null: none is selected. @type {number | null} */
  #readAgoMs = null;

  /**
   * @param {HTMLElement} root A figure as in index.html.
   * @param {readonly Line[]} lines
   * @param {(value: number) => string} format
   * @param {(agoMs: number | null) => void} onRead Called with the age of the selected time in ms, or null.
   * @param {Scale} scale
   */
  constructor(root, lines, format, onRead, scale = LAST_MINUTES) {
    this.#root = root;
    this.#lines = lines;
    this.#format = format;
    this.#onRead = onRead;
    this.#scale = scale;
    this.#plot = part(root, "plot");
    this.#canvas = /** @type {HTMLCanvasElement} */ (part(root, "canvas"));
    this.#plot.addEventListener("pointermove", (event) => {
      const { left, width } = this.#plot.getBoundingClientRect();
      const share = (event.clientX - left - MARGIN.left) / (width - MARGIN.left - MARGIN.right);
      this.#read(this.#scale.spanMs * (1 - share));
    });
    for (const name of ["pointerleave", "blur"]) this.#plot.addEventListener(name, () => this.#read(null));
    this.#plot.addEventListener("keydown", (event) => this.#key(event));
    // The canvas has no size until its tab is opened.
    new ResizeObserver(() => this.draw(this.#nowMs)).observe(this.#plot);
    this.#watchPixels();
  }

  /** @param {readonly Series[]} series Those of the lines, used from the next drawing on. */
  set series(series) {
    this.#lines = this.#lines.map((line, at) => ({ ...line, series: series[at] ?? line.series }));
  }

  /** @param {Scale} scale The new time axis, used from the next drawing on. */
  set scale(scale) {
    this.#scale = scale;
    this.#plot.setAttribute("aria-valuemin", String(-Math.round(scale.spanMs / 1000)));
  }

  /** Draws again when the screen has other pixels: the window was moved to another one, or the page zoomed. */
  #watchPixels() {
    const drawAgain = () => {
      this.draw(this.#nowMs);
      this.#watchPixels();
    };
    matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener("change", drawAgain, { once: true });
  }

  /** @param {number} nowMs The right end. */
  draw(nowMs) {
    this.#nowMs = nowMs;
    for (const { part: name, series } of this.#lines) {
      setText(part(this.#root, name), this.#textAt(series, nowMs));
    }
    const { clientWidth: width, clientHeight: height } = this.#plot;
    const context = this.#canvas.getContext("2d");
    if (width === 0 || context === null) return; // not visible
    this.#canvas.width = Math.round(width * devicePixelRatio);
    this.#canvas.height = Math.round(height * devicePixelRatio);
    context.scale(devicePixelRatio, devicePixelRatio);
    const frame = { width, height, top: niceTop(Math.max(...this.#lines.map(({ series }) => series.most))) };
    this.#axes(context, frame);
    for (const line of [...this.#lines].reverse()) this.#line(context, line, frame);
    this.#tellReading();
  }

  /** @param {CanvasRenderingContext2D} context @param {Frame} frame */
  #axes(context, { width, height, top }) {
    const style = getComputedStyle(this.#plot);
    context.font = `12px ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.strokeStyle = style.borderTopColor;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(yOf(share, height)) + 0.5;
      context.beginPath();
      context.moveTo(MARGIN.left, y);
      context.lineTo(width - MARGIN.right, y);
      context.stroke();
      context.fillText(this.#format(top * share) + (this.#lines[0]?.unit ?? ""), MARGIN.left - 6, y);
    }
    context.textBaseline = "alphabetic";
    let labelledTo = Number.NEGATIVE_INFINITY;
    for (const { agoMs, text } of this.#scale.ticks(this.#nowMs)) {
      const x = this.#xOf(agoMs, width);
      const share = agoMs === this.#scale.spanMs ? 0 : agoMs === 0 ? 1 : 0.5;
      const from = x - share * context.measureText(text).width;
      context.textAlign = "left";
      // In a narrow chart there is no room for all of them.
      if (from >= labelledTo + LABELS_PX) {
        context.fillText(text, from, height - 4);
        labelledTo = from + context.measureText(text).width;
      }
      context.fillRect(Math.round(x) - Number(agoMs === 0), height - MARGIN.bottom, 1, TICK_PX);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Line} line @param {Frame} frame */
  #line(context, { part: name, series }, { width, height, top }) {
    const swatch = getComputedStyle(part(this.#root, `${name}-swatch`));
    context.strokeStyle = swatch.color;
    context.fillStyle = swatch.color;
    context.lineWidth = 1.5;
    context.setLineDash(swatch.borderTopStyle === "dashed" ? [4, 3] : []);
    context.beginPath();
    let beforeMs = Number.NEGATIVE_INFINITY;
    for (const [at, { atMs, value }] of series.points.entries()) {
      const agoMs = this.#nowMs - atMs;
      if (agoMs > this.#scale.spanMs) continue;
      const [x, y] = [this.#xOf(agoMs, width), yOf(value / top, height)];
      if (atMs - beforeMs > this.#scale.gapMs) context.moveTo(x, y);
      else context.lineTo(x, y);
      const afterMs = series.points[at + 1]?.atMs ?? Number.POSITIVE_INFINITY;
      // Nothing would be drawn of a value between two gaps.
      const isAlone = atMs - beforeMs > this.#scale.gapMs && afterMs - atMs > this.#scale.gapMs;
      if (this.#scale.hasDots || isAlone) context.fillRect(x - DOT_PX, y - DOT_PX, 2 * DOT_PX, 2 * DOT_PX);
      beforeMs = atMs;
    }
    context.stroke();
  }

  /** @param {number} agoMs @param {number} width */
  #xOf(agoMs, width) {
    return MARGIN.left + (1 - agoMs / this.#scale.spanMs) * (width - MARGIN.left - MARGIN.right);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const { stepMs, spanMs } = this.#scale;
    const steps = { ArrowLeft: stepMs, ArrowRight: -stepMs, Home: spanMs, End: -spanMs }[event.key];
    if (steps === undefined) return;
    event.preventDefault();
    this.#read(this.#readAgoMs === null ? 0 : this.#readAgoMs + steps);
  }

  /** @param {number | null} agoMs */
  #read(agoMs) {
    this.follow(agoMs === null ? null : Math.min(this.#scale.spanMs, Math.max(0, agoMs)));
    this.#onRead(this.#readAgoMs);
  }

  /** @param {number | null} agoMs Age of the time selected in the other chart, in ms, or null. */
  follow(agoMs) {
    this.#readAgoMs = agoMs;
    this.#tellReading();
  }

  #tellReading() {
    const agoMs = this.#readAgoMs ?? 0;
    this.#root.classList.toggle("is-read", this.#readAgoMs !== null);
    this.#plot.style.setProperty("--at", String(1 - agoMs / this.#scale.spanMs));
    const values = this.#lines.map(({ name, unit, series }) => {
      const text = this.#textAt(series, this.#nowMs - agoMs);
      return `${name} ${text}${text === NONE ? "" : unit}`;
    });
    const isNow = this.#readAgoMs === null && this.#scale === LAST_MINUTES;
    const moment = isNow ? "now" : this.#scale.tell(this.#nowMs - agoMs);
    const reading = `${moment}: ${values.join(", ")}`;
    setText(part(this.#root, "reading"), this.#readAgoMs === null ? this.#range() : reading);
    this.#plot.setAttribute("aria-valuenow", String(-Math.round(agoMs / 1000)));
    this.#plot.setAttribute("aria-valuetext", reading);
  }

  /**
   * @param {Series} series
   * @param {number} atMs
   */
  #textAt(series, atMs) {
    const point = series.nearest(atMs);
    return point !== null && Math.abs(point.atMs - atMs) <= this.#scale.gapMs ? this.#format(point.value) : NONE;
  }

  /** @returns {string} The least and the greatest value of each line: `depth 3–120, in flight 0–25`. */
  #range() {
    const ranges = this.#lines.flatMap(({ name, unit, series }) => {
      if (series.last === null) return [];
      const ends = new Set([this.#format(series.least), this.#format(series.most)]);
      return `${name} ${[...ends].join("–")}${unit}`;
    });
    return ranges.join(", ");
  }
}

/** @param {number} share Share of the axis, 0 to 1. @param {number} height */
const yOf = (share, height) => height - MARGIN.bottom - share * (height - MARGIN.bottom - MARGIN.top);

/** @param {number} most @returns {number} 2, 4 or 10 times a power of ten, at least `most`; its half is an integer. */
function niceTop(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(2, most)));
  return power * ([2, 4, 10].find((step) => step * power >= most) ?? 10);
}
