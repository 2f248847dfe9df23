"""nsq.js in Node against a scripted gateway: closing, publishing, memory."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.browser.module_client import BEGIN, STANDS, module_client, subscribe_client
from tests.support.gateways.scripted_sockets import (
    error,
    refused,
    response,
    scripted_sockets,
)

pytestmark = [pytest.mark.asyncio(loop_scope="function"), pytest.mark.node]

_CLOSED = "return [await s.close(), await s.ready.catch(({ code }) => code)]"
_NEVER = {"code": 1000, "reason": "closed without a connection"}
_AT_REST = """
const { getActiveResourcesInfo } = process;
return [...new Set(getActiveResourcesInfo())].filter((name) => !/Pipe|Immediate|FS/.test(name));
"""


# Closing


async def test_it_may_be_closed_at_once() -> None:
    """In the turn in which it was made: no socket is opened."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        seen = await client.run(BEGIN + _CLOSED, {})
        other = await subscribe_client(client, sockets, topic="other")

    assert [_NEVER, "NO_CONNECTION"] == seen
    assert other.path.startswith("/sub?topic=other")


async def test_it_may_be_closed_while_it_connects() -> None:
    """Before SUB was answered nothing is waited for."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run(BEGIN, {})
        peer = await sockets.next()
        seen = await client.run(_CLOSED)
        code = await peer.ended()
        left = await client.run(_AT_REST)

    assert ([_NEVER, "NO_CONNECTION"], [], True) == (seen, left, code in (1005, 1006))


async def test_it_may_be_closed_while_it_waits() -> None:
    """The next try is off."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop()")
        peer = await subscribe_client(client, sockets)
        await peer.close(1011)
        await client.run(STANDS, "waiting")
        closed = await client.run("return [await s.close(), clock.delaysMs]")

    assert [_NEVER, []] == closed


async def test_it_may_be_closed_while_a_secret_is_awaited() -> None:
    """One that comes, or fails, after that is of no use, and of no harm."""
    script = (
        "given[0] = { secret: () => new Promise((...settle) => { globalThis.settle = settle; }) };"
    )
    async with module_client() as client:
        for answer in (0, 1):
            await client.run(script + BEGIN)
            seen = await client.run(_CLOSED)
            after = await client.run(
                "settle[given[0]]('s'); await turn(); return [s.states, s.errors]", answer
            )

            assert [_NEVER, "NO_CONNECTION"] == seen
            assert [["connecting", "closed"], []] == after


async def test_it_may_be_closed_while_it_asks_why() -> None:
    """What the gateway then answers to the plain GET changes nothing."""
    script = """
    const { fetch } = globalThis;
    globalThis.fetch = async (...given) => {
      const answer = await fetch(...given);
      answered(answer.clone().text());
      return answer;
    };
    globalThis.text = new Promise((resolve) => { globalThis.answered = resolve; });
    """
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        sockets.refusal = refused(400, "INVALID_ARG", retryable=False)
        sockets.may_answer.clear()
        await client.run(script + BEGIN, {})
        await sockets.was_asked.wait()
        seen = await client.run(_CLOSED)
        sockets.may_answer.set()
        await client.run("await text")
        after = await client.run("return [s.states, s.errors]")

    assert [_NEVER, "NO_CONNECTION"] == seen
    assert [["connecting", "closed"], []] == after


async def test_a_listener_may_close_it_in_any_state() -> None:
    """Nothing goes on behind its back."""
    script = """
    clock.stop();
    globalThis.s = subscribe({ topic: "t", channel: "c" });
    await stands(s, "connected");
    s.addEventListener("state", ({ detail }) => { if (detail.state === given[0]) s.close(); });
    """
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        for state in ("waiting", "connecting", "connected"):
            running = asyncio.create_task(client.run(script, state))
            peer = await sockets.subscribed()
            await running
            await peer.close(1011)
            if state != "waiting":
                await client.run(STANDS, "waiting")
                await client.run("clock.pass(500)")
            if state == "connected":
                peer = await sockets.subscribed()
                assert [{"cmd": "CLS"}] == await peer.heard()
                await peer.close(1000)
            seen = await client.run("return [(await s.closed).code, s.state, clock.delaysMs]")

            assert (state, [1000, "closed", []]) == (state, seen)


