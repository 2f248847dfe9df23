/**
 * PURE. The filter of messages: words, and conditions on attempts, age and members of JSON; all of them must hold.
 */

/** @typedef {import("./delivery.js").Delivery} Delivery */
/** @typedef {(delivery: Delivery, nowMs: number) => boolean} Condition */

// A message may have a megabyte, and the list is filtered whenever it changes.
const SEARCHED_CHARACTERS = 65_536;
const COMPARISON = /^(attempts|age)(<=|>=|<|>|=)(\d+(?:\.\d+)?)(ms|s|min|h)?$/;
const MEMBER = /^\.([^=]+)=(.*)$/;
/** @type {Record<string, number>} */
const UNIT_MS = { ms: 1, s: 1_000, min: 60_000, h: 3_600_000 };
/** @type {Record<string, (one: number, other: number) => boolean>} */
const COMPARE = {
  "<": (one, other) => one < other,
  "<=": (one, other) => one <= other,
  ">": (one, other) => one > other,
  ">=": (one, other) => one >= other,
  "=": (one, other) => one === other,
};

/** The decoded bodies: each is parsed once. @type {WeakMap<Delivery, unknown>} */
const documents = new WeakMap();

/**
 * Returns a condition, or null if *text* has none.
 *
 * @param {string} text For example `ada attempts>2 age>5min .customer.city=Lisbon`.
 * @returns {Condition | null}
 */
export function parseFilter(text) {
  const conditions = text
    .trim()
    .split(/\s+/)
    .filter((word) => word !== "")
    .map(parseWord);
  if (conditions.length === 0) return null;
  return (delivery, nowMs) => conditions.every((holds) => holds(delivery, nowMs));
}

/**
 * @param {string} word
 * @returns {Condition}
 */
function parseWord(word) {
  const [, subject, operator = "", number = "", unit = "s"] = word.match(COMPARISON) ?? [];
  const compare = COMPARE[operator];
  if (subject !== undefined && compare !== undefined) {
    if (subject === "attempts") return ({ message }) => compare(message.attempts, Number(number));
    const wantedMs = Number(number) * (UNIT_MS[unit] ?? 1_000);
    return ({ message }, nowMs) => compare(nowMs - Number(message.timestampNs / 1_000_000n), wantedMs);
  }
  const [, path, value = ""] = word.match(MEMBER) ?? [];
  if (path !== undefined) return (delivery) => textAt(documentOf(delivery), path.split(".")) === value;
  const wanted = word.toLowerCase();
  return ({ message }) =>
    message.id.includes(wanted) || message.body.slice(0, SEARCHED_CHARACTERS).toLowerCase().includes(wanted);
}

/** @param {Delivery} delivery @returns {unknown} Undefined if its body is no JSON, or too long. */
function documentOf(delivery) {
  if (!documents.has(delivery)) documents.set(delivery, parse(delivery.message.body));
  return documents.get(delivery);
}

/** @param {string} body @returns {unknown} */
function parse(body) {
  if (body.length > SEARCHED_CHARACTERS) return undefined;
  try {
    return JSON.parse(body);
  } catch {
    return undefined;
  }
}

/**
 * @param {unknown} found
 * @param {readonly string[]} path
 * @returns {string | undefined} The value there, as text.
 */
function textAt(found, path) {
  for (const name of path) {
    if (typeof found !== "object" || found === null || !Object.hasOwn(found, name)) return undefined;
    found = /** @type {Record<string, unknown>} */ (found)[name];
  }
  return typeof found === "object" && found !== null ? JSON.stringify(found) : String(found);
}
