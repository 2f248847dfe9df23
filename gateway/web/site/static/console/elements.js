/**
 * Typed access to the elements of the page, and updates that skip unchanged values.
 */

/**
 * Returns the element with this id.
 *
 * @template {HTMLElement} Kind
 * @param {string} id
 * @param {new () => Kind} kind
 * @returns {Kind}
 * @throws {Error} index.html has no such element: the page and its modules have different versions.
 */
export function byId(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}: reload it`);
  return found;
}

/**
 * Returns the first element within `root` that has `data-part="<name>"`.
 *
 * @param {ParentNode} root
 * @param {string} name
 * @returns {HTMLElement}
 */
export function part(root, name) {
  const found = root.querySelector(`[data-part="${name}"]`);
  if (!(found instanceof HTMLElement)) throw new Error(`the page has no part ${name}: reload it`);
  return found;
}

/**
 * Returns a copy of the one element in a `<template>`.
 *
 * @param {string} templateId
 * @returns {HTMLElement}
 */
export function stamp(templateId) {
  const copy = byId(templateId, HTMLTemplateElement).content.firstElementChild?.cloneNode(true);
  if (!(copy instanceof HTMLElement)) throw new Error(`#${templateId} is empty: reload the page`);
  return copy;
}

/**
 * Sets the text of an element without other children, if it differs.
 *
 * @param {HTMLElement} element
 * @param {string} text
 */
export function setText(element, text) {
  const first = element.firstChild;
  if (first instanceof Text && first === element.lastChild) {
    if (first.data !== text) first.data = text;
  } else if (first !== null || text !== "") {
    element.textContent = text;
  }
}

/**
 * Makes *children* the children of an element. Those that are in place are not touched: moving an element takes the
 * focus from it, and has all of them laid out again.
 *
 * @param {HTMLElement} element
 * @param {readonly HTMLElement[]} children
 */
export function setChildren(element, children) {
  const focused = document.activeElement;
  const wanted = new Set(children);
  for (const child of [...element.children]) if (child instanceof HTMLElement && !wanted.has(child)) child.remove();
  let place = element.firstElementChild;
  for (const child of children) {
    if (child === place) place = place.nextElementSibling;
    else element.insertBefore(child, place);
  }
  const isMoved = focused !== document.activeElement && focused instanceof HTMLElement && element.contains(focused);
  if (isMoved) focused.focus({ preventScroll: true });
}

/**
 * Sets `data-tone`, which determines the colour.
 *
 * @param {HTMLElement} element
 * @param {"" | "good" | "warn" | "bad"} tone
 */
export function setTone(element, tone) {
  if (element.dataset.tone !== tone) element.dataset.tone = tone;
}

/**
 * Announces a text to screen readers. Use it for states, never for single messages.
 *
 * @param {string} text
 */
export function announce(text) {
  byId("announcer", HTMLElement).textContent = text;
}
