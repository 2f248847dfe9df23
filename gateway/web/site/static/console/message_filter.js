/**
 * PURE. The filter of messages: words, and conditions on attempts, age and members of JSON; all of them must hold.
 * Members that are shown have the same paths.
 */

/**
 * @typedef {object} Matched What a condition looks at: a delivery, or a peeked message.
 * @property {{ id: string, attempts: number, timestampNs: bigint, body: string }} message
 */
/** @typedef {(matched: Matched, nowMs: number) => boolean} Condition */
/** @typedef {readonly string[]} Path The names of a member of JSON, from the outermost one. */

// A message may have a megabyte, and the list is filtered whenever it changes.
const SEARCHED_CHARACTERS = 65_536;
const COMPARISON = /^(attempts|age)(<=|>=|<|>|=)(\d+(?:\.\d+)?)(ms|s|min|h|d)?$/;
const MEMBER = /^\.([^=<>]+)(<=|>=|<|>|=)(.*)$/s;
// A value in quotes may have spaces.
const WORDS = /(?:"[^"]*"|'[^']*'|[^\s"'])+|["']/g;
// JavaScript rounds numbers of 16 digits, and forgets zeros at the end: such bodies keep theirs as they are written, in
// strings that start with this character.
const EXACT = "\u0000";
const MAY_CHANGE = /\d{16}|\d[.eE]/;
const STRINGS_AND_NUMBERS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/gs;
const EXACT_NUMBERS = /"\\u0000([^"]*)"/g;
/** @type {Record<string, number>} */
const UNIT_MS = { ms: 1, s: 1_000, min: 60_000, h: 3_600_000, d: 86_400_000 };
/** @type {Record<string, (one: number, other: number) => boolean>} */
const COMPARE = {
  "<": (one, other) => one < other,
  "<=": (one, other) => one <= other,
  ">": (one, other) => one > other,
  ">=": (one, other) => one >= other,
  "=": (one, other) => one === other,
};

/** The decoded bodies: each is parsed once. @type {WeakMap<Matched, unknown>} */
const documents = new WeakMap();

/**
 * Returns a condition, or null if *text* has none.
 *
 * @param {string} text For example `ada attempts>2 age>5min .total>=500 .customer.name="Ada Lovelace"`.
 * @returns {Condition | null}
 */
export function parseFilter(text) {
  const conditions = (text.match(WORDS) ?? []).map(parseWord);
  if (conditions.length === 0) return null;
  return (delivery, nowMs) => conditions.every((holds) => holds(delivery, nowMs));
}

/**
 * Returns the members of JSON that *text* names; other words are ignored.
 *
 * @param {string} text For example `.customer.name .total`.
 * @returns {Path[]}
 */
export function parsePaths(text) {
  const words = text.split(/\s+/).filter((word) => /^\../.test(word));
  return words.map((word) => pathOf(word.slice(1)));
}

/**
 * Returns the members of a message that it has, with their values as text.
 *
 * @param {Matched} delivery
 * @param {readonly Path[]} paths
 * @returns {{ name: string, value: string }[]}
 */
export function membersAt(delivery, paths) {
  if (paths.length === 0) return [];
  const found = documentOf(delivery);
  return paths.flatMap((path) => {
    const value = valueAt(found, path);
    return value === undefined ? [] : [{ name: path.join("."), value: textOf(value) }];
  });
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
  const [, path, sign = "=", value = ""] = word.match(MEMBER) ?? [];
  if (path !== undefined) return memberCondition(pathOf(path), sign, unquoted(value).toLowerCase());
  const wanted = unquoted(word).toLowerCase();
  return ({ message }) =>
    message.id.includes(wanted) || message.body.slice(0, SEARCHED_CHARACTERS).toLowerCase().includes(wanted);
}

/** @param {string} text For example `customer.name`. @returns {Path} */
function pathOf(text) {
  return text.split(".");
}

/**
 * @param {Path} path
 * @param {string} sign Numbers are compared as such where it is not `=`.
 * @param {string} value In lower case.
 * @returns {Condition}
 */
function memberCondition(path, sign, value) {
  const compare = COMPARE[sign];
  return (delivery) => {
    const found = valueAt(documentOf(delivery), path);
    if (found === undefined) return false;
    const text = textOf(found);
    if (sign === "=" || compare === undefined) return text.toLowerCase() === value || isEqual(found, value);
    return text !== "" && value !== "" && compare(Number(text), Number(value));
  };
}

/** @param {string} text Returned without the quotes around it, if there are any. */
function unquoted(text) {
  return /^(["']).*\1$/s.test(text) && text.length > 1 ? text.slice(1, -1) : text;
}

/** @param {Matched} delivery @returns {unknown} Undefined if its body is no JSON, or too long. */
function documentOf(delivery) {
  if (!documents.has(delivery)) documents.set(delivery, parse(delivery.message.body));
  return documents.get(delivery);
}

/** @param {string} body @returns {unknown} */
function parse(body) {
  if (body.length > SEARCHED_CHARACTERS) return undefined;
  try {
    const found = JSON.parse(body);
    if (!MAY_CHANGE.test(body)) return found;
    return JSON.parse(body.replace(STRINGS_AND_NUMBERS, (text) => (text[0] === '"' ? text : `"\\u0000${text}"`)));
  } catch {
    return undefined;
  }
}

/**
 * @param {unknown} found
 * @param {Path} path
 * @returns {unknown} The value there; undefined: there is none.
 */
function valueAt(found, path) {
  for (const name of path) {
    if (typeof found !== "object" || found === null || !Object.hasOwn(found, name)) return undefined;
    found = /** @type {Record<string, unknown>} */ (found)[name];
  }
  return found;
}

/** @param {unknown} value @returns {string} Numbers as they are written. */
function textOf(value) {
  if (typeof value === "object" && value !== null) return JSON.stringify(value).replaceAll(EXACT_NUMBERS, "$1");
  const text = String(value);
  return text.startsWith(EXACT) ? text.slice(1) : text;
}

/**
 * @param {unknown} found
 * @param {string} text
 * @returns {boolean} Whether both are the same number, for example 27.0 and 27, and neither is rounded.
 */
function isEqual(found, text) {
  const isNumber = typeof found === "number" || (typeof found === "string" && found.startsWith(EXACT));
  const number = Number(textOf(found));
  return isNumber && text !== "" && number === Number(text) && Math.abs(number) <= Number.MAX_SAFE_INTEGER;
}
