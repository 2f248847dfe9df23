/**
 * Light or dark theme: the system's choice, or the user's, kept in the browser's storage.
 *
 * The page is painted after this module has run, so that the wrong theme never flashes.
 */

import { recall, remember } from "./storage.js";

/** @type {readonly string[]} */
const THEMES = ["system", "light", "dark"];

apply(remembered());

/**
 * Makes `button` switch between the themes and show the current one.
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
    remember("theme", current());
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
  const theme = recall("theme") ?? "system";
  return THEMES.includes(theme) ? theme : "system";
}
