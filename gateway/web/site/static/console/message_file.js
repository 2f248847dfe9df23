/**
 * Saves messages as a file with one JSON object a line.
 */

import { isText } from "./body_text.js";

/**
 * @typedef {object} ExportedMessage
 * @property {string} id
 * @property {bigint} timestampNs
 * @property {number} attempts
 * @property {string} body
 * @property {Uint8Array} bytes
 */

/**
 * Offers the file to the browser, which saves it.
 *
 * @param {readonly ExportedMessage[]} messages
 * @param {string} topic
 * @param {string} channel Empty: none.
 * @returns {string} The name of the file: `orders-billing-2026-11-25T140307Z.ndjson`.
 */
export function saveMessages(messages, topic, channel) {
  const lines = messages.map((message) => `${lineOf(message)}\n`);
  const time = new Date().toISOString().slice(0, 19).replaceAll(":", "");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
  link.download = [topic, channel, `${time}Z.ndjson`].filter(Boolean).join("-");
  link.click();
  // The browser has read it by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  return link.download;
}

/** @param {ExportedMessage} message @returns {string} JSON with the members that the gateway sends. */
function lineOf({ id, timestampNs, attempts, body, bytes }) {
  const head = { id, timestamp_ns: String(timestampNs), attempts };
  if (isText(bytes)) return JSON.stringify({ ...head, body });
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return JSON.stringify({ ...head, body_base64: btoa(binary) });
}
