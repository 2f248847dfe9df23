/**
 * The parameters of the page that is shown, in its address after a question mark: `#/?filter=orders&channels=-depth`.
 *
 * A reload or a shared link shows the same. Another page's address has none of it.
 */

/**
 * PURE. Splits the part of an address after the #.
 *
 * @param {string} hash For example `#/topics/orders?nodes=-depth`.
 * @returns {{ path: string, query: URLSearchParams }}
 */
export function splitHash(hash) {
  const [path = "", query = ""] = hash.split("?");
  return { path, query: new URLSearchParams(query) };
}

/**
 * @param {string} name
 * @returns {string} Empty if the address does not have it.
 */
export function getParameter(name) {
  return splitHash(location.hash).query.get(name) ?? "";
}

/**
 * Puts a value into the address, without an entry in the history.
 *
 * @param {string} name
 * @param {string} value Empty removes it.
 */
export function setParameter(name, value) {
  const { path, query } = splitHash(location.hash);
  if (value === "") query.delete(name);
  else query.set(name, value);
  const text = query.toString();
  history.replaceState(null, "", `${path || "#/"}${text && `?${text}`}`);
}
