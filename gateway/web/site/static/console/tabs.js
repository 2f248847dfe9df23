/**
 * Tabs: on a phone one part of the page is visible at a time; on a desktop all parts are, without tabs.
 */

/** The media query for one part at a time, as in the style sheets. */
export const NARROW = "(max-width: 859px)";

export class Tabs {
  #buttons;
  #narrow = matchMedia(NARROW);
  /** Scroll position of each panel, since all panels share one scrolling element. @type {Map<HTMLElement, number>} */
  #scrolled = new Map();

  /** @param {HTMLElement} list Its buttons name their panels in `aria-controls`. */
  constructor(list) {
    this.#buttons = [...list.querySelectorAll("button")];
    list.addEventListener("click", ({ target }) => {
      const button = target instanceof Element ? target.closest("button") : null;
      if (button !== null) this.#open(button);
    });
    list.addEventListener("keydown", (event) => this.#key(event));
    this.#narrow.addEventListener("change", () => this.#adapt());
    this.#adapt();
  }

  /** @param {string} panelId The panel to show, where only one is visible at a time. */
  show(panelId) {
    const button = this.#buttons.find((each) => panelOf(each).id === panelId);
    if (button !== undefined && this.#narrow.matches) this.#open(button);
  }

  #adapt() {
    for (const button of this.#buttons) {
      const panel = panelOf(button);
      if (this.#narrow.matches) {
        panel.setAttribute("role", "tabpanel");
        panel.setAttribute("aria-labelledby", button.id);
      } else {
        panel.removeAttribute("role");
        panel.setAttribute("aria-labelledby", `${panel.id}-title`);
        panel.hidden = false;
      }
    }
    const chosen = this.#buttons.find((button) => button.getAttribute("aria-selected") === "true");
    if (this.#narrow.matches && chosen !== undefined) this.#open(chosen);
  }

  /** @param {HTMLButtonElement} chosen */
  #open(chosen) {
    const scroller = panelOf(chosen).closest("main");
    const before = this.#buttons.find((button) => button.getAttribute("aria-selected") === "true");
    if (before !== undefined) this.#scrolled.set(panelOf(before), scroller?.scrollTop ?? 0);
    for (const button of this.#buttons) {
      const isChosen = button === chosen;
      button.setAttribute("aria-selected", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
      panelOf(button).hidden = !isChosen;
    }
    if (scroller !== null) scroller.scrollTop = this.#scrolled.get(panelOf(chosen)) ?? 0;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const at = this.#buttons.findIndex((button) => button.matches(":focus"));
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const next = step && this.#buttons[(at + step + this.#buttons.length) % this.#buttons.length];
    if (!next) return;
    event.preventDefault();
    next.focus();
    this.#open(next);
  }
}

/**
 * @param {HTMLButtonElement} button
 * @returns {HTMLElement}
 */
function panelOf(button) {
  const panel = document.getElementById(button.getAttribute("aria-controls") ?? "");
  if (panel === null) throw new Error(`the tab ${button.id} has no panel: reload the page`);
  return panel;
}
