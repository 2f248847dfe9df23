/**
 * The elements of the page, found by what they are, and changed only where they differ.
 */

/**
 * Returns the element with this id.
 *
 * @template {HTMLElement} Kind
 * @param {string} id
 * @param {new () => Kind} kind
 * @returns {Kind}
 * @throws {Error} index.html has no such element: the page and its modules are of two versions.
 */
export function byId(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no #${id} that is a ${kind.name}: reload it`);
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
 * Returns a copy of the one element that stands in a `<template>`.
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
 * Sets the text of an element that has no other children; what is there already costs nothing.
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
 * Sets `data-tone`, which gives a word its colour.
 *
 * @param {HTMLElement} element
 * @param {"" | "good" | "warn" | "bad"} tone
 */
export function setTone(element, tone) {
  if (element.dataset.tone !== tone) element.dataset.tone = tone;
}

/**
 * Tells those who hear the page instead of seeing it. States, never single messages.
 *
 * @param {string} text
 */
export function announce(text) {
  byId("announcer", HTMLElement).textContent = text;
}
