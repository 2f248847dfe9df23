"""nsq.js in Node with the library ws: what nsq.d.ts promises, in front of both brokers."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.browser.module_client import ModuleClient, module_client
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd
from tests.support.websocket.clients import node_has_websocket

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.node]

NOTHING_LEFT = (0, 0, 0)
_READY = "globalThis.s = subscribe({ topic: given[0], channel: 'c' }); await s.ready"
TEXT = "żółć 漢字 🐇\u2028"


@pytest_asyncio.fixture(loop_scope="session")
async def client(gateway: RunningGateway) -> AsyncIterator[ModuleClient]:
    async with module_client(gateway.url) as client:
        yield client


# Messages


async def test_a_message_has_what_was_published(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """Text, its bytes, and when; `timestampNs` is a bigint, `deadline` is in the future."""
    began_ns = time.time_ns()
    await gateway.publish(topic, TEXT.encode())
    seen = await client.run(
        """
        const s = subscribe({ topic: given[0], channel: "c", msgTimeoutMs: 5_000 });
        for await (const { body, bytes, attempts, timestampNs, deadline, ...more } of s) {
          const leftMs = deadline - Date.now();
          const names = [more.topic, more.channel];
          return [body, [...bytes], attempts, String(timestampNs), leftMs, names];
        }
        """,
        topic,
    )
    body, content, attempts, timestamp_ns, left_ms, names = seen

    assert (TEXT, [*TEXT.encode()], 1, [topic, "c"]) == (body, content, attempts, names)
    assert began_ns <= int(timestamp_ns) <= time.time_ns()
    assert 0 < left_ms <= 5_000


async def test_any_bytes_are_a_body(client: ModuleClient, topic: str) -> None:
    """What is not UTF-8 is there as `bytes`; `body` has U+FFFD instead. JSON is read on demand."""
    seen = await client.run(
        """
        const s = subscribe({ topic: given[0], channel: "c" });
        await s.publish(given[0], new Uint8Array([0, 255]));
        await s.publish(given[0], '{"price":7}');
        const seen = [];
        for await (const message of s) {
          message.finish();
          const json = message.body.startsWith("{") && message.json();
          seen.push([message.body, [...message.bytes].length, json]);
          if (seen.length === 2) return seen.sort();
        }
        """,
        topic,
    )

    assert [["\0\ufffd", 2, False], ['{"price":7}', 11, {"price": 7}]] == seen


async def test_a_finished_message_is_not_redelivered(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """The broker's own account says so."""
    await gateway.post("/mpub", b"\n".join([b"x"] * 100), topic=topic)
    await client.run(
        """
        globalThis.s = subscribe({ topic: given[0], channel: "c" });
        let count = 0;
        for await (const message of s) {
          message.finish();
          if (++count === 100) break;
        }
        """,
        topic,
    )

    assert NOTHING_LEFT == await gateway.counts_become(topic, "c", NOTHING_LEFT)


