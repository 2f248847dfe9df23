"""nsq.js in Node against a gateway that says what it is told: what goes over a socket."""

from __future__ import annotations

import pytest

from tests.support.module_client import BEGIN, STANDS, begin, module_client
from tests.support.scripted_sockets import (
    error,
    response,
    scripted_sockets,
)

pytestmark = [pytest.mark.asyncio(loop_scope="function"), pytest.mark.node]

_TAKE = """
globalThis.messages ??= [];
globalThis.iterator ??= s[Symbol.asyncIterator]();
while (messages.length < given[0]) messages.push((await iterator.next()).value);
return messages.map(({ id }) => id)
"""


# Answers


async def test_answers_of_one_turn_are_one_frame_in_the_order_said() -> None:
    """Those alike that stand beside each other are one command with all ids."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await peer.deliver(*"abcdefgh")
        await client.run(_TAKE, 8)
        said = await client.run(
            """
            const [a, b, c, d, e, f, g, h] = messages;
            return [a.finish(), b.finish(), c.touch(), c.finish(), d.requeue(5), e.requeue(5),
                    f.requeue(), Promise.resolve().then(() => g.finish()) && true, h.finish()];
            """
        )
        told = await peer.heard()

    assert [
        {"cmd": "FIN", "ids": ["a", "b"]},
        {"cmd": "TOUCH", "ids": ["c"]},
        {"cmd": "FIN", "ids": ["c"]},
        {"cmd": "REQ", "ids": ["d", "e"], "timeout_ms": 5},
        {"cmd": "REQ", "ids": ["f"], "timeout_ms": 0},
        {"cmd": "FIN", "ids": ["h", "g"]},
    ] == told
    assert [True] * 9 == said


async def test_a_loop_that_finishes_what_is_there_sends_one_frame() -> None:
    """Each `finish` of it happens in a microtask of its own."""
    ids = [str(number) for number in range(500)]
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await client.run("(async () => { for await (const message of s) message.finish(); })()")
        await peer.deliver(*ids)
        told = await peer.heard()

    assert [{"cmd": "FIN", "ids": ids}] == told


async def test_no_timer_is_in_the_way_of_an_answer() -> None:
    """A hidden tab runs timers once a minute: here they never run, and the answer goes out."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop()")
        peer = await begin(client, sockets)
        await peer.deliver("a")
        await client.run(_TAKE, 1)
        await client.run("messages[0].finish()")
        told = await peer.heard()

    assert [{"cmd": "FIN", "ids": ["a"]}] == told


async def test_a_message_is_answered_once() -> None:
    """The second answer is none, whatever it is; a TOUCH is not one."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await peer.deliver("a")
        await client.run(_TAKE, 1)
        seen = await client.run(
            """
            const [a] = messages;
            const look = (did) => [did, a.isAnswered];
            const seen = [look(a.touch()), look(a.requeue())];
            return [...seen, look(a.finish()), look(a.touch()), look(a.requeue())];
            """
        )
        told = await peer.heard()

    assert [[True, False], [True, True], [False, True], [False, True], [False, True]] == seen
    assert ["TOUCH", "REQ"] == [each["cmd"] for each in told]


@pytest.mark.parametrize(
    "delay,expected",
    [("1.5", 2), ("-1", 0), ("NaN", 0), ("'7'", 7), ("undefined", 0), ("Infinity", 2**31)],
)
async def test_a_delay_is_one_that_the_gateway_takes(delay: str, expected: int) -> None:
    """One that it refused would leave the delivery in the window for good."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await peer.deliver("a")
        await client.run(_TAKE, 1)
        await client.run(f"messages[0].requeue({delay})")
        told = await peer.heard()

    assert [{"cmd": "REQ", "ids": ["a"], "timeout_ms": expected}] == told


