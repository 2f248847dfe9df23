/** The user's choices in the browser's storage. Storage may be forbidden: then they apply until the page is closed. */

const PREFIX = "nsq-gateway.";

/** @param {string} name @returns {string | null} Null: nothing was chosen. */
export function recall(name) {
  try {
    return localStorage.getItem(PREFIX + name);
  } catch {
    return null;
  }
}

/**
 * @param {string} name
 * @param {string | null} choice Null: as if nothing had been chosen.
 */
export function remember(name, choice) {
  try {
    if (choice === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, choice);
  } catch {
    // Forbidden, or full.
  }
}
