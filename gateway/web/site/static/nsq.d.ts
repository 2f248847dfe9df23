/**
 * An NSQ client for browsers and Node: one subscription over one WebSocket to nsq-gateway, with automatic reconnection.
 * Without WebSockets: an event stream (`transport: "sse"`), or one pull over HTTP.
 *
 * Guide: docs/browser.md. Wire protocol: docs/websocket.md, docs/pull.md.
 */

/**
 * The state of a subscription. `connected`, `disconnected` and `channel_paused` describe the gateway's connection to
 * nsqd.
 */
export type State =
  | "connecting"
  | "connected"
  /** The gateway reaches no nsqd; the socket stays open. */
  | "disconnected"
  | "channel_paused"
  /**
   * The gateway closes this connection soon (restart, or maximum age): no new messages arrive, acknowledgements are
   * still accepted, then the module reconnects.
   */
  | "draining"
  /** The connection is lost; the next attempt is scheduled. */
  | "waiting"
  /** `close()` was called; acknowledgements are still accepted. */
  | "closing"
  | "closed";

export interface SubscribeOptions {
  topic: string;
  /**
   * Subscriptions to the same channel share its messages. Without a channel, a viewer: it receives all messages and
   * acknowledges none.
   */
  channel?: string;
  /**
   * The gateway's URL (`http:`, `https:`, `ws:` or `wss:`), including a proxy's path prefix, with or without `/sub` at
   * the end; in a browser it may be relative to the page. Its query is ignored. Default: the location of this module.
   * Required in Node, and in a bundle.
   */
  url?: string | URL;
  /**
   * The secret or token for AUTH, sent in its own frame; empty means none. A function is called, and awaited without a
   * timeout, for each connection. If it throws, an `error` event is dispatched and the function is called again after
   * the backoff. Only with a function does the subscription continue after the gateway rejects an expired secret
   * (4003).
   *
   * If the gateway tells when a token ends, the function is called again after 70 to 80 % of the time left, at least 1 s
   * before the end, and at most once a second. Its result is sent in another AUTH, and the subscription continues on the
   * same socket. If the function throws, or the gateway refuses the token, an `error` event is dispatched, and the
   * subscription continues until the first token ends. A function that threw is called again after 70 to 80 % of the
   * time still left.
   */
  secret?: string | (() => string | Promise<string>);
  /**
   * Maximum messages in flight; default 10. For a viewer, the gateway determines the window and the message timeout.
   */
  maxInFlight?: number;
  /** Time to acknowledge a message before NSQ redelivers it; default nsqd's. */
  msgTimeoutMs?: number;
  /**
   * `client`: `finish()` finishes a message; `auto`: the gateway finishes it when it has written it. Default: `client`
   * with a channel, `auto` without.
   */
  ack?: "client" | "auto";
  /** Requeue delay of unfinished messages when the connection ends; default 0. */
  requeueOnCloseMs?: number;
  /** Messages with more attempts are deferred instead of delivered; default 0, no limit. */
  maxAttempts?: number;
  /** Percentage of the messages to receive. */
  sampleRate?: number;
  /**
   * Maximum size of the iterator's queue with `ack: "auto"` (as for a viewer). Beyond it, the oldest messages are
   * dropped and counted in `dropped`. Unit: UTF-16 code units of the bodies, plus 200 per message; default 32 Mi. With
   * `ack: "client"`, `maxInFlight` is the limit.
   */
  maxQueuedChars?: number;
  /** Aborting it calls `close()`. With a signal that is already aborted, no connection is opened. */
  signal?: AbortSignal;
  /**
   * `sse`: server-sent events over HTTP, for networks without WebSockets. Acknowledgements go to `POST /ack`, with the
   * message's `lease`. Differences: `close()` does not wait for messages in flight, the gateway requeues them at once;
   * `setMaxInFlight()` takes effect at the next connection; `publish()` is rejected with `UNSUPPORTED`; the secret is
   * in the header `Authorization`, and a token that ends is replaced by reconnecting. Default: `websocket`.
   */
  transport?: "websocket" | "sse";
  /**
   * The WebSocket class; default `globalThis.WebSocket`. Node has one since version 22; in older versions use the class
   * of the package `ws`.
   */
  WebSocket?: new (
    url: string,
    protocols: string[],
  ) => unknown;
}

