"""nsq.js in Node with `transport: "sse"`, in front of both brokers."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.brokers.toxiproxy import toxiproxy
from tests.support.browser.module_client import ModuleClient, module_client
from tests.support.gateways.access_file import (
    TokenIssuer,
    access_file,
    gateway_for_alice,
    grant_claim,
    key_of,
)
from tests.support.gateways.gateway import RunningGateway, gateway_alone, gateway_with_nsqd

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.node]

NOTHING_LEFT = (0, 0, 0)
TEXT = "żółć 漢字 🐇\u2028"
COUNT = 300

_BEGIN = """
globalThis.s = subscribe({ topic: given[0], channel: "c", transport: "sse", ...given[1] });
await s.ready;
"""
# Finishes every message, and notes the bodies. `finish` may be false although nsqd has the FIN.
_FINISH_ALL = """
globalThis.bodies = new Set();
globalThis.all = new Promise((resolve) => (globalThis.isAll = resolve));
(async () => {
  for await (const message of s) {
    message.finish();
    if (bodies.add(message.body).size === given[0]) isAll();
  }
})();
"""


@pytest_asyncio.fixture(loop_scope="session")
async def client(gateway: RunningGateway) -> AsyncIterator[ModuleClient]:
    async with module_client(gateway.url) as client:
        yield client


async def test_a_stream_delivers_and_finishes(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """A message has what was published, and nothing is left of it."""
    await gateway.publish(topic, TEXT.encode())
    await gateway.publish(topic, b"\0\xff")
    await client.run(_BEGIN, topic, {"maxInFlight": 1})
    seen = await client.run(
        """
        const seen = [];
        for await (const message of s) {
          const { topic, channel, attempts, body, bytes } = message;
          const answers = [message.finish(), message.finish()];
          seen.push([topic, channel, attempts, body, [...bytes], await Promise.all(answers)]);
          if (seen.length === 2) break;
        }
        seen.sort((one, other) => other[3].length - one[3].length);
        return [seen, s.state, s.errors];
        """
    )

    same, answers = [topic, "c", 1], [True, False]
    assert [
        [
            [*same, TEXT, [*TEXT.encode()], answers],
            [*same, "\0\ufffd", [0, 255], answers],
        ],
        "closed",
        [],
    ] == seen
    assert NOTHING_LEFT == await gateway.counts_become(topic, "c", NOTHING_LEFT)


async def test_a_large_message_is_whole(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    await gateway.publish(topic, "ż".encode() * 400_000)
    await client.run(_BEGIN, topic)
    script = "for await (const { body } of s) return [body.length, new Set(body).size, body[0]]"

    assert [400_000, 1, "ż"] == await client.run(script)


async def test_a_stream_requeues_and_touches(
    client: ModuleClient, gateway: RunningGateway, warm_topic: str
) -> None:
    """A message that is touched comes once; REQ brings it again, after its delay."""
    await gateway.publish(warm_topic, b"slow")
    await client.run(_BEGIN, warm_topic, {"msgTimeoutMs": 1_000})
    seen = await client.run(
        """
        const iterator = s[Symbol.asyncIterator]();
        const { value: first } = await iterator.next();
        const { deadline } = first;
        const touched = [];
        while (Date.now() < deadline + 500) {
          await new Promise((resolve) => setTimeout(resolve, 200));
          touched.push(await first.touch());
        }
        const moved = first.deadline >= deadline + 500;
        const sinceMs = performance.now();
        const isRequeued = await first.requeue(200);
        const { value: again } = await iterator.next();
        const isLater = performance.now() - sinceMs > 150;
        const isFinished = await again.finish();
        await s.close();
        const attempts = [first.attempts, again.attempts];
        return [touched.every(Boolean), moved, isRequeued, isLater, isFinished, attempts, s.errors];
        """
    )

    assert [*[True] * 5, [1, 2], []] == seen
    assert NOTHING_LEFT == await gateway.counts_become(warm_topic, "c", NOTHING_LEFT)


async def test_a_late_answer_is_an_error_event(
    client: ModuleClient, gateway: RunningGateway, warm_topic: str
) -> None:
    await gateway.publish(warm_topic, b"x")
    await client.run(_BEGIN, warm_topic, {"msgTimeoutMs": 1_000})
    seen = await client.run(
        """
        const iterator = s[Symbol.asyncIterator]();
        const { value: late } = await iterator.next();
        const { value: again } = await iterator.next();
        const isFinished = await late.finish();
        await again.finish();
        await s.close();
        const told = s.errors.map(({ cmd, code, ids }) => [cmd, code, ids[0] === late.id]);
        return [isFinished, again.attempts, told, late.error.code];
        """
    )

    assert [False, 2, [["FIN", "E_FIN_FAILED", True]], "E_FIN_FAILED"] == seen


async def test_work_is_called_for_the_messages_of_a_stream(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """What returns is finished, what throws comes again."""
    await gateway.post("/mpub", b"good\nbad", topic=topic)
    seen = await client.run(
        """
        const seen = [];
        await new Promise((resolve) => {
          const work = ({ body, attempts }) => {
            seen.push([body, attempts]);
            if (body === "bad" && attempts === 1) throw new RangeError("not now");
            if (body === "bad") resolve();
          };
          globalThis.s = subscribe({ topic: given[0], channel: "c", transport: "sse" }, work);
        });
        await turn();
        await s.close();
        return [seen.sort(), s.errors.map(({ code }) => code)];
        """,
        topic,
    )

    assert [[["bad", 1], ["bad", 2], ["good", 1]], ["RangeError"]] == seen
    assert NOTHING_LEFT == await gateway.counts_become(topic, "c", NOTHING_LEFT)


@pytest.mark.parametrize("more", [{"channel": ""}, {"ack": "auto"}], ids=["viewer", "auto"])
async def test_what_needs_no_answer_gets_none(
    client: ModuleClient, gateway: RunningGateway, topic: str, more: dict[str, str]
) -> None:
    await client.run(_BEGIN, topic, more)
    await gateway.publish(topic, b"seen")
    seen = await client.run(
        """
        for await (const message of s) {
          const answers = await Promise.all([message.finish(), message.requeue(), message.touch()]);
          return [message.body, message.isAnswered, answers, message.lease === undefined, s.errors];
        }
        """
    )

    assert ["seen", True, [False] * 3, True, []] == seen


# The end


async def test_close_hands_the_messages_back_at_once(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """Long before their timeout; what was finished in the same turn is finished."""
    await gateway.post("/mpub", b"a\nb\nc", topic=topic)
    await client.run(_BEGIN, topic, {"msgTimeoutMs": 600_000})
    seen = await client.run(
        """
        const iterator = s[Symbol.asyncIterator]();
        const held = [];
        while (held.length < 3) held.push((await iterator.next()).value);
        const answer = held[0].finish();
        const closed = await s.close();
        const lost = held.map(({ signal, isAnswered }) => [signal.aborted, isAnswered]);
        const late = [await held[1].finish(), await iterator.next()];
        return [held[0].body, closed.code, await answer, lost, late, s.states];
        """
    )
    counts = await gateway.counts_become(topic, "c", (2, 0, 0))
    async with gateway.subscribe(topic, "c") as other:
        rest = await other.messages(2)

    finished, *told = seen
    lost = [[False, True], [True, True], [True, True]]
    states = ["connecting", "connected", "closing", "closed"]
    assert [1000, True, lost, [False, {"done": True}], states] == told
    assert (2, 0, 0) == counts
    bodies = sorted({"a", "b", "c"} - {finished})
    assert [(body, 2) for body in bodies] == sorted(
        (each["body"], each["attempts"]) for each in rest
    )


async def test_leaving_a_loop_hands_back_and_ends_the_stream(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    await gateway.post("/mpub", b"a\nb\nc\nd", topic=topic)
    await client.run(_BEGIN, topic)
    await client.run("for await (const message of s) break")
    async with gateway.subscribe(topic, "c") as other:
        rest = await other.messages(4)

    assert list("abcd") == sorted(each["body"] for each in rest)


async def test_a_signal_ends_a_stream(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """The gateway has no consumer any more."""
    await client.run(
        """
        globalThis.ended = new AbortController();
        const { signal } = ended;
        globalThis.s = subscribe({ topic: given[0], channel: "c", transport: "sse", signal });
        await s.ready;
        """,
        topic,
    )
    await gateway.ready_becomes(topic, "c", 10)
    closed = await client.run("ended.abort(); return s.closed")
    await gateway.ready_becomes(topic, "c")

    assert 1000 == closed["code"]


async def test_a_closed_stream_does_not_keep_node_alive(
    gateway: RunningGateway, topic: str
) -> None:
    async with module_client(gateway.url) as client:
        await client.run(_BEGIN, topic)
        await client.run("await s.close()")

        assert 0 == await client.leave()


# Faults


async def test_a_stream_survives_a_gateway_that_restarts(
    kind: str, shared_broker: KillableBroker, topic: str
) -> None:
    """It drains, and is killed: the module reconnects to the next one, and nothing is lost."""
    del kind
    brokers = [shared_broker.tcp_address], [shared_broker.http_address]
    drain = "--drain-window-s=0.1", "--drain-in-flight-s=0.2"
    bodies = [f"m{number}" for number in range(COUNT)]
    async with (
        gateway_with_nsqd(*brokers, *drain) as first,
        module_client(first.url) as client,
    ):
        await client.run(_BEGIN, topic, {"msgTimeoutMs": 2_000})
        await client.run(_FINISH_ALL, COUNT)
        await first.post("/mpub", "\n".join(bodies[:100]).encode(), topic=topic)
        first.program.signal(signal.SIGTERM)
        drained = await client.run("return stands(s, 'waiting')")
        assert 0 == await first.program.ended()
        async with gateway_with_nsqd(*brokers, f"--listen={first.address}") as second:
            await client.run("await stands(s, 'connected')")
            await second.post("/mpub", "\n".join(bodies[100:200]).encode(), topic=topic)
            second.program.signal(signal.SIGKILL)
            killed = await client.run("return stands(s, 'waiting')")
            await second.program.ended()
        async with gateway_with_nsqd(*brokers, f"--listen={first.address}") as third:
            await third.post("/mpub", "\n".join(bodies[200:]).encode(), topic=topic)
            await client.run("await all")
            left = await third.counts_become(topic, "c", NOTHING_LEFT)
            await client.run("await s.close()")

    assert (1012, 1006, NOTHING_LEFT) == (drained["code"], killed["code"], left)


@pytest.mark.toxiproxy
async def test_a_stream_that_is_cut_loses_nothing(gateway: RunningGateway, topic: str) -> None:
    """The gateway requeues what the module held; the module tells `waiting`, and goes on."""
    bodies = [f"m{number}" for number in range(COUNT)]
    async with toxiproxy() as proxy:
        way = await proxy.in_front_of(gateway.address)
        async with module_client(f"http://{way.address}") as client:
            await client.run(_BEGIN, topic)
            await client.run(_FINISH_ALL, COUNT)
            for at in range(0, COUNT, 100):
                await gateway.post("/mpub", "\n".join(bodies[at : at + 100]).encode(), topic=topic)
                await way.go_down()
                waiting = await client.run("return stands(s, 'waiting')")
                await way.come_back()
                await client.run("await stands(s, 'connected')")
            await client.run("await all")
            left = await gateway.counts_become(topic, "c", NOTHING_LEFT)
            await client.run("await s.close()")

    assert (1006, NOTHING_LEFT) == (waiting["code"], left)


async def test_an_invalid_value_ends_the_subscription(client: ModuleClient, topic: str) -> None:
    """With the gateway's own words, as for a socket."""
    seen = await client.run(
        """
        const options = { topic: given[0], channel: "c", transport: "sse", maxInFlight: 100_000 };
        const s = subscribe(options);
        const { code, status, retryable } = await s.ready.catch(shown);
        return [code, status, retryable, (await s.closed.catch(shown)).code, s.state];
        """,
        topic,
    )

    assert ["INVALID_ARG_MAX_IN_FLIGHT", 400, False, "INVALID_ARG_MAX_IN_FLIGHT", "closed"] == seen


