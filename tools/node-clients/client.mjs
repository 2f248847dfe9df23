// A WebSocket client of Node that does what it is told: on `ws`, or on Node's own WebSocket.
//
// Its arguments are the library, `ws` or `builtin`, and a JSON object: url, headers, subprotocols
// and fragment_bytes, the longest frame that is written (0: whole messages). It reads one JSON
// command from each line of its input, and writes one JSON event for each thing that happens to it.
// The client in Go speaks the same.

import { createInterface } from "node:readline";

const [library, wanted] = process.argv.slice(2);
const wish = JSON.parse(wanted);

const say = (event, more = {}) => process.stdout.write(`${JSON.stringify({ event, ...more })}\n`);

/** Open a socket with `ws`; return what its commands do. */
async function withWs() {
  const { default: WebSocket } = await import("ws");
  const socket = new WebSocket(wish.url, wish.subprotocols ?? [], {
    headers: wish.headers ?? {},
    perMessageDeflate: false,
  });
  socket.on("open", () => say("open", { subprotocol: socket.protocol }));
  socket.on("unexpected-response", (_request, response) => {
    const parts = [];
    response.on("data", (part) => parts.push(part));
    response.on("end", () => {
      say("refused", { status: response.statusCode, data: Buffer.concat(parts).toString() });
      process.exit();
    });
  });
  socket.on("message", (data, isBinary) => {
    say(isBinary ? "binary" : "text", { data: data.toString() });
  });
  socket.on("ping", () => say("ping"));
  socket.on("pong", (data) => say("pong", { data: data.toString() }));
  socket.on("error", () => {}); // "close" comes behind it
  socket.on("close", (code, reason) => ended(code, reason.toString()));
  return {
    text: ({ data }) => sendInFrames(socket, Buffer.from(data), wish.fragment_bytes || Infinity),
    binary: ({ data }) => socket.send(Buffer.from(data)),
    ping: ({ data }) => socket.ping(data),
    close: ({ code }) => socket.close(code),
    abort: () => socket.terminate(),
  };
}

/** Write one text message in frames of at most *sizeBytes*, wherever a character ends. */
function sendInFrames(socket, message, sizeBytes) {
  let start = 0;
  while (message.length - start > sizeBytes) {
    socket.send(message.subarray(start, start + sizeBytes), { binary: false, fin: false });
    start += sizeBytes;
  }
  socket.send(message.subarray(start), { binary: false, fin: true });
}

/** Open a socket with Node's own WebSocket, which shows no more than a browser's does. */
function withBuiltin() {
  const socket = new WebSocket(wish.url, wish.subprotocols ?? []);
  let hasOpened = false;
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    hasOpened = true;
    say("open", { subprotocol: socket.protocol });
  };
  socket.onmessage = ({ data }) => {
    const isText = typeof data === "string";
    say(isText ? "text" : "binary", { data: isText ? data : Buffer.from(data).toString() });
  };
  // Why an upgrade failed is shown to nobody; some versions then tell of a close, and some do not.
  socket.onerror = () => {
    if (!hasOpened) {
      say("refused", { status: 0, data: "" });
      process.exit();
    }
  };
  socket.onclose = ({ code, reason }) => ended(code, reason);
  return {
    text: ({ data }) => socket.send(data),
    binary: ({ data }) => socket.send(Buffer.from(data)),
    close: ({ code }) => socket.close(code),
    abort: () => process.exit(),
  };
}

function ended(code, reason) {
  say("close", { code, reason });
  process.exit();
}

const known = library === "ws" ? await withWs() : withBuiltin();
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  known[command.do](command);
}
process.exit();
