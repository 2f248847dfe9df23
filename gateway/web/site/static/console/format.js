/** PURE. Format numbers, times and sizes for the page. */

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const shortCounts = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
/** Units of time with their length in seconds, the longest first. @type {readonly [string, number][]} */
const UNITS = [
  ["d", 86_400],
  ["h", 3_600],
  ["min", 60],
  ["s", 1],
];

/** @param {number} value @returns {string} All digits, grouped: `12,345`. */
export function count(value) {
  return counts.format(value);
}

/** @param {number} value @returns {string} At most 5 characters: `9,999`, `12.3K`. */
export function shortCount(value) {
  return Math.abs(value) < 10_000 ? counts.format(value) : shortCounts.format(value);
}

/** @param {number} perSecond @returns {string} One decimal below 10, unless it is 0. */
export function rate(perSecond) {
  if (perSecond < 10) return String(Math.round(perSecond * 10) / 10);
  return shortCount(Math.round(perSecond));
}

/**
 * @param {number} value
 * @param {string} one
 * @param {string} [many]
 * @returns {string} `1 nsqd`, `2 nsqds`.
 */
export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/**
 * @param {string} name
 * @param {number} [length]
 * @returns {string} At most *length* characters, with … in place of its middle.
 */
export function shortName(name, length = 36) {
  if (name.length <= length) return name;
  const kept = length - 1;
  return `${name.slice(0, Math.ceil(kept / 2))}…${name.slice(name.length - Math.floor(kept / 2))}`;
}

/**
 * @param {string} topic
 * @param {string} channel Empty: the topic.
 * @returns {string} `orders › billing`, as in the trail of a page.
 */
export function fullName(topic, channel) {
  return channel === "" ? topic : `${topic} › ${channel}`;
}

/** @param {number} atMs @returns {string} The local time of day: `14:03:07.120`. */
export function timeOfDay(atMs) {
  const at = new Date(atMs);
  // Intl takes ten times as long, and this runs for each message.
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** @param {number} atMs @returns {string} The local time of day to the second: `14:03:07`. */
export function clock(atMs) {
  return timeOfDay(atMs).slice(0, 8);
}

/**
 * @param {number} atMs
 * @param {number} nowMs
 * @returns {string} The local time of day, after the date if that is another day than now: `2026-11-25 14:03:07.120`.
 */
export function dateAndTime(atMs, nowMs) {
  return isSameDay(atMs, nowMs) ? timeOfDay(atMs) : `${dateOf(atMs)} ${timeOfDay(atMs)}`;
}

/**
 * @param {number} atMs
 * @param {number} nowMs
 * @returns {string} The local time of day, or only the date if that is another day than now, where there is little room.
 */
export function dateOrTime(atMs, nowMs) {
  return isSameDay(atMs, nowMs) ? timeOfDay(atMs) : dateOf(atMs);
}

/**
 * @param {number} atMs
 * @param {number} nowMs
 */
function isSameDay(atMs, nowMs) {
  return new Date(atMs).toDateString() === new Date(nowMs).toDateString();
}

/** @param {number} atMs @returns {string} The local date: `2026-11-25`. */
function dateOf(atMs) {
  const at = new Date(atMs);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/** @param {number} durationMs @returns {string} In the largest unit: `42 s ago`, `5 min ago`, `3 d ago`. */
export function ago(durationMs) {
  const seconds = Math.max(0, Math.floor(durationMs / 1000));
  const [unit, lengthS] = UNITS.find(([, lengthS]) => seconds >= lengthS) ?? ["s", 1];
  return `${Math.floor(seconds / lengthS)} ${unit} ago`;
}

/** @param {number} durationMs @returns {string} `0.4 s`, `42 s`, `1 min`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`. */
export function duration(durationMs) {
  const seconds = durationMs / 1000;
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  return wholeDuration(Math.round(seconds));
}

/** @param {number} durationMs @returns {string} Remaining time, rounded up; minutes from 100 s on. */
export function timeLeft(durationMs) {
  const seconds = Math.max(0, Math.ceil(durationMs / 1000));
  return seconds < 100 ? `${seconds} s` : `${Math.ceil(seconds / 60)} min`;
}

/** @param {number} bytes @returns {string} `512 bytes`, `1.5 KiB`. */
export function size(bytes) {
  if (bytes < 1024) return plural(bytes, "byte");
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(1)} KiB`;
  return `${(bytes / (1024 * 1024)).toFixed(1)} MiB`;
}

/** @param {number} seconds @returns {string} In the two largest units, without those that are 0. */
export function wholeDuration(seconds) {
  const largest = UNITS.findIndex(([, lengthS]) => seconds >= lengthS);
  if (largest === -1) return "0 s";
  let left = seconds;
  const parts = UNITS.slice(largest, largest + 2).map(([unit, lengthS]) => {
    const whole = Math.floor(left / lengthS);
    left -= whole * lengthS;
    return whole > 0 ? `${whole} ${unit}` : "";
  });
  return parts.join(" ").trimEnd();
}

/** @param {number} value */
function two(value) {
  return value < 10 ? `0${value}` : String(value);
}
