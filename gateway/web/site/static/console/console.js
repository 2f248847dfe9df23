/**
 * The console: creates its parts and connects them.
 */

import { Access } from "./access.js";
import { Charts } from "./charts.js";
import { Connection, describe } from "./connection.js";
import { Detail } from "./detail.js";
import { offerDividers } from "./dividers.js";
import { announce, byId, setText, setTone } from "./elements.js";
import { count, fullName, plural, rate } from "./format.js";
import { listenToKeys } from "./keyboard.js";
import { Manage } from "./manage.js";
import { parseFilter, parsePaths } from "./message_filter.js";
import { MessageList } from "./message_list.js";
import { MetricsCharts } from "./metrics_charts.js";
import { NodesPage } from "./nodes_page.js";
import { Overview } from "./overview.js";
import { PublishForm } from "./publish_form.js";
import { isPaused, keyOf, waitingFor } from "./report.js";
import { Selection } from "./selection.js";
import { QueueHistory } from "./series.js";
import { SignIn } from "./sign_in.js";
import { StatsNotice } from "./stats_notice.js";
import { StatsPoll } from "./stats_poll.js";
import { describeStatus, SECRET_WANTED } from "./status.js";
import { recall, remember } from "./storage.js";
import { SubjectPage } from "./subject_page.js";
import { SubscriptionForm } from "./subscription_form.js";
import { Tabs } from "./tabs.js";
import { offerThemes } from "./theme.js";
import { Tombstone } from "./tombstone.js";
import { Topics } from "./topics.js";
import { crumbs, Views } from "./views.js";

/** @typedef {import("./delivery.js").Delivery} Delivery */
/** @typedef {import("./delivery.js").Answer} Answer */

const TICK_MS = 500;

/** @type {import("./report.js").Report | null} */
let lastReport = null;

const access = new Access(showAccess);
const signIn = new SignIn(access);
const tabs = new Tabs(byId("tabs", HTMLElement));
const queueHistory = new QueueHistory();
const charts = new Charts(queueHistory);
const metrics = new MetricsCharts();
const detail = new Detail({
  onAnswer: answer,
  onPublish: (body) => {
    tabs.show("publish-panel");
    publishForm.fill(body);
  },
});
const list = new MessageList({
  onAnswer: answer,
  onSelect: (delivery) => detail.show(delivery),
  isOpen: () => detail.isOpen,
});
const selection = new Selection({ shown: () => list.shown, answer, where: describeShown, subject: subscribed });
const connection = new Connection({
  onDelivery: (delivery) => {
    list.add(delivery);
    metrics.add(delivery.message.body);
  },
  onStatus: showStatus,
  onError: showError,
});
const poll = new StatsPoll({
  secret: () => access.secret,
  onReport: (report) => {
    notice.showReport(report);
    queueHistory.add(report);
    topics.show(report);
    overview.show(report);
    subjectPage.show(report);
    nodesPage.show(report);
    manage.show(report);
    form.offer(report);
    lastReport = report;
    showEmpty();
  },
  onTrouble: (trouble) => {
    notice.showTrouble(trouble);
    topics.showTrouble(trouble);
    if (trouble.wantsSecret && access.identity !== null) access.check();
  },
});
const notice = new StatsNotice({
  onSecret: (secret) => poll.useSecret(secret),
  isSignedOut: () => access.isMissing,
});
const manage = new Manage({
  secret: () => poll.secret,
  whyNot: (topic, channel) => access.whyNotAdmin(topic, channel),
  onDone: (action, { topic, channel }) => {
    if (action === "empty") connection.onEmptied(topic, channel);
    poll.askNow();
  },
});
const overview = new Overview({ onCreate: () => manage.openNew() });
const tombstone = new Tombstone({ secret: () => poll.secret, onDone: () => poll.askNow() });
const subjectPage = new SubjectPage({
  history: queueHistory,
  troubleOf: (topic, channel) => overview.find(topic, channel),
  secret: () => poll.secret,
  whyNotAdmin: (topic, channel) => access.whyNotAdmin(topic, channel),
  onMessages: (topic, channel) => {
    form.fill(topic, channel);
    showMessages();
  },
  onManage: (topic, channel) => manage.open(topic, channel),
  onTombstone: (topic, node) => tombstone.open(lastReport, topic, node),
  onTrouble: (what, atMs, why) => notice.showPageTrouble(what, atMs, why),
});
const nodesPage = new NodesPage({
  secret: () => poll.secret,
  whyNotAdmin: (topic, channel) => access.whyNotAdmin(topic, channel),
  onTrouble: (what, atMs, why) => notice.showPageTrouble(what, atMs, why),
});
const views = new Views(showView);
const publishForm = new PublishForm(connection, {
  secret: () => access.secret || form.params.secret,
  onPublished: () => poll.askNow(),
  whyNot: (topic) => access.whyNotPublish(topic),
});
const topics = new Topics({
  onChosen: (topic, channel) => {
    form.fill(topic, channel);
    tabs.show("messages");
  },
});
const form = new SubscriptionForm({
  onSubscribe: askOrStart,
  onStop: () => connection.stop(),
  onManage: (topic, channel) => manage.open(topic, channel),
  onWindow: (maxInFlight) => connection.setMaxInFlight(maxInFlight),
  whyNot: (topic, channel) => access.whyNotSubscribe(topic, channel),
  onChange: (topic, channel) => {
    topics.choose(topic, channel);
    charts.choose(topic, channel);
    publishForm.suggest(topic);
    showExample(topic);
  },
});

