/** PURE. Parse GET /stats with clients, of one topic or channel. */

/**
 * @typedef {object} Consumer
 * @property {string} key
 * @property {string} name
 * @property {string} address
 * @property {string} userAgent
 * @property {string} node The nsqd that it is connected to.
 * @property {number} inFlight
 * @property {number} ready Its RDY.
 * @property {number} messages
 * @property {number} finished
 * @property {number} requeued
 * @property {number} connectedAtMs
 */

/** @typedef {{ key: string, name: string, address: string, userAgent: string, node: string, messages: number }} Producer */

/**
 * @param {any} stats The response to `GET /stats?format=json&include_clients=true&topic=…`.
 * @param {string} topic
 * @param {string} channel Empty: no consumers.
 * @returns {{ consumers: Consumer[], producers: Producer[] }} Each sorted by name.
 */
export function readClients(stats, topic, channel) {
  const consumers = [];
  for (const said of stats.topics ?? []) {
    if (said.topic_name !== topic) continue;
    for (const one of said.channels ?? []) {
      if (one.channel_name !== channel) continue;
      for (const client of one.clients ?? []) consumers.push(readConsumer(client, String(said.node ?? "")));
    }
  }
  const producers = [];
  for (const client of stats.producers ?? []) {
    const published = (client.pub_counts ?? []).find((/** @type {any} */ each) => each.topic === topic);
    if (published !== undefined) producers.push(readProducer(client, published.count ?? 0));
  }
  return { consumers: consumers.sort(byName), producers: producers.sort(byName) };
}

/**
 * @param {any} client
 * @param {string} node
 * @returns {Consumer}
 */
function readConsumer(client, node) {
  return {
    ...readClient(client, node),
    inFlight: client.in_flight_count ?? 0,
    ready: client.ready_count ?? 0,
    messages: client.message_count ?? 0,
    finished: client.finish_count ?? 0,
    requeued: client.requeue_count ?? 0,
    connectedAtMs: (client.connect_ts ?? 0) * 1000,
  };
}

/**
 * @param {any} client
 * @param {number} messages
 * @returns {Producer}
 */
function readProducer(client, messages) {
  return { ...readClient(client, String(client.node ?? "")), messages };
}

/**
 * @param {any} client
 * @param {string} node
 */
function readClient(client, node) {
  const address = String(client.remote_address ?? "");
  const name = String(client.hostname || client.client_id || address);
  return { key: `${node} ${address}`, name, address, userAgent: String(client.user_agent ?? ""), node };
}

/**
 * @param {{ name: string, key: string }} one
 * @param {{ name: string, key: string }} other
 */
function byName(one, other) {
  return one.name === other.name ? compare(one.key, other.key) : compare(one.name, other.name);
}

/**
 * @param {string} one
 * @param {string} other
 */
function compare(one, other) {
  return one < other ? -1 : Number(one > other);
}
