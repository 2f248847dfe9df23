/**
 * The page of nodes: every nsqd with its state, its drain, and what each nsqlookupd knows.
 */

import { announce, byId, part, setText, setTone, stamp } from "./elements.js";
import { count, fullName, plural } from "./format.js";
import { DRAIN_TOPIC, messagesOn } from "./report.js";
import { getJson, post, Repeated } from "./requests.js";
import { Table, UNKNOWN } from "./table.js";
import { addressOf } from "./views.js";

/**
 * @typedef {object} Node An nsqd, as in `GET /nodes`; with an error, it has no counts.
 * @property {string} node
 * @property {"active" | "draining" | "drained" | "unreachable"} state
 * @property {string} [error]
 * @property {string} version
 * @property {string} health
 * @property {number} topics
 * @property {number} channels
 * @property {number} depth
 * @property {number} in_flight
 * @property {number} deferred
 * @property {number} consumers
 * @property {{ remote_address: string, hostname: string, user_agent: string }[]} [producers]
 */

/**
 * @typedef {object} Lookupd
 * @property {string} lookupd
 * @property {string} [error]
 * @property {{ tcp_address: string, http_address: string, tombstones: string[] }[]} [nodes]
 * @property {string[]} [missing] The TCP addresses of nsqds.
 */

const EVERY_MS = 3_000;
const PLACES_SHOWN = 10;
/** @type {Record<Node["state"], "" | "good" | "warn" | "bad">} */
const TONES = { active: "", draining: "warn", drained: "good", unreachable: "bad" };

export class NodesPage {
  #root = byId("nodes", HTMLElement);
  #handlers;
  #isBusy = false;
  /** When the nodes were last read; null: never. @type {number | null} */
  #atMs = null;
  /** @type {import("./report.js").Report | null} */
  #report = null;
  #table = new Table(
    part(this.#root, "table"),
    [
      { label: "nsqd" },
      { label: "state" },
      { label: "action", isAction: true },
      { label: "version" },
      { label: "health" },
      { label: "topics", isNumber: true },
      { label: "channels", isNumber: true },
      { label: "depth", title: "Messages that wait", isNumber: true },
      { label: "in flight", isNumber: true },
      { label: "deferred", isNumber: true },
      { label: "consumers", isNumber: true },
    ],
    "nodes",
  );
  #lookupds = new Table(
    part(this.#root, "lookupds"),
    [
      { label: "nsqlookupd" },
      { label: "nsqds", isNumber: true },
      { label: "does not know", title: "nsqds that another nsqlookupd knows" },
      { label: "tombstones", title: "Topics that consumers do not find on an nsqd" },
    ],
    "lookupds",
  );
  #poll = new Repeated(EVERY_MS, (isCurrent) => this.#ask(isCurrent));

  /**
   * @param {object} handlers
   * @param {() => string} handlers.secret
   * @param {(topic: string, channel: string) => string} handlers.whyNotAdmin
   * @param {(what: string, atMs: number | null, why: string) => void} handlers.onTrouble Called with the reason why the
   *   nodes are not newer, and with an empty one when they are.
   */
  constructor(handlers) {
    this.#handlers = handlers;
  }

  open() {
    this.#tell("", "");
    this.#table.open();
    this.#lookupds.open();
    this.#poll.start();
  }

  /** @param {import("./report.js").Report} report */
  show(report) {
    this.#report = report;
  }

  /** Another page is shown. */
  close() {
    if (!this.#poll.isOn) return;
    this.#poll.stop();
    this.#handlers.onTrouble("Nodes", this.#atMs, "");
  }

  /** @param {() => boolean} isCurrent */
  async #ask(isCurrent) {
    const answer = await getJson("nodes", {}, this.#handlers.secret());
    if (!isCurrent()) return;
    this.#handlers.onTrouble("Nodes", this.#atMs, "trouble" in answer ? answer.trouble : "");
    if ("trouble" in answer) return;
    this.#atMs = Date.now();
    /** @type {{ nodes: Node[], lookupds: Lookupd[] }} */
    const { nodes, lookupds } = answer.data;
    this.#table.show(nodes.map((node) => this.#rowOf(node)));
    this.#showLookupds(lookupds);
    await this.#showDrains(
      nodes.filter(({ state }) => state === "draining" || state === "drained"),
      isCurrent,
    );
  }

