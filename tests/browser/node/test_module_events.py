"""nsq.js in Node with `transport: "sse"` and a fake gateway: the bytes of a stream, and its end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.browser.module_client import ModuleClient, module_client

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.node]

_BEGIN = """
Math.random = () => 0.5;
globalThis.http = new FakeHttp();
globalThis.s = subscribe({ topic: "t", channel: "c", transport: "sse", ...given[0] });
globalThis.stream = await http.next();
stream.subscribed();
await s.ready;
"""
_TAKE = """
globalThis.messages ??= [];
globalThis.iterator ??= s[Symbol.asyncIterator]();
while (messages.length < given[0]) messages.push((await iterator.next()).value);
return messages.map(({ id }) => id);
"""
_TOLD = '"topic":"t","channel":"c","attempts":1,"timestamp_ns":"1","deadline_ms":60000'
STREAM = (
    "\ufeffretry: 2000\n\n:\n\n"
    'data: {"type":"response","cmd":"SUB","ref":null,"data":{"msg_timeout_ms":60000}}\r\n\r\n'
    f'event: message\rdata:{{"type":"message",{_TOLD},'
    '"id":"1","lease":"l1","body":"ż🐇\u2028"}\r\r'
    ": a comment: with colons\ndata\nid: 7\n\n"
    'event: later\ndata: {"type":"message"}\n\n'
    f'data: {{"type":"message",{_TOLD},\r\ndata: "id":"2","lease":"l2","body":"a:b"}}\r\n\n'
    'event: close\r\ndata: {"code":1012,"reason":"żółć"}\n\n'
)
"""Each line end, a byte order mark, comments, unknown fields and events, data in two lines."""


@pytest_asyncio.fixture(loop_scope="session")
async def client() -> AsyncIterator[ModuleClient]:
    async with module_client() as client:
        yield client


# Bytes


async def test_chunks_may_be_cut_at_any_byte(client: ModuleClient) -> None:
    """Once at each position, and each byte alone: always the same messages, and the close."""
    seen = await client.run(
        """
        const bytes = new TextEncoder().encode(given[0]);
        const http = new FakeHttp();
        const live = async (chunks) => {
          const s = subscribe({ topic: "t", channel: "c", transport: "sse", ack: "auto" });
          const stream = await http.next();
          for (const chunk of chunks) stream.send(chunk);
          const iterator = s[Symbol.asyncIterator]();
          const found = [];
          s.addEventListener("error", ({ detail }) => found.push(String(detail)));
          const isClosed = stands(s, "waiting");
          const took = [(await iterator.next()).value, (await iterator.next()).value];
          found.push(...took.map(({ id, lease, body }) => [id, lease, body]));
          const { code, reason } = await isClosed;
          await s.close();
          return JSON.stringify([...found, code, reason]);
        };
        const all = new Set();
        for (let at = 0; at <= bytes.length; at++) {
          all.add(await live([bytes.subarray(0, at), bytes.subarray(at)]));
        }
        all.add(await live(Array.from(bytes, (_, at) => bytes.subarray(at, at + 1))));
        return [...all].map((each) => JSON.parse(each));
        """,
        STREAM,
    )

    assert [[["1", "l1", "ż🐇\u2028"], ["2", "l2", "a:b"], 1012, "żółć"]] == seen


async def test_an_invalid_event_is_an_error_and_closes_nothing(client: ModuleClient) -> None:
    await client.run(_BEGIN)
    await client.run("stream.send('data: hello\\n\\n'); stream.deliver('a')")
    ids = await client.run(_TAKE, 1)
    seen = await client.run("return [s.state, s.errors.map(({ code }) => code)]")

    assert (["a"], ["connected", ["SyntaxError"]]) == (ids, seen)


async def test_the_request_is_one_that_a_page_may_send(client: ModuleClient) -> None:
    """With its parameters, and the secret as a header; an ack goes beside it."""
    seen = await client.run(
        _BEGIN
        + """
        stream.deliver("a");
        const { value } = await s[Symbol.asyncIterator]().next();
        await value.finish();
        const [{ url, headers, fin }] = http.posts;
        return [stream.url, stream.headers, url, headers, fin];
        """,
        {"url": "http://127.0.0.1:9/nsq/sub", "secret": "s3cret", "maxInFlight": 3},
    )

    path, secret = "http://127.0.0.1:9/nsq", {"Authorization": "Bearer s3cret"}
    stream = {"Accept": "text/event-stream", "Nsq-Gateway-Client": "nsq.js", **secret}
    query = "topic=t&channel=c&max_in_flight=3"
    assert [f"{path}/sub?{query}", stream, f"{path}/ack", secret, ["lease-a"]] == seen


# Acks


async def test_acks_of_one_turn_are_one_request(client: ModuleClient) -> None:
    await client.run(_BEGIN)
    await client.run("stream.deliver(...'abcd')")
    await client.run(_TAKE, 4)
    seen = await client.run(
        """
        const [a, b, c, d] = messages;
        const answers = [a.finish(), b.touch(), c.requeue(5), d.touch(), d.finish()];
        const both = await Promise.all(answers);
        return [both, http.posts.map(({ fin, req, touch }) => ({ fin, req, touch }))];
        """
    )

    requeue = {"lease": "lease-c", "timeout_ms": 5}
    post = {"fin": ["lease-a", "lease-d"], "req": [requeue], "touch": [{"lease": "lease-b"}]}
    assert [[True] * 5, [post]] == seen


async def test_a_refused_lease_loses_its_message(client: ModuleClient) -> None:
    """Each refusal is an `error` event with its own code; the others are taken."""
    await client.run(_BEGIN)
    await client.run("stream.deliver(...'abc')")
    await client.run(_TAKE, 3)
    seen = await client.run(
        """
        const refused = [
          { lease: "lease-a", code: "E_TOUCH_FAILED", message: "late", retryable: false },
          { lease: "lease-b", code: "LEASE_LOST", message: "gone", retryable: false },
        ];
        http.respond = () => Response.json({ done: 1, refused });
        const answers = await Promise.all(messages.map((message) => message.touch()));
        const lost = messages.map(({ isAnswered, signal }) => [isAnswered, signal.aborted]);
        return [answers, lost, s.errors.map(({ code, cmd, ids }) => [code, cmd, ids])];
        """
    )

    errors = [["E_TOUCH_FAILED", "TOUCH", ["a"]], ["LEASE_LOST", "TOUCH", ["b"]]]
    assert [[False, False, True], [[True, True]] * 2 + [[False, False]], errors] == seen


async def test_close_waits_for_acks_that_were_sent(client: ModuleClient) -> None:
    """Then the request is ended; what comes meanwhile is left to the gateway."""
    await client.run(_BEGIN)
    await client.run("stream.deliver('a', 'b')")
    await client.run(_TAKE, 2)
    seen = await client.run(
        """
        let answer;
        http.respond = () => new Promise((resolve) => (answer = resolve));
        const finished = messages[0].finish();
        const closed = s.close();
        await turn();
        stream.deliver("c");
        await turn();
        const seen = [s.state, stream.signal.aborted, http.posts.length];
        answer(Response.json({ done: 1, refused: [] }));
        const { code } = await closed;
        const lost = messages[1].signal.aborted;
        return [...seen, code, await finished, lost, stream.signal.aborted, http.posts.length];
        """
    )

    assert ["closing", False, 1, 1000, True, True, True, 1] == seen


# Ends


async def test_a_silent_stream_is_dropped(client: ModuleClient) -> None:
    """After three intervals of comments without one; comments keep it."""
    await client.run("clock.stop();" + _BEGIN)
    seen = await client.run(
        """
        const states = [];
        for (let at = 0; at < 20; at++) {
          clock.pass(15_000);
          stream.send(":\\n\\n");
          await turn();
        }
        states.push(s.state);
        let silentS = 0;
        for (; s.state === "connected"; silentS++) clock.pass(1_000);
        states.push(stream.signal.aborted);
        clock.pass(1_000);
        await http.next();
        return [silentS, ...states];
        """
    )

    assert 45 <= seen.pop(0) <= 65
    assert ["connected", True] == seen


async def test_a_page_that_becomes_visible_keeps_an_idle_stream(client: ModuleClient) -> None:
    """Between two comments it is silent, and well."""
    seen = await client.run(
        """
        const page = new EventTarget();
        globalThis.document = { hidden: false };
        globalThis.addEventListener = (...given) => page.addEventListener(...given);
        clock.stop();
        """
        + _BEGIN
        + """
        page.dispatchEvent(new Event("visibilitychange"));
        clock.pass(14_000);
        await turn();
        const seen = [s.state];
        page.dispatchEvent(new Event("offline"));
        return [...seen, s.state, stream.signal.aborted];
        """
    )

    assert ["connected", "waiting", True] == seen


@pytest.mark.parametrize(
    "end,expected",
    [
        ("stream.end()", ["waiting", 1006]),
        ("stream.close(4001)", ["waiting", 4001]),
        ("stream.close(4503)", ["closed", 4503]),
    ],
)
async def test_the_end_of_a_stream_is_that_of_a_socket(
    client: ModuleClient, end: str, expected: list[object]
) -> None:
    """It has the code of its last event; one that is final ends the subscription."""
    await client.run(_BEGIN)
    await client.run("stream.deliver('a')")
    await client.run(_TAKE, 1)
    seen = await client.run(
        f"""
        const isEnded = stands(s, given[0]);
        {end};
        const {{ code }} = await isEnded;
        return [s.state, code, messages[0].signal.aborted];
        """,
        expected[0],
    )

    assert [*expected, True] == seen


async def test_an_error_before_the_close_is_the_reason(client: ModuleClient) -> None:
    seen = await client.run(
        _BEGIN
        + """
        const told = { code: "E_WORD", message: "why", retryable: false };
        stream.say({ type: "error", cmd: null, ref: null, ...told });
        stream.close(4500);
        const { code, message, status } = await s.closed.catch(shown);
        return [code, message, status];
        """
    )

    assert ["E_WORD", "why (closed with 4500)", 4500] == seen


async def test_a_drain_is_waited_for(client: ModuleClient) -> None:
    seen = await client.run(
        _BEGIN
        + """
        const data = { state: "CLOSE_WAIT", reason: "drain", reconnect_after_ms: 1234 };
        stream.say({ type: "response", cmd: "CLS", ref: null, data });
        await stands(s, "draining");
        stream.end();
        const { retryInMs } = await stands(s, "waiting");
        return retryInMs;
        """
    )

    assert 1234 + 250 == seen


@pytest.mark.parametrize(
    "answer,reason",
    [
        ("new Response('<h1>Bad Gateway</h1>', { status: 502 })", "answers 502"),
        ("Response.json({ hello: 'world' })", "answers 200"),
        ("Promise.reject(new TypeError('fetch failed'))", "is unreachable, or does not allow"),
    ],
)
async def test_a_proxy_is_waited_out(client: ModuleClient, answer: str, reason: str) -> None:
    seen = await client.run(
        f"""
        globalThis.fetch = async () => {answer};
        const s = subscribe({{ topic: "t", channel: "c", transport: "sse" }});
        const {{ reason }} = await stands(s, "waiting");
        s.close();
        return [reason, s.errors.map(({{ code, retryable }}) => [code, retryable])];
        """
    )

    assert [["NO_CONNECTION", True]] == seen[1]
    assert seen[0].startswith(f"http://127.0.0.1:9 {reason}")


async def test_the_window_holds_from_the_next_connection(client: ModuleClient) -> None:
    """A stream cannot change it; 0 is 1."""
    seen = await client.run(
        "clock.stop();"
        + _BEGIN
        + """
        const urls = [];
        for (const count of [7, 0]) {
          s.setMaxInFlight(count);
          stream.end();
          const { retryInMs } = await stands(s, "waiting");
          clock.pass(retryInMs);
          stream = await http.next();
          stream.subscribed();
          await stands(s, "connected");
          urls.push(new URL(stream.url).searchParams.get("max_in_flight"));
        }
        return urls;
        """
    )

    assert ["7", "1"] == seen


async def test_only_two_transports_are_known(client: ModuleClient) -> None:
    """And a stream needs no WebSocket class."""
    seen = await client.run(
        """
        const options = { topic: "t", url: "http://127.0.0.1:9" };
        delete globalThis.WebSocket;
        new FakeHttp();
        nsq.subscribe({ ...options, transport: "sse" }).close();
        const misuse = async () => nsq.subscribe({ ...options, transport: "polling" });
        return misuse().catch(String);
        """
    )

    assert "TypeError: transport is polling; allowed: websocket, sse" == seen
