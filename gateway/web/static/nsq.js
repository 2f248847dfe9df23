// @ts-check
// nsq-gateway's client: nsq.d.ts says what is promised.

const PARAMETERS = {
  topic: "topic",
  channel: "channel",
  maxInFlight: "max_in_flight",
  msgTimeoutMs: "msg_timeout_ms",
  ack: "ack",
  requeueOnCloseMs: "requeue_on_close_ms",
  maxAttempts: "max_attempts",
  sampleRate: "sample_rate",
};
const OPTIONS = [...Object.keys(PARAMETERS), "url", "secret", "maxQueuedChars", "signal", "WebSocket"];

const FINAL_CODES = [1000, 1002, 1003, 1007, 1009];
const FIRST_FINAL = 4500;
const SECRET_REFUSED = 4003;
const FULL = 1013;
const ABNORMAL = 1006;
const UPGRADE_REQUIRED = 426;
const OPEN = 1;
const CLOSED = "the subscription is closed";
const STANDINGS = ["connected", "disconnected", "channel_paused"];
const REFUSED_BEFORE_CLOSE = ["AUTH", "SUB", null];

const BACKOFF_MS = 500;
const BACKOFF_FULL_MS = 8_000;
const BACKOFF_LIMIT_MS = 30_000;
const TOLD_LIMIT_MS = 3_600_000;
const FORGIVEN_AFTER_MS = 10_000;
const CONNECT_MS = 65_000;
const EXPLAIN_MS = 5_000;
const SILENCE_MS = 20_000;
const ANSWER_MS = 5_000;
const PUBLISH_WAIT_MS = 10_000;
const REQUEUE_MS = 1_000;
const QUEUE_LIMIT_CHARS = 32 * 2 ** 20;
const ENVELOPE_CHARS = 200;
const UNSENT_LIMIT_BYTES = 16 * 2 ** 20;

export class NsqError extends Error {
  name = "NsqError";
  retryable = false;

  constructor(code, message, more = {}) {
    super(message);
    Object.assign(this, { code }, more);
  }
}

export function subscribe(options, work) {
  const unknown = Object.keys(options).find((name) => !OPTIONS.includes(name));
  if (unknown) throw new TypeError(`no option ${unknown}; there are ${OPTIONS.join(", ")}`);
  if (!(options.WebSocket ?? globalThis.WebSocket)) {
    throw new TypeError("no WebSocket here: give the class of the package ws as the option WebSocket");
  }
  return new Subscription(options, work);
}

class Message {
  #link;
  #bytes;
  #controller;

  static lose(message) {
    message.#controller ??= new AbortController();
    message.#controller.abort();
  }

