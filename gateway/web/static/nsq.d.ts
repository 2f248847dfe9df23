/**
 * NSQ in a browser and in Node: one subscription over one WebSocket of nsq-gateway, that comes back by itself.
 *
 * What is said on the wire: docs/websocket.md. How to use this: docs/browser.md.
 */

/** How a subscription stands; `connected`, `disconnected` and `channel_paused` are the gateway's words for the nsqds behind it. */
export type State =
  | "connecting"
  | "connected"
  /** No nsqd is reachable; the socket stays. */
  | "disconnected"
  | "channel_paused"
  /** The connection is lost; the next try is on its way. */
  | "waiting"
  /** `close()` was called; answers are still taken. */
  | "closing"
  | "closed";

export interface SubscribeOptions {
  topic: string;
  /** Who reads: subscriptions of one channel share its messages. None: a viewer, which sees all of them and answers none. */
  channel?: string;
  /**
   * The gateway's address (`http:`, `https:`, `ws:` or `wss:`), with the path prefix that a proxy gave it, with or
   * without `/sub` at its end; in a browser it may be relative to the page. A query in it is passed over.
   * Default: where this module was loaded from. Needed in Node, and where a bundler has packed the module.
   */
  url?: string | URL;
  /**
   * What nsqd's AUTH gets, in a frame of its own; empty: none. A function is called for each connection and waited for
   * as long as it takes; where it throws, an `error` event tells and it is called again after the backoff.
   * Only with a function the subscription lives on when the secret is refused at a later look (4003).
   */
  secret?: string | (() => string | Promise<string>);
  /** Deliveries that may wait for an answer at a time; default 10. A viewer has the gateway's own window, and its message timeout. */
  maxInFlight?: number;
  /** Time to answer a delivery before NSQ gives it to somebody again; default nsqd's. */
  msgTimeoutMs?: number;
  /** `client`: each message is finished by its `finish()`; `auto`: by the gateway, once it is written. Default: `client` with a channel, `auto` without. */
  ack?: "client" | "auto";
  /** Delay of what is handed back when the connection ends; default 0. */
  requeueOnCloseMs?: number;
  /** A message that was tried more often is put off, not delivered; default 0, no bound. */
  maxAttempts?: number;
  /** Share of the messages to get, in percent. */
  sampleRate?: number;
  /**
   * How much may wait for the iterator where the gateway finishes the messages (`ack` is `auto`, as for a viewer);
   * beyond it the oldest go and `dropped` counts them. In UTF-16 code units of the bodies, with 200 more for each
   * message; default 32 Mi. Elsewhere `maxInFlight` is the bound.
   */
  maxQueuedChars?: number;
  /** Aborting it is `close()`; one that is aborted already opens no connection. */
  signal?: AbortSignal;
  /** The class to connect with; default `globalThis.WebSocket`. Node has one since 22; before, that of the package `ws` fits. */
  WebSocket?: new (
    url: string,
    protocols: string[],
  ) => unknown;
}

/**
 * Subscribes, and stays subscribed until `close()` or until there is no coming back.
 *
 * With `work`, each message is handed to it as it comes, up to `maxInFlight` at a time: when it returns, or its promise
 * is fulfilled, the message is finished, unless it was answered already; when it throws, the message is requeued with a
 * delay that grows with its attempts (1 s, 4 s, 9 s, …, up to nsqd's limit), and an `error` event tells. Without `work`,
 * iterate over the subscription.
 *
 * A connection that ends is followed by another one, with exponential backoff and full jitter: up to 0.5 s, then 1 s,
 * 2 s, … 30 s (from 8 s on where the gateway is full), after the time that the gateway names, if it does (an hour at
 * most). Ten seconds of a connection forgive the failures before. A page that gets a network again, or is looked at
 * again, tries at once. What ends it for good: close codes 1000, 1002, 1003, 1007, 1009, 4003 without a function as
 * `secret`, and all from 4500 on; and a refusal before the upgrade that the gateway calls not retryable (a parameter, a
 * foreign page, a wrong path).
 *
 * A gateway that is silent for 20 to 40 s is asked for a word, twice; with no answer within 10 s the connection is given up.
 * Who subscribes in Node keeps the process alive until the subscription is closed.
 *
 * @throws {TypeError} There is no such option, `url` is no address of a gateway, or there is no WebSocket to connect with.
 *   All else is checked by the gateway: a wrong value rejects `ready` and `closed`.
 */
export function subscribe(options: SubscribeOptions, work?: (message: Message) => unknown): Subscription;

/** What became of a subscription. */
export interface Closed {
  /** The code of the last close: 1000 after `close()`, 1006 where the connection broke before the gateway's close. */
  code: number;
  reason: string;
}

/** The events of a subscription, each with its `detail`. A listener that throws disturbs nothing here. */
export interface SubscriptionEvents {
  /**
   * It stands differently now, or was told so again. `code` and `reason` say what ended the connection, with `waiting`
   * and `closed`; `retryInMs`, with `waiting`, when the next try is.
   */
  state: CustomEvent<{ state: State; retryInMs?: number; code?: number; reason?: string }>;
  /**
   * Something went wrong: an answer came too late, `work` threw, the gateway could not be reached or said what is not
   * understood; or there is no coming back, which `state` is `closed` tells first. It is written to the console as well,
   * unless a listener calls `preventDefault()`. What rejects a promise of `publish` is told there only.
   */
  error: CustomEvent<Error>;
}