/**
 * Subscribes, and reconnects until `close()` is called or a permanent error occurs.
 *
 * `work` is called for each message, up to `maxInFlight` at a time. When it returns, or its promise is fulfilled, the
 * message is finished, unless it was acknowledged before. When it throws, the message is requeued with a delay that
 * grows with its attempts (1 s, 4 s, 9 s, …, up to nsqd's limit), and an `error` event is dispatched. Without `work`,
 * iterate over the subscription.
 *
 * When a connection ends, the module reconnects with exponential backoff and full jitter: up to 0.5 s, then 1 s, 2 s, …
 * 30 s (from 8 s on if the gateway is full), after the delay that the gateway requests, if any (at most an hour). A
 * connection of ten seconds resets the backoff. On the browser's `offline` event the connection is closed at once; on
 * `online`, or when the page becomes visible, the module reconnects at once. Permanent errors: close codes 1000, 1002,
 * 1003, 1007, 1009, 4003 without a function as `secret`, and all from 4500 on; and a response to the upgrade that is
 * not retryable (an invalid parameter, a disallowed origin, a wrong path).
 *
 * After 20 to 40 s without a frame from the gateway the module sends a probe, twice; without a response within 10 s it
 * closes the connection. An unconfirmed `finish()`, `requeue()` or `touch()` ends the connection within 15 s. An event
 * stream is closed after 48 to 64 s without a byte (the gateway sends one every 15 s), and an acknowledgement without a
 * response within 10 s has the error `OUTCOME_UNKNOWN`. In Node, a subscription keeps the process alive until it is
 * closed.
 *
 * @throws {TypeError} An option is unknown, `transport` is neither of its values, `url` is not the URL of a gateway, or
 *   there is no WebSocket class. The gateway checks everything else: an invalid value rejects `ready` and `closed`.
 */
export function subscribe(options: SubscribeOptions, work?: (message: Message) => unknown): Subscription;

export interface PullOptions {
  topic: string;
  /** Pulls and subscriptions of the same channel share its messages. */
  channel: string;
  /** Maximum number of messages, 1 to 1000; default 10. */
  max?: number;
  /** Time to wait for a message, 0 to 30 000 ms; default 0: what nsqd has now. */
  waitMs?: number;
  /** Time until the leases end: 1000 ms to nsqd's maximum; default nsqd's message timeout. `touch()` starts it anew. */
  leaseMs?: number;
  /** As in {@link SubscribeOptions}. */
  url?: string | URL;
  /** The secret or token. A function is called for the pull, and for each request with acknowledgements. */
  secret?: string | (() => string | Promise<string>);
  /**
   * Aborting it rejects the pull with the signal's reason; the gateway requeues its messages. It does not affect
   * messages that were pulled.
   */
  signal?: AbortSignal;
}

/**
 * Takes messages with one request (`POST /pull`), as soon as there are any; an empty array if none came in time. Each
 * has a lease: it is answered by `finish()`, `requeue()` or `touch()`, and redelivered when the lease ends.
 * Acknowledgements of one turn of the event loop are one request. There is no subscription, so no `error` event: if an
 * acknowledgement is refused, its promise is `false`, and `error` of the message says why.
 *
 * @throws {TypeError} (rejected) An option is unknown, or `url` is not the URL of a gateway.
 * @throws {NsqError} (rejected) The gateway refused the pull, as for an invalid value, or it is unreachable
 *   (`NO_CONNECTION`). Then no message is lost.
 */
export function pull(options: PullOptions): Promise<Message[]>;

/** How a subscription ended. */
export interface Closed {
  /** The last close code: 1000 after `close()`, 1006 if the connection broke without a close frame. */
  code: number;
  reason: string;
}

/**
 * The events of a subscription, each with its `detail`. An exception in a listener does not affect the subscription.
 */
export interface SubscriptionEvents {
  /**
   * The state changed, or the gateway repeated it. With `waiting` and `closed`, `code` and `reason` are those of the
   * closed connection; with `waiting`, `retryInMs` is the time until the next attempt.
   */
  state: CustomEvent<{ state: State; retryInMs?: number; code?: number; reason?: string }>;
  /**
   * An error: an acknowledgement came too late, `work` threw, the gateway was unreachable or sent an invalid frame; or
   * a permanent error, after the `state` event with `closed`. The error is also logged to the browser's console, unless
   * a listener calls `preventDefault()`. Errors of `publish` only reject its promise.
   */
  error: CustomEvent<Error>;
}

export class Subscription extends EventTarget implements AsyncIterable<Message> {
  private constructor();
  readonly state: State;
  /** Number of nsqds behind the socket, as last reported; undefined until it first changes. */
  readonly nsqds: number | undefined;
  /** Number of a viewer's messages that were dropped because the iterator was too slow. */
  readonly dropped: number;
  /**
   * Fulfilled when the gateway confirms the first SUB; rejected with an `NsqError` after a permanent error. Handling it
   * is optional.
   */
  readonly ready: Promise<void>;
  /**
   * Fulfilled after `close()`; rejected with an `NsqError` after a permanent error. Handling it is optional: an `error`
   * event is dispatched as well.
   */
  readonly closed: Promise<Closed>;

  /**
   * Iterates over the messages. Ends after `close()`, throws an `NsqError` after a permanent error.
   *
   * Several iterators share the messages; each message goes to one of them. Queued messages of a lost connection are
   * skipped. Queued messages that have timed out are skipped and requeued; the gateway refuses that with an `error`
   * event. After `close()`, messages received before are still iterated. Leaving the loop (`break`, `return`, an
   * exception) closes the subscription, for the other iterators too: the current message, unless acknowledged, and the
   * queued ones are requeued, and the loop ends once the subscription has ended.
   */
  [Symbol.asyncIterator](): AsyncGenerator<Message, void, void>;