  constructor(said, link) {
    const coded = said.body_base64;
    if (coded !== undefined) this.#bytes = Uint8Array.from(atob(coded), (char) => char.charCodeAt(0));
    this.#link = link;
    this.id = said.id;
    this.topic = said.topic;
    this.channel = said.channel;
    this.attempts = said.attempts;
    this.body = said.body ?? new TextDecoder().decode(this.#bytes);
    this.timestampNs = BigInt(said.timestamp_ns);
    this.deadline = Date.now() + said.deadline_ms;
  }

  get bytes() {
    return (this.#bytes ??= new TextEncoder().encode(this.body));
  }

  get isAnswered() {
    return !this.#link.held.has(this.id);
  }

  get signal() {
    return (this.#controller ??= new AbortController()).signal;
  }

  json() {
    return JSON.parse(this.body);
  }

  finish() {
    return this.#link.answer(this, "FIN");
  }

  requeue(delayMs = 0) {
    return this.#link.answer(this, "REQ", Math.round(Math.min(Math.max(0, delayMs), 2 ** 31)) || 0);
  }

  touch() {
    const isSent = this.#link.answer(this, "TOUCH");
    if (isSent) this.deadline = Date.now() + this.#link.msgTimeoutMs;
    return isSent;
  }
}

/** One connection, from the first try to its end. */
class Link {
  held = new Map();
  wasOpen = false;
  subscribedAt = 0;
  msgTimeoutMs = 0;
  comeBackMs;
  lastError;
  #socket;
  #owner;
  #timer;
  #heardAt = 0;
  #answers = [];
  // Ends the turn of the event loop. No timer: hidden tabs run those once a minute.
  #turn = new MessageChannel();
  #asked = new Map();
  #lastRef = 0;

  constructor(socket, secret, owner) {
    this.#socket = socket;
    this.#owner = owner;
    socket.onopen = () => {
      this.wasOpen = true;
      this.watch();
      if (secret) this.ask({ cmd: "AUTH", secret }).catch(() => {}); // the close tells
    };
    socket.onmessage = ({ data }) => {
      this.#heardAt = Date.now();
      for (const line of String(data).split("\n")) {
        try {
          this.#take(JSON.parse(line));
        } catch (error) {
          this.#owner?.heard(this, error);
        }
      }
    };
    socket.onerror = () => {}; // onclose follows
    socket.onclose = ({ code, reason }) => this.#end({ code, reason });
    this.#turn.port1.onmessage = () => this.flush();
    this.#after(CONNECT_MS, () => this.drop("the gateway did not answer in time"));
  }

  send(...commands) {
    const isOpen = this.#socket.readyState === OPEN;
    if (isOpen) this.#socket.send(commands.map((command) => JSON.stringify(command)).join("\n"));
    return isOpen;
  }

  async ask(command) {
    if (this.#socket.bufferedAmount > UNSENT_LIMIT_BYTES) {
      throw new NsqError("OVERLOADED", `over ${UNSENT_LIMIT_BYTES} bytes wait to be sent`, { retryable: true });
    }
    const ref = ++this.#lastRef;
    if (!this.send({ ...command, ref })) throw notSent("the connection is lost", true);
    const answer = deferred();
    this.#asked.set(ref, answer);
    return answer.promise;
  }

  answer(message, cmd, timeout_ms) {
    const { id, isAnswered } = message;
    if (isAnswered || this.#socket.readyState !== OPEN) return false;
    if (cmd !== "TOUCH") this.held.delete(id);
    if (!this.#answers.length) this.#turn.port2.postMessage(0);
    const last = this.#answers.at(-1);
    if (last?.cmd === cmd && last.timeout_ms === timeout_ms) last.ids.push(id);
    else this.#answers.push({ cmd, ids: [id], timeout_ms });
    return true;
  }

  flush() {
    if (this.#answers.length) this.send(...this.#answers.splice(0));
  }

  lose(ids) {
    for (const id of ids) {
      const lost = this.held.get(id);
      if (this.held.delete(id)) Message.lose(lost);
    }
  }

  /** Pages see no pings. The gateway is asked twice: who slept hears late. */
  watch(asked = 0) {
    if (!this.wasOpen) return;
    const since = Date.now();
    if (asked) this.send({ cmd: "NOP", ref: 0 });
    this.#after(asked ? ANSWER_MS : SILENCE_MS, () => {
      if (this.#heardAt >= since) this.watch();
      else if (asked < 2) this.watch(asked + 1);
      else this.drop("the gateway does not answer any more");
    });
  }

  drop(reason) {
    this.#socket.terminate?.(); // ws would wait for the other side
    this.#socket.close();
    this.#end({ code: ABNORMAL, reason });
  }

  #after(delayMs, act) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(act, delayMs);
  }

  #take(said) {
    const { type, cmd, ref, data, code, message, retryable, id, ids = id && [id] } = said;
    const error = type === "error" && new NsqError(code, message, { retryable, cmd, ids });
    if (error && REFUSED_BEFORE_CLOSE.includes(cmd)) this.lastError = error;
    const asked = this.#asked.get(ref);
    this.#asked.delete(ref);
    if (!asked) this.#owner?.heard(this, error || said);
    else if (error) asked.reject(error);
    else asked.resolve(data);
  }

  #end(closed) {
    clearTimeout(this.#timer);
    this.#turn.port1.close();
    const owner = this.#owner;
    this.#owner = this.#socket.onopen = this.#socket.onmessage = null;
    this.lose(this.held.keys());
    for (const { reject } of this.#asked.values()) {
      reject(new NsqError("OUTCOME_UNKNOWN", "the connection is lost: done or not, nobody knows"));
    }
    owner?.lost(this, closed);
  }
}

class Queue {
  dropped = 0;
  #limitChars;
  #chars = 0;
  #oldest = []; // the first is last: to take it moves no other
  #newest = [];
  #wanting = [];
  #end;

  constructor(limitChars) {
    this.#limitChars = limitChars;
  }

  put(message) {
    this.#newest.push(message);
    this.#chars += message.body.length + ENVELOPE_CHARS;
    for (; this.#chars > this.#limitChars; this.dropped++) this.#take();
    this.#wanting.shift()?.();
  }

  async next() {
    for (;;) {
      const message = this.#take();
      if (!message && this.#end) return this.#end();
      if (!message) await new Promise((resolve) => this.#wanting.push(resolve));
      else if (message.isAnswered || message.deadline > Date.now()) return message;
      else message.requeue(); // it holds its place in the window still
    }
  }

  takeAll() {
    this.#chars = 0;
    return [...this.#oldest.splice(0).reverse(), ...this.#newest.splice(0)];
  }

  end(error) {
    this.#end = () => {
      if (error) throw error;
    };
    for (const resolve of this.#wanting.splice(0)) resolve();
  }

  #take() {
    if (!this.#oldest.length) this.#oldest = this.#newest.splice(0).reverse();
    const message = this.#oldest.pop();
    if (message) this.#chars -= message.body.length + ENVELOPE_CHARS;
    return message;
  }
}

export class Subscription extends EventTarget {
  nsqds;
  #options;
  #work;
  #url;
  #isAuto;
  #window;
  #state = "connecting";
  #link;
  #ready = deferred();
  #closed = deferred();
  #queue;
  #waiting = new Set();
  #failures = 0;
  #timer;
  #listening = new AbortController();

  constructor(options, work) {
    super();
    this.#options = options;
    this.#work = work;
    this.#url = addressOf(options);
    this.#isAuto = options.ack ? options.ack === "auto" : (options.channel ?? "") === "";
    this.#queue = new Queue(this.#isAuto ? Math.max(0, options.maxQueuedChars ?? QUEUE_LIMIT_CHARS) : Infinity);
    this.ready = this.#ready.promise;
    this.closed = this.#closed.promise;
    const { signal } = this.#listening;
    for (const name of ["online", "visibilitychange"]) {
      globalThis.addEventListener?.(name, () => this.#stir(), { signal, capture: true });
    }
    options.signal?.addEventListener("abort", () => this.close(), { signal });
    if (options.signal?.aborted) this.close();
    else this.#connect();
  }

  get state() {
    return this.#state;
  }

  get dropped() {
    return this.#queue.dropped;
  }

  async *[Symbol.asyncIterator]() {
    let message;
    try {
      while ((message = await this.#queue.next())) yield message;
    } finally {
      this.#queue.end();
      for (const left of [message, ...this.#queue.takeAll()]) left?.requeue();
      await this.close().catch(() => {});
    }
  }

  setMaxInFlight(count) {
    this.#window = count;
    if (count === 0) this.#url.searchParams.set(PARAMETERS.maxInFlight, 1);
    if (this.#link?.subscribedAt) this.#link.send({ cmd: "RDY", count });
  }

  async publish(topic, body, { deferMs = 0, timeoutMs = PUBLISH_WAIT_MS } = {}) {
    const command = deferMs === 0 ? { cmd: "PUB" } : { cmd: "DPUB", defer_ms: deferMs };
    const content = typeof body === "string" ? { body } : { body_base64: toBase64(body) };
    await this.#ask({ ...command, topic, ...content }, timeoutMs);
  }

  async publishAll(topic, bodies, { timeoutMs = PUBLISH_WAIT_MS } = {}) {
    const areText = bodies.every((body) => typeof body === "string");
    const content = areText ? { bodies } : { bodies_base64: bodies.map(toBase64) };
    await this.#ask({ cmd: "MPUB", topic, ...content }, timeoutMs);
  }

  close() {
    if (!this.#isEnding) {
      this.#link?.flush();
      if (this.#link?.subscribedAt && this.#link.send({ cmd: "CLS" })) this.#become("closing");
      else this.#end({ code: 1000, reason: "closed without a connection" });
    }
    return this.closed;
  }

  get #isEnding() {
    return ["closing", "closed"].includes(this.#state);
  }

  #heard(link, said) {
    const { type, cmd, data, ids } = said;
    if (type === "message") this.#deliver(link, said);
    else if (said instanceof Error) {
      this.#lose(link, ids ?? []);
      this.#report(said);
    } else if (cmd === "SUB") this.#subscribed(link, data);
    else if (cmd === "CLS") link.comeBackMs = data.reconnect_after_ms;
    else if (data?.state) {
      this.nsqds = data.nsqds;
      this.#lose(link, data.lost_ids ?? []);
      if (!this.#isEnding && STANDINGS.includes(data.state)) this.#become(data.state);
    }
  }

  #lost(link, closed) {
    this.#lose(link, []);
    if (link !== this.#link) return;
    this.#link = this.nsqds = undefined;
    if (this.#isEnding) return this.#end(closed);
    const { code, reason } = closed;
    const { wasOpen, subscribedAt, comeBackMs, lastError } = link;
    const needsAnother = code === SECRET_REFUSED && typeof this.#options.secret !== "function";
    if (FINAL_CODES.includes(code) || code >= FIRST_FINAL || needsAnother) {
      const text = `${lastError?.message ?? reason} (closed with ${code})`;
      return this.#end(closed, new NsqError(lastError?.code ?? "CLOSED", text, { status: code }));
    }
    if (!wasOpen) return this.#explain();
    if (subscribedAt && Date.now() - subscribedAt > FORGIVEN_AFTER_MS) this.#failures = 0;
    this.#retry(closed, comeBackMs);
  }

  #lose(link, ids) {
    link.lose(ids);
    if (this.#isAuto) return;
    for (const message of this.#queue.takeAll()) if (!message.isAnswered) this.#queue.put(message);
  }

  #subscribed(link, { msg_timeout_ms }) {
    link.subscribedAt = Date.now();
    link.msgTimeoutMs = msg_timeout_ms;
    if (this.#window !== undefined) link.send({ cmd: "RDY", count: this.#window });
    this.#become("connected");
    for (const { resolve } of [this.#ready, ...this.#waiting]) resolve();
  }

  #deliver(link, said) {
    const message = new Message(said, link);
    if (!this.#isAuto) link.held.set(message.id, message);
    if (this.#isEnding) return message.requeue(); // after CLS
    if (this.#work) this.#run(message);
    else this.#queue.put(message);
  }

  async #run(message) {
    try {
      await this.#work(message);
      message.finish();
    } catch (error) {
      this.#report(error);
      message.requeue(REQUEUE_MS * message.attempts ** 2);
    }
  }

  async #ask(command, timeoutMs) {
    if (this.#state !== "closed" && !this.#link?.subscribedAt) {
      const waiter = deferred();
      this.#waiting.add(waiter);
      const late = notSent(`there was no connection within ${timeoutMs} ms`, true);
      const timer = setTimeout(waiter.reject, Math.min(timeoutMs, TOLD_LIMIT_MS), late);
      await waiter.promise.finally(() => {
        clearTimeout(timer);
        this.#waiting.delete(waiter);
      });
    }
    if (!this.#link) throw notSent(CLOSED);
    await this.#link.ask(command);
  }

  async #connect() {
    this.#become("connecting");
    const { secret, WebSocket = globalThis.WebSocket } = this.#options;
    const ask = async () => (typeof secret === "function" ? secret() : secret);
    const owner = { heard: this.#heard.bind(this), lost: this.#lost.bind(this) };
    try {
      const told = await ask();
      if (!this.#isEnding) this.#link = new Link(new WebSocket(this.#url.href, ["nsq.json.v1"]), told, owner);
    } catch (error) {
      if (!this.#isEnding) this.#report(error);
      this.#retry({ code: ABNORMAL, reason: String(error) });
    }
  }

  /** Asks over HTTP why no socket opened: a browser does not tell. */
  async #explain() {
    const { href, origin } = this.#url;
    const text = `${origin} cannot be reached, or does not let this page in (--allow-origin)`;
    const error = new NsqError("NO_CONNECTION", text, { retryable: true });
    let toldMs;
    try {
      const answer = await fetch(href.replace("ws", "http"), { signal: AbortSignal.timeout(EXPLAIN_MS) });
      const { status, headers } = answer;
      error.message = `${origin} answers ${status}, but no WebSocket opens`;
      toldMs = 1_000 * headers.get("retry-after");
      if (status !== UPGRADE_REQUIRED) {
        const { message: code, detail: message, retryable } = await answer.json();
        if (retryable !== undefined) Object.assign(error, { code, message, retryable, status });
      }
    } catch {} // what is known by now is told
    if (this.#isEnding) return;
    const closed = { code: ABNORMAL, reason: error.message };
    if (!error.retryable) return this.#end(closed, error);
    this.#report(error);
    this.#retry(closed, toldMs);
  }

  /** With full jitter: those who were cut off together do not come back together. */
  #retry(closed, toldMs) {
    if (this.#isEnding) return;
    const backoffMs = (closed.code === FULL ? BACKOFF_FULL_MS : BACKOFF_MS) * 2 ** this.#failures++;
    const leastMs = Math.min(Math.max(0, Number(toldMs) || 0), TOLD_LIMIT_MS);
    const retryInMs = leastMs + Math.random() * Math.min(BACKOFF_LIMIT_MS, backoffMs);
    this.#timer = setTimeout(() => this.#connect(), retryInMs);
    this.#become("waiting", { ...closed, retryInMs });
  }

  #stir() {
    this.#link?.flush();
    if (globalThis.document?.hidden) return;
    this.#link?.watch(1);
    if (this.#state !== "waiting") return;
    clearTimeout(this.#timer);
    this.#connect();
  }

  #become(state, detail = {}) {
    this.#state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, ...detail } }));
  }

  #report(error) {
    if (this.dispatchEvent(new CustomEvent("error", { detail: error, cancelable: true }))) console.warn(error);
  }

  #end(closed, error) {
    const link = this.#link;
    this.#link = undefined;
    this.#become("closed", closed);
    clearTimeout(this.#timer);
    this.#listening.abort();
    link?.drop(closed.reason);
    for (const { reject } of [this.#ready, ...this.#waiting]) reject(error ?? notSent(CLOSED));
    if (error) this.#closed.reject(error);
    else this.#closed.resolve(closed);
    this.#queue.end(error);
    if (error) this.#report(error);
  }
}

function addressOf(options) {
  const own = new URL(".", import.meta.url ?? "file:");
  const url = new URL(options.url ?? own, globalThis.location?.href);
  if (!/^(http|ws)s?:$/.test(url.protocol)) {
    throw new TypeError(`url is ${url}: name the gateway, as in url: "http://127.0.0.1:8080"`);
  }
  url.protocol = url.protocol.replace("http", "ws");
  url.pathname = url.pathname.replace(/(\/sub)?\/*$/, "/sub");
  url.search = url.hash = "";
  for (const [name, parameter] of Object.entries(PARAMETERS)) {
    if ((options[name] ?? "") !== "") url.searchParams.set(parameter, options[name]);
  }
  return url;
}

function deferred() {
  let settle;
  const promise = new Promise((resolve, reject) => (settle = { resolve, reject }));
  promise.catch(() => {}); // an event tells it too
  return { promise, ...settle };
}

function notSent(why, retryable = false) {
  return new NsqError("NO_CONNECTION", `${why}: nothing was sent`, { retryable });
}

function toBase64(body) {
  // An object first: of a number there would be so many zeros.
  const bytes = typeof body === "string" ? new TextEncoder().encode(body) : new Uint8Array(Object(body));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}