async def test_a_connection_that_breaks_while_closing_is_the_end() -> None:
    """There is nothing to come back for."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await client.run("s.close()")
        peer.abort()
        closed = await client.run("return (await s.closed).code")

    assert 1006 == closed


async def test_an_abort_is_a_close() -> None:
    """At any time; one that was aborted before opens nothing."""
    script = """
    globalThis.aborter = new AbortController();
    if (given[0]) aborter.abort();
    globalThis.s = subscribe({ topic: "t", channel: "c", signal: aborter.signal });
    """
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run(script, True)
        before = await client.run("return [await s.closed, s.state]")
        await client.run(script, False)
        peer = await sockets.subscribed()
        await client.run(STANDS, "connected")
        await client.run("aborter.abort()")
        told = await peer.heard()

    assert ([_NEVER, "closed"], [{"cmd": "CLS"}]) == (before, told)


async def test_a_socket_that_was_given_up_is_heard_no_more() -> None:
    """Its late close, and what it still says, are another life's."""
    async with module_client() as client:
        seen = await client.run(
            """
            clock.stop();
            const s = subscribe({ topic: "t", channel: "c", WebSocket: Fake });
            await turn();
            const [first] = Fake.made;
            first.open();
            first.deliver("a");
            clock.pass(60_000);
            clock.pass(500);
            await turn();
            const [, second] = Fake.made;
            second.open();
            first.end(4503);
            second.deliver("b");
            const { value } = await s[Symbol.asyncIterator]().next();
            return [Fake.made.length, value.id, s.state, s.errors, first.onmessage];
            """
        )

    assert [2, "b", "connected", [], None] == seen


async def test_it_may_end_in_the_middle_of_a_frame() -> None:
    """What stands behind in the frame is of another life too."""
    async with module_client() as client:
        seen = await client.run(
            """
            const ids = [];
            const work = ({ id }) => { ids.push(id); s.close(); };
            const s = subscribe({ topic: "t", channel: "c", WebSocket: Fake }, work);
            await turn();
            const [socket] = Fake.made;
            socket.open();
            socket.readyState = 2;
            socket.deliver("a", "b");
            return [ids, await s.closed, s.errors];
            """
        )

    assert [["a"], _NEVER, []] == seen


async def test_an_acknowledgement_on_a_closing_socket_finds_its_message_lost() -> None:
    """Not only after the close event, which may come later."""
    async with module_client() as client:
        seen = await client.run(
            """
            const s = subscribe({ topic: "t", channel: "c", WebSocket: Fake });
            await turn();
            const [socket] = Fake.made;
            socket.open();
            socket.deliver("a");
            const { value } = await s[Symbol.asyncIterator]().next();
            const { signal } = value;
            socket.readyState = 2;
            return [await value.finish(), signal.aborted, value.isAnswered, s.errors];
            """
        )

    assert [False, True, True, []] == seen


async def test_a_connection_that_does_not_open_is_given_up() -> None:
    """After 65 s, though its socket says nothing."""
    async with module_client() as client:
        seen = await client.run(
            """
            clock.stop();
            const s = subscribe({ topic: "t", channel: "c", WebSocket: Fake });
            await turn();
            const before = s.state;
            clock.pass(65_000);
            return [before, Fake.made[0].readyState, (await stands(s, "waiting")).code];
            """
        )

    assert ["connecting", 3, 1006] == seen


