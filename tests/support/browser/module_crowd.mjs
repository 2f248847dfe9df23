// Several clients of nsq.js that process messages and record their calls, results and events.
//
// Its argument is a JSON object: topic, channel, msgTimeoutMs, hasJitter, and clients, each with number, url,
// form (`callback` or `iterator`), maxInFlight and seed. Each line that it writes is a JSON object: `at`, the seconds of
// the machine's monotonic clock, which other programs read too; `nowMs`, the time as the module sees it; `client`,
// `socket`, and `it`, the kind of event. Each line that it reads is a command: {"speed": n} runs the module's clock n times
// as fast; {"close": true} closes every subscription, after which the process ends by itself.

import { createInterface } from "node:readline";
import { subscribe } from "../../../gateway/web/site/static/nsq.js";
import WebSocket from "../../../tools/bin/node/node_modules/ws/wrapper.mjs";

const wish = JSON.parse(process.argv[2]);
const { setTimeout: realSetTimeout, clearTimeout: realClearTimeout } = globalThis;

/** The clock of this process, except for the simulated work: speeds up `Date.now()` and timers together. */
const clock = {
  speed: 1,
  anchorMs: Date.now(),
  anchoredAt: performance.now(),
  timers: new Set(),
  now() {
    return this.anchorMs + (performance.now() - this.anchoredAt) * this.speed;
  },
  go(speed) {
    this.anchorMs = this.now();
    this.anchoredAt = performance.now();
    this.speed = speed;
    for (const timer of this.timers) this.arm(timer);
  },
  arm(timer) {
    realClearTimeout(timer.real);
    const leftMs = timer.dueMs - this.now();
    timer.real = realSetTimeout(
      () => {
        if (this.now() < timer.dueMs) return this.arm(timer);
        this.timers.delete(timer);
        timer.act();
      },
      Math.max(0, Math.ceil(leftMs / this.speed)),
    );
    if (!timer.isKept) timer.real.unref();
  },
};

class Timer {
  isKept = true;

  constructor(act, delayMs) {
    Object.assign(this, { act, delayMs });
    this.refresh();
  }

  refresh() {
    this.dueMs = clock.now() + this.delayMs;
    clock.timers.add(this);
    clock.arm(this);
    return this;
  }

  unref() {
    this.isKept = false;
    this.real.unref();
    return this;
  }
}

Date.now = () => Math.floor(clock.now());
globalThis.setTimeout = (act, delayMs = 0, ...rest) => new Timer(() => act(...rest), delayMs);
globalThis.clearTimeout = (timer) => {
  if (!(timer instanceof Timer)) return realClearTimeout(timer);
  clock.timers.delete(timer);
  realClearTimeout(timer.real);
};
if (!wish.hasJitter) Math.random = () => 0;

// Records of one turn are written together.
let unsaid = "";
function flush() {
  process.stdout.write(unsaid);
  unsaid = "";
}

function say(client, it, more) {
  if (!unsaid) setImmediate(flush);
  const at = Number(process.hrtime.bigint()) / 1e9;
  unsaid += `${JSON.stringify({ at, nowMs: clock.now(), client, it, ...more })}\n`;
}

