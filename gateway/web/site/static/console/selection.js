/**
 * What is done with all messages that the list shows: answer those in flight, or export them.
 */

import { announce, byId, setText, setTone } from "./elements.js";
import { plural } from "./format.js";
import { saveMessages } from "./message_file.js";

/** @typedef {import("./delivery.js").Delivery} Delivery */

export class Selection {
  #handlers;
  #finish = byId("finish-all", HTMLButtonElement);
  #requeue = byId("requeue-all", HTMLButtonElement);
  #export = byId("export", HTMLButtonElement);
  #result = byId("selection-result", HTMLElement);
  #dialog = byId("finish-all-dialog", HTMLDialogElement);
  #isBusy = false;

  /**
   * @param {object} handlers
   * @param {() => readonly Delivery[]} handlers.shown Returns the deliveries that the list shows, newest first.
   * @param {(kind: "FIN" | "REQ", delivery: Delivery) => Promise<boolean>} handlers.answer
   * @param {() => string} handlers.where Describes which deliveries are shown.
   * @param {() => { topic: string, channel: string }} handlers.subject Returns what is subscribed.
   */
  constructor(handlers) {
    this.#handlers = handlers;
    this.#finish.addEventListener("click", () => this.#askToFinish());
    this.#requeue.addEventListener("click", () => this.#answerAll("REQ", this.#inFlight()));
    this.#export.addEventListener("click", () => this.#save());
  }

  /** Shows how many there are. */
  tick() {
    const waiting = this.#inFlight().length;
    this.#finish.disabled = this.#requeue.disabled = this.#isBusy || waiting === 0;
    setText(this.#finish, waiting === 0 ? "FIN all" : `FIN all ${waiting}`);
    setText(this.#requeue, waiting === 0 ? "REQ all" : `REQ all ${waiting}`);
    this.#export.disabled = this.#handlers.shown().length === 0;
  }

  #inFlight() {
    return this.#handlers.shown().filter(({ isInFlight }) => isInFlight);
  }

  #askToFinish() {
    const deliveries = this.#inFlight();
    const what = `${plural(deliveries.length, "message")} ${this.#handlers.where()} will be finished: no consumer gets them again.`;
    setText(byId("finish-all-what", HTMLElement), what);
    const go = () => this.#dialog.returnValue === "go" && this.#answerAll("FIN", deliveries);
    this.#dialog.addEventListener("close", go, { once: true });
    this.#dialog.returnValue = "";
    this.#dialog.showModal();
  }

  /**
   * @param {"FIN" | "REQ"} kind
   * @param {readonly Delivery[]} deliveries
   */
  async #answerAll(kind, deliveries) {
    this.#isBusy = true;
    this.tick();
    const word = kind === "FIN" ? "finished" : "requeued";
    let done = 0;
    let answered = 0;
    const each = deliveries.map(async (delivery) => {
      if (await this.#handlers.answer(kind, delivery)) done += 1;
      answered += 1;
      this.#tell(`${answered} of ${deliveries.length} answered …`, "");
    });
    await Promise.all(each);
    const refused = deliveries.length - done;
    const text = `${plural(done, "message")} ${word}${refused === 0 ? "" : `, ${plural(refused, "message")} refused`}.`;
    this.#tell(text, refused === 0 ? "good" : "bad");
    announce(text);
    this.#isBusy = false;
    this.tick();
  }

  /**
   * @param {string} text
   * @param {"" | "good" | "bad"} tone
   */
  #tell(text, tone) {
    this.#result.hidden = text === "";
    setText(this.#result, text);
    setTone(this.#result, tone);
  }

  #save() {
    const messages = this.#handlers.shown().map(({ message }) => message);
    const { topic, channel } = this.#handlers.subject();
    const name = saveMessages(messages, topic, channel);
    this.#tell(`${plural(messages.length, "message")} exported to ${name}.`, "good");
  }
}
