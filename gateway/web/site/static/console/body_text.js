/** PURE. Format the body of a message: shortened, as JSON, or as a hex dump. */

export const PREVIEW_CHARACTERS = 300;
const DIRECTION = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const BYTES_A_LINE = 16;
const JSON_TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/gs;

/**
 * @param {string} body
 * @param {number} characters
 * @returns {string} The first characters on one line, including an ellipsis.
 */
export function preview(body, characters) {
  const start = body.length > characters ? `${body.slice(0, characters - 1)}…` : body;
  return visible(start.replace(/\s+/g, " "));
}

/**
 * Returns *text* with an escape for each control character that changes the direction of text.
 *
 * Otherwise a body could show its members in another order than they have.
 *
 * @param {string} text
 */
export function visible(text) {
  return text.replace(DIRECTION, (control) => `\\u${control.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/**
 * Indents JSON. The tokens are kept as they are: parsing and serializing would round numbers beyond 2⁵³ and drop
 * duplicate members.
 *
 * @param {string} body
 * @returns {string | null} Null if the body is not a JSON object or array.
 */
export function indentedJson(body) {
  if (!/^\s*[{[]/.test(body)) return null;
  try {
    JSON.parse(body);
  } catch {
    return null;
  }
  return indent(body.match(JSON_TOKENS) ?? []);
}

/** @param {readonly string[]} tokens @returns {string} */
function indent(tokens) {
  let depth = 0;
  let text = "";
  const newLine = () => `\n${"  ".repeat(depth)}`;
  tokens.forEach((token, index) => {
    if (token === "{" || token === "[") {
      depth += 1;
      text += token;
      if (!isEnd(tokens[index + 1])) text += newLine();
    } else if (isEnd(token)) {
      depth -= 1;
      text += isStart(tokens[index - 1]) ? token : newLine() + token;
    } else if (token === ",") text += token + newLine();
    else text += token === ":" ? ": " : token;
  });
  return text;
}

/** @param {string | undefined} token */
function isStart(token) {
  return token === "{" || token === "[";
}

/** @param {string | undefined} token */
function isEnd(token) {
  return token === "}" || token === "]";
}

/**
 * @param {Uint8Array} bytes
 * @returns {boolean}
 */
export function isText(bytes) {
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return true;
  } catch {
    return false;
  }
}

/**
 * @param {Uint8Array} bytes
 * @returns {string} Lines with the offset, 16 bytes, and their ASCII characters.
 */
export function hexDump(bytes) {
  const lines = [];
  for (let start = 0; start < bytes.length; start += BYTES_A_LINE) {
    const here = [...bytes.subarray(start, start + BYTES_A_LINE)];
    const hex = here.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const ascii = here.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${hex.padEnd(BYTES_A_LINE * 3 - 1)}  ${ascii}`);
  }
  return lines.join("\n");
}
