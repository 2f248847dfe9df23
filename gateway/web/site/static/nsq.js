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
const OPTIONS = [...PARAMETERS, "url", "secret", "maxQueuedChars", "signal", "transport", "WebSocket"];
const PULL_PARAMETERS = ["topic", "channel", "max", "waitMs", "leaseMs"];
const PULL_OPTIONS = [...PULL_PARAMETERS, "url", "secret", "signal"];

const FINAL_CODES = [1000, 1002, 1003, 1007, 1009];
const FIRST_FINAL = 4500;
const SECRET_REFUSED = 4003;
const FULL = 1013;
const ABNORMAL = 1006;
const UPGRADE_REQUIRED = 426;
const TOO_LARGE = 413;
const INVALID = 400;
const OPEN = 1;
const CLOSING = 2;
const ENDED = 3;
const CLOSED = "the subscription is closed";
const NSQD_STATES = ["connected", "disconnected", "channel_paused"];

const BACKOFF_MS = 500;
const BACKOFF_FULL_MS = 8_000;
const BACKOFF_LIMIT_MS = 30_000;
const DELAY_LIMIT_MS = 3_600_000;
const STABLE_AFTER_MS = 10_000;
const CONNECT_MS = 65_000;
const PULL_MS = 95_000;
const COMMENT_MS = 16_000;
const SILENCE_MS = 20_000;
const ANSWER_MS = 5_000;
const PUBLISH_WAIT_MS = 10_000;
const REQUEUE_MS = 1_000;
const RENEWAL_MS = 1_000;
const QUEUE_LIMIT_CHARS = 32 * 2 ** 20;
const ENVELOPE_CHARS = 200;
const UNSENT_LIMIT_BYTES = 16 * 2 ** 20;
const LEASES_PER_ACK = 10_000;

export class NsqError extends Error {
  name = "NsqError";
  retryable = false;

  constructor(code, message, more = {}) {
    super(message);
    Object.assign(this, { code }, more);
  }
}

export function subscribe(options, work) {
  checkNames(options, OPTIONS);
  const { transport = "websocket" } = options;
  if (!["websocket", "sse"].includes(transport)) {
    throw new TypeError(`transport is ${transport}; allowed: websocket, sse`);
  }
  if (transport === "websocket" && !(options.WebSocket ?? globalThis.WebSocket)) {
    throw new TypeError("no WebSocket: pass the class of the package ws as option WebSocket");
  }
  return new Subscription(options, work);
}

