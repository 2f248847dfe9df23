// Hands each message to a web address (a webhook), and tries again until that takes it.
//
//   node examples/worker.mjs http://127.0.0.1:8080 orders mailer http://127.0.0.1:9000/hook
//
// Node 22 has a WebSocket; for Node 20: npm install --no-save ws. Where the gateway wants a secret: NSQ_SECRET=… node …
// In a project of your own nsq.js comes with it: copy it, or npm install <clone>/gateway/web/static.
import process from "node:process";
import { subscribe } from "../gateway/web/static/nsq.js";

const TRIES = 5;
const HOPELESS = [400, 404, 410, 413, 415, 422]; // they would say the same again
const [url, topic, channel, target] = process.argv.slice(2);
if (!target) {
  console.error("usage: node worker.mjs GATEWAY TOPIC CHANNEL TARGET");
  process.exit(2);
}

// What returns is finished; what throws is given back, and comes again later, each time after a longer while.
async function work(message) {
  const { body, bytes, attempts, signal } = message;
  const answer = await fetch(target, { method: "POST", body: bytes, signal });
  if (answer.ok) return;
  if (attempts < TRIES && !HOPELESS.includes(answer.status)) {
    throw new Error(`${target} answered ${answer.status} to try ${attempts}`);
  }
  // Put aside, before the message is finished: should it end here in between, it is there twice, and not lost.
  await worker.publish(`${topic}-failed`, bytes);
  console.error(`put aside after ${answer.status}: ${body}`);
}

const WebSocket = globalThis.WebSocket ?? (await import("ws")).default;
const worker = subscribe({ url, topic, channel, secret: process.env.NSQ_SECRET, WebSocket }, work);
worker.addEventListener("state", ({ detail }) => console.error(detail.state, detail.reason ?? ""));

// No more messages; those in work are answered, and then there is nothing left to wait for.
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => worker.close());

// There is no coming back: a wrong name, a secret that is refused. The module has said which.
worker.closed.catch(() => (process.exitCode = 1));