async def test_touch_begins_the_time_anew() -> None:
    """`deadline` moves to the message timeout from now, which the gateway told with SUB."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop()")
        await client.run(BEGIN, {})
        peer = await sockets.next()
        await peer.subscribe(msg_timeout_ms=2_000)
        await peer.deliver("a", deadline_ms=1_500)
        await client.run(_TAKE, 1)
        seen = await client.run(
            """
            const left = () => messages[0].deadline - Date.now();
            const seen = [left()];
            clock.pass(1_000);
            seen.push(left());
            messages[0].touch();
            seen.push(left());
            messages[0].finish();
            clock.pass(1_000);
            return [...seen, messages[0].touch(), left()];
            """
        )

    assert [1_500, 500, 2_000, False, 1_000] == seen


async def test_close_sends_the_answers_first() -> None:
    """FIN of the same turn is before CLS, and answers are taken until the close."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await peer.deliver("a", "b")
        await client.run(_TAKE, 2)
        await client.run("messages[0].finish(); s.close()")
        told = [await peer.heard(), await peer.heard()]
        await client.run("messages[1].finish()")
        told.append(await peer.heard())
        await peer.say(response("NOP", {"state": "disconnected", "nsqds": 0}))
        await peer.close(1000, "the client said CLS")
        closed = await client.run("return [await s.closed, await s.close(), s.states]")

    assert [
        [{"cmd": "FIN", "ids": ["a"]}],
        [{"cmd": "CLS"}],
        [{"cmd": "FIN", "ids": ["b"]}],
    ] == told
    ended = {"code": 1000, "reason": "the client said CLS"}
    assert [ended, ended, ["connecting", "connected", "closing", "closed"]] == closed


# What is not understood


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"notice"}',
        '{"type":"response","cmd":"HELLO"}',
        '{"type":"response"}',
        '{"type":"response","cmd":"NOP","ref":null,"data":{"state":"closed","nsqds":1}}',
    ],
)
async def test_what_a_later_gateway_says_is_passed_over(frame: str) -> None:
    """Nothing is said of it, and what comes behind it is heard."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await peer.say_as_it_is(frame)
        await peer.deliver("a")
        ids = await client.run(_TAKE, 1)
        seen = await client.run("return [s.state, s.errors.length]")

    assert (["a"], ["connected", 0]) == (ids, seen)


@pytest.mark.parametrize(
    "frame", ["", "hello", "null", '{"type":"response","cmd":"SUB"}', '{"type":"message"}', b"\0"]
)
async def test_what_no_gateway_says_is_an_error_and_no_end(frame: str | bytes) -> None:
    """One `error` event, no exception that would end the process; the lines behind it are heard."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await peer.say_as_it_is(frame)
        await peer.deliver("a")
        ids = await client.run(_TAKE, 1)
        seen = await client.run("return [s.state, s.errors.length]")

    assert (["a"], ["connected", 1]) == (ids, seen)


# What is lost


async def test_lost_ids_are_lost() -> None:
    """
    They need no answer, their `signal` is aborted, and who iterates does not get them.

    `nsqds` is what was told with them, as long as the connection lasts.
    """
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await peer.deliver("a", "b", "c", "d")
        await client.run(_TAKE, 2)
        told = {"state": "disconnected", "nsqds": 0, "lost_ids": ["a", "c"]}
        await peer.say(response("NOP", told))
        await client.run(STANDS, "disconnected")
        ids = await client.run(_TAKE, 3)
        seen = await client.run(
            """
            const look = ({ isAnswered, signal }) => [isAnswered, signal.aborted];
            return [s.nsqds, messages.map(look)];
            """
        )
        await peer.close(1011)
        after = await client.run("await stands(s, 'waiting'); return [s.nsqds === undefined]")

    assert ["a", "b", "d"] == ids
    assert [0, [[True, True], [False, False], [False, False]]] == seen
    assert [True] == after


