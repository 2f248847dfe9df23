/** Keyboard shortcuts. Ignored in form fields and dialogs, and with Ctrl, Alt or Meta. */

/** @typedef {Record<string, () => void>} Keys The action of each key, by `KeyboardEvent.key`. */

// Elements that use arrow keys themselves.
const OWN_ARROWS = '[role="tab"], [role="slider"]';

/**
 * Listens for keys, wherever the focus is.
 *
 * @param {Keys} keys
 * @param {() => boolean} [isActive] Returns whether the page shows what the keys act on; else the browser gets them.
 */
export function listenToKeys(keys, isActive = () => true) {
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
    if (act === undefined || !isActive()) return;
    event.preventDefault();
    act();
  });
}