async def test_a_requeued_message_is_redelivered(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """After its delay, under another id, tried once more."""
    await gateway.publish(topic, b"x")
    ids, attempts, elapsed_ms = await client.run(
        """
        const s = subscribe({ topic: given[0], channel: "c" });
        const iterator = s[Symbol.asyncIterator]();
        const { value: first } = await iterator.next();
        const sinceMs = performance.now();
        first.requeue(200);
        const { value: again } = await iterator.next();
        const elapsedMs = performance.now() - sinceMs;
        again.finish();
        await s.close();
        return [[first.id, again.id], [first.attempts, again.attempts], elapsedMs];
        """,
        topic,
    )

    assert ([1, 2], True) == (attempts, elapsed_ms > 150)
    assert ids[0] != ids[1]


async def test_an_answer_that_comes_too_late_is_an_error(
    client: ModuleClient, gateway: RunningGateway, warm_topic: str
) -> None:
    """`finish` is false; the event names the command and the delivery."""
    await gateway.publish(warm_topic, b"x")
    seen = await client.run(
        """
        const s = subscribe({ topic: given[0], channel: "c", msgTimeoutMs: 1_000 });
        const iterator = s[Symbol.asyncIterator]();
        const { value: late } = await iterator.next();
        const { value: again } = await iterator.next();
        const refused = new Promise((resolve) => s.addEventListener("error", resolve));
        const isFinished = late.finish();
        again.finish();
        await refused;
        await s.close();
        const errors = s.errors.map(({ cmd, code, ids }) => [cmd, code, ids]);
        return [await isFinished, again.attempts, errors, late.id];
        """,
        warm_topic,
    )
    is_finished, attempts, errors, late_id = seen

    assert (False, 2, [["FIN", "E_FIN_FAILED", [late_id]]]) == (is_finished, attempts, errors)


async def test_touch_puts_the_timeout_off(
    client: ModuleClient, gateway: RunningGateway, warm_topic: str
) -> None:
    """A message that is touched in time comes once, however long the work takes."""
    await gateway.post("/mpub", b"long\nother", topic=warm_topic)
    seen = await client.run(
        """
        const s = subscribe({ topic: given[0], channel: "c", msgTimeoutMs: 1_000, maxInFlight: 3 });
        const iterator = s[Symbol.asyncIterator]();
        const all = [(await iterator.next()).value, (await iterator.next()).value];
        const [touched, other] = all.sort((one) => (one.body === "long" ? -1 : 1));
        const timer = setInterval(() => touched.touch(), 250);
        const { value: again } = await iterator.next();
        clearInterval(timer);
        const answers = await Promise.all([touched.finish(), again.finish()]);
        await s.close();
        return [again.body, answers, s.errors];
        """,
        warm_topic,
    )

    assert ["other", [True, True], []] == seen


# Work


async def test_work_finishes_what_it_returns_from(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """Async or not; what it answered itself is answered once, what it threw at comes again."""
    bodies = ["at once", "later", "by hand", "again"]
    await gateway.post("/mpub", "\n".join(bodies).encode(), topic=topic)
    seen, errors = await client.run(
        """
        const seen = [];
        const s = subscribe({ topic: given[0], channel: "c" }, (message) => {
          const { body, attempts } = message;
          seen.push([body, attempts]);
          if (body === "later") return new Promise((resolve) => setTimeout(resolve, 50));
          if (body === "by hand") message.finish();
          if (body === "again" && attempts === 2) s.close();
          if (body === "again" && attempts === 1) throw new RangeError("not now");
        });
        await s.closed;
        return [seen.sort(), s.errors.map(({ code, message }) => [code, message])];
        """,
        topic,
    )
    counts = await gateway.counts_become(topic, "c", NOTHING_LEFT)

    assert sorted([*([body, 1] for body in bodies), ["again", 2]]) == seen
    assert ([["RangeError", "not now"]], NOTHING_LEFT) == (errors, counts)


async def test_work_has_a_window_of_messages_at_a_time(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """Each that ends makes room for another."""
    await gateway.post("/mpub", b"\n".join([b"x"] * 20), topic=topic)
    most = await client.run(
        """
        let running = 0, most = 0, done = 0;
        await new Promise((resolve) => {
          const work = async () => {
            most = Math.max(most, ++running);
            await turn();
            running -= 1;
            if (++done === 20) resolve();
          };
          globalThis.s = subscribe({ topic: given[0], channel: "c", maxInFlight: 3 }, work);
        });
        await s.close();
        return most;
        """,
        topic,
    )

    assert 3 == most


# Iterators


async def test_iterators_share_the_messages(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """Each message goes to one of them, and both end with the subscription."""
    await gateway.post("/mpub", b"1\n2\n3\n4", topic=topic)
    seen = await client.run(
        """
        const s = subscribe({ topic: given[0], channel: "c" });
        const seen = [];
        const take = async () => {
          for await (const message of s) {
            message.finish();
            if (seen.push(message.body) === 4) s.close();
          }
          return "ended";
        };
        const ends = await Promise.all([take(), take()]);
        return [ends, seen.sort(), await s[Symbol.asyncIterator]().next()];
        """,
        topic,
    )

    assert [["ended"] * 2, list("1234"), {"done": True}] == seen


@pytest.mark.parametrize("leave", ["break", "return", "throw 7"])
async def test_leaving_a_loop_requeues_messages(
    client: ModuleClient, gateway: RunningGateway, topic: str, leave: str
) -> None:
    """The message in hand and those that waited, at once; the subscription has ended by then."""
    await gateway.post("/mpub", b"a\nb\nc\nd", topic=topic)
    seen = await client.run(
        f"""
        const s = subscribe({{ topic: given[0], channel: "c" }});
        const loop = async () => {{ for await (const message of s) {{ {leave}; }} }};
        const thrown = await loop().catch((error) => error);
        return [thrown, s.state, await s.closed];
        """,
        topic,
    )
    async with gateway.subscribe(topic, "c") as other:
        rest = await other.messages(4)

    closed = {"code": 1000, "reason": "the client sent CLS"}
    assert [7 if "throw" in leave else None, "closed", closed] == seen
    assert list("abcd") == sorted(each["body"] for each in rest)


async def test_close_waits_for_the_answers(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """What had come is handed out still, and the last answer is the end."""
    await gateway.post("/mpub", b"a\nb\nc", topic=topic)
    seen = await client.run(
        """
        const s = subscribe({ topic: given[0], channel: "c" });
        const iterator = s[Symbol.asyncIterator]();
        const messages = [];
        while (messages.length < 3) messages.push((await iterator.next()).value);
        const states = [s.close() && s.state];
        for (const message of messages) {
          await turn();
          states.push(s.state);
          message.finish();
        }
        return [states, (await s.closed).code];
        """,
        topic,
    )
    counts = await gateway.counts_become(topic, "c", NOTHING_LEFT)

    assert ([["closing"] * 4, 1000], NOTHING_LEFT) == (seen, counts)


# Viewers, windows, publishing


async def test_a_viewer_answers_nothing(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """Nor does work with `ack` auto: a FIN would be refused."""
    script = """
    globalThis.s = subscribe(given[0]);
    await s.ready;
    """
    look = """
    for await (const message of s) {
      const answers = await Promise.all([message.finish(), message.requeue(), message.touch()]);
      return [message.body, [message.isAnswered, ...answers], s.dropped, s.errors];
    }
    """
    for more in ({}, {"channel": "c", "ack": "auto"}):
        await client.run(script, {"topic": topic, **more})
        await gateway.publish(topic, b"seen")

        assert ["seen", [True, False, False, False], 0, []] == await client.run(look)


async def test_the_window_may_be_set(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """0 stops the messages, more brings them."""
    await client.run(_READY, topic)
    await client.run("s.setMaxInFlight(0)")
    await gateway.ready_becomes(topic, "c", 0)
    await gateway.publish(topic, b"x")
    counts = await gateway.counts_become(topic, "c", (1, 0, 0))
    await client.run("s.setMaxInFlight(5)")
    body = await client.run("for await (const message of s) return message.body")

    assert ((1, 0, 0), "x") == (counts, body)


async def test_publishes_are_answered_by_the_broker(client: ModuleClient, topic: str) -> None:
    """One, one later, several; before there is a connection too. A refusal has NSQ's word."""
    refused, bodies, elapsed_ms = await client.run(
        """
        const [topic] = given;
        const s = subscribe({ topic, channel: "c" });
        const sinceMs = performance.now();
        await Promise.all([
          s.publish(topic, "one"),
          s.publish(topic, "later", { deferMs: 200 }),
          s.publishAll(topic, ["two", new Uint8Array([255])]),
        ]);
        const refused = await Promise.all([
          s.publish("no topic", "x").catch(shown),
          s.publish(topic, "").catch(shown),
          s.publishAll(topic, []).catch(shown),
        ]);
        const bodies = [];
        for await (const message of s) {
          message.finish();
          if (bodies.push(message.body) === 4) break;
        }
        const elapsedMs = performance.now() - sinceMs;
        return [refused.map(({ code, retryable }) => [code, retryable]), bodies, elapsedMs];
        """,
        topic,
    )

    assert [["E_BAD_TOPIC", False], ["E_BAD_MESSAGE", False], ["E_BAD_BODY", False]] == refused
    assert (["one", "two", "\ufffd"], "later") == (
        sorted(bodies[:3], key=lambda body: (len(body) != 3, body)),
        bodies[3],
    )
    assert elapsed_ms > 150


# Ends


async def test_a_refused_upgrade_is_an_error_with_its_status(
    client: ModuleClient, topic: str
) -> None:
    """Before the upgrade too: `ready` and `closed` are rejected, and there is no coming back."""
    seen = await client.run(
        """
        const s = subscribe({ topic: given[0], channel: "c", maxInFlight: 100_000 });
        const { code, status, retryable } = await s.ready.catch(shown);
        const error = await s.closed.catch(shown);
        const late = await s[Symbol.asyncIterator]().next().catch(shown);
        return [code, status, retryable, error.code, late.code, s.state];
        """,
        topic,
    )

    word = "INVALID_ARG_MAX_IN_FLIGHT"
    assert [word, 400, False, word, word, "closed"] == seen


async def test_a_wrong_path_is_an_error(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """A prefix that the gateway does not have is 404."""
    seen = await client.run(
        "return (await subscribe({ topic: given[0], url: given[1] }).ready.catch(shown)).status",
        topic,
        f"{gateway.url}/elsewhere",
    )

    assert 404 == seen


async def test_invalid_arguments_are_a_type_error(client: ModuleClient) -> None:
    """It is thrown at once, and says what to do."""
    seen = await client.run(
        """
        const refusal = (options) => {
          try {
            nsq.subscribe({ topic: "t", WebSocket, ...options });
          } catch (error) {
            return String(error);
          }
        };
        delete globalThis.WebSocket;
        const [url] = given;
        const addresses = [undefined, "127.0.0.1:8080", "localhost:8080"];
        return [
          refusal({ url, chanel: "c" }),
          refusal({ url, WebSocket: undefined }),
          ...addresses.map((each) => refusal({ url: each })),
        ];
        """,
        "http://127.0.0.1:9",
    )
    unknown, no_class, own, no_scheme, no_slashes = seen

    assert unknown.startswith("TypeError: unknown option chanel; options: topic, channel, maxInF")
    assert own.startswith("TypeError: url is file:///")
    assert own.endswith('set the gateway, as in url: "http://127.0.0.1:8080"')
    assert "Invalid URL" in no_scheme
    assert no_slashes.startswith("TypeError: url is localhost:8080: set the gateway")
    assert no_class.startswith("TypeError: no WebSocket: pass the class")


async def test_the_websocket_of_node_works(gateway: RunningGateway, topic: str) -> None:
    """Node has one since 22, and before it behind a flag: no package is needed then."""
    if not node_has_websocket():
        pytest.skip("this Node has no WebSocket of its own")
    script = """
    const s = nsq.subscribe({ url: given[0], topic: given[1], channel: "c" });
    await s.publish(given[1], "x");
    for await (const message of s) return [message.body, await message.finish()];
    """
    async with module_client(gateway.url, "--experimental-websocket") as client:
        seen = await client.run(script, gateway.url, topic)
        status = await client.leave()
    counts = await gateway.counts_become(topic, "c", NOTHING_LEFT)

    assert (["x", True], 0, NOTHING_LEFT) == (seen, status, counts)


async def test_node_ends_by_itself(gateway: RunningGateway, topic: str) -> None:
    """After the close nothing is left that keeps the process; a refusal leaves nothing either."""
    script = """
    const s = subscribe({ topic: given[0], channel: "c" });
    await s.publish(given[0], "x");
    for await (const message of s) { message.finish(); break; }
    await subscribe({ topic: given[0], maxAttempts: -1 }).closed.catch(() => {});
    """
    async with module_client(gateway.url) as client:
        await client.run(script, topic)

        assert 0 == await client.leave()


async def test_a_drain_is_survived(kind: str, shared_broker: KillableBroker, topic: str) -> None:
    """The module waits as it was told, and goes on where the next gateway is."""
    brokers = [shared_broker.tcp_address], [shared_broker.http_address]
    async with (
        gateway_with_nsqd(*brokers, "--drain-window-s=0.1", "--drain-in-flight-s=0.2") as gateway,
        module_client(gateway.url) as client,
    ):
        await client.run(_READY, topic)
        gateway.program.signal(signal.SIGTERM)
        waiting = await client.run("return stands(s, 'waiting')")
        assert 0 == await gateway.program.ended()
        async with gateway_with_nsqd(*brokers, f"--listen={gateway.address}") as again:
            await again.publish(topic, kind.encode())
            body = await client.run("for await (const message of s) return message.body")

    assert (1012, kind) == (waiting["code"], body)