async def test_nothing_is_left_in_node() -> None:
    """After the end no timer, port or socket keeps the process: it ends by itself."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.close(1011)
        peer = await sockets.subscribed()
        await client.run(STANDS, "connected")
        await client.run("s.publish('t', 'x').catch(() => {}); s.close()")
        await peer.heard()
        await peer.close(1000)
        await client.run("await s.closed")
        left = await client.run(_AT_REST)
        status = await client.leave()

    assert ([], 0) == (left, status)


async def test_a_gateway_that_hangs_keeps_no_process() -> None:
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop()")
        peer = await subscribe_client(client, sockets)
        peer.hang()
        await client.run("clock.pass(20_000); clock.pass(20_000); clock.pass(10_000); s.close()")
        left = await client.run(_AT_REST)
        status = await client.leave()
        peer.abort()  # or its end, which it does not read, would be waited for

    assert ([], 0) == (left, status)


async def test_a_listener_that_throws_disturbs_nothing() -> None:
    """It is an exception that nobody caught, as with any event, and the messages go on."""
    script = """
    globalThis.thrown = [];
    process.removeAllListeners("uncaughtException");
    process.on("uncaughtException", ({ message }) => thrown.push(message));
    globalThis.s = subscribe({ topic: "t", channel: "c" });
    s.addEventListener("state", () => { throw new Error("mine") });
    """
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run(script)
        peer = await sockets.subscribed()
        await peer.deliver("a")
        seen = await client.run(
            "return [(await s[Symbol.asyncIterator]().next()).value.id, s.state, thrown]"
        )

    assert ["a", "connected", ["mine"]] == seen


# Publishing


_FOUR = """
globalThis.all = Promise.all([
  s.publish("t", "a"),
  s.publish("t", "b", { deferMs: 5 }),
  s.publishAll("t", ["c", "d"]),
  s.publishAll("t", ["e", new Uint8Array([255])]).catch(shown),
]);
"""


async def test_publishes_wait_for_a_connection_in_their_order() -> None:
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run(BEGIN + _FOUR, {})
        peer = await sockets.subscribed()
        told = [line for _ in range(4) for line in await peer.heard()]
        await peer.say(error("MPUB", "E_BAD_BODY", ref=told[3]["ref"]))
        await peer.say(*(response("PUB", "OK", told[number]["ref"]) for number in (2, 0, 1)))
        *done, refusal = await client.run("return all")

    assert [
        {"cmd": "PUB", "topic": "t", "body": "a"},
        {"cmd": "DPUB", "defer_ms": 5, "topic": "t", "body": "b"},
        {"cmd": "MPUB", "topic": "t", "bodies": ["c", "d"]},
        {"cmd": "MPUB", "topic": "t", "bodies_base64": ["ZQ==", "/w=="]},
    ] == [{name: line[name] for name in line if name != "ref"} for line in told]
    assert ([None] * 3, "E_BAD_BODY") == (done, refusal["code"])


async def test_a_publish_without_a_connection_in_time_was_not_sent() -> None:
    """It may be tried again; the next connection knows nothing of it."""
    async with module_client() as client:
        seen = await client.run(
            """
            clock.stop();
            const s = subscribe({ topic: "t", WebSocket: Fake });
            const early = s.publish("t", "a", { timeoutMs: 50 }).catch(shown);
            const late = s.publish("t", "b").catch(shown);
            await turn();
            clock.pass(50);
            const [socket] = Fake.made;
            socket.open();
            await turn();
            return [await early, socket.sent.map(({ body }) => body), clock.delaysMs];
            """
        )

    text = "no connection within 50 ms: nothing was sent"
    error = {"name": "NsqError", "code": "NO_CONNECTION", "message": text, "retryable": True}
    assert [error, ["b"], [20_000]] == seen


async def test_a_publish_whose_connection_ends_is_unknown() -> None:
    """Nobody knows whether it was published, so it is not called retryable."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await client.run("globalThis.outcome = s.publish('t', 'x').catch(shown)")
        await peer.heard()
        await peer.close(1011)
        seen = await client.run(
            "const { code, retryable } = await outcome; return [code, retryable]"
        )

    assert ["OUTCOME_UNKNOWN", False] == seen


async def test_nothing_is_published_after_the_end() -> None:
    """Neither what waits then, nor what comes later."""
    async with module_client() as client:
        seen = await client.run(
            """
            const s = subscribe({ topic: "t", WebSocket: Fake });
            const waiting = s.publish("t", "x").catch(shown);
            await s.close();
            const late = await s.publish("t", "x").catch(shown);
            return [await waiting, late];
            """
        )

    text = "the subscription is closed: nothing was sent"
    error = {"name": "NsqError", "code": "NO_CONNECTION", "message": text, "retryable": False}
    assert [error, error] == seen


