// Runs scripts from a test in Node, with nsq.js loaded.
//
// Its argument is the gateway's address. Each input line is a JSON object with `script`, the body of an async
// function, and `given`. Each output line is the result: `value` or `fault`, and `faults`, the uncaught errors so far.
// The process ends by itself at the end of its input.
//
// Variables of a script, in addition to `globalThis` of earlier ones: nsq, subscribe, pull, WebSocket, Fake, FakeHttp,
// clock.

import { createInterface } from "node:readline";
import * as nsq from "../../../gateway/web/site/static/nsq.js";
import WebSocket from "../../../tools/bin/node/node_modules/ws/wrapper.mjs";

const faults = [];
process.on("uncaughtException", (error) => faults.push(String(error)));
process.on("unhandledRejection", (error) => faults.push(`not handled: ${error}`));

/** A clock for the module: after `stop`, only a script advances it. Other code keeps its timers. */
const clock = {
  nowMs: 0,
  timers: new Map(),
  stop() {
    const { setTimeout, clearTimeout } = globalThis;
    this.nowMs = Date.now();
    Date.now = () => this.nowMs;
    globalThis.setTimeout = (act, delayMs, ...rest) => {
      const caller = new Error().stack?.split("\n")[2] ?? "";
      if (!caller.includes("/nsq.js")) return setTimeout(act, delayMs, ...rest);
      const timer = {};
      this.timers.set(timer, { act: () => act(...rest), delayMs, dueMs: this.nowMs + delayMs });
      return timer;
    };
    globalThis.clearTimeout = (timer) => this.timers.delete(timer) || clearTimeout(timer);
  },
  /** Advances the time, and runs due timers at their times. */
  pass(ms) {
    const untilMs = this.nowMs + ms;
    for (;;) {
      const [first] = [...this.timers].sort(([, one], [, other]) => one.dueMs - other.dueMs);
      if (!first || first[1].dueMs > untilMs) break;
      this.timers.delete(first[0]);
      this.nowMs = Math.max(this.nowMs, first[1].dueMs);
      first[1].act();
    }
    this.nowMs = untilMs;
  },
  get delaysMs() {
    return [...this.timers.values()].map(({ delayMs }) => delayMs);
  },
};

/** A fake WebSocket: a script opens it, sends frames as the gateway, and reads the sent frames. */
class Fake {
  static made = [];
  readyState = 0;
  bufferedAmount = 0;
  sent = [];

  constructor(url, protocols) {
    Object.assign(this, { url, protocols });
    Fake.made.push(this);
  }

  send(data) {
    this.sent.push(...data.split("\n").map((line) => JSON.parse(line)));
  }

  say(...told) {
    this.onmessage({ data: told.map((each) => JSON.stringify(each)).join("\n") });
  }

  open(msg_timeout_ms = 60_000) {
    this.readyState = 1;
    this.onopen();
    this.say({ type: "response", cmd: "SUB", ref: null, data: { msg_timeout_ms } });
  }

  /** Delivers messages in one frame. */
  deliver(...ids) {
    const told = { type: "message", topic: "t", channel: "c", attempts: 1, timestamp_ns: "1", deadline_ms: 60_000 };
    this.say(...ids.map((id) => ({ ...told, id, body: "x".repeat(100) })));
  }

  close() {
    this.readyState = 3;
  }

  end(code) {
    this.readyState = 3;
    this.onclose({ code, reason: "" });
  }
}

/** A fake `fetch`: a script sends the bytes of event streams, and decides the answers to POST /ack. */
class FakeHttp {
  streams = [];
  posts = [];
  /** Answers a POST. A script may replace it. */
  respond = ({ fin, req, touch }) => Response.json({ done: fin.length + req.length + touch.length, refused: [] });
  #opened = [];

  constructor() {
    globalThis.fetch = (url, options) => this.#fetch(String(url), options);
  }

