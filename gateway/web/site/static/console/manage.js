/**
 * The dialog that creates, pauses, empties and deletes a topic or a channel on every nsqd.
 *
 * What destroys messages says how many, and is done once their name has been typed. A pause can be undone at once.
 */

import { announce, byId, part, setText, setTone, stamp } from "./elements.js";
import { count, plural } from "./format.js";
import { countsOf, describeLoss } from "./report.js";
import { post } from "./requests.js";

/**
 * @typedef {import("./report.js").Report} Report
 * @typedef {"create" | "pause" | "unpause" | "empty" | "delete"} Action
 * @typedef {{ topic: string, channel: string }} Subject A channel, or with an empty channel a topic.
 */

/** @type {Record<Action, string>} */
const DONE = {
  create: "Created",
  pause: "Paused",
  unpause: "Unpaused",
  empty: "Emptied",
  delete: "Deleted",
};
/** @type {Partial<Record<Action, Action>>} */
const UNDO = { pause: "unpause", unpause: "pause" };

export class Manage {
  #dialog = byId("manage", HTMLDialogElement);
  #result = byId("manage-result", HTMLElement);
  #undo = byId("manage-undo", HTMLButtonElement);
  #form = byId("manage-new", HTMLFormElement);
  #topic = byId("manage-topic", HTMLInputElement);
  #channel = byId("manage-channel", HTMLInputElement);
  #handlers;
  /** @type {SubjectSection[]} */
  #sections = [];
  /** @type {Report | null} */
  #report = null;
  /** @type {(() => void) | null} */
  #undoLast = null;
  /** True while a request is pending. */
  #isBusy = false;

  /**
   * @param {object} handlers
   * @param {() => string} handlers.secret Returns the secret for requests; empty: none.
   * @param {(topic: string, channel: string) => string} handlers.whyNot Returns why it is not allowed.
   * @param {(action: Action | null, subject: Subject) => void} handlers.onDone Called after each
   *   action; null: it has failed.
   */
  constructor(handlers) {
    this.#handlers = handlers;
    byId("manage-close", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("cancel", (event) => {
      // Escape leaves the question first, then the dialog.
      if (this.#sections.some((section) => section.cancel())) event.preventDefault();
    });
    this.#undo.addEventListener("click", () => this.#undoLast?.());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#create();
    });
  }

  /** Asks for the name of a new topic, and of a channel of it. */
  openNew() {
    this.#form.reset();
    this.#choose([]);
    this.#dialog.showModal();
    this.#topic.focus();
  }

  /**
   * @param {string} topic
   * @param {string} channel Empty: only the topic.
   */
  open(topic, channel) {
    const subjects =
      channel === ""
        ? [{ topic, channel }]
        : [
            { topic, channel },
            { topic, channel: "" },
          ];
    this.#choose(subjects);
    this.#dialog.showModal();
  }

  /** @param {readonly Subject[]} subjects What the dialog is about; none: a name is asked for. */
  #choose(subjects) {
    this.#sections = subjects.map((subject) => new SubjectSection(subject, (action) => this.#do(action, subject)));
    byId("manage-subjects", HTMLElement).replaceChildren(...this.#sections.map(({ root }) => root));
    this.#form.hidden = subjects.length > 0;
    this.#tell("", "");
    this.#draw();
  }

  /** Creates what was named, unless it is there. */
  #create() {
    const subject = { topic: this.#topic.value, channel: this.#channel.value };
    const { topic, channel } = subject;
    const isThere = this.#report !== null && countsOf(this.#report, topic, channel) !== null;
    const whyNot = isThere ? `There is a ${nameOf(subject)} already.` : this.#handlers.whyNot(topic, channel);
    if (whyNot !== "") return this.#tell(whyNot, "bad");
    this.#choose([subject]);
    byId("manage-close", HTMLButtonElement).focus();
    this.#do("create", subject);
  }