async def test_too_much_that_is_unsent_is_overloaded() -> None:
    """Above 16 MiB a publish is refused here, and may be tried again."""
    async with module_client() as client:
        seen = await client.run(
            """
            const s = subscribe({ topic: "t", WebSocket: Fake });
            await turn();
            const [socket] = Fake.made;
            socket.open();
            socket.bufferedAmount = 16 * 2 ** 20 + 1;
            const { code, retryable } = await s.publish("t", "x").catch(shown);
            return [code, retryable, socket.sent];
            """
        )

    assert ["OVERLOADED", True, []] == seen


async def test_a_body_is_text_or_bytes() -> None:
    """What is neither becomes no bytes that nobody meant: it is empty, which nsqd refuses."""
    async with module_client() as client:
        seen = await client.run(
            """
            const s = subscribe({ topic: "t", WebSocket: Fake });
            await turn();
            const [socket] = Fake.made;
            socket.open();
            const bytes = new Uint8Array([1, 2, 3]);
            for (const body of [7, true, {}, undefined, bytes.subarray(1), bytes.buffer]) {
              s.publish("t", body);
            }
            return socket.sent.map(({ body_base64 }) => body_base64);
            """
        )

    assert ["", "", "", "", "AgM=", "AQID"] == seen


# Memory


async def test_reconnects_leave_nothing() -> None:
    """With messages that nobody takes, and publishes that wait in vain, at each of them."""
    async with module_client() as client:
        grown_bytes = await client.run(
            """
            clock.stop();
            Math.random = () => 0;
            const s = subscribe({ topic: "t", channel: "c", WebSocket: Fake });
            const count = async (times) => {
              for (let number = 0; number < times; number++) {
                for (let wait = 0; wait < 10; wait++) {
                  s.publish("t", "x", { timeoutMs: 1 }).catch(() => {});
                }
                await Promise.resolve().then(() => {});
                clock.pass(1);
                const socket = Fake.made.pop();
                socket.open();
                for (let id = 0; id < 10; id++) socket.deliver(String(id));
                socket.end(1011);
                clock.pass(0);
                s.states.length = s.details.length = 0;
                if (number % 100 === 0) await turn();
                while (!Fake.made.length) await null;
              }
              await turn();
              gc();
              return process.memoryUsage().heapUsed;
            };
            const before = await count(200);
            return (await count(500)) - before;
            """
        )

    assert grown_bytes < 800_000


async def test_a_viewer_keeps_its_limit_and_counts_the_rest() -> None:
    """The newest stay; ten thousand messages take no more than ten."""
    async with module_client() as client:
        seen = await client.run(
            """
            const s = subscribe({ topic: "t", WebSocket: Fake, maxQueuedChars: 10 * 300 });
            await turn();
            const [socket] = Fake.made;
            socket.open();
            for (let id = 0; id < 10_000; id++) socket.deliver(String(id));
            const iterator = s[Symbol.asyncIterator]();
            const ids = [];
            for (let id = 0; id < 10; id++) ids.push((await iterator.next()).value.id);
            return [ids, s.dropped];
            """
        )

    assert [[str(number) for number in range(9_990, 10_000)], 9_990] == seen


async def test_a_long_queue_is_read_as_fast_as_a_short_one() -> None:
    """A viewer that has fallen behind by 30 000 messages takes them at once, in order."""
    async with module_client() as client:
        seen = await client.run(
            """
            const s = subscribe({ topic: "t", WebSocket: Fake });
            await turn();
            const [socket] = Fake.made;
            socket.open();
            for (let id = 0; id < 30_000; id++) socket.deliver(String(id));
            s.close().catch(() => {});
            socket.end(1000);
            let expected = 0;
            for await (const { id } of s) if (id !== String(expected++)) return id;
            return [expected, s.dropped];
            """
        )

    assert [30_000, 0] == seen