  /**
   * @param {Node} node
   * @returns {import("./table.js").Row}
   */
  #rowOf(node) {
    const { node: name, state, error, version, health } = node;
    const isDrained = state === "draining" || state === "drained";
    const action = isDrained ? "undrain" : "drain";
    const counts = [node.topics, node.channels, node.depth, node.in_flight, node.deferred, node.consumers];
    return {
      key: name,
      cells: [
        name,
        { text: state, tone: TONES[state] },
        {
          text: state === "unreachable" ? "" : isDrained ? "End drain" : "Drain",
          title: isDrained ? "Publish here again" : "Publish to other nsqds, so that this one can be removed",
          onPress: () => this.#change(action, name),
          whyNot: this.#isBusy ? "A request is pending" : this.#handlers.whyNotAdmin(DRAIN_TOPIC, ""),
        },
        version ?? "",
        { text: error ?? health, tone: error === undefined && health === "OK" ? "" : "bad" },
        ...counts.map((each) => (error === undefined ? each : UNKNOWN)),
      ],
    };
  }

  /**
   * @param {"drain" | "undrain"} action
   * @param {string} node
   */
  async #change(action, node) {
    this.#isBusy = true;
    const trouble = await post(`nodes/${action}`, { node }, this.#handlers.secret());
    this.#isBusy = false;
    this.#tell(trouble, "bad");
    // The table shows it.
    if (trouble === "") announce(`${node} ${action === "drain" ? "is draining" : "takes publishes again"}.`);
    this.#poll.start();
  }

  /**
   * Shows what the draining nsqds still have, and who publishes there all the same.
   *
   * @param {Node[]} nodes
   * @param {() => boolean} isCurrent
   */
  async #showDrains(nodes, isCurrent) {
    const secret = this.#handlers.secret();
    const answers = await Promise.all(nodes.map(({ node }) => getJson("nodes", { node }, secret)));
    if (!isCurrent()) return;
    const sections = answers.flatMap((answer) =>
      "data" in answer ? answer.data.nodes.map((/** @type {Node} */ node) => drainOf(node, this.#report)) : [],
    );
    part(this.#root, "drains").replaceChildren(...sections);
  }

  /** @param {Lookupd[]} lookupds */
  #showLookupds(lookupds) {
    part(this.#root, "lookupds-part").hidden = lookupds.length === 0;
    // The other table names nsqds by their HTTP addresses.
    const known = lookupds.flatMap(({ nodes = [] }) => nodes);
    const names = new Map(known.map(({ tcp_address, http_address }) => [tcp_address, http_address]));
    this.#lookupds.show(lookupds.map((lookupd) => lookupdRow(lookupd, names)));
  }

  /**
   * @param {string} text
   * @param {"" | "good" | "bad"} tone
   */
  #tell(text, tone) {
    const result = part(this.#root, "result");
    setText(result, text);
    setTone(result, tone);
    result.hidden = text === "";
    if (text !== "") announce(text);
  }
}

/**
 * @param {Node} node
 * @param {import("./report.js").Report | null} report
 * @returns {HTMLElement}
 */
function drainOf({ node, state, depth, in_flight, deferred, producers = [] }, report) {
  const root = stamp("drain-entry");
  const left = `${plural(depth, "message")} waiting, ${count(in_flight)} in flight, ${count(deferred)} deferred.`;
  setTone(root, TONES[state]);
  setText(part(root, "what"), state === "drained" ? `${node} has no message left.` : `${node} still has ${left}`);
  const places = report === null || state === "drained" ? [] : messagesOn(report, node);
  part(root, "places").replaceChildren(...places.slice(0, PLACES_SHOWN).map(placeEntry));
  part(root, "places-more").hidden = places.length <= PLACES_SHOWN;
  setText(part(root, "places-more"), `and ${plural(places.length - PLACES_SHOWN, "other place")}`);
  part(root, "producers-part").hidden = producers.length === 0;
  const entries = producers.map(({ remote_address, hostname, user_agent }) => {
    const entry = document.createElement("li");
    entry.textContent = `${hostname || remote_address} (${remote_address}, ${user_agent})`;
    return entry;
  });
  part(root, "producers").replaceChildren(...entries);
  return root;
}

/** @param {ReturnType<typeof messagesOn>[number]} place */
function placeEntry({ topic, channel, messages, clients }) {
  const entry = document.createElement("li");
  const link = document.createElement("a");
  link.href = addressOf(topic, channel);
  link.textContent = fullName(topic, channel);
  const stay = channel === "" ? ", in no channel yet" : clients === 0 ? ", no consumer" : "";
  entry.append(link, `: ${plural(messages, "message")}${stay}`);
  return entry;
}

/**
 * @param {Lookupd} lookupd
 * @param {ReadonlyMap<string, string>} names The HTTP addresses of nsqds by their TCP addresses.
 * @returns {import("./table.js").Row}
 */
function lookupdRow({ lookupd, error, nodes = [], missing = [] }, names) {
  if (error !== undefined) return { key: lookupd, cells: [lookupd, UNKNOWN, { text: error, tone: "bad" }, ""] };
  const tombstones = nodes.flatMap(({ http_address, tombstones: topics }) =>
    topics.map((topic) => `${topic} on ${http_address}`),
  );
  return {
    key: lookupd,
    cells: [
      lookupd,
      nodes.length,
      {
        text: missing.map((address) => names.get(address) ?? address).join(", "),
        tone: missing.length === 0 ? "" : "bad",
      },
      tombstones.join(", "),
    ],
  };
}
