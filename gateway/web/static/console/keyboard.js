/** The keys of the page. None of them counts while something is typed, or with Ctrl, Alt or Meta. */

/** @typedef {Record<string, () => void>} Keys What each key does, by `KeyboardEvent.key`. */

// Where arrows have a meaning of their own.
const OWN_ARROWS = '[role="tab"], [role="slider"]';

/**
 * Listens on the whole page.
 *
 * @param {Keys} keys
 */
export function listenToKeys(keys) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    const { target } = event;
    if (target instanceof Element) {
      if (target.closest("input, textarea, select, dialog")) return;
      if (event.key.startsWith("Arrow") && target.closest(OWN_ARROWS)) return;
    }
    const act = keys[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
  });
}
