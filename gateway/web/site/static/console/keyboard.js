/** Keyboard shortcuts. Ignored in form fields and dialogs, and with Ctrl, Alt or Meta. */

/** @typedef {Record<string, () => void>} Keys The action of each key, by `KeyboardEvent.key`. */

// Elements that use arrow keys themselves.
const OWN_ARROWS = '[role="tab"], [role="slider"]';

/**
 * Listens for keys on the whole page.
 *
 * @param {Keys} keys
 */
export function listenToKeys(keys) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    // Also where nothing in the dialog has the focus: Escape has to close it.
    if (document.querySelector("dialog[open]") !== null) return;
    const { target } = event;
    if (target instanceof Element) {
      if (target.closest("input, textarea, select")) return;
      if (event.key.startsWith("Arrow") && target.closest(OWN_ARROWS)) return;
    }
    const act = keys[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
  });
}
