/**
 * Light or dark: the system's choice, or the one made here, which this browser remembers.
 *
 * The page waits for this module before it is painted, so that no other theme flashes up.
 */

const KEY = "nsq-gateway.theme";
/** @type {readonly string[]} */
const THEMES = ["system", "light", "dark"];

apply(remembered());

/**
 * Makes `button` go through the themes and tell which one holds.
 *
 * @param {HTMLButtonElement} button
 */
export function offerThemes(button) {
  const word = button.querySelector("b");
  const show = () => {
    if (word !== null) word.textContent = current();
  };
  button.addEventListener("click", () => {
    apply(THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length] ?? "system");
    remember(current());
    show();
  });
  show();
}

/** @returns {string} */
function current() {
  return document.documentElement.dataset.theme ?? "system";
}

/** @param {string} theme */
function apply(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

/** @returns {string} */
function remembered() {
  try {
    const theme = localStorage.getItem(KEY) ?? "system";
    return THEMES.includes(theme) ? theme : "system";
  } catch {
    return "system"; // a browser may forbid storage
  }
}

/** @param {string} theme */
function remember(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // It holds until the page is left.
  }
}
