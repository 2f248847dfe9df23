// Runs pieces of JavaScript beside nsq.js in Node, as a test tells it.
//
// Its argument is the gateway's address. Each line that it reads is a JSON object, `script` and `given`, and is run as
// the body of an async function; each line that it writes is what came out of one: `value`, or `fault`, and `faults`, what
// nobody caught so far. When its input ends it has nothing to do, and ends by itself.
//
// A script has these, beside what it keeps in `globalThis` for the next one: nsq, subscribe, WebSocket, Fake, clock.

import { createInterface } from "node:readline";
import * as nsq from "../../gateway/web/static/nsq.js";
import WebSocket from "../../tools/bin/node/node_modules/ws/wrapper.mjs";

const faults = [];
process.on("uncaughtException", (error) => faults.push(String(error)));
process.on("unhandledRejection", (error) => faults.push(`not handled: ${error}`));

/** The time of the module, once it is `stop`ped: it passes when a script says so. Others have their timers as always. */
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
  /** Lets time pass, and what is due by then happen at its moment. */
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

/** A socket without a network: a script opens it, says what the gateway says, and sees what was sent. */
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

/** Subscribes with `ws` to the gateway unless told otherwise; keeps `states` and `errors` for the script. */
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

/** Fulfilled with the detail once the subscription stands so; at once where it does. */
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

/** Fulfilled when this turn of the event loop, and what it set off, is over. */
const turn = () => new Promise((resolve) => setImmediate(() => setImmediate(resolve)));

/** What a script may show of an error. */
const shown = ({ name, code, message, retryable, status }) => ({ name, code, message, retryable, status });

const tools = { nsq, subscribe, WebSocket, Fake, clock, stands, turn, shown };
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