/** A seeded generator of numbers from 0 to 1. */
function chance(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

let lastSocket = wish.firstSocket;

/** The WebSocket class of one client: `ws`, with a record of its traffic. */
function socketsOf(client) {
  return class extends WebSocket {
    sent = new Map(); // by ref, what FIN, REQ and TOUCH named

    constructor(url, protocols) {
      super(url, protocols, { perMessageDeflate: false });
      this.number = client.socket = ++lastSocket;
      this.say("tried");
    }

    say(it, more) {
      say(client.number, it, { socket: this.number, ...more });
    }

    // The module ignores sockets that it has dropped.
    set onmessage(act) {
      if (!act) this.end(1006);
      super.onmessage =
        act &&
        ((event) => {
          this.hear(event.data);
          act(event);
        });
    }

    set onclose(act) {
      super.onclose = (event) => {
        this.end(event.code);
        act(event);
      };
    }

    hear(data) {
      for (const said of data.split("\n").map((line) => JSON.parse(line))) {
        const sent = this.sent.get(said.ref);
        const refused = said.type === "error" ? (said.ids ?? [said.id]) : [];
        if (sent) this.say("confirmed", { ...sent, ids: sent.ids.filter((id) => !refused.includes(id)) });
        if (said.type === "message") {
          this.say("delivered", { id: said.id, attempts: said.attempts, body: said.body });
        } else if (said.cmd === "CLS") this.say("leaving");
      }
    }

    send(data) {
      for (const { cmd, ref, id, ids = [id] } of data.split("\n").map((line) => JSON.parse(line))) {
        if (!["FIN", "REQ", "TOUCH"].includes(cmd)) continue;
        this.say("asked", { verb: cmd, ids });
        this.sent.set(ref, { verb: cmd, ids });
      }
      super.send(data);
    }

    end(code) {
      if (this.hasEnded) return;
      this.hasEnded = true;
      this.say("closed", { code });
    }
  };
}

class Planned extends Error {}

/** Simulated work: mostly immediate, sometimes slow, sometimes failing. */
async function work(client, message) {
  const { id, attempts, body } = message;
  const { socket } = client;
  const answer = async (verb, taking) => {
    const took = await taking;
    say(client.number, "answered", { socket, id, verb, took, isLost: message.signal.aborted });
  };
  const pass = (delayMs) => new Promise((resolve) => realSetTimeout(resolve, delayMs));
  say(client.number, "worked", { socket, id, attempts, body });
  const what = client.chance();
  if (what < 0.2) await pass(client.chance() * 60);
  else if (what < 0.23) {
    await pass(150);
    answer("TOUCH", message.touch());
    await pass(150);
  } else if (what < 0.26) return answer("REQ", message.requeue(Math.floor(client.chance() * 300)));
  else if (what < 0.28) throw new Planned("this work fails");
  // The module finishes a message when its handler returns; iterators finish explicitly, and get the result.
  if (client.form === "iterator" || what < 0.6) answer("FIN", message.finish());
}

function begin(client) {
  client.chance = chance(client.seed);
  const options = {
    url: client.url,
    topic: wish.topic,
    channel: wish.channel,
    maxInFlight: client.maxInFlight,
    msgTimeoutMs: wish.msgTimeoutMs,
    WebSocket: socketsOf(client),
  };
  const isCalled = client.form === "callback";
  const subscription = subscribe(options, isCalled ? (message) => work(client, message) : undefined);
  say(client.number, "state", { state: subscription.state });
  subscription.addEventListener("state", ({ detail }) => say(client.number, "state", detail));
  subscription.addEventListener("error", (event) => {
    event.preventDefault();
    const { code = event.detail.constructor.name, message } = event.detail;
    say(client.number, "error", { code, message });
  });
  client.iterated = isCalled ? undefined : iterate(client, subscription);
  return subscription;
}

async function iterate(client, subscription) {
  for await (const message of subscription) {
    try {
      await work(client, message);
    } catch (error) {
      if (!(error instanceof Planned)) throw error;
      message.requeue(100);
    }
  }
}

async function close(client, subscription) {
  const [{ code }] = await Promise.all([subscription.close(), client.iterated]);
  say(client.number, "ended", { code });
}

const subscriptions = wish.clients.map((client) => [client, begin(client)]);
const commands = createInterface({ input: process.stdin });
commands.on("line", (line) => {
  const command = JSON.parse(line);
  if (command.speed) return clock.go(command.speed);
  commands.removeAllListeners("close");
  commands.close();
  process.stdin.destroy();
  for (const [client, subscription] of subscriptions) close(client, subscription);
});
// The parent process has ended.
commands.on("close", () => process.exit(1));