export async function pull(options) {
  checkNames(options, PULL_OPTIONS);
  const { topic, channel, leaseMs, secret, signal } = options;
  const url = gatewayUrl(options, "http", "/pull", PULL_PARAMETERS);
  const error = new NsqError("NO_CONNECTION", unreachable(url.origin), { retryable: true });
  const ended = new AbortController();
  const abort = () => ended.abort();
  const timer = setTimeout(abort, PULL_MS);
  signal?.addEventListener("abort", abort);
  try {
    signal?.throwIfAborted();
    const given = await askSecret(secret);
    const answer = await request(url, given, { method: "POST", signal: ended.signal }).catch(() => {});
    if (!answer) throw error;
    error.message = `${url.origin} answers ${answer.status}, but no messages`;
    const told = await answer.json().catch(() => ({}));
    if (!told.messages) throw Object.assign(error, problem(answer, told));
    const link = new Pull(url, secret, leaseMs);
    return told.messages.map(({ lease_ms, ...frame }) => {
      const message = new Message({ ...frame, topic, channel, deadline_ms: lease_ms }, link);
      link.inFlight.set(message.id, message);
      link.msgTimeoutMs = lease_ms;
      return message;
    });
  } catch (cause) {
    throw signal?.aborted ? signal.reason : cause;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
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
    if (frame.lease) this.lease = frame.lease;
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

/** The messages in flight of a connection or a pull. Their answers are sent once a turn. */
class Answers {
  inFlight = new Map();
  msgTimeoutMs = 0;
  lastError;
  #answers = [];
  // No timer: hidden tabs throttle those.
  #turn;
  #pending = new Map();
  #lastRef = 0;

  get isOpen() {
    return true;
  }

  get hasPending() {
    return this.#pending.size > 0;
  }

  /** Equal answers in a row share a ref, unless by lease; an error lists those refused. */
  async answer(message, cmd, timeout_ms) {
    const { id, lease, isAnswered } = message;
    if (!this.isOpen) this.lose([id]); // its close event may come later
    if (isAnswered || !this.isOpen) return false;
    if (cmd !== "TOUCH") this.inFlight.delete(id);
    if (!this.#answers.length) this.#openTurn();
    let last = this.#answers.at(-1);
    if (last?.cmd !== cmd || last.timeout_ms !== timeout_ms || lease) {
      const { ref } = this.expect();
      this.#answers.push((last = { cmd, ids: [], lease, timeout_ms, ref }));
    }
    last.ids.push(id);
    return this.#pending.get(last.ref).promise.then(
      () => true,
      (error) => {
        if (error.ids?.includes(id) === false) return true;
        message.error = error;
        return false;
      },
    );
  }

  flush() {
    const answers = this.#answers.splice(0);
    if (answers.length) this.sendAnswers(answers);
  }

  lose(ids) {
    for (const id of ids) {
      const lost = this.inFlight.get(id);
      if (this.inFlight.delete(id)) Message.lose(lost);
    }
  }

  expect() {
    const ref = ++this.#lastRef;
    const answer = deferred();
    this.#pending.set(ref, answer);
    return { ref, promise: answer.promise };
  }

  take(frame) {
    const { type, cmd, ref, data, code, message, retryable, id, ids = id && [id] } = frame;
    const error = type === "error" && new NsqError(code, message, { retryable, cmd, ids });
    if (error && ["AUTH", "SUB", null].includes(cmd)) this.lastError = error;
    const pending = this.#pending.get(ref);
    this.#pending.delete(ref);
    if (!pending || ids) this.onFrame(error || frame);
    if (error) pending?.reject(error);
    else pending?.resolve(data);
  }

  abandon() {
    this.endTurn();
    this.lose(this.inFlight.keys());
    for (const { reject } of this.#pending.values()) {
      reject(new NsqError("OUTCOME_UNKNOWN", "the connection ended before the answer"));
    }
  }

  #openTurn() {
    if (!this.#turn) {
      this.#turn = new MessageChannel();
      this.#turn.port1.onmessage = () => this.flush();
    }
    this.#turn.port2.postMessage(0);
  }

  endTurn() {
    this.#turn?.port1.close();
    this.#turn = undefined;
  }
}

class Pull extends Answers {
  #url;
  #secret;
  #leaseMs;

  constructor(url, secret, leaseMs) {
    super();
    this.#url = url;
    this.#secret = secret;
    this.#leaseMs = leaseMs;
  }

  async sendAnswers(answers) {
    this.endTurn(); // an open channel keeps Node alive
    const secret = () => askSecret(this.#secret);
    for (const frame of await postAcks(this.#url, secret, answers, this.#leaseMs)) this.take(frame);
  }

  onFrame({ ids }) {
    this.lose(ids);
  }
}

class Link extends Answers {
  wasOpen = false;
  subscribedAt = 0;
  reconnectAfterMs;
  /** The response to an event stream that was refused. */
  refusal;
  #socket;
  #handlers;
  #timer;
  #isAlive = false;
  #isProbing = false;
  #renewAt = Infinity;
  #renewal;
  #endsAt;

  constructor(socket, secret, handlers) {
    super();
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
          this.take(JSON.parse(line));
        } catch (error) {
          this.onFrame(error);
        }
      }
    };
    socket.onerror = () => {}; // a close follows
    socket.onclose = ({ code, reason, answer }) => {
      this.refusal = answer;
      this.#end({ code, reason });
    };
    this.#after(CONNECT_MS, () => this.drop("the gateway does not answer"));
  }

  get isOpen() {
    return this.#socket.readyState === OPEN;
  }

  send(...commands) {
    const { isOpen } = this;
    if (isOpen) this.#socket.send(commands.map((command) => JSON.stringify(command)).join("\n"));
    return isOpen;
  }

  async ask(command) {
    if (this.#socket.bufferedAmount > UNSENT_LIMIT_BYTES) {
      throw new NsqError("OVERLOADED", `${UNSENT_LIMIT_BYTES} bytes are unsent`, { retryable: true });
    }
    if (!this.isOpen) throw notSent("the connection ended", true);
    const { ref, promise } = this.expect();
    this.send({ ...command, ref });
    return promise;
  }

  sendAnswers(answers) {
    if (this.#isProbing) this.send(...answers);
    else this.watch(1, answers);
  }

  onFrame(frame) {
    this.#handlers?.onFrame(this, frame);
  }

  /** Pages see no pings. Asks twice: a page that slept reads late. */
  watch(probes = 0, commands = [{ cmd: "NOP", ref: 0 }]) {
    if (!this.wasOpen) return;
    this.#isAlive = false;
    this.#isProbing = probes > 0;
    if (probes) this.send(...commands);
    this.#after(this.#socket.intervalMs ?? (probes ? ANSWER_MS : SILENCE_MS), () => {
      if (this.#isAlive) this.watch(this.hasPending ? 1 : 0);
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

  #end(closed) {
    clearTimeout(this.#timer);
    clearTimeout(this.#renewal);
    const handlers = this.#handlers;
    this.#handlers = this.#socket.onopen = this.#socket.onmessage = null;
    this.abandon();
    handlers?.onClose(this, closed);
  }
}

/** GET /sub as an event stream, in the shape of a WebSocket. Its answers go to POST /ack. */
class EventSocket {
  readyState = 0;
  bufferedAmount = 0;
  intervalMs = COMMENT_MS; // a comment comes every 15 s
  onopen;
  onmessage;
  onclose;
  #url;
  #secret;
  #ended = new AbortController();
  #posts = new Set();

  constructor(url, secret) {
    this.#url = url;
    this.#secret = secret;
    this.#run();
  }

  send(text) {
    const commands = text.split("\n").map((line) => JSON.parse(line));
    const acks = commands.filter(({ lease }) => lease);
    if (acks.length) this.#post(acks);
    for (const { cmd, ref } of commands) {
      if (cmd === "CLS") this.#leave();
      else if (cmd.endsWith("PUB")) {
        const message = "an event stream cannot publish: use POST /pub";
        this.#say({ type: "error", cmd, ref, code: "UNSUPPORTED", message, retryable: false });
      }
    }
  }

  close() {
    this.readyState = ENDED;
    this.#ended.abort();
  }

  async #post(acks) {
    const post = postAcks(this.#url, () => this.#secret, acks);
    this.#posts.add(post);
    for (const frame of await post) this.#say(frame);
    this.#posts.delete(post);
  }

  /** There is no CLS: the gateway requeues what is in flight when the stream ends. */
  async #leave() {
    this.readyState = CLOSING;
    await Promise.all(this.#posts);
    this.#end({ code: 1000, reason: "the client closed the stream" });
  }

  async #run() {
    const closed = { code: ABNORMAL, reason: "the stream ended" };
    try {
      const headers = { Accept: "text/event-stream", "Nsq-Gateway-Client": "nsq.js" };
      const answer = await request(this.#url, this.#secret, { headers, signal: this.#ended.signal });
      const isStream = answer.ok && /^text\/event-stream/.test(answer.headers.get("content-type"));
      if (isStream) Object.assign(closed, await this.#read(answer.body.getReader()));
      else closed.answer = new Response(await answer.text(), answer);
    } catch (error) {
      closed.reason = String(error);
    }
    this.#end(closed);
  }

  /** Resolves with the data of the event `close`, if it comes before the end. */
  async #read(reader) {
    this.readyState = OPEN;
    this.onopen?.();
    const parser = new EventParser();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.#say({}); // alive, even if it is a comment
      for (const { type, data } of parser.push(value)) {
        if (type === "close") return JSON.parse(data);
        if (type === "message" && this.readyState === OPEN) this.onmessage?.({ data });
      }
    }
  }

  #say(frame) {
    this.onmessage?.({ data: JSON.stringify(frame) });
  }

  #end(closed) {
    this.close();
    this.onclose?.(closed);
    this.onclose = null;
  }
}

/** Server-sent events (WHATWG HTML) of chunks that may be cut anywhere. */
class EventParser {
  #decoder = new TextDecoder();
  #isAfterCr = false;
  #line = "";
  #type = "";
  #data = [];

  push(chunk) {
    const text = this.#decoder.decode(chunk, { stream: true });
    // The LF of a CR LF that was cut in two ends no other line.
    const lines = text.slice(this.#isAfterCr && text.startsWith("\n") ? 1 : 0).split(/\r\n?|\n/);
    if (text) this.#isAfterCr = text.endsWith("\r");
    lines[0] = this.#line + lines[0];
    this.#line = lines.pop() ?? "";
    const events = [];
    for (const line of lines) {
      const [, field, value] = line.match(/^([^:]*):? ?(.*)/s) ?? [];
      if (field === "data") this.#data.push(value);
      else if (field === "event") this.#type = value;
      else if (line === "") {
        const data = this.#data.splice(0).join(" "); // of JSON: a newline is a space
        if (data) events.push({ type: this.#type || "message", data });
        this.#type = "";
      }
    }
    return events;
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
  #isSse;
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
    this.#isSse = options.transport === "sse";
    this.#url = gatewayUrl(options, this.#isSse ? "http" : "ws", "/sub", PARAMETERS);
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
    if (count === 0 || this.#isSse) this.#url.searchParams.set("max_in_flight", count || 1);
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
    if (!link.wasOpen) return this.#explain(link.refusal);
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
      if (this.#isEnding) return;
      const { href } = this.#url;
      if (this.#isSse) this.#link = new Link(new EventSocket(href, given), undefined, handlers);
      else this.#link = new Link(new WebSocket(href, ["nsq.json.v1"]), given, handlers);
    } catch (error) {
      if (!this.#isEnding) this.#report(error);
      this.#retry({ code: ABNORMAL, reason: String(error) });
    }
  }

  /** Asks over HTTP why no socket opened: browsers hide it. */
  async #explain(given) {
    const { href, origin } = this.#url;
    const error = new NsqError("NO_CONNECTION", unreachable(origin), { retryable: true });
    let retryAfterMs;
    try {
      const address = href.replace(/^ws/, "http");
      const answer = given ?? (await fetch(address, { signal: AbortSignal.timeout(ANSWER_MS) }));
      const { status, headers } = answer;
      error.message = `${origin} answers ${status}, but no ${this.#isSse ? "event stream" : "WebSocket"} opens`;
      retryAfterMs = 1_000 * headers.get("retry-after");
      if (status !== UPGRADE_REQUIRED) Object.assign(error, problem(answer, await answer.json()));
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

function checkNames(options, names) {
  const unknown = Object.keys(options).find((name) => !names.includes(name));
  if (unknown) throw new TypeError(`unknown option ${unknown}; options: ${names.join(", ")}`);
}

function gatewayUrl(options, scheme, path, parameters) {
  const own = new URL(".", import.meta.url ?? "file:");
  const url = new URL(options.url ?? own, globalThis.location?.href);
  if (!/^(http|ws)s?:$/.test(url.protocol)) {
    throw new TypeError(`url is ${url}: set the gateway, as in url: "http://127.0.0.1:8080"`);
  }
  url.protocol = url.protocol.replace(/http|ws/, scheme);
  url.pathname = url.pathname.replace(/(\/sub)?\/*$/, path);
  url.search = url.hash = "";
  for (const name of parameters) {
    const parameter = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    if ((options[name] ?? "") !== "") url.searchParams.set(parameter, options[name]);
  }
  return url;
}

function askSecret(secret) {
  return typeof secret === "function" ? secret() : secret;
}

function request(url, secret, { headers = {}, ...more }) {
  const authorization = secret && { Authorization: `Bearer ${secret}` };
  return fetch(url, { cache: "no-store", headers: { ...headers, ...authorization }, ...more });
}

/** Answers leases; resolves with the frames that a socket would get. */
async function postAcks(url, secret, commands, leaseMs) {
  const refused = new Map();
  // The last answer to a lease counts: FIN makes a TOUCH before it needless.
  const acks = [...new Map(commands.map((command) => [command.lease, command])).values()];
  while (acks.length) {
    const some = acks.splice(0, LEASES_PER_ACK);
    for (const each of await postAck(url, secret, some, leaseMs)) refused.set(each.lease, each);
  }
  return commands.map(({ cmd, ids, lease, ref }) => {
    const refusal = refused.get(lease);
    return refusal ? { ...refusal, type: "error", cmd, ids, ref } : { type: "response", cmd, ref };
  });
}

/** Resolves with the refusals. */
async function postAck(url, secret, acks, leaseMs) {
  const error = new NsqError("OUTCOME_UNKNOWN", "POST /ack has no answer", { retryable: true });
  const body = { fin: [], req: [], touch: [] };
  for (const { cmd, lease, timeout_ms } of acks) {
    if (cmd === "FIN") body.fin.push(lease);
    else if (cmd === "REQ") body.req.push({ lease, timeout_ms: Math.min(timeout_ms, DELAY_LIMIT_MS) });
    else body.touch.push({ lease, lease_ms: leaseMs });
  }
  try {
    const signal = AbortSignal.timeout(2 * ANSWER_MS);
    const init = { method: "POST", body: JSON.stringify(body), signal };
    const answer = await request(new URL("ack", url), await secret(), init);
    if (answer.ok) return (await answer.json()).refused;
    // Nothing was done. One delay that is too long must not keep the others.
    if ([INVALID, TOO_LARGE].includes(answer.status) && acks.length > 1) {
      const first = acks.splice(0, acks.length / 2);
      const halves = [first, acks].map((half) => postAck(url, secret, half, leaseMs));
      return (await Promise.all(halves)).flat();
    }
    error.message = `POST /ack answers ${answer.status}`;
    Object.assign(error, problem(answer, await answer.json()));
  } catch {}
  const { code, message, retryable } = error;
  return acks.map(({ lease }) => ({ lease, code, message, retryable }));
}

/** The error of the gateway in a response; none, if it is of a proxy. */
function problem({ status }, { message: code, detail: message, retryable }) {
  return retryable === undefined ? {} : { code, message, retryable, status };
}

function unreachable(origin) {
  return `${origin} is unreachable, or does not allow this page (--allow-origin)`;
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
