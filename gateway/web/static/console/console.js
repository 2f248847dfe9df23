/**
 * The console: puts its parts together and lets them hear of each other.
 */

import { Charts } from "./charts.js";
import { Connection, describe } from "./connection.js";
import { Detail } from "./detail.js";
import { announce, byId, setText, setTone } from "./elements.js";
import { count, rate } from "./format.js";
import { listenToKeys } from "./keyboard.js";
import { MessageList } from "./message_list.js";
import { MetricsCharts } from "./metrics_charts.js";
import { PublishForm } from "./publish_form.js";
import { SECRET_WANTED, wordsOf } from "./standing.js";
import { StatsPoll } from "./stats_poll.js";
import { SubscriptionForm } from "./subscription_form.js";
import { Tabs } from "./tabs.js";
import { offerThemes } from "./theme.js";
import { Topics } from "./topics.js";

/** @typedef {import("./delivery.js").Delivery} Delivery */
/** @typedef {import("./delivery.js").Answer} Answer */

const TICK_MS = 500;

const tabs = new Tabs(byId("tabs", HTMLElement));
const charts = new Charts();
const metrics = new MetricsCharts();
const detail = new Detail({ onAnswer: answer });
const list = new MessageList({ onAnswer: answer, onSelect: (delivery) => detail.show(delivery) });
const connection = new Connection({
  delivered: (delivery) => {
    list.add(delivery);
    metrics.add(delivery.message.body);
  },
  stood: showStanding,
  failed: showError,
});
const poll = new StatsPoll({
  onReport: (report) => {
    topics.show(report);
    form.offer(report);
    charts.add(report);
  },
  onTrouble: (trouble) => topics.showTrouble(trouble),
});
const publishForm = new PublishForm(connection, {
  secret: () => form.wish.secret,
  onPublished: () => poll.askNow(),
});
const topics = new Topics({
  onChosen: (topic, channel) => {
    form.fill(topic, channel);
    tabs.show("messages");
  },
  onSecret: (secret) => poll.useSecret(secret),
});
const form = new SubscriptionForm({
  onSubscribe: start,
  onStop: () => connection.stop(),
  onWindow: (maxInFlight) => connection.setMaxInFlight(maxInFlight),
  onChange: (topic, channel) => {
    topics.choose(topic, channel);
    charts.choose(topic, channel);
    publishForm.suggest(topic);
  },
});

/** @param {import("./connection.js").Wish} wish */
function start(wish) {
  list.clear(() => false);
  list.hold(false);
  metrics.clear();
  showNotice("");
  isFullSpoken = false;
  document.body.classList.toggle("is-by-hand", wish.ack === "client");
  document.body.classList.toggle("is-consumer", wish.ack === "client" || wish.channel !== "");
  putInAddress(wish);
  byId("list-tools", HTMLElement).scrollIntoView({ block: "start" }); // on a phone the form is all that one sees
  try {
    connection.start(wish);
  } catch (error) {
    showNotice(error instanceof Error ? error.message : String(error));
  }
}

/** @param {import("./connection.js").Wish} wish To be found there when the page is loaded again; not its secret. */
function putInAddress({ topic, channel }) {
  const address = new URL(location.href);
  address.search = "";
  address.searchParams.set("topic", topic);
  if (channel !== "") address.searchParams.set("channel", channel);
  history.replaceState(null, "", address);
}

/**
 * @param {Answer} kind
 * @param {Delivery} delivery
 */
function answer(kind, delivery) {
  const nowMs = Date.now();
  if (kind === "FIN") connection.finish(delivery, nowMs);
  else if (kind === "REQ") connection.requeue(delivery, Number(byId("req-delay", HTMLSelectElement).value), nowMs);
  else connection.touch(delivery, nowMs);
  list.update(delivery);
  detail.update();
}

/** @param {Answer} kind For the selected message, by key; then on to the next one. */
function answerSelected(kind) {
  const { selected } = list;
  if (selected === null || !selected.isInHand) return;
  answer(kind, selected);
  if (kind !== "TOUCH") list.moveOn();
}

let spokenState = "";

