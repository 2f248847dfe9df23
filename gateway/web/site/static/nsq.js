// @ts-check
// Documented in nsq.d.ts.

const PARAMETERS = [
  "topic",
  "channel",
  "maxInFlight",
  "msgTimeoutMs",
  "ack",
  "requeueOnCloseMs",
  "maxAttempts",
  "sampleRate",
];
const OPTIONS = [...PARAMETERS, "url", "secret", "maxQueuedChars", "signal", "WebSocket"];

const FINAL_CODES = [1000, 1002, 1003, 1007, 1009];
const FIRST_FINAL = 4500;
const SECRET_REFUSED = 4003;
const FULL = 1013;
const ABNORMAL = 1006;
const UPGRADE_REQUIRED = 426;
const OPEN = 1;
const CLOSED = "the subscription is closed";
const NSQD_STATES = ["connected", "disconnected", "channel_paused"];

const BACKOFF_MS = 500;
const BACKOFF_FULL_MS = 8_000;
const BACKOFF_LIMIT_MS = 30_000;
const DELAY_LIMIT_MS = 3_600_000;
const STABLE_AFTER_MS = 10_000;
const CONNECT_MS = 65_000;
const SILENCE_MS = 20_000;
const ANSWER_MS = 5_000;
const PUBLISH_WAIT_MS = 10_000;
const REQUEUE_MS = 1_000;
const RENEWAL_MS = 1_000;
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
  if (unknown) throw new TypeError(`unknown option ${unknown}; options: ${OPTIONS.join(", ")}`);
  if (!(options.WebSocket ?? globalThis.WebSocket)) {
    throw new TypeError("no WebSocket: pass the class of the package ws as option WebSocket");
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

  constructor(frame, link) {
    const coded = frame.body_base64;
    if (coded !== undefined) this.#bytes = Uint8Array.from(atob(coded), (char) => char.charCodeAt(0));
    this.#link = link;
    this.id = frame.id;
    this.topic = frame.topic;
    this.channel = frame.channel;
    this.attempts = frame.attempts;
    this.body = frame.body ?? new TextDecoder().decode(this.#bytes);
    this.timestampNs = BigInt(frame.timestamp_ns);
    this.deadline = Date.now() + frame.deadline_ms;
  }

  get bytes() {
    return (this.#bytes ??= new TextEncoder().encode(this.body));
  }

  get isAnswered() {
    return !this.#link.inFlight.has(this.id);
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

  async touch() {
    const deadline = Date.now() + this.#link.msgTimeoutMs; // the gateway counts from later
    const isTouched = await this.#link.answer(this, "TOUCH");
    if (isTouched) this.deadline = deadline;
    return isTouched;
  }
}

class Link {
  inFlight = new Map();
  wasOpen = false;
  subscribedAt = 0;
  msgTimeoutMs = 0;
  reconnectAfterMs;
  lastError;
  #socket;
  #handlers;
  #timer;
  #isAlive = false;
  #answers = [];
  // Flushes once a turn. No timer: hidden tabs throttle those.
  #turn = new MessageChannel();
  #isProbing = false;
  #renewAt = Infinity;
  #renewal;
  #endsAt;
  #pending = new Map();
  #lastRef = 0;

  constructor(socket, secret, handlers) {
    this.#socket = socket;
    this.#handlers = handlers;
    socket.onopen = () => {
      this.wasOpen = true;
      this.watch();
      if (secret) this.#authenticate(secret).catch(() => {}); // a close follows
    };
    socket.onmessage = ({ data }) => {
      this.#isAlive = true;
      this.renewIfDue(); // a hidden tab's timers are late, its messages are not
      for (const line of String(data).split("\n")) {
        try {
          this.#take(JSON.parse(line));
        } catch (error) {
          this.#handlers?.onFrame(this, error);
        }
      }
    };
    socket.onerror = () => {}; // a close follows
    socket.onclose = ({ code, reason }) => this.#end({ code, reason });
    this.#turn.port1.onmessage = () => this.flush();
    this.#after(CONNECT_MS, () => this.drop("the gateway does not answer"));
  }

  send(...commands) {
    const isOpen = this.#socket.readyState === OPEN;
    if (isOpen) this.#socket.send(commands.map((command) => JSON.stringify(command)).join("\n"));
    return isOpen;
  }

  async ask(command) {
    if (this.#socket.bufferedAmount > UNSENT_LIMIT_BYTES) {
      throw new NsqError("OVERLOADED", `${UNSENT_LIMIT_BYTES} bytes are unsent`, { retryable: true });
    }
    const ref = ++this.#lastRef;
    if (!this.send({ ...command, ref })) throw notSent("the connection ended", true);
    const answer = deferred();
    this.#pending.set(ref, answer);
    return answer.promise;
  }

  /** Equal answers in a row share a ref; an error lists those refused. */
  async answer({ id, isAnswered }, cmd, timeout_ms) {
    if (this.#socket.readyState !== OPEN) this.lose([id]); // its close event may come later
    if (isAnswered || this.#socket.readyState !== OPEN) return false;
    if (cmd !== "TOUCH") this.inFlight.delete(id);
    if (!this.#answers.length) this.#turn.port2.postMessage(0);
    let last = this.#answers.at(-1);
    if (last?.cmd !== cmd || last.timeout_ms !== timeout_ms) {
      this.#answers.push((last = { cmd, ids: [], timeout_ms, ref: ++this.#lastRef }));
      this.#pending.set(last.ref, deferred());
    }
    last.ids.push(id);
    return this.#pending.get(last.ref).promise.then(
      () => true,
      ({ ids }) => ids?.includes(id) === false,
    );
  }

  flush() {
    const answers = this.#answers.splice(0);
    if (!answers.length) return;
    if (this.#isProbing) this.send(...answers);
    else this.watch(1, answers);
  }

  lose(ids) {
    for (const id of ids) {
      const lost = this.inFlight.get(id);
      if (this.inFlight.delete(id)) Message.lose(lost);
    }
  }

  /** Pages see no pings. Asks twice: a page that slept reads late. */
  watch(probes = 0, commands = [{ cmd: "NOP", ref: 0 }]) {
    if (!this.wasOpen) return;
    this.#isAlive = false;
    this.#isProbing = probes > 0;
    if (probes) this.send(...commands);
    this.#after(probes ? ANSWER_MS : SILENCE_MS, () => {
      if (this.#isAlive) this.watch(this.#pending.size && 1);
      else if (probes < 2) this.watch(probes + 1);
      else this.drop("the gateway does not answer");
    });
  }

  renewIfDue() {
    if (Date.now() >= this.#renewAt) this.#renew();
  }

  async #authenticate(secret) {
    const data = await this.ask({ cmd: "AUTH", secret });
    this.#planRenewal(Date.now() + data.expires_in_ms);
  }

  /** After 70 to 80 % of the time left, also after a failure; a second before the end, if there are two. */
  #planRenewal(endsAt) {
    const leftMs = endsAt - Date.now();
    if (!(leftMs > RENEWAL_MS && this.#handlers?.secret)) return;
    const share = 0.8 - Math.random() / 10;
    const waitMs = Math.max(RENEWAL_MS, Math.min(share * leftMs, leftMs - RENEWAL_MS));
    this.#endsAt = endsAt;
    this.#renewAt = Date.now() + waitMs;
    this.#renewAfter(waitMs);
  }

  #renewAfter(waitMs) {
    const moreMs = waitMs - DELAY_LIMIT_MS; // a timer holds 24 days
    const act = () => (moreMs > 0 ? this.#renewAfter(moreMs) : this.#renew());
    this.#renewal = setTimeout(act, Math.min(waitMs, DELAY_LIMIT_MS));
  }

  async #renew() {
    clearTimeout(this.#renewal);
    this.#renewAt = Infinity;
    try {
      await this.#authenticate(await Promise.resolve().then(this.#handlers.secret));
    } catch (error) {
      this.#handlers?.onError(error);
      if (error?.cmd !== "AUTH") this.#planRenewal(this.#endsAt); // the gateway did not refuse it
    }
  }

  drop(reason) {
    this.#socket.terminate?.(); // ws waits for the peer's close
    this.#socket.close();
    this.#end({ code: ABNORMAL, reason });
  }

  #after(delayMs, act) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(act, delayMs);
  }

  #take(frame) {
    const { type, cmd, ref, data, code, message, retryable, id, ids = id && [id] } = frame;
    const error = type === "error" && new NsqError(code, message, { retryable, cmd, ids });
    if (error && ["AUTH", "SUB", null].includes(cmd)) this.lastError = error;
    const pending = this.#pending.get(ref);
    this.#pending.delete(ref);
    if (!pending || ids) this.#handlers?.onFrame(this, error || frame);
    if (error) pending?.reject(error);
    else pending?.resolve(data);
  }

  #end(closed) {
    clearTimeout(this.#timer);
    clearTimeout(this.#renewal);
    this.#turn.port1.close();
    const handlers = this.#handlers;
    this.#handlers = this.#socket.onopen = this.#socket.onmessage = null;
    this.lose(this.inFlight.keys());
    for (const { reject } of this.#pending.values()) {
      reject(new NsqError("OUTCOME_UNKNOWN", "the connection ended before the answer"));
    }
    handlers?.onClose(this, closed);
  }
}

class Queue {
  dropped = 0;
  #limitChars;
  #chars = 0;
  #oldest = []; // reversed: pop() is cheap
  #newest = [];
  #waiters = [];
  #end;

  constructor(limitChars) {
    this.#limitChars = limitChars;
  }

  put(message) {
    this.#newest.push(message);
    this.#chars += message.body.length + ENVELOPE_CHARS;
    for (; this.#chars > this.#limitChars; this.dropped++) this.#take();
    this.#waiters.shift()?.();
  }

  async next() {
    for (;;) {
      const message = this.#take();
      if (!message && this.#end) return this.#end();
      if (!message) await new Promise((resolve) => this.#waiters.push(resolve));
      else if (message.isAnswered || message.deadline > Date.now()) return message;
      else message.requeue(); // frees its slot
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
    for (const resolve of this.#waiters.splice(0)) resolve();
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
    this.#url = subUrl(options);
    this.#isAuto = options.ack ? options.ack === "auto" : (options.channel ?? "") === "";
    this.#queue = new Queue(this.#isAuto ? Math.max(0, options.maxQueuedChars ?? QUEUE_LIMIT_CHARS) : Infinity);
    this.ready = this.#ready.promise;
    this.closed = this.#closed.promise;
    const { signal } = this.#listening;
    for (const name of ["offline", "online", "visibilitychange"]) {
      globalThis.addEventListener?.(name, ({ type }) => this.#onPageEvent(type), { signal, capture: true });
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
      // CLS goes before the REQs: nsqd would deliver them here again.
      const closed = this.close();
      for (const left of [message, ...this.#queue.takeAll()]) left?.requeue();
      await closed.catch(() => {});
    }
  }

  setMaxInFlight(count) {
    this.#window = count;
    if (count === 0) this.#url.searchParams.set("max_in_flight", 1);
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

  #onFrame(link, frame) {
    const { type, cmd, data, ids } = frame;
    if (type === "message") this.#deliver(link, frame);
    else if (frame instanceof Error) {
      this.#lose(link, ids);
      this.#report(frame);
    } else if (cmd === "SUB") this.#subscribed(link, data);
    else if (cmd === "CLS") {
      link.reconnectAfterMs = data.reconnect_after_ms;
      if (!this.#isEnding) this.#become("draining");
    } else if (data?.state) {
      this.nsqds = data.nsqds;
      this.#lose(link, data.lost_ids);
      if (NSQD_STATES.includes(this.#state) && NSQD_STATES.includes(data.state)) this.#become(data.state);
    }
  }

  #onClose(link, closed) {
    this.#lose(link);
    if (link !== this.#link) return;
    this.#link = this.nsqds = undefined;
    if (this.#isEnding) return this.#end(closed);
    const { code, reason } = closed;
    const { subscribedAt, lastError } = link;
    const needsNewSecret = code === SECRET_REFUSED && typeof this.#options.secret !== "function";
    if (FINAL_CODES.includes(code) || code >= FIRST_FINAL || needsNewSecret) {
      const text = `${lastError?.message ?? reason} (closed with ${code})`;
      return this.#end(closed, new NsqError(lastError?.code ?? "CLOSED", text, { status: code }));
    }
    if (!link.wasOpen) return this.#explain();
    if (subscribedAt && Date.now() - subscribedAt > STABLE_AFTER_MS) this.#failures = 0;
    this.#retry(closed, link.reconnectAfterMs);
  }

  #lose(link, ids = []) {
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

  #deliver(link, frame) {
    const message = new Message(frame, link);
    if (!this.#isAuto) link.inFlight.set(message.id, message);
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
      const late = notSent(`no connection within ${timeoutMs} ms`, true);
      const timer = setTimeout(waiter.reject, Math.min(timeoutMs, DELAY_LIMIT_MS), late);
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
    const { WebSocket = globalThis.WebSocket } = this.#options;
    const secret = typeof this.#options.secret === "function" && this.#options.secret;
    const handlers = {
      onFrame: this.#onFrame.bind(this),
      onClose: this.#onClose.bind(this),
      onError: this.#report.bind(this),
      secret,
    };
    try {
      const given = await Promise.resolve().then(secret || (() => this.#options.secret));
      if (!this.#isEnding) this.#link = new Link(new WebSocket(this.#url.href, ["nsq.json.v1"]), given, handlers);
    } catch (error) {
      if (!this.#isEnding) this.#report(error);
      this.#retry({ code: ABNORMAL, reason: String(error) });
    }
  }

  /** Asks over HTTP why no socket opened: browsers hide it. */
  async #explain() {
    const { href, origin } = this.#url;
    const text = `${origin} is unreachable, or does not allow this page (--allow-origin)`;
    const error = new NsqError("NO_CONNECTION", text, { retryable: true });
    let retryAfterMs;
    try {
      const answer = await fetch(href.replace("ws", "http"), { signal: AbortSignal.timeout(ANSWER_MS) });
      const { status, headers } = answer;
      error.message = `${origin} answers ${status}, but no WebSocket opens`;
      retryAfterMs = 1_000 * headers.get("retry-after");
      if (status !== UPGRADE_REQUIRED) {
        const { message: code, detail: message, retryable } = await answer.json();
        if (retryable !== undefined) Object.assign(error, { code, message, retryable, status });
      }
    } catch {}
    if (this.#isEnding) return;
    const closed = { code: ABNORMAL, reason: error.message };
    if (!error.retryable) return this.#end(closed, error);
    this.#report(error);
    this.#retry(closed, retryAfterMs);
  }

  /** Full jitter: clients cut off together reconnect apart. */
  #retry(closed, retryAfterMs) {
    if (this.#isEnding) return;
    const backoffMs = (closed.code === FULL ? BACKOFF_FULL_MS : BACKOFF_MS) * 2 ** this.#failures++;
    const minMs = Math.min(Math.max(0, Number(retryAfterMs) || 0), DELAY_LIMIT_MS);
    const retryInMs = minMs + Math.random() * Math.min(BACKOFF_LIMIT_MS, backoffMs);
    this.#timer = setTimeout(() => this.#connect(), retryInMs);
    this.#become("waiting", { ...closed, retryInMs });
  }

  #onPageEvent(event) {
    this.#link?.flush();
    if (event === "offline") return this.#link?.drop("the browser is offline");
    this.#link?.renewIfDue();
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

function subUrl(options) {
  const own = new URL(".", import.meta.url ?? "file:");
  const url = new URL(options.url ?? own, globalThis.location?.href);
  if (!/^(http|ws)s?:$/.test(url.protocol)) {
    throw new TypeError(`url is ${url}: set the gateway, as in url: "http://127.0.0.1:8080"`);
  }
  url.protocol = url.protocol.replace("http", "ws");
  url.pathname = url.pathname.replace(/(\/sub)?\/*$/, "/sub");
  url.search = url.hash = "";
  for (const name of PARAMETERS) {
    const parameter = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    if ((options[name] ?? "") !== "") url.searchParams.set(parameter, options[name]);
  }
  return url;
}

function deferred() {
  let settle;
  const promise = new Promise((resolve, reject) => (settle = { resolve, reject }));
  promise.catch(() => {}); // need not be handled
  return { promise, ...settle };
}

function notSent(why, retryable = false) {
  return new NsqError("NO_CONNECTION", `${why}: nothing was sent`, { retryable });
}

function toBase64(body) {
  // Object(): new Uint8Array(5) is five zeros.
  const bytes = typeof body === "string" ? new TextEncoder().encode(body) : new Uint8Array(Object(body));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}