/**
 * Asks for confirmation before a channel's backlog is finished unread.
 *
 * @param {import("./connection.js").SubscribeParams} params
 */
function askOrStart(params) {
  if (connection.has(params)) {
    showNotice(
      "Subscribed with these values already. A new window needs no reconnect; Stop requeues what is in flight.",
    );
    return;
  }
  const { topic, channel, ack } = params;
  const waiting = lastReport === null ? null : waitingFor(lastReport, topic, channel);
  if (channel === "" || ack === "client" || waiting === 0) return start(params);
  const dialog = byId("automatic", HTMLDialogElement);
  const what = waiting === null ? "An unknown number of messages" : plural(waiting, "message");
  const text = `${what} in ${fullName(topic, channel)} would be finished as they are sent here; other consumers will not get them.`;
  setText(byId("automatic-what", HTMLElement), text);
  dialog.addEventListener("close", () => dialog.returnValue === "go" && start(params), { once: true });
  dialog.returnValue = "";
  dialog.showModal();
}

/** @param {import("./connection.js").SubscribeParams} params */
function start(params) {
  list.clear(() => false);
  list.pause(false);
  metrics.clear();
  showNotice("");
  isFullAnnounced = false;
  document.body.classList.toggle("is-by-hand", params.ack === "client");
  document.body.classList.toggle("is-consumer", params.ack === "client" || params.channel !== "");
  updateAddress(params);
  byId("list-tools", HTMLElement).scrollIntoView({ block: "start" }); // on a phone the form fills the screen
  try {
    connection.start(access.isRequired ? { ...params, secret: () => access.socketSecret() } : params);
  } catch (error) {
    showNotice(error instanceof Error ? error.message : String(error));
  }
}

