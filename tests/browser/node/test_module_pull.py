"""nsq.js in Node: `pull`, and answers by lease, in front of both brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.browser.module_client import ModuleClient, module_client
from tests.support.gateways.access_file import gateway_for_alice, key_of
from tests.support.gateways.gateway import RunningGateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.node]

NOTHING_LEFT = (0, 0, 0)
TEXT = "żółć 漢字 🐇"

_PULL = """
globalThis.messages = await pull({ topic: given[0], channel: "c", waitMs: 20_000, ...given[1] });
return messages.map(({ body, attempts }) => [body, attempts]);
"""
# A fake gateway, from which the script has pulled the messages that it is given.
_FAKE_PULL = """
globalThis.http = new FakeHttp();
const acks = http.respond;
const told = { attempts: 1, timestamp_ns: "1", lease_ms: 60_000, body: "x" };
const messageOf = (_, id) => ({ ...told, id: String(id), lease: `lease-${id}` });
http.respond = () => Response.json({ messages: Array.from({ length: given[0] }, messageOf) });
globalThis.messages = await pull({ topic: "t", channel: "c", leaseMs: 5_000 });
http.posts.length = 0;
http.respond = acks;
"""


@pytest_asyncio.fixture(loop_scope="session")
async def client(gateway: RunningGateway) -> AsyncIterator[ModuleClient]:
    async with module_client(gateway.url) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def alone() -> AsyncIterator[ModuleClient]:
    """Return a client for a fake gateway."""
    async with module_client() as client:
        yield client


async def test_pulled_messages_are_finished(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """They have what was published; text and any bytes."""
    await gateway.publish(topic, TEXT.encode())
    seen = await client.run(
        """
        const sinceMs = Date.now();
        const options = { topic: given[0], channel: "c", waitMs: 20_000, leaseMs: 5_000 };
        const [message] = await pull(options);
        const { body, bytes, attempts, deadline, lease, isAnswered } = message;
        const leftMs = deadline - sinceMs;
        const ageMs = Date.now() - Number(message.timestampNs / 1_000_000n);
        const is = [Math.abs(ageMs) < 60_000, leftMs > 0 && leftMs < 60_000, lease.length > 0];
        const answers = await Promise.all([message.finish(), message.finish()]);
        const names = [message.topic, message.channel];
        return [body, bytes.length, attempts, names, is, isAnswered, answers, message.isAnswered];
        """,
        topic,
    )

    expected = [TEXT, len(TEXT.encode()), 1, [topic, "c"], [True] * 3, False, [True, False], True]
    assert expected == seen
    assert NOTHING_LEFT == await gateway.counts_become(topic, "c", NOTHING_LEFT)


async def test_a_pulled_message_that_is_requeued_comes_again(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    await gateway.publish(topic, b"\0\xff")
    await client.run(_PULL, topic)
    requeued = await client.run("return messages[0].requeue(100)")
    again = await client.run(_PULL, topic)
    content = await client.run("await messages[0].finish(); return [...messages[0].bytes]")

    assert (True, [["\0\ufffd", 2]], [0, 255]) == (requeued, again, content)
    assert NOTHING_LEFT == await gateway.counts_become(topic, "c", NOTHING_LEFT)


async def test_touch_extends_the_lease(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """By its length, from now: it is held longer than it was pulled for."""
    await gateway.publish(topic, b"slow")
    await client.run(_PULL, topic, {"leaseMs": 1_000})
    touched, moved_ms = await client.run(
        """
        const [message] = messages;
        const first = message.deadline;
        const touched = [];
        while (Date.now() < first + 500) {
          await new Promise((resolve) => setTimeout(resolve, 200));
          touched.push(await message.touch());
        }
        return [touched, message.deadline - first];
        """
    )
    is_finished = await client.run("return messages[0].finish()")

    assert ({True}, True) == (set(touched), is_finished)
    assert moved_ms >= 500
    assert NOTHING_LEFT == await gateway.counts_become(topic, "c", NOTHING_LEFT)


async def test_a_late_lease_is_refused_with_its_error(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """`finish` is false, and `error` says why; the same for each verb, and nothing is thrown."""
    await gateway.post("/mpub", b"a\nb\nc", topic=topic)
    await client.run("globalThis.late = []")
    while missing := await client.run("return 3 - late.length"):
        await client.run(_PULL, topic, {"leaseMs": 1_000, "max": missing})
        await client.run("late.push(...messages)")
    await gateway.counts_become(topic, "c", (3, 0, 0))
    seen = await client.run(
        """
        const [a, b, c] = late;
        const answers = await Promise.all([a.finish(), b.requeue(), c.touch()]);
        const is = late.map(({ error }) => error instanceof nsq.NsqError);
        const errors = late.map(({ error }) => [error.code, error.cmd]);
        const texts = late.map(({ error }) => error.message.startsWith("the lease ended"));
        const more = late.map(({ isAnswered, error }) => [isAnswered, error.retryable]);
        return [answers, is, errors, texts, more, c.signal.aborted];
        """
    )

    errors = [[f"E_{verb}_FAILED", verb] for verb in ("FIN", "REQ", "TOUCH")]
    assert [[False] * 3, [True] * 3, errors, [True] * 3, [[True, False]] * 3, True] == seen


async def test_an_empty_pull_is_an_empty_array(client: ModuleClient, topic: str) -> None:
    assert [] == await client.run(_PULL, topic, {"waitMs": 0})


async def test_max_is_the_most_that_comes(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    await gateway.post("/mpub", b"a\nb\nc", topic=topic)

    assert 1 == len(await client.run(_PULL, topic, {"max": 1}))
    assert True is await client.run("return messages[0].finish()")


async def test_an_aborted_pull_is_rejected_and_takes_no_message(
    client: ModuleClient, gateway: RunningGateway, topic: str
) -> None:
    """With the reason of the signal; a signal that is aborted before sends nothing."""
    await client.run(
        """
        globalThis.ended = new AbortController();
        const { signal } = ended;
        globalThis.pulled = pull({ topic: given[0], channel: "c", waitMs: 30_000, signal });
        pulled.catch(() => {});
        """,
        topic,
    )
    # A pull that waits has RDY.
    await gateway.ready_becomes(topic, "c", 10)
    reason = await client.run("ended.abort(new RangeError('enough')); return pulled.catch(String)")
    await gateway.ready_becomes(topic, "c", 0)
    await gateway.publish(topic, b"x")
    before = await client.run(
        """
        const signal = AbortSignal.abort(7);
        const secret = () => { throw new Error("nobody asks"); };
        return pull({ topic: given[0], channel: "c", signal, secret }).catch((reason) => reason);
        """,
        topic,
    )

    assert ("RangeError: enough", 7) == (reason, before)
    assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))


@pytest.mark.parametrize(
    "options,expected",
    [
        ({"max": 1_001}, ["INVALID_ARG_MAX", 400, "max is '1001'; allowed: 1 to 1000 messages"]),
        (
            {"waitMs": 30_001},
            ["INVALID_ARG_WAIT_MS", 400, "wait_ms is '30001'; allowed: 0 to 30000 ms"],
        ),
        (
            {"leaseMs": 1},
            ["INVALID_ARG_LEASE_MS", 400, "lease_ms is '1'; allowed: 1000 to 900000 ms"],
        ),
        ({"channel": "no channel"}, ["INVALID_ARG_CHANNEL", 400, None]),
        ({"channel": None}, ["MISSING_ARG_CHANNEL", 400, None]),
    ],
)
async def test_an_invalid_option_is_an_error_of_the_gateway(
    client: ModuleClient, topic: str, options: dict[str, Any], expected: list[Any]
) -> None:
    """It names the value, what is allowed, and the unit."""
    script = "return pull({ topic: given[0], channel: 'c', ...given[1] }).catch(shown)"
    seen = await client.run(script, topic, options)

    assert ["NsqError", False] == [seen["name"], seen["retryable"]]
    assert expected == [seen["code"], seen["status"], seen["message"] if expected[2] else None]


@pytest.mark.parametrize(
    "options,word",
    [
        ("{ topic: 't', maxInFlight: 1 }", "unknown option maxInFlight; options: topic, channel"),
        ("{ topic: 't', url: 'file:///x' }", "url is file:///x: set the gateway"),
    ],
)
async def test_misuse_is_a_type_error(alone: ModuleClient, options: str, word: str) -> None:
    seen = await alone.run(f"return pull({options}).catch(String)")

    assert seen.startswith(f"TypeError: {word}")


async def test_a_gateway_that_is_away_is_an_error(alone: ModuleClient) -> None:
    seen = await alone.run("return pull({ topic: 't', channel: 'c' }).catch(shown)")

    assert ("NO_CONNECTION", True) == (seen["code"], seen["retryable"])
    assert seen["message"].startswith("http://127.0.0.1:9 is unreachable")


async def test_what_a_proxy_says_may_pass(alone: ModuleClient) -> None:
    seen = await alone.run(
        """
        const http = new FakeHttp();
        http.respond = () => new Response("<h1>Bad Gateway</h1>", { status: 502 });
        return pull({ topic: "t", channel: "c" }).catch(shown);
        """
    )

    assert ("NO_CONNECTION", True) == (seen["code"], seen["retryable"])
    assert "http://127.0.0.1:9 answers 502, but no messages" == seen["message"]


# Acks


async def test_acks_of_one_turn_are_one_request(alone: ModuleClient) -> None:
    """FIN makes a TOUCH of the same turn needless; a microtask later is the same turn."""
    await alone.run(_FAKE_PULL, 4)
    seen = await alone.run(
        """
        const [a, b, c, d] = messages;
        const answers = [a.finish(), b.touch(), b.finish(), c.requeue(5), c.requeue(6)];
        answers.push(await Promise.resolve().then(() => d.touch()));
        return [await Promise.all(answers), http.posts];
        """
    )

    [answers, posts] = seen
    assert [True, True, True, True, False, True] == answers
    assert [
        {
            "url": "http://127.0.0.1:9/ack",
            "headers": {},
            "fin": ["lease-0", "lease-1"],
            "req": [{"lease": "lease-2", "timeout_ms": 5}],
            "touch": [{"lease": "lease-3", "lease_ms": 5_000}],
        }
    ] == posts


async def test_a_request_has_no_more_leases_than_the_gateway_takes(alone: ModuleClient) -> None:
    await alone.run(_FAKE_PULL, 10_001)
    seen = await alone.run(
        """
        const answers = await Promise.all(messages.map((message) => message.finish()));
        return [answers.every(Boolean), http.posts.map(({ fin }) => fin.length)];
        """
    )

    assert [True, [10_000, 1]] == seen


async def test_one_ack_that_is_invalid_does_not_keep_the_others(alone: ModuleClient) -> None:
    """The gateway does nothing of a request with it: the halves are sent again."""
    await alone.run(_FAKE_PULL, 5)
    seen = await alone.run(
        """
        const told = { message: "INVALID_REQUEST", detail: "too long", retryable: false };
        const take = http.respond;
        http.respond = (acks) =>
          acks.req.length ? Response.json(told, { status: 400 }) : take(acks);
        const [a, b, c, d, e] = messages;
        const answers = [a.finish(), b.finish(), c.requeue(9), d.finish(), e.finish()];
        return [await Promise.all(answers), c.error.code, c.error.message];
        """
    )

    assert [[True, True, False, True, True], "INVALID_REQUEST", "too long"] == seen


@pytest.mark.parametrize(
    "answer",
    [
        "Promise.reject(new TypeError('fetch failed'))",
        "new Response('Bad Gateway', { status: 502 })",
    ],
)
async def test_an_ack_without_an_answer_has_an_unknown_outcome(
    alone: ModuleClient, answer: str
) -> None:
    await alone.run(_FAKE_PULL, 2)
    seen = await alone.run(
        f"""
        http.respond = () => {answer};
        const answers = await Promise.all(messages.map((message) => message.finish()));
        return [answers, messages.map(({{ error }}) => [error.code, error.retryable])];
        """
    )

    assert [[False, False], [["OUTCOME_UNKNOWN", True]] * 2] == seen


async def test_a_secret_is_sent_with_pulls_and_acks(topic: str, tmp_path: Path) -> None:
    """A function is called for each request, so that an ack has a valid one."""
    async with gateway_for_alice(tmp_path) as gateway, module_client(gateway.url) as client:
        await gateway.publish(topic, b"x")
        seen = await client.run(
            """
            let calls = 0;
            const secret = async () => { calls++; return given[1]; };
            const options = { topic: given[0], channel: "c", waitMs: 20_000 };
            const refused = await pull({ ...options, secret: "wrong" }).catch(shown);
            const [message] = await pull({ ...options, secret });
            return [refused.status, await message.finish(), calls];
            """,
            topic,
            key_of("alice"),
        )

    assert [401, True, 2] == seen


async def test_a_pull_does_not_keep_node_alive(gateway: RunningGateway, topic: str) -> None:
    """With answers and without; the answers are sent still."""
    await gateway.post("/mpub", b"a\nb", topic=topic)
    async with module_client(gateway.url) as client:
        await client.run(_PULL, topic)
        await client.run("messages[0].finish()")

        assert 0 == await client.leave()