  /** Resolves with the next stream, once it is requested. */
  async next() {
    if (!this.streams.length) await new Promise((resolve) => this.#opened.push(resolve));
    return this.streams.shift();
  }

  async #fetch(url, { method = "GET", body, headers, signal }) {
    if (method === "POST") {
      const acks = body && JSON.parse(body);
      this.posts.push({ url, headers, ...acks });
      return this.respond(acks);
    }
    const bytes = (data) => (typeof data === "string" ? new TextEncoder().encode(data) : data);
    let controller;
    const content = new ReadableStream({
      start(given) {
        controller = given;
      },
    });
    signal.addEventListener("abort", () => controller.error(signal.reason));
    this.streams.push({
      url,
      headers,
      signal,
      send: (data) => controller.enqueue(bytes(data)),
      say: (...told) => controller.enqueue(bytes(told.map((each) => `data: ${JSON.stringify(each)}\n\n`).join(""))),
      subscribed() {
        this.say({ type: "response", cmd: "SUB", ref: null, data: { msg_timeout_ms: 60_000 } });
      },
      /** Delivers messages, whose leases are their ids after `lease-`. */
      deliver(...ids) {
        const told = { type: "message", topic: "t", channel: "c", attempts: 1, timestamp_ns: "1", deadline_ms: 60_000 };
        this.say(...ids.map((id) => ({ ...told, id, body: "x", lease: `lease-${id}` })));
      },
      close: (code) => controller.enqueue(bytes(`event: close\ndata: ${JSON.stringify({ code, reason: "" })}\n\n`)),
      end: () => controller.close(),
    });
    this.#opened.shift()?.();
    return new Response(content, { headers: { "Content-Type": "text/event-stream; charset=utf-8" } });
  }
}

/** Subscribes with `ws` to the gateway by default; records `states` and `errors` for the script. */
function subscribe(options, work) {
  const subscription = nsq.subscribe({ url: process.argv[2], WebSocket, ...options }, work);
  const kept = { states: [subscription.state], details: [], errors: [] };
  subscription.addEventListener("state", ({ detail }) => {
    kept.states.push(detail.state);
    kept.details.push(detail);
  });
  subscription.addEventListener("error", (event) => {
    event.preventDefault();
    const { code = event.detail?.constructor.name, message, cmd, ids, status, retryable } = event.detail ?? {};
    kept.errors.push({ code, message, cmd, ids, status, retryable });
  });
  return Object.assign(subscription, kept);
}

/** Pulls from the gateway by default. */
const pull = (options) => nsq.pull({ url: process.argv[2], ...options });

/** Resolves with the event's detail once the subscription is in that state, or at once if it is. */
function stands(subscription, state) {
  if (subscription.state === state) return Promise.resolve(subscription.details.at(-1));
  return new Promise((resolve) => {
    const look = ({ detail }) => {
      if (detail.state !== state) return;
      subscription.removeEventListener("state", look);
      resolve(detail);
    };
    subscription.addEventListener("state", look);
  });
}

/** Resolves after this turn of the event loop and its microtasks. */
const turn = () => new Promise((resolve) => setImmediate(() => setImmediate(resolve)));

/** The JSON form of an error. */
const shown = ({ name, code, message, retryable, status }) => ({ name, code, message, retryable, status });

const tools = { nsq, subscribe, pull, WebSocket, Fake, FakeHttp, clock, stands, turn, shown };
const AsyncFunction = Object.getPrototypeOf(async () => {}).constructor;

for await (const line of createInterface({ input: process.stdin })) {
  const { script, given } = JSON.parse(line);
  const told = {};
  try {
    const names = Object.keys(tools);
    told.value = await new AsyncFunction("given", ...names, script)(given, ...Object.values(tools));
  } catch (error) {
    told.fault = String(error?.stack ?? error);
  }
  await turn();
  console.log(JSON.stringify({ ...told, faults }));
}