/** @param {import("./connection.js").SubscribeParams} params Kept in the address for a reload, except the secret. */
function updateAddress({ topic, channel }) {
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
async function answer(kind, delivery) {
  const answered = send(kind, delivery);
  list.update(delivery);
  detail.update();
  const isDone = await answered;
  if (isDone) showNotice("");
  list.update(delivery);
  detail.update();
  return isDone;
}

/**
 * @param {Answer} kind
 * @param {Delivery} delivery
 */
function send(kind, delivery) {
  const nowMs = Date.now();
  if (kind === "FIN") return connection.finish(delivery, nowMs);
  if (kind === "TOUCH") return connection.touch(delivery);
  return connection.requeue(delivery, Number(byId("req-delay", HTMLSelectElement).value), nowMs);
}

/** @param {Answer} kind For the selected message; then selects the next one. */
function answerSelected(kind) {
  const { selected } = list;
  if (selected === null || !selected.isInFlight) return;
  answer(kind, selected);
  if (kind !== "TOUCH") list.moveOn();
}

let announcedState = "";

function showStatus() {
  const { status, params, isActive } = connection;
  const { tone, word, more } = describeStatus(status, Date.now());
  setText(byId("connection-state", HTMLElement), word);
  setTone(byId("connection", HTMLElement), tone);
  showWhat(params?.topic ?? "", params?.channel ?? "");
  setText(byId("connection-more", HTMLElement), more);
  form.show(isActive);
  showEmpty();
  if (status.state === "connected" && status.state !== announcedState) showNotice("");
  // The status already shows it.
  if (status.refusal?.startsWith(byId("messages-notice", HTMLElement).textContent)) showNotice("");
  if (status.state === announcedState) return; // do not announce the countdown
  announcedState = status.state;
  if (status.state !== "idle") announce(`${word}. ${more}`);
  if (status.state !== "closed" || status.code !== SECRET_WANTED) return;
  if (access.isRequired) signIn.open();
  else form.askForSecret();
}

let shownWhat = "";

/**
 * Shows what is subscribed, with links to the pages of the topic and the channel.
 *
 * @param {string} topic Empty: nothing.
 * @param {string} channel
 */
function showWhat(topic, channel) {
  const what = keyOf(topic, channel);
  if (what === shownWhat) return;
  shownWhat = what;
  byId("connection-what", HTMLElement).replaceChildren(...(topic === "" ? [] : crumbs(topic, channel)));
}

/** Shows why the list is empty. */
function showEmpty() {
  const { status, isActive } = connection;
  const { topic, channel } = subscribed();
  const what = fullName(topic, channel);
  const isHeldBack = status.state === "channel_paused" || (lastReport !== null && isPaused(lastReport, topic, channel));
  const title = isHeldBack ? `${what} is paused` : `No messages of ${what} yet`;
  const left = topic === "" ? "Not subscribed" : `No longer subscribed to ${what}`;
  setText(byId("empty-title", HTMLElement), isActive ? title : left);
  byId("empty-choose", HTMLElement).hidden = topic !== "";
  byId("empty-left", HTMLElement).hidden = isActive || channel === "";
  const waiting = lastReport === null ? 0 : waitingFor(lastReport, topic, channel);
  const text = `${plural(waiting, "message")} ${waiting === 1 ? "waits" : "wait"} in NSQ until the pause ends.`;
  byId("empty-paused", HTMLElement).hidden = !isActive || !isHeldBack;
  setText(byId("empty-paused", HTMLElement), text);
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

/** @param {string} topic The selected topic; empty: none. */
function showExample(topic) {
  // The address of this page, including the path prefix of a proxy.
  const address = new URL("../pub", import.meta.url);
  address.searchParams.set("topic", topic || "orders");
  for (const example of document.querySelectorAll("[data-example]"))
    example.textContent = `curl ${access.isRequired ? '-H "Authorization: Bearer $TOKEN" ' : ""}-d 'hello' '${address}'`;
}

/** @param {string} text Empty hides it. */
function showNotice(text) {
  const notice = byId("messages-notice", HTMLElement);
  notice.hidden = text === "";
  setText(notice, text);
}

function showCounters() {
  const { counters } = connection;
  setText(byId("count-received", HTMLElement), count(counters.received));
  setText(byId("count-rate", HTMLElement), rate(charts.arrivalRate));
  setText(byId("count-in-flight", HTMLElement), count(connection.inFlight));
  showWindow();
  setText(byId("count-finished", HTMLElement), count(counters.finished));
  setText(byId("count-requeued", HTMLElement), count(counters.requeued));
  showRare(byId("count-refused", HTMLElement), counters.refused);
  showRare(byId("count-lost", HTMLElement), counters.lost + connection.dropped);
}

let isFullAnnounced = false;

/** Shows when the window is full. */
function showWindow() {
  const { inFlight, isActive, isByHand, params } = connection;
  const isFull = isActive && isByHand && params !== null && inFlight >= params.maxInFlight;
  const text = isFull ? `window full: ${count(inFlight)} of ${count(params.maxInFlight)} are not acknowledged` : "";
  setText(byId("window-full", HTMLElement), text);
  if (isFull && !isFullAnnounced) announce(text);
  isFullAnnounced ||= isFull; // announce once: each FIN makes room for the next message
}

/**
 * @param {HTMLElement} gauge Hidden while the value is 0.
 * @param {number} value
 */
function showRare(gauge, value) {
  setText(gauge, count(value));
  if (gauge.parentElement !== null) gauge.parentElement.hidden = value === 0;
}

let shownFor = "";

/** Adapts the page to the user and the user's rights. */
function showAccess() {
  signIn.show();
  form.askSecret(!access.isRequired);
  publishForm.update();
  showExample(form.params.topic);
  if (shownFor === access.secret) return;
  shownFor = access.secret;
  poll.askNow();
}

/** Asks who the user is, before anything else that the gateway would refuse. */
async function begin() {
  await access.check();
  if (access.isMissing) signIn.open();
  poll.start();
}

let ticks = 0;

function tick() {
  const nowMs = Date.now();
  connection.checkDeadlines(nowMs);
  list.tick(nowMs);
  detail.update();
  access.tick(nowMs);
  signIn.tick(nowMs);
  if (connection.status.state === "waiting") showStatus();
  if (ticks % 2 === 0) {
    charts.tick(nowMs, connection.counters);
    metrics.tick();
  }
  selection.tick();
  showCounters();
  ticks += 1;
}

/** @param {import("./views.js").View} view */
function showView(view) {
  if (view.name === "subject") subjectPage.open(view);
  else subjectPage.close();
  topics.open(view.name === "messages");
  if (view.name === "overview") overview.open();
  else overview.close();
  if (view.name === "nodes") nodesPage.open();
  else nodesPage.close();
}

/** Shows the list of messages. */
function showMessages() {
  views.openMessages();
  tabs.show("messages");
}

/** @returns {{ topic: string, channel: string }} What the messages of the list come from; empty names: nothing yet. */
function subscribed() {
  return connection.params ?? { topic: "", channel: "" };
}

/** @returns {string} Which messages the list shows: `of orders › billing that match “ada”`. */
function describeShown() {
  const { topic, channel } = subscribed();
  const filter = byId("message-filter", HTMLInputElement).value.trim();
  return `of ${fullName(topic, channel)}${filter && ` that match “${filter}”`}`;
}

/**
 * Stops the second click of a double click on a button: it would press what has moved under the pointer, such as the
 * button of the next message.
 *
 * @param {MouseEvent} event
 */
function refuseDoubleClick(event) {
  if (event.detail < 2 || !(event.target instanceof Element) || event.target.closest("button") === null) return;
  event.preventDefault();
  event.stopImmediatePropagation();
}

function openHelp() {
  byId("help", HTMLDialogElement).showModal();
}

/** Focuses the first filter that is visible: each page has its own. */
function focusFilter() {
  for (const filter of document.querySelectorAll('input[type="search"]')) {
    if (!(filter instanceof HTMLElement) || !filter.checkVisibility({ visibilityProperty: true })) continue;
    filter.focus();
    return;
  }
}

/** @returns {boolean} Whether the list of messages is shown: on a phone, also its tab. */
function areMessagesShown() {
  return views.view.name === "messages" && !byId("messages", HTMLElement).hidden;
}

/** Makes the rows show the members of JSON that the user names, and remembers them. */
function offerMembers() {
  const field = byId("message-members", HTMLInputElement);
  field.value = recall("members") ?? "";
  list.showMembers(parsePaths(field.value));
  field.addEventListener("input", () => {
    remember("members", field.value || null);
    list.showMembers(parsePaths(field.value));
  });
}

byId("message-filter", HTMLInputElement).addEventListener("input", ({ target }) => {
  if (target instanceof HTMLInputElement) list.filter(parseFilter(target.value));
});
offerMembers();
offerThemes(byId("theme", HTMLButtonElement));
offerDividers(byId("workbench", HTMLElement));
byId("help-open", HTMLButtonElement).addEventListener("click", openHelp);
document.addEventListener("click", refuseDoubleClick, { capture: true });
byId("help-close", HTMLButtonElement).addEventListener("click", () => byId("help", HTMLDialogElement).close());
listenToKeys({ "/": focusFilter, "?": openHelp });
listenToKeys(
  {
    j: () => list.move(1),
    k: () => list.move(-1),
    ArrowDown: () => list.move(1),
    ArrowUp: () => list.move(-1),
    f: () => answerSelected("FIN"),
    r: () => answerSelected("REQ"),
    t: () => answerSelected("TOUCH"),
    h: () => list.togglePause(),
    c: () => detail.copy(),
    Escape: () => detail.close(),
  },
  areMessagesShown,
);
const query = new URLSearchParams(location.search);
form.fill(query.get("topic") ?? "", query.get("channel") ?? "");
views.start();
if (query.has("topic")) tabs.show("messages");
showStatus();
tick();
setInterval(tick, TICK_MS);
begin();
