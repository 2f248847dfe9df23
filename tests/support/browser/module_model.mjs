// A page that uses nsq.js at random, with a log of its calls, results and events.
//
// Every entry of the log has `what` and `at`, the milliseconds of `Date.now()`. A delivery is identified by
// `key`, its socket's number and its id.

const LONGEST_PAUSE_MS = 300;
const BEAT_MS = 20;

/** A seeded generator of numbers from 0 to 1. */
function chance(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Page {
  log = [];
  isCalm = false;
  #chance;
  #window = new EventTarget();
  #subscription;
  #sockets = 0;
  #socketOf = new Map();
  #calls = 0;
  #held = new Set();
  #tasks = [];

  constructor(nsq, WebSocket, { url, topic, seed, msgTimeoutMs }) {
    this.#chance = chance(seed);
    globalThis.addEventListener = (...given) => this.#window.addEventListener(...given);
    const options = { url, topic, channel: "c", maxInFlight: 4, msgTimeoutMs, WebSocket: this.#recording(WebSocket) };
    this.#subscription = nsq.subscribe(options);
    this.#subscription.addEventListener("state", ({ detail }) => this.#note("state", { state: detail.state }));
    this.#subscription.addEventListener("error", (event) => {
      event.preventDefault();
      const { code = event.detail.constructor.name, message } = event.detail;
      this.#note("error", { code, message });
    });
    this.ready = this.#subscription.ready;
    this.#tasks.push(this.#iterate());
    this.#measureLag();
  }

  /** Dispatches a network event of the browser: `online` or `offline`. */
  fire(name) {
    this.#window.dispatchEvent(new Event(name));
    this.#note("fired", { name, state: this.#subscription.state });
  }

  /** Resolves once the state is not `connected`. */
  async isNoticed() {
    while (this.#subscription.state === "connected") {
      await new Promise((resolve) => this.#subscription.addEventListener("state", resolve, { once: true }));
    }
  }

  /** Finishes all held and later messages. */
  calm() {
    this.isCalm = true;
    for (const [message, key] of this.#held) if (!message.isAnswered) this.#call("finish", message, key);
  }

  async close() {
    await this.#subscription.close();
    await Promise.all(this.#tasks);
    this.#note("closed", {});
  }

  /** Records the scheduling delays of this process, which the model has to tolerate. */
  #measureLag() {
    let last = performance.now();
    const beat = () => {
      const lateMs = performance.now() - last - BEAT_MS;
      last = performance.now();
      if (lateMs > BEAT_MS) this.#note("lag", { lateMs });
    };
    setInterval(beat, BEAT_MS).unref();
  }

  #note(what, more) {
    this.log.push({ what, at: Date.now(), ...more });
  }

  async #iterate() {
    for await (const message of this.#subscription) this.#tasks.push(this.#hold(message));
  }

  async #hold(message) {
    const key = `${this.#socketOf.get(message.id)}:${message.id}`;
    const { body, attempts, deadline } = message;
    this.#note("held", { key, body, attempts, deadline });
    message.signal.addEventListener("abort", () => this.#note("lost", { key }));
    const held = [message, key];
    this.#held.add(held);
    while (!message.isAnswered) {
      const dice = this.#chance();
      if (this.isCalm || (dice < 0.12 && !body.endsWith("-kept"))) this.#call("finish", message, key);
      else if (dice < 0.2 || message.deadline <= Date.now()) this.#call("requeue", message, key);
      else if (dice < 0.7) this.#call("touch", message, key);
      await pause(20 + LONGEST_PAUSE_MS * this.#chance());
    }
    this.#held.delete(held);
  }

  async #call(name, message, key) {
    const call = ++this.#calls;
    const answer = message[name]();
    this.#note("called", { call, name, key }); // behind it: the clock may go on in between
    const taken = await answer;
    this.#note("settled", { call, name, key, taken, deadline: message.deadline });
  }

  #recording(WebSocket) {
    const page = this;
    return class extends WebSocket {
      number = ++page.#sockets;
      sent = new Map();

      set onmessage(act) {
        super.onmessage =
          act &&
          ((event) => {
            for (const line of event.data.split("\n")) this.hear(JSON.parse(line));
            act(event);
          });
      }

      send(data) {
        for (const line of data.split("\n")) {
          const { cmd, ids, ref } = JSON.parse(line);
          if (!ids) continue;
          const keys = ids.map((id) => `${this.number}:${id}`);
          if (ref !== undefined) this.sent.set(ref, keys);
          page.#note("sent", { cmd, keys });
        }
        super.send(data);
      }

      hear({ type, id, ids = [id], cmd, ref }) {
        const named = ids.map((each) => `${this.number}:${each}`);
        const refused = type === "error" ? named : [];
        if (type === "message") page.#socketOf.set(id, this.number);
        else if (refused.length) page.#note("refused", { cmd, keys: refused });
        const keys = this.sent.get(ref)?.filter((key) => !refused.includes(key));
        if (keys) page.#note("confirmed", { cmd, keys });
      }
    };
  }
}