  /** @param {Report} report */
  show(report) {
    this.#report = report;
    if (this.#dialog.open) this.#draw();
  }

  #draw() {
    for (const section of this.#sections) {
      const { topic, channel } = section.subject;
      section.show(this.#report, this.#handlers.whyNot(topic, channel), this.#isBusy);
    }
  }

  /**
   * @param {Action} action
   * @param {Subject} subject
   */
  async #do(action, subject) {
    const what = nameOf(subject);
    this.#isBusy = true;
    this.#draw();
    const { topic, channel } = subject;
    const path = channel === "" ? `topic/${action}` : `channel/${action}`;
    /** @type {Record<string, string>} */
    const names = channel === "" ? { topic } : { topic, channel };
    const isLoss = action === "empty" || action === "delete";
    const had = isLoss && this.#report !== null ? describeLoss(this.#report, topic, channel, action) : "";
    const trouble = await post(path, names, this.#handlers.secret());
    this.#isBusy = false;
    this.#draw();
    const done = `${DONE[action]} ${what} on every nsqd${had && `; it had ${had}`}.`;
    this.#tell(trouble || done, trouble === "" ? "good" : "bad");
    const back = trouble === "" ? UNDO[action] : undefined;
    this.#undoLast = back === undefined ? null : () => this.#do(back, subject);
    this.#undo.hidden = back === undefined;
    this.#handlers.onDone(trouble === "" ? action : null, subject);
  }

  /**
   * @param {string} text
   * @param {"" | "good" | "bad"} tone
   */
  #tell(text, tone) {
    setText(this.#result, text);
    setTone(this.#result, tone);
    this.#result.hidden = text === "";
    this.#undo.hidden = true;
    if (text !== "") announce(text);
  }
}

/** One topic or channel in the dialog: its numbers, its actions, and the question before one that destroys. */
class SubjectSection {
  root = stamp("manage-subject");
  /** @type {Report | null} */
  #report = null;
  /** @type {"empty" | "delete" | null} */
  #asked = null;
  #onAction;
  #form = part(this.root, "confirm");
  #typed = input(this.root, "typed");

  /**
   * @param {Subject} subject
   * @param {(action: Action) => void} onAction
   */
  constructor(subject, onAction) {
    this.subject = subject;
    this.#onAction = onAction;
    setText(part(this.root, "title"), nameOf(subject));
    setText(part(this.root, "word"), this.#word);
    for (const button of this.#buttons()) button.addEventListener("click", () => this.#press(button));
    this.#typed.addEventListener("input", () => this.#checkTyped());
    part(this.root, "cancel").addEventListener("click", () => this.#ask(null));
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#asked === null || this.#typed.value !== this.#word) return;
      this.#onAction(this.#asked);
      this.#ask(null);
    });
  }

  /**
   * @param {Report | null} report
   * @param {string} whyNot Why nothing is allowed; empty if it is.
   * @param {boolean} isBusy While a request is pending, there is no other one.
   */
  show(report, whyNot, isBusy) {
    const { topic, channel } = this.subject;
    this.#report = report;
    const counts = report === null ? null : countsOf(report, topic, channel);
    const isPaused = report !== null && isPausedItself(report, topic, channel);
    setText(part(this.root, "numbers"), describe(report, this.subject, isPaused));
    const denied = part(this.root, "denied");
    denied.hidden = whyNot === "";
    setText(denied, whyNot);
    for (const button of this.#buttons()) {
      const { action } = button.dataset;
      button.disabled = isBusy || whyNot !== "";
      // Without a report nobody knows what is there: everything is offered, and the gateway decides.
      button.hidden =
        report !== null &&
        ((action === "create" && counts !== null) ||
          (action !== "create" && counts === null) ||
          (action === "pause" && isPaused) ||
          (action === "unpause" && !isPaused));
    }
    if (this.#asked !== null) this.#showLoss(this.#asked);
  }

  /** Takes the question back. @returns {boolean} Whether there was one. */
  cancel() {
    const wasAsked = this.#asked !== null;
    if (wasAsked) this.#ask(null);
    return wasAsked;
  }

  /** What has to be typed. */
  get #word() {
    return this.subject.channel || this.subject.topic;
  }

  #buttons() {
    return [...this.root.querySelectorAll("button")].filter(({ dataset }) => dataset.action !== undefined);
  }

  /** @param {HTMLButtonElement} button */
  #press({ dataset: { action } }) {
    if (action === "empty" || action === "delete") this.#ask(action);
    else if (action === "create" || action === "pause" || action === "unpause") this.#onAction(action);
  }

  /** @param {"empty" | "delete" | null} action Null: nothing any more. */
  #ask(action) {
    this.#asked = action;
    this.#form.hidden = action === null;
    this.#typed.value = "";
    this.#checkTyped();
    // The hidden field would lose the focus to the page.
    if (action === null) return byId("manage-close", HTMLButtonElement).focus();
    this.#showLoss(action);
    setText(part(this.root, "go"), action === "empty" ? "Empty" : "Delete");
    this.#typed.focus();
  }

  /** @param {"empty" | "delete"} action */
  #showLoss(action) {
    const { topic, channel } = this.subject;
    const loss = this.#report === null ? "all its messages" : describeLoss(this.#report, topic, channel, action);
    const verb = action === "empty" ? "Empties" : "Deletes";
    setText(part(this.root, "loss"), `${verb} ${nameOf(this.subject)}: ${loss}. This cannot be undone.`);
  }

  #checkTyped() {
    const go = part(this.root, "go");
    if (go instanceof HTMLButtonElement) go.disabled = this.#typed.value !== this.#word;
  }
}

/**
 * Unlike `isPaused`, a channel does not count as paused because its topic is: unpausing it would change nothing.
 *
 * @param {Report} report
 * @param {string} topicName
 * @param {string} channelName Empty: the topic.
 */
function isPausedItself({ topics }, topicName, channelName) {
  const topic = topics.find(({ name }) => name === topicName);
  if (channelName === "") return topic?.paused === true;
  return topic?.channels.find(({ name }) => name === channelName)?.paused === true;
}

/**
 * @param {HTMLElement} root
 * @param {string} name
 */
function input(root, name) {
  const found = part(root, name);
  if (!(found instanceof HTMLInputElement)) throw new Error(`${name} is no field: reload the page`);
  return found;
}

/** @param {Subject} subject */
function nameOf({ topic, channel }) {
  return channel === "" ? `topic ${topic}` : `channel ${channel} of topic ${topic}`;
}

/**
 * @param {Report | null} report
 * @param {Subject} subject
 * @param {boolean} isPaused
 */
function describe(report, { topic, channel }, isPaused) {
  if (report === null) return "Its numbers are not known.";
  const counts = countsOf(report, topic, channel);
  if (counts === null) return "No nsqd has it.";
  const { depth, inFlight, deferred, clients } = counts;
  // “Empty…” of a topic leaves the messages of its channels.
  const own = report.topics.find(({ name }) => name === topic)?.depth ?? 0;
  const parts = [
    `${plural(depth, "message")} waiting${channel === "" && own < depth ? ` (${count(depth - own)} in its channels)` : ""}`,
    `${plural(inFlight, "message")} in flight`,
    `${plural(deferred, "message")} deferred`,
    plural(clients, "consumer"),
  ];
  return `${isPaused ? "Paused; " : ""}${parts.join(", ")}.`;
}