  /**
   * Sets the maximum of messages in flight; 0 pauses delivery, except for one message after each reconnection. No
   * effect on a viewer.
   */
  setMaxInFlight(count: number): void;

  /**
   * Publishes `body` to any topic and waits for nsqd's OK. Waits for a connection, if there is none, for at most
   * `timeoutMs` (10 000). The message is sent once, never retried. A frame above the gateway's limit (2 MiB) ends the
   * subscription with 1009.
   *
   * @returns a promise. If it is rejected with an `NsqError`, nothing was published, unless `code` is `OUTCOME_UNKNOWN`
   *   or `INTERNAL_ERROR`.
   */
  publish(topic: string, body: Body, options?: PublishOptions): Promise<void>;
  /** Publishes several messages, all or none (MPUB). */
  publishAll(topic: string, bodies: readonly Body[], options?: { timeoutMs?: number }): Promise<void>;

  /**
   * Stops receiving, waits until the messages in flight are acknowledged (at most the message timeout), and closes; at
   * once if not connected. Messages that arrive meanwhile are requeued. Returns `closed`, on every call.
   */
  close(): Promise<Closed>;

  addEventListener<Name extends keyof SubscriptionEvents>(
    type: Name,
    listener: (event: SubscriptionEvents[Name]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
  removeEventListener<Name extends keyof SubscriptionEvents>(
    type: Name,
    listener: (event: SubscriptionEvents[Name]) => void,
    options?: boolean | EventListenerOptions,
  ): void;
  removeEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | EventListenerOptions,
  ): void;
}

export type Body = string | Uint8Array | ArrayBuffer;

export interface PublishOptions {
  /** Delay before nsqd delivers the message (DPUB). */
  deferMs?: number;
  /** Maximum time to wait for a connection; then the response is awaited as long as the connection lasts. */
  timeoutMs?: number;
}

/** One delivery of a message. */
export interface Message {
  /** Identifies this delivery on this connection; a redelivery has a different id, except in a pull. */
  readonly id: string;
  readonly topic: string;
  readonly channel: string;
  /** Number of deliveries, including this one. */
  readonly attempts: number;
  /** When nsqd received the message, in nanoseconds since 1970. */
  readonly timestampNs: bigint;
  /**
   * When NSQ redelivers the message, in the time of `Date.now()`, counted from its arrival. After the gateway has
   * confirmed a `touch()`, it is the message timeout after that call, limited by nsqd's maximum (15 minutes after the
   * delivery). Delays in the network or in a frozen tab are unknown here: the true deadline is that much earlier.
   */
  readonly deadline: number;
  /** The body as text. Invalid UTF-8 becomes U+FFFD: see `bytes`. */
  readonly body: string;
  readonly bytes: Uint8Array;
  /** Parses the body as JSON. */
  json(): any;
  /** True if the message needs no acknowledgement: it has one, it is lost, or the gateway finishes it. */
  readonly isAnswered: boolean;
  /** The lease of this delivery, for `POST /ack`: only of an event stream or a pull. */
  readonly lease?: string;
  /** Why the last acknowledgement was refused. */
  readonly error?: NsqError;
  /**
   * Aborted when the message is lost before it is acknowledged: its connection or nsqd is lost, or it timed out (a
   * TOUCH is refused). NSQ redelivers it.
   */
  readonly signal: AbortSignal;

  /**
   * Finishes the message (FIN). `isAnswered` is true at once; acknowledgements of one turn of the event loop are sent
   * together.
   *
   * @returns a promise that is never rejected; handling it is optional. `true`: the gateway has forwarded the FIN to
   *   nsqd. `false`: NSQ may redeliver the message, because the gateway refused the FIN (an `error` event has the
   *   reason), the connection ended first, or `isAnswered` was true before the call. If nsqd refuses it after `true`,
   *   which is rare, an `error` event names the message.
   */
  finish(): Promise<boolean>;
  /** Requeues the message (REQ): NSQ redelivers it after `delayMs` (0), at most nsqd's limit. Returns as `finish()`. */
  requeue(delayMs?: number): Promise<boolean>;
  /**
   * Restarts the message timeout (TOUCH). Returns as `finish()`; on `true`, `deadline` has moved. The message still
   * needs an acknowledgement.
   */
  touch(): Promise<boolean>;
}

/** An error of NSQ, the gateway or the connection. */
export class NsqError extends Error {
  /**
   * An error code of NSQ or the gateway (`E_FIN_FAILED`, `NO_BROKER`, `INVALID_ARG`, …), or of the module:
   * `OUTCOME_UNKNOWN` (the connection ended before the response), `NO_CONNECTION` (no connection in time; nothing was
   * sent), `OVERLOADED` (16 MiB are already queued for sending), `CLOSED` (closed by the gateway without an error),
   * `UNSUPPORTED` (an event stream cannot publish).
   */
  readonly code: string;
  /** True if a retry may succeed. */
  readonly retryable: boolean;
  /** The command that was refused. */
  readonly cmd?: string;
  /** The ids of the refused messages. */
  readonly ids?: readonly string[];
  /** The close code, or the HTTP status, that ended the subscription. */
  readonly status?: number;
}
