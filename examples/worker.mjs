// Posts each message to a URL (a webhook), and retries until it is accepted.
//
//   node examples/worker.mjs http://127.0.0.1:8080 orders mailer http://127.0.0.1:9000/hook
//
// Node 22 has a WebSocket; for Node 20: npm install --no-save ws. If the gateway requires a secret, set NSQ_SECRET.
// In your own project, copy nsq.js, or npm install <clone>/gateway/web/site/static.
import process from "node:process";
import { subscribe } from "../gateway/web/site/static/nsq.js";

const MAX_ATTEMPTS = 5;
const PERMANENT = [400, 404, 410, 413, 415, 422]; // a retry would fail again
const [url, topic, channel, target] = process.argv.slice(2);
if (!target) {
  console.error("usage: node worker.mjs GATEWAY TOPIC CHANNEL TARGET");
  process.exit(2);
}

// If this returns, nsq.js finishes the message. If it throws, nsq.js requeues it with a growing delay.
async function work(message) {
  const { body, bytes, attempts, signal } = message;
  const answer = await fetch(target, { method: "POST", body: bytes, signal });
  if (answer.ok) return;
  if (attempts < MAX_ATTEMPTS && !PERMANENT.includes(answer.status)) {
    throw new Error(`${target} answered ${answer.status} to attempt ${attempts}`);
  }
  // Publish before finishing: a crash in between duplicates the message instead of losing it.
  await worker.publish(`${topic}-failed`, bytes);
  console.error(`set aside after ${answer.status}: ${body}`);
}

const WebSocket = globalThis.WebSocket ?? (await import("ws")).default;
const worker = subscribe({ url, topic, channel, secret: process.env.NSQ_SECRET, WebSocket }, work);
worker.addEventListener("state", ({ detail }) => console.error(detail.state, detail.reason ?? ""));

// Stop deliveries; messages in progress are finished, then the process exits.
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => worker.close());

// Reconnecting cannot help: an invalid name, or a refused secret. The module has logged the reason.
worker.closed.catch(() => (process.exitCode = 1));