async def test_messages_of_a_connection_that_is_lost_are_lost() -> None:
    """In work and in the queue; the next connection's come after them."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await peer.deliver("a", "b")
        await client.run(_TAKE, 1)
        await peer.close(1011)
        await client.run(STANDS, "waiting")
        again = await sockets.subscribed()
        await again.deliver("a")
        ids = await client.run(_TAKE, 2)
        seen = await client.run(
            "return [messages.map(({ isAnswered }) => isAnswered), messages[0].finish()]"
        )
        await client.run("messages[1].finish()")
        told = await again.heard()

    assert (["a", "a"], [[True, False], False]) == (ids, seen)
    assert [{"cmd": "FIN", "ids": ["a"]}] == told


async def test_a_touch_that_is_refused_loses_the_message() -> None:
    """The gateway has given up its place, so no answer is wanted; the error says which it was."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await peer.deliver("a")
        await client.run(_TAKE, 1)
        await client.run("messages[0].touch()")
        await peer.heard()
        await peer.say(error("TOUCH", "E_TOUCH_FAILED", id="a"))
        aborted = await client.run(
            """
            const { signal } = messages[0];
            const aborted = new Promise((resolve) => signal.addEventListener("abort", resolve));
            if (!signal.aborted) await aborted;
            return [messages[0].isAnswered, s.errors.map(({ cmd, code, ids }) => [cmd, code, ids])];
            """
        )

    assert [True, [["TOUCH", "E_TOUCH_FAILED", ["a"]]]] == aborted


async def test_what_waited_too_long_is_given_back() -> None:
    """It is not handed out, and leaves its place in the window to another."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await peer.deliver("late", deadline_ms=0)
        await peer.deliver("a")
        ids = await client.run(_TAKE, 1)
        told = await peer.heard()

    assert (["a"], [{"cmd": "REQ", "ids": ["late"], "timeout_ms": 0}]) == (ids, told)


async def test_what_comes_after_leaving_is_given_back() -> None:
    """A message that was on its way when the loop was left waits for nobody."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await client.run("(async () => { for await (const message of s) break; })()")
        await peer.deliver("a")
        told = await peer.heard() + await peer.heard()
        await peer.deliver("b")
        told += await peer.heard()

    assert [("REQ", ["a"]), ("CLS", None), ("REQ", ["b"])] == [
        (each["cmd"], each.get("ids")) for each in told
    ]


async def test_what_comes_after_cls_is_given_back() -> None:
    """Who iterates gets what had come before, and no more."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets)
        await peer.deliver("before")
        await client.run(_TAKE, 1)
        await client.run("s.close()")
        await peer.deliver("after")
        told = await peer.heard() + await peer.heard()
        await client.run("messages[0].finish()")
        told += await peer.heard()
        await peer.close(1000)
        rest = await client.run("return (await iterator.next()).done")

    assert [("CLS", None), ("REQ", ["after"]), ("FIN", ["before"])] == [
        (each["cmd"], each.get("ids")) for each in told
    ]
    assert rest is True


# Signs of life


async def test_a_gateway_that_is_silent_is_asked_twice_and_left() -> None:
    """After 20 s and 5 s later; 5 s more without a word, and there is another connection."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop()")
        peer = await begin(client, sockets)
        await client.run("clock.pass(20_000); clock.pass(20_000)")
        told = await peer.heard()
        await client.run("clock.pass(5_000)")
        told += await peer.heard()
        await client.run("clock.pass(5_000)")
        waiting = await client.run("return s.details.at(-1)")
        await client.run("clock.pass(500)")
        await sockets.subscribed()

    assert [{"cmd": "NOP", "ref": 0}] * 2 == told
    assert ("waiting", 1006) == (waiting["state"], waiting["code"])
    assert "the gateway does not answer any more" == waiting["reason"]


