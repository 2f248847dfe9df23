// nsqjs as a program: publishes four messages and consumes them; see
// tests/support/brokers/clients/program.py for what every such program does.

import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import nsq from "nsqjs";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    "root-ca-file": { type: "string" },
    snappy: { type: "boolean", default: false },
    deflate: { type: "boolean", default: false },
    secret: { type: "string" },
  },
});
const [address, topic] = positionals;
const [host, port] = address.split(":");
const options = { snappy: values.snappy, deflate: values.deflate };
if (values["root-ca-file"] !== undefined) {
  options.tls = true;
  options.ca = readFileSync(values["root-ca-file"]);
}
if (values.secret !== undefined) {
  options.authSecret = values.secret;
}

process.stdin.resume().on("end", () => process.exit(0));

/** Fail loudly: an `error` event that nobody handles would be lost in nsqjs's own. */
function fail(error) {
  console.error(error);
  process.exit(1);
}

function handle(message) {
  const body = message.body.toString();
  console.log(JSON.stringify([body, message.attempts]));
  if (body === "requeue" && message.attempts === 1) {
    message.requeue(0, false);
    return;
  }
  if (body === "touch") {
    message.touch();
  }
  message.finish();
}

function consume() {
  const reader = new nsq.Reader(topic, "channel", {
    nsqdTCPAddresses: [address],
    maxInFlight: 5,
    ...options,
  });
  reader.on("message", handle);
  reader.on("error", fail);
  reader.connect();
}

const writer = new nsq.Writer(host, Number(port), options);
writer.on("error", fail);
writer.on("ready", () => {
  const orFail = (next) => (error) => (error ? fail(error) : next());
  writer.publish(
    topic,
    "finish",
    orFail(() => {
      writer.publish(
        topic,
        ["requeue", "touch"],
        orFail(() => writer.deferPublish(topic, ["deferred"], 50, orFail(consume))),
      );
    }),
  );
});
writer.connect();
