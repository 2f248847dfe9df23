// What users of the module write, for the compiler only: nothing here runs.
// A line under `@ts-expect-error` is misuse; where the compiler lets it pass, the check fails.

import {
  type Body,
  type Closed,
  type Message,
  NsqError,
  pull,
  type State,
  Subscription,
  subscribe,
} from "../../../gateway/web/site/static/nsq.js";

// Subscribing

const consumer: Subscription = subscribe({ topic: "orders", channel: "billing" });
subscribe({ topic: "orders" }, async (message) => console.log(message.body));
subscribe({ topic: "orders", channel: "billing" }, ({ body }) => body.length);
subscribe({
  topic: "orders",
  channel: "billing",
  url: new URL("https://gateway.example.org/nsq/"),
  secret: async () => "s3cret",
  maxInFlight: 100,
  msgTimeoutMs: 30_000,
  ack: "auto",
  requeueOnCloseMs: 500,
  maxAttempts: 5,
  sampleRate: 10,
  signal: AbortSignal.timeout(1_000),
  WebSocket,
});
subscribe({ topic: "orders", channel: "billing", transport: "sse", secret: "s3cret" });
class OtherSocket {
  constructor(
    readonly url: string | URL,
    readonly protocols?: string | string[],
  ) {}
}
subscribe({ topic: "orders", url: "ws://127.0.0.1:8080", secret: "s3cret", WebSocket: OtherSocket });

// @ts-expect-error - there is no subscription without a topic
subscribe({ channel: "billing" });
// @ts-expect-error - a name that is nearly one
subscribe({ topic: "orders", chanel: "billing" });
// @ts-expect-error - the gateway's name for it
subscribe({ topic: "orders", max_in_flight: 10 });
// @ts-expect-error - not a word of NSQ's
subscribe({ topic: "orders", ack: "never" });
// @ts-expect-error - not a transport
subscribe({ topic: "orders", transport: "polling" });
// @ts-expect-error - numbers are numbers
subscribe({ topic: "orders", msgTimeoutMs: "30s" });
// @ts-expect-error - only `subscribe` makes one
new Subscription();

// Its state and events

const state: State = consumer.state;
const count: number = (consumer.nsqds ?? 0) + consumer.dropped;
consumer.addEventListener("state", ({ detail }) => {
  const told: State = detail.state;
  const retryInMs: number | undefined = detail.retryInMs;
  return [told, retryInMs, detail.code, detail.reason];
});
consumer.addEventListener("error", (event) => {
  const error: Error = event.detail;
  event.preventDefault();
  if (error instanceof NsqError) return [error.code.length, error.retryable, error.cmd, error.ids?.[0], error.status];
});
consumer.addEventListener("state", () => {}, { once: true });
const listener = (event: CustomEvent<Error>) => console.warn(event.detail.message);
consumer.addEventListener("error", listener);
consumer.removeEventListener("error", listener);

// @ts-expect-error - a state that there is not
const wrong: State = "open";
// @ts-expect-error - told, never set
consumer.state = "closed";
// @ts-expect-error - so is this
consumer.dropped = 0;

// Messages

async function iterate(subscription: Subscription): Promise<Closed> {
  await subscription.ready;
  for await (const message of subscription) {
    const text: string = message.id + message.topic + message.channel + message.body;
    const order: { price: number } = message.json();
    const at: bigint = message.timestampNs;
    const leftMs: number = message.deadline - Date.now();
    const bytes: Uint8Array = message.bytes;
    if (message.attempts > 3 || leftMs < 0) break;
    await fetch(`/price/${order.price}`, { signal: message.signal });
    const isTouched: boolean = await message.touch();
    const isTaken: boolean = await (isTouched && bytes.length > 0 ? message.finish() : message.requeue(1_000));
    if (!isTaken && !message.isAnswered) message.requeue();
    console.log(text, at);
  }
  return subscription.close();
}

function misuse(message: Message) {
  // @ts-expect-error - what was delivered stays what it is
  message.body = "another";
  // @ts-expect-error - told, never set
  message.isAnswered = true;
  // @ts-expect-error - milliseconds, as a number
  message.requeue("1s");
  // @ts-expect-error - a promise is always true: await it
  if (message.finish()) console.log(message.id);
  // @ts-expect-error - NSQ's own word is FIN, the module's is finish
  message.ack();
  // @ts-expect-error - more than a number holds
  const at: number = message.timestampNs;
  return at;
}

// Pulling

async function pullOnce(signal: AbortSignal): Promise<string[]> {
  const secret = async () => "s3cret";
  const all = { topic: "orders", channel: "billing", max: 100, waitMs: 20_000, leaseMs: 5_000, secret, signal };
  const messages: Message[] = await pull({ ...all, url: "https://gateway.example.org" });
  for (const message of messages) {
    const isTaken: boolean = await message.finish();
    const error: NsqError | undefined = message.error;
    const lease: string | undefined = message.lease;
    if (!isTaken) console.log(error?.code, lease);
  }
  // @ts-expect-error - a pull needs a channel: nobody watches by pulling
  await pull({ topic: "orders" });
  // @ts-expect-error - the gateway's name for it
  await pull({ topic: "orders", channel: "billing", wait_ms: 0 });
  // @ts-expect-error - a pull is no subscription
  await pull({ topic: "orders", channel: "billing" }).close();
  return messages.map(({ body }) => body);
}

// Publishing

async function publish(subscription: Subscription, bodies: readonly Body[]): Promise<void> {
  await subscription.publish("invoices", "7");
  await subscription.publish("invoices", new Uint8Array([7]), { deferMs: 1_000, timeoutMs: 500 });
  await subscription.publish("invoices", new ArrayBuffer(7));
  await subscription.publishAll("invoices", bodies, { timeoutMs: 500 });
  subscription.setMaxInFlight(0);
  // @ts-expect-error - a body is text or bytes: say JSON.stringify
  await subscription.publish("invoices", { price: 7 });
  // @ts-expect-error - MPUB knows no delay
  await subscription.publishAll("invoices", ["7"], { deferMs: 1_000 });
  // @ts-expect-error - one body is for publish
  await subscription.publishAll("invoices", "7");
}

// Ends

async function ends(subscription: Subscription): Promise<string> {
  const { code, reason }: Closed = await subscription.close();
  const { code: last }: Closed = await subscription.closed;
  return `${code} ${last} ${reason}`;
}

export { count, ends, iterate, misuse, publish, pullOnce, state, wrong };