async def test_a_gateway_that_answers_stays() -> None:
    """Anything that it says is an answer."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop()")
        peer = await begin(client, sockets)
        await client.run("clock.pass(20_000)")
        for answered in (1, 2, 3):
            await client.run("clock.pass(20_000)")
            [asked] = await peer.heard()
            await peer.say(response("NOP", "OK", asked["ref"]))
            await peer.deliver("a")
            await client.run(_TAKE, answered)
            await client.run("clock.pass(5_000)")
        state = await client.run("return s.states")

    assert ["connecting", "connected"] == state


# A page, hidden and looked at


_PAGE = """
globalThis.document = { hidden: false };
globalThis.listening = [];
const page = new EventTarget();
globalThis.addEventListener = (name, listener, options) => {
  listening.push(options.signal);
  page.addEventListener(name, listener, options);
};
globalThis.happens = (name) => page.dispatchEvent(new Event(name));
"""


async def test_a_page_that_is_looked_at_again_asks_at_once() -> None:
    """Also one that has a network again; a page that is hidden only sends what it has to say."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run(_PAGE)
        peer = await begin(client, sockets)
        await peer.deliver("a")
        await client.run(_TAKE, 1)
        script = "document.hidden = true; messages[0].finish(); happens('visibilitychange')"
        await client.run(script + "; s.publish('t', 'x').catch(() => {})")
        told = await peer.heard() + await peer.heard()
        for name in ("visibilitychange", "online"):
            await client.run("document.hidden = false; happens(given[0])", name)
            told += await peer.heard()

    assert ["FIN", "PUB", "NOP", "NOP"] == [each["cmd"] for each in told]


async def test_a_page_that_is_looked_at_again_comes_back_at_once() -> None:
    """Where it waits it tries now, and not again when the wait would have been over."""
    async with module_client() as client:
        seen = await client.run(
            _PAGE
            + """
            clock.stop();
            Math.random = () => 0.5;
            const s = subscribe({ topic: "t", channel: "c", WebSocket: Fake });
            await turn();
            Fake.made[0].open();
            Fake.made[0].end(1011);
            const seen = [s.state];
            happens("online");
            await turn();
            seen.push(s.state);
            happens("visibilitychange");
            clock.pass(60_000);
            await turn();
            seen.push(s.state, Fake.made.length);
            s.close();
            return [...seen, listening.every((signal) => signal.aborted)];
            """
        )

    assert ["waiting", "connecting", "connecting", 2, True] == seen


# The window


async def test_a_window_that_was_set_holds_for_later_connections() -> None:
    """RDY follows SUB; with 0 a connection begins with 1, the least that an address may have."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await begin(client, sockets, maxInFlight=7)
        await client.run("s.setMaxInFlight(0)")
        told = await peer.heard()
        await peer.close(1011)
        again = await sockets.subscribed()
        told += await again.heard()
        await client.run("s.setMaxInFlight(50)")
        told += await again.heard()

    assert [{"cmd": "RDY", "count": count} for count in (0, 0, 50)] == told
    assert ("max_in_flight=7" in peer.path, "max_in_flight=1" in again.path) == (True, True)


async def test_options_are_parameters_of_the_address() -> None:
    """Each under the gateway's name; what is not given is not said."""
    options = {
        "topic": "a#ephemeral",
        "channel": "c",
        "maxInFlight": 1,
        "msgTimeoutMs": 2_000,
        "ack": "client",
        "requeueOnCloseMs": 0,
        "maxAttempts": 3,
        "sampleRate": 4,
    }
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run(BEGIN, options)
        path = (await sockets.next()).path
        await client.run("subscribe({ topic: 't' })")
        least = (await sockets.next()).path

    assert (
        "/sub?topic=a%23ephemeral&channel=c&max_in_flight=1&msg_timeout_ms=2000&ack=client"
        "&requeue_on_close_ms=0&max_attempts=3&sample_rate=4"
    ) == path
    assert "/sub?topic=t" == least


@pytest.mark.parametrize("end", ["", "/", "/sub", "/sub/", "/sub?topic=other#x"])
async def test_an_address_may_end_as_it_likes(end: str) -> None:
    """With http or ws before it, a prefix of a proxy, and with or without /sub."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        for scheme in ("http", "ws"):
            url = sockets.url.replace("http", scheme)
            await client.run(
                "subscribe({ ...given[0], url: new URL(given[0].url) })",
                {"topic": "t", "url": f"{url}/a/b{end}"},
            )
            assert "/a/b/sub?topic=t" == (await sockets.next()).path
