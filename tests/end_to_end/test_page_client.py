"""The client that docs/websocket.md shows, as it stands there, in Node with the library ws."""

from __future__ import annotations

import asyncio
import json
import re
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from tests.support.gateway import RunningGateway
from tests.support.socket_clients import node_clients
from tests.support.subscriber_client import WAIT_S, Json

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.node]

PAGE = Path(__file__).parents[2] / "docs" / "websocket.md"
_USE = """
const { default: WebSocket } = await import(process.argv[2]);
// As in a browser: an error that nobody listens to is no exception.
globalThis.WebSocket = class extends WebSocket {
  constructor(...given) { super(...given).on("error", () => {}); }
};
const { consume } = await import("./client.mjs");
const say = (told) => console.log(JSON.stringify(told));
const seen = new Map();
const work = ({ body, attempts }) => {
  say({ body, attempts });
  if (body === "again" && attempts === 1) throw new Error("not now");
};
const ended = (code) => say({ ended: code });
const client = consume(process.argv[3], work, { ended, tries: 2 });
process.stdin.setEncoding("utf8").on("data", (text) => {
  if (text.trim() === "stop") return client.stop();
  client.ask(JSON.parse(text)).then((data) => say({ data }), ({ code }) => say({ code }));
});
process.stdin.on("end", () => process.exit());
"""


def blocks() -> Iterator[str]:
    """Return each piece of JavaScript of the section."""
    section = PAGE.read_text().partition("## A client\n")[2].partition("\n## ")[0]
    yield from re.findall(r"```js\n(.*?)```", section, re.DOTALL)


class NodeClient:
    """The client of the page, as a process that says what it sees."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def do(self, text: str) -> None:
        """Let it ask *text*, or stop."""
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")

    async def said(self) -> Json:
        """Return the next thing that it says."""
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = await self._process.stdout.readline()
        said: Json = json.loads(line)
        return said


@asynccontextmanager
async def client_of_the_page(folder: Path, url: str) -> AsyncIterator[NodeClient]:
    """Run the first block of the section against *url*."""
    library = node_clients()
    assert library is not None
    (folder / "client.mjs").write_text(next(blocks()))
    (folder / "use.mjs").write_text(_USE)
    ws = library.parent / "node_modules" / "ws" / "wrapper.mjs"
    process = await asyncio.create_subprocess_exec(
        "node", str(folder / "use.mjs"), str(ws), url, stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    try:
        yield NodeClient(process)
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.communicate(), WAIT_S)


@asynccontextmanager
async def closing(*codes: int, told: Sequence[str] = ()) -> AsyncIterator[str]:
    """Run a server that says *told*, then closes with the next of *codes*; the last for ever."""
    left = list(codes)

    async def handle(connection: ServerConnection) -> None:
        for text in told:
            await connection.send(text)
        await connection.close(left.pop(0) if len(left) > 1 else left[0])

    async with serve(handle, "127.0.0.1", 0, subprotocols=[Subprotocol("nsq.json.v1")]) as server:
        host, port = next(iter(server.sockets)).getsockname()[:2]
        yield f"ws://{host}:{port}/sub?topic=t&channel=c"


@pytest.mark.parametrize("block", list(blocks()), ids=["client", "use"])
async def test_the_client_of_the_page_is_javascript(tmp_path: Path, block: str) -> None:
    """Node parses each piece as a module."""
    path = tmp_path / "block.mjs"
    path.write_text(block)
    process = await asyncio.create_subprocess_exec("node", "--check", str(path), stderr=PIPE)
    _, errors = await process.communicate()

    assert (0, b"") == (process.returncode, errors)


async def test_the_client_of_the_page_works(
    gateway: RunningGateway, topic: str, tmp_path: Path
) -> None:
    """It finishes, gives back what failed, publishes with an answer, and stops in good order."""
    async with client_of_the_page(tmp_path, gateway.sub_url(topic, "c")) as client:
        await gateway.post("/mpub", b"one\nagain", topic=topic)
        received = [await client.said() for _ in range(3)]
        client.do(json.dumps({"cmd": "PUB", "topic": f"{topic}-other", "body": "x"}))
        published = await client.said()
        client.do(json.dumps({"cmd": "PUB", "topic": "no topic", "body": "x"}))
        refused = await client.said()
        counts = await gateway.counts_become(topic, "c", (0, 0, 0))
        client.do("stop")
        end = await client.said()

    again = [each for each in received if each["body"] == "again"]
    assert {"body": "one", "attempts": 1} in received
    assert [1, 2] == [each["attempts"] for each in again]
    assert ({"data": "OK"}, {"code": "E_BAD_TOPIC"}) == (published, refused)
    assert ((0, 0, 0), {"ended": 1000}) == (counts, end)


async def test_the_client_of_the_page_looks_on_in_silence(
    gateway: RunningGateway, topic: str, tmp_path: Path
) -> None:
    """A viewer answers nothing: each answer would be a misuse."""
    async with client_of_the_page(tmp_path, gateway.sub_url(topic)) as client:
        await gateway.post("/mpub", b"\n".join([b"x"] * 200), topic=topic)
        received = [await client.said() for _ in range(200)]
        client.do(json.dumps({"cmd": "NOP"}))
        answer = await client.said()

    assert [{"body": "x", "attempts": 1}] * 200 == received
    assert {"data": "OK"} == answer


async def test_the_client_of_the_page_comes_back_where_it_is_told_to(tmp_path: Path) -> None:
    """After the time that the gateway names; a code that is final ends it."""
    delivery = {"type": "message", "id": "1", "body": "x", "attempts": 1}
    data = {"state": "CLOSE_WAIT", "reason": "drain", "reconnect_after_ms": 1}
    close_wait = {"type": "response", "cmd": "CLS", "ref": None, "data": data}
    told = ["\n".join(map(json.dumps, (delivery, close_wait)))]
    async with (
        closing(1012, 1014, 4503, told=told) as url,
        client_of_the_page(tmp_path, url) as client,
    ):
        said = [await client.said() for _ in range(4)]

    assert [{"body": "x", "attempts": 1}] * 3 + [{"ended": 4503}] == said


async def test_the_client_of_the_page_gives_up_where_nothing_opens(
    gateway: RunningGateway, topic: str, tmp_path: Path
) -> None:
    """A refusal before the upgrade is 1006, however often it is tried."""
    url = gateway.sub_url(topic, "c", max_in_flight=0)
    async with client_of_the_page(tmp_path, url) as client:
        assert {"ended": 1006} == await client.said()
