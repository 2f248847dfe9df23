/**
 * PURE. What the grants of the access file allow, so that the page offers nothing that the gateway would refuse.
 *
 * The gateway decides; this is a preview. A pattern that this page cannot judge counts as matching.
 */

/**
 * @typedef {"publish" | "subscribe" | "watch" | "admin"} Permission
 */

/**
 * @typedef {object} Grant As in the response of /whoami.
 * @property {string} topic A pattern.
 * @property {readonly string[]} channels Patterns.
 * @property {readonly Permission[]} permissions
 */

// In the form of the names that the gateway gives to the channels of sockets without one.
const VIEWER_CHANNEL = `gw.${"a".repeat(26)}#ephemeral`;
// The gateway's RE2 takes linear time for every pattern, a browser only for simple ones.
const REPEATED_GROUP = /\)[*+?{]/;
const REPETITION = /[*+{]/g;
const MOST_REPETITIONS = 4;

/** @type {Map<string, RegExp | null>} */
const compiled = new Map();

/**
 * @param {readonly Grant[]} grants
 * @param {string} topic Empty: any topic.
 * @returns {boolean} Whether publishing is allowed.
 */
export function allowsPublish(grants, topic) {
  return grants.some((grant) => has(grant, "publish", topic));
}

/**
 * @param {readonly Grant[]} grants
 * @param {string} topic Empty: any topic.
 * @param {string} channel Empty: a viewer, or a temporary channel.
 * @returns {boolean} Whether the subscription is allowed.
 */
export function allowsSubscribe(grants, topic, channel) {
  const wanted = channel || VIEWER_CHANNEL;
  const mayWatch = channel === "" && grants.some((grant) => has(grant, "watch", topic));
  return mayWatch || grants.some((grant) => has(grant, "subscribe", topic) && hasChannel(grant, wanted));
}

/**
 * @param {readonly Grant[]} grants
 * @param {string} topic
 * @param {string} channel Empty: the topic itself.
 * @returns {boolean} Whether creating, pausing, emptying and deleting is allowed.
 */
export function allowsAdmin(grants, topic, channel) {
  return grants.some((grant) => has(grant, "admin", topic) && (channel === "" || hasChannel(grant, channel)));
}

/**
 * @param {Grant} grant
 * @param {Permission} permission
 * @param {string} topic
 */
function has(grant, permission, topic) {
  return grant.permissions.includes(permission) && (topic === "" || matches(grant.topic, topic));
}

/**
 * @param {Grant} grant
 * @param {string} channel
 */
function hasChannel({ channels }, channel) {
  return channels.some((pattern) => matches(pattern, channel));
}

/**
 * @param {string} pattern
 * @param {string} name
 */
function matches(pattern, name) {
  let found = compiled.get(pattern);
  if (found === undefined) compiled.set(pattern, (found = compile(pattern)));
  return found === null || found.test(name);
}

/**
 * @param {string} pattern In the syntax of RE2.
 * @returns {RegExp | null} Null if the pattern has another meaning here, or may take long.
 */
function compile(pattern) {
  if (REPEATED_GROUP.test(pattern) || (pattern.match(REPETITION)?.length ?? 0) > MOST_REPETITIONS) return null;
  try {
    return new RegExp(pattern, "u"); // with u, what only RE2 knows is an error
  } catch {
    return null;
  }
}