async def test_a_stream_cannot_publish(client: ModuleClient, topic: str) -> None:
    await client.run(_BEGIN, topic)
    seen = await client.run(
        """
        const publishes = [s.publish(given[0], "x"), s.publishAll(given[0], ["x"])];
        return Promise.all(publishes.map((publish) => publish.catch(shown)));
        """,
        topic,
    )

    assert [("UNSUPPORTED", False)] * 2 == [(each["code"], each["retryable"]) for each in seen]


# Secrets


async def test_a_secret_is_in_the_request(topic: str, tmp_path: Path) -> None:
    """One that is refused ends the subscription; answers have it, too."""
    async with gateway_for_alice(tmp_path) as gateway, module_client(gateway.url) as client:
        await gateway.publish(topic, b"x")
        seen = await client.run(
            """
            const options = { topic: given[0], channel: "c", transport: "sse" };
            const refused = await subscribe({ ...options, secret: "wrong" }).closed.catch(shown);
            const missing = await subscribe(options).closed.catch(shown);
            const s = subscribe({ ...options, secret: given[1] });
            for await (const message of s) {
              return [refused.status, missing.status, await message.finish()];
            }
            """,
            topic,
            key_of("alice"),
        )

        assert [401, 401, True] == seen
        assert NOTHING_LEFT == await gateway.counts_become(topic, "c", NOTHING_LEFT)


async def test_a_token_that_ends_is_renewed_by_reconnecting(topic: str, tmp_path: Path) -> None:
    """4003, then the function's next token; text has no other, and ends."""
    issuer = TokenIssuer(tmp_path)
    async with (
        gateway_alone(f"--access-file={access_file(tmp_path, issuer.entry)}") as gateway,
        module_client(gateway.url) as client,
    ):
        claim = grant_claim(topic, "subscribe")
        tokens = [issuer.token("alice", claim, life_s=life_s) for life_s in (2.0, 60.0)]
        seen = await client.run(
            """
            const [topic, tokens] = given;
            const options = { topic, channel: "c", transport: "sse" };
            const once = subscribe({ ...options, secret: tokens[0] });
            const s = subscribe({ ...options, secret: () => tokens.shift() });
            const { code } = await stands(s, "waiting");
            await stands(s, "connected");
            return [code, (await once.closed.catch(shown)).status, tokens.length, s.close() && 0];
            """,
            topic,
            tokens,
        )

    assert [4003, 4003, 0, 0] == seen