export class Subscription extends EventTarget implements AsyncIterable<Message> {
  private constructor();
  readonly state: State;
  /** nsqds behind the socket, as last told; undefined until one comes or goes. */
  readonly nsqds: number | undefined;
  /** Messages of a viewer that were thrown away because nobody iterated fast enough. */
  readonly dropped: number;
  /** Fulfilled when the first SUB was answered; rejected with an `NsqError` when it never will be. It need not be handled. */
  readonly ready: Promise<void>;
  /**
   * Fulfilled when it has ended by `close()`; rejected with an `NsqError` when there is no coming back. It need not be
   * handled: an `error` event tells as well.
   */
  readonly closed: Promise<Closed>;

  /**
   * The messages; ends after `close()`, throws an `NsqError` when there is no coming back.
   *
   * Several iterators share them, each message goes to one. What came over a connection that is lost is passed over, and
   * so is what has run out of time while it waited: it is given back, and refused, which an `error` event tells. After
   * `close()` what had come before is handed out still. To leave the loop (`break`, `return`, an exception) closes the
   * subscription, for the other iterators too: the message in hand, unless it is answered, and what waits are given
   * back, and the loop is left once the subscription has ended.
   */
  [Symbol.asyncIterator](): AsyncGenerator<Message, void, void>;

  /** Sets the window, from now on; 0 stops the messages, but for one at each new connection. Means nothing to a viewer. */
  setMaxInFlight(count: number): void;

  /**
   * Publishes `body` to any topic and waits for nsqd's OK. Without a connection it waits for one, for at most `timeoutMs`
   * (10 000). It is sent once. A frame above the gateway's limit (2 MiB) ends the subscription with 1009.
   *
   * @returns a promise, rejected with an `NsqError`: nothing is published, unless `code` is `OUTCOME_UNKNOWN` or `INTERNAL_ERROR`.
   */
  publish(topic: string, body: Body, options?: PublishOptions): Promise<void>;
  /** The same for several messages, all or none (MPUB). */
  publishAll(topic: string, bodies: readonly Body[], options?: { timeoutMs?: number }): Promise<void>;

  /**
   * Takes no more messages, waits until those in flight are answered (at most the message timeout), and ends; at once
   * where it is not connected. What was on its way is given back. Returns `closed`, the first time and later.
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
  /** When nsqd shall deliver it, counted from now (DPUB). */
  deferMs?: number;
  /** How long to wait for a connection; the answer is waited for as long as the connection lasts. */
  timeoutMs?: number;
}

/** One delivery of a message. */
export interface Message {
  /** Names this delivery on this connection; a redelivery has another one. */
  readonly id: string;
  readonly topic: string;
  readonly channel: string;
  /** How often NSQ has delivered it, this time included. */
  readonly attempts: number;
  /** When nsqd got it: nanoseconds since 1970, more than a number holds. */
  readonly timestampNs: bigint;
  /**
   * When NSQ gives it to somebody again, in the time of `Date.now()`; `touch()` moves it, where nsqd's longest timeout
   * allows. In a tab that was frozen when the message came, it is earlier.
   */
  readonly deadline: number;
  /** As text; what is not UTF-8 has U+FFFD in it: see `bytes`. */
  readonly body: string;
  readonly bytes: Uint8Array;
  /** The body read as JSON. */
  json(): any;
  /** Whether it needs no answer any more: it has one, it is lost, or the gateway finishes it by itself. */
  readonly isAnswered: boolean;
  /** Aborted when it is lost before its answer, with its connection, its nsqd or its time (a TOUCH that is refused): NSQ gives it to somebody again. */
  readonly signal: AbortSignal;

  /**
   * Done: NSQ forgets it. Answers of one turn of the event loop go out together.
   *
   * @returns whether the answer goes out; false when `isAnswered` was true, or the connection is ending. A refusal of nsqd comes later, as an `error` event.
   */
  finish(): boolean;
  /** Gives it back, to be delivered again after `delayMs` (0), at most nsqd's limit. Returns as `finish()`. */
  requeue(delayMs?: number): boolean;
  /** Begins its time anew. Returns as `finish()`, and needs an answer still. */
  touch(): boolean;
}

/** A refusal, or the end of a connection. */
export class NsqError extends Error {
  /**
   * NSQ's or the gateway's word (`E_FIN_FAILED`, `NO_BROKER`, `INVALID_ARG`, …), or one of the module's:
   * `OUTCOME_UNKNOWN` (the connection ended before the answer), `NO_CONNECTION` (none is there, or came in time; nothing was
   * sent), `OVERLOADED` (16 MiB wait to be sent already), `CLOSED` (by the gateway, without a word).
   */
  readonly code: string;
  /** Whether the same may succeed later. */
  readonly retryable: boolean;
  /** The command that was refused. */
  readonly cmd?: string;
  /** The deliveries that were refused. */
  readonly ids?: readonly string[];
  /** The code of the close, or the HTTP status of the refusal, that ended the subscription. */
  readonly status?: number;
}