function showStanding() {
  const { standing, wish, isActive } = connection;
  const { tone, word, more } = wordsOf(standing, Date.now());
  setText(byId("connection-state", HTMLElement), word);
  setTone(byId("connection", HTMLElement), tone);
  const what = wish === null ? "" : wish.channel === "" ? wish.topic : `${wish.topic} / ${wish.channel}`;
  setText(byId("connection-what", HTMLElement), what);
  setText(byId("connection-more", HTMLElement), more);
  form.show(isActive);
  setText(byId("empty-title", HTMLElement), isActive ? `No message of ${what} yet` : "Nothing is subscribed");
  byId("empty-choose", HTMLElement).hidden = isActive;
  // It stands above already, with what it means.
  if (standing.refusal?.startsWith(byId("messages-notice", HTMLElement).textContent)) showNotice("");
  if (standing.state === spokenState) return; // a countdown is not told
  spokenState = standing.state;
  if (standing.state !== "idle") announce(`${word}. ${more}`);
  if (standing.state === "closed" && standing.code === SECRET_WANTED) form.askForSecret();
}

/**
 * @param {Error} error
 * @param {readonly Delivery[]} refused
 */
function showError(error, refused) {
  for (const delivery of refused) list.update(delivery);
  detail.update();
  if (refused.length === 0) showNotice(describe(error));
  announce(refused.length === 0 ? describe(error) : `Refused: ${describe(error)}`);
}

/** @param {string} text Empty: nothing to say. */
function showNotice(text) {
  const notice = byId("messages-notice", HTMLElement);
  notice.hidden = text === "";
  setText(notice, text);
}

function showCounters() {
  const { tally } = connection;
  setText(byId("count-received", HTMLElement), count(tally.received));
  setText(byId("count-rate", HTMLElement), rate(charts.arrivalRate));
  setText(byId("count-in-hand", HTMLElement), count(connection.inHand));
  showWindow();
  setText(byId("count-finished", HTMLElement), count(tally.finished));
  setText(byId("count-requeued", HTMLElement), count(tally.requeued));
  showRare(byId("count-refused", HTMLElement), tally.refused);
  showRare(byId("count-lost", HTMLElement), tally.lost + connection.dropped);
}

let isFullSpoken = false;

/** Says why nothing comes, where every place of the window waits for an answer. */
function showWindow() {
  const { inHand, isActive, isByHand, wish } = connection;
  const isFull = isActive && isByHand && wish !== null && inHand >= wish.maxInFlight;
  const text = isFull ? `window full: ${count(inHand)} of ${count(wish.maxInFlight)} wait for your answer` : "";
  setText(byId("window-full", HTMLElement), text);
  if (isFull && !isFullSpoken) announce(text);
  isFullSpoken ||= isFull; // once: each FIN makes room, and it is full again
}

/**
 * @param {HTMLElement} gauge One that is seen only where there is something to tell.
 * @param {number} value
 */
function showRare(gauge, value) {
  setText(gauge, count(value));
  if (gauge.parentElement !== null) gauge.parentElement.hidden = value === 0;
}

let ticks = 0;

function tick() {
  const nowMs = Date.now();
  connection.look(nowMs);
  list.tick(nowMs);
  detail.update();
  if (connection.standing.state === "waiting") showStanding();
  if (ticks % 2 === 0) {
    charts.tick(nowMs, connection.tally);
    metrics.tick();
  }
  showCounters();
  ticks += 1;
}

function openHelp() {
  byId("help", HTMLDialogElement).showModal();
}

function focusFilter() {
  tabs.show("topics");
  byId("filter", HTMLInputElement).focus();
}

/** @param {number} rows */
function moveBy(rows) {
  tabs.show("messages");
  list.move(rows);
}

offerThemes(byId("theme", HTMLButtonElement));
byId("help-open", HTMLButtonElement).addEventListener("click", openHelp);
byId("help-close", HTMLButtonElement).addEventListener("click", () => byId("help", HTMLDialogElement).close());
for (const example of document.querySelectorAll("[data-example]")) {
  // The address that this page came from, whatever proxy it came through.
  example.textContent = `curl -d 'hello' '${new URL("../pub?topic=orders", import.meta.url)}'`;
}
listenToKeys({
  j: () => moveBy(1),
  k: () => moveBy(-1),
  ArrowDown: () => moveBy(1),
  ArrowUp: () => moveBy(-1),
  f: () => answerSelected("FIN"),
  r: () => answerSelected("REQ"),
  t: () => answerSelected("TOUCH"),
  h: () => list.toggleHold(),
  Escape: () => detail.close(),
  "/": focusFilter,
  "?": openHelp,
});
const asked = new URLSearchParams(location.search);
form.fill(asked.get("topic") ?? "", asked.get("channel") ?? "");
if (asked.has("topic")) tabs.show("messages");
showStanding();
tick();
setInterval(tick, TICK_MS);
poll.start();
