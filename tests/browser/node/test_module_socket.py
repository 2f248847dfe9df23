"""nsq.js in Node against a scripted gateway: the frames on its socket."""

from __future__ import annotations

import pytest

from tests.support.browser.module_client import BEGIN, STANDS, module_client, subscribe_client
from tests.support.gateways.scripted_sockets import (
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


async def test_acks_of_one_task_are_one_frame_in_order() -> None:
    """Those alike that stand beside each other are one command with all ids."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.deliver(*"abcdefgh")
        await client.run(_TAKE, 8)
        await client.run(
            """
            const [a, b, c, d, e, f, g, h] = messages;
            globalThis.answers = Promise.all([
              a.finish(), b.finish(), c.touch(), c.finish(), d.requeue(5), e.requeue(5),
              f.requeue(), Promise.resolve().then(() => g.finish()), h.finish(),
            ]);
            """
        )
        told = await peer.heard()
        await peer.say(*(response(each["cmd"], "OK", each["ref"]) for each in told))
        answers = await client.run("return answers")

    assert [
        {"cmd": "FIN", "ids": ["a", "b"], "ref": 1},
        {"cmd": "TOUCH", "ids": ["c"], "ref": 2},
        {"cmd": "FIN", "ids": ["c"], "ref": 3},
        {"cmd": "REQ", "ids": ["d", "e"], "timeout_ms": 5, "ref": 4},
        {"cmd": "REQ", "ids": ["f"], "timeout_ms": 0, "ref": 5},
        {"cmd": "FIN", "ids": ["h", "g"], "ref": 6},
    ] == told
    assert [True] * 9 == answers


async def test_a_loop_that_finishes_what_is_there_sends_one_frame() -> None:
    """Each `finish` of it happens in a microtask of its own."""
    ids = [str(number) for number in range(500)]
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await client.run("(async () => { for await (const message of s) message.finish(); })()")
        await peer.deliver(*ids)
        told = await peer.heard()

    assert [{"cmd": "FIN", "ids": ids, "ref": 1}] == told


async def test_no_timer_is_in_the_way_of_an_answer() -> None:
    """A hidden tab runs timers once a minute: here they never run, and the answer goes out."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop()")
        peer = await subscribe_client(client, sockets)
        await peer.deliver("a")
        await client.run(_TAKE, 1)
        await client.run("messages[0].finish()")
        told = await peer.heard()

    assert [{"cmd": "FIN", "ids": ["a"], "ref": 1}] == told


@pytest.mark.parametrize(
    "answer,cmd", [("finish()", "FIN"), ("requeue(5)", "REQ"), ("touch()", "TOUCH")]
)
async def test_an_answer_is_true_once_the_gateway_has_taken_it(answer: str, cmd: str) -> None:
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.deliver("a")
        await client.run(_TAKE, 1)
        pending = await client.run(
            f"""
            globalThis.answer = messages[0].{answer};
            await turn();
            return Promise.race([answer, "pending"]);
            """
        )
        [told] = await peer.heard()
        await peer.say(response(cmd, "OK", told["ref"]))
        taken = await client.run("return answer")

    assert (cmd, "pending", True) == (told["cmd"], pending, taken)


async def test_only_the_refused_answers_of_a_turn_are_false() -> None:
    """One error lists them; it is an `error` event once, and the others hold."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.deliver(*"abcd")
        await client.run(_TAKE, 4)
        await client.run(
            """
            const touched = messages.map((message) => message.touch());
            globalThis.answers = Promise.all([...touched, messages[0].finish()]);
            """
        )
        touch, fin = await peer.heard()
        await peer.say(
            error("TOUCH", "E_TOUCH_FAILED", ref=touch["ref"], ids=["b", "d"]),
            error("FIN", "E_FIN_FAILED", ref=fin["ref"], id="a"),
        )
        seen = await client.run(
            """
            const seen = await answers;
            const lost = messages.map(({ isAnswered, signal }) => [isAnswered, signal.aborted]);
            return [seen, lost, s.errors.map(({ code, ids }) => [code, ids])];
            """
        )

    answers, lost, errors = seen
    assert [True, False, True, False, False] == answers
    assert [[True, False], [True, True], [False, False], [True, True]] == lost
    assert [["E_TOUCH_FAILED", ["b", "d"]], ["E_FIN_FAILED", ["a"]]] == errors


async def test_an_answer_whose_connection_ends_is_false() -> None:
    """Sent or not: NSQ may give the message to somebody else. Nothing is left unhandled."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.deliver("a", "b", "c", "d")
        await client.run(_TAKE, 4)
        await client.run(
            """
            const [a, b, c] = messages;
            globalThis.before = messages.map(({ deadline }) => deadline);
            globalThis.answers = [a.finish(), b.requeue(), c.touch()];
            """
        )
        await peer.heard()
        peer.abort()
        await client.run(STANDS, "waiting")
        seen = await client.run(
            """
            const late = [messages[3].finish(), messages[2].touch()];
            const after = messages.map(({ deadline }) => deadline);
            const unmoved = after.every((deadline, at) => deadline === before[at]);
            return [await Promise.all([...answers, ...late]), unmoved, s.errors];
            """
        )

    assert [[False] * 5, True, []] == seen


async def test_an_answer_of_the_turn_in_which_a_connection_ends_is_false() -> None:
    async with module_client() as client:
        seen = await client.run(
            """
            const s = subscribe({ topic: "t", channel: "c", WebSocket: Fake });
            await turn();
            const [socket] = Fake.made;
            socket.open();
            socket.deliver("a");
            const { value } = await s[Symbol.asyncIterator]().next();
            const answer = value.finish();
            socket.end(1006);
            const seen = [await answer, socket.sent];
            await s.close();
            return seen;
            """
        )

    assert [False, []] == seen


async def test_a_message_is_answered_once() -> None:
    """The second answer is none, whatever it is; a TOUCH is not one."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.deliver("a")
        await client.run(_TAKE, 1)
        seen = await client.run(
            """
            const [a] = messages;
            const isAnswered = [];
            globalThis.answers = ["touch", "requeue", "finish", "touch", "requeue"].map((name) => {
              const answer = a[name]();
              isAnswered.push(a.isAnswered);
              return answer;
            });
            return isAnswered;
            """
        )
        told = await peer.heard()
        await peer.say(*(response(each["cmd"], "OK", each["ref"]) for each in told))
        answers = await client.run("return Promise.all(answers)")

    assert [False, True, True, True, True] == seen
    assert [True, True, False, False, False] == answers
    assert ["TOUCH", "REQ"] == [each["cmd"] for each in told]


@pytest.mark.parametrize(
    "delay,expected",
    [("1.5", 2), ("-1", 0), ("NaN", 0), ("'7'", 7), ("undefined", 0), ("Infinity", 2**31)],
)
async def test_a_delay_is_one_that_the_gateway_takes(delay: str, expected: int) -> None:
    """One that it refused would leave the delivery in the window for good."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.deliver("a")
        await client.run(_TAKE, 1)
        await client.run(f"messages[0].requeue({delay})")
        told = await peer.heard()

    assert [{"cmd": "REQ", "ids": ["a"], "timeout_ms": expected, "ref": 1}] == told


async def test_touch_moves_the_deadline_once_it_is_answered() -> None:
    """To the message timeout, which SUB told, after the call: the gateway counts from later."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop()")
        await client.run(BEGIN, {})
        peer = await sockets.next()
        await peer.subscribe(msg_timeout_ms=2_000)
        await peer.deliver("a", deadline_ms=1_500)
        await client.run(_TAKE, 1)
        sent = await client.run(
            """
            globalThis.left = () => messages[0].deadline - Date.now();
            const seen = [left()];
            clock.pass(1_000);
            globalThis.touched = messages[0].touch();
            await turn();
            clock.pass(300);
            return [...seen, left()];
            """
        )
        [told] = await peer.heard()
        await peer.say(response("TOUCH", "OK", told["ref"]))
        answered = await client.run(
            """
            const seen = [await touched, left()];
            messages[0].finish();
            clock.pass(1_000);
            return [...seen, await messages[0].touch(), left()];
            """
        )

    assert [1_500, 200] == sent
    assert [True, 1_700, False, 700] == answered


async def test_close_sends_the_answers_first() -> None:
    """FIN of the same turn is before CLS, and answers are taken until the close."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.deliver("a", "b")
        await client.run(_TAKE, 2)
        await client.run("messages[0].finish(); s.close()")
        told = [await peer.heard(), await peer.heard()]
        await client.run("messages[1].finish()")
        told.append(await peer.heard())
        await peer.say(response("NOP", {"state": "disconnected", "nsqds": 0}))
        await peer.close(1000, "the client sent CLS")
        closed = await client.run("return [await s.closed, await s.close(), s.states]")

    assert [
        [{"cmd": "FIN", "ids": ["a"], "ref": 1}],
        [{"cmd": "CLS"}],
        [{"cmd": "FIN", "ids": ["b"], "ref": 2}],
    ] == told
    ended = {"code": 1000, "reason": "the client sent CLS"}
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
async def test_frames_of_a_later_version_are_ignored(frame: str) -> None:
    """Nothing is said of it, and what comes behind it is heard."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.say_as_it_is(frame)
        await peer.deliver("a")
        ids = await client.run(_TAKE, 1)
        seen = await client.run("return [s.state, s.errors.length]")

    assert (["a"], ["connected", 0]) == (ids, seen)


@pytest.mark.parametrize(
    "frame", ["", "hello", "null", '{"type":"response","cmd":"SUB"}', '{"type":"message"}', b"\0"]
)
async def test_invalid_frames_are_an_error_and_close_nothing(frame: str | bytes) -> None:
    """One `error` event, no exception that would end the process; the lines behind it are heard."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
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
        peer = await subscribe_client(client, sockets)
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
        peer = await subscribe_client(client, sockets)
        await peer.deliver("a", "b")
        await client.run(_TAKE, 1)
        await peer.close(1011)
        await client.run(STANDS, "waiting")
        again = await sockets.subscribed()
        await again.deliver("a")
        ids = await client.run(_TAKE, 2)
        seen = await client.run(
            "return [messages.map(({ isAnswered }) => isAnswered), await messages[0].finish()]"
        )
        await client.run("messages[1].finish()")
        told = await again.heard()

    assert (["a", "a"], [[True, False], False]) == (ids, seen)
    assert [{"cmd": "FIN", "ids": ["a"], "ref": 1}] == told


async def test_a_touch_that_is_refused_loses_the_message() -> None:
    """The gateway has given up its place, so no answer is wanted; the error says which it was."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
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


async def test_a_message_that_waited_too_long_is_requeued() -> None:
    """It is not handed out, and leaves its place in the window to another."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.deliver("late", deadline_ms=0)
        await peer.deliver("a")
        ids = await client.run(_TAKE, 1)
        told = await peer.heard()

    [requeue] = told
    assert (["a"], "REQ", ["late"], 0) == (
        ids,
        requeue["cmd"],
        requeue["ids"],
        requeue["timeout_ms"],
    )


async def test_a_message_after_the_loop_ended_is_requeued() -> None:
    """After CLS: before it, nsqd would deliver them here again."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await client.run("(async () => { for await (const message of s) break; })()")
        await peer.deliver("a")
        told = await peer.heard() + await peer.heard()
        await peer.deliver("b")
        told += await peer.heard()

    assert [("CLS", None), ("REQ", ["a"]), ("REQ", ["b"])] == [
        (each["cmd"], each.get("ids")) for each in told
    ]


async def test_a_message_after_cls_is_requeued() -> None:
    """Who iterates gets what had come before, and no more."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
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
        peer = await subscribe_client(client, sockets)
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
    assert "the gateway does not answer" == waiting["reason"]


_HELD = """
clock.stop();
Math.random = () => 0.5;
const s = subscribe({ topic: "t", channel: "c", WebSocket: Fake });
await turn();
const [socket] = Fake.made;
socket.open();
socket.deliver("a", "b", "c");
const iterator = s[Symbol.asyncIterator]();
const messages = [];
while (messages.length < 3) messages.push((await iterator.next()).value);
"""
"""Three messages of a socket without a network."""


async def test_a_gateway_that_leaves_touches_open_is_left_ten_seconds_after_the_first() -> None:
    """5 s after a TOUCH it is asked, 5 s later it is left; a TOUCH a second puts neither off."""
    async with module_client() as client:
        seen = await client.run(
            _HELD
            + """
            const touched = [];
            for (let at = 0; at < 10; at++) {
              touched.push(messages[0].touch());
              await turn();
              clock.pass(1_000);
            }
            const { state } = s;
            await s.close();
            const [{ signal }] = messages;
            const commands = socket.sent.map(({ cmd }) => cmd);
            return [state, await Promise.all(touched), signal.aborted, commands];
            """
        )

    commands = [*["TOUCH"] * 5, "NOP", *["TOUCH"] * 5]
    assert ["waiting", [False] * 10, True, commands] == seen


async def test_a_gateway_that_answers_something_else_stays() -> None:
    """An nsqd may be slow: only silence ends a connection."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop()")
        peer = await subscribe_client(client, sockets)
        await peer.deliver("a", "b")
        await client.run(_TAKE, 2)
        await client.run("messages[0].finish()")
        await peer.heard()
        await peer.deliver("c")
        await client.run(_TAKE, 3)
        for _ in range(3):
            state = await client.run("clock.pass(5_000); return s.state")
            [asked] = await peer.heard()
            await peer.say(response("NOP", "OK", asked["ref"]))
            await peer.deliver("more")
            await client.run("await iterator.next()")

    assert ("connected", "NOP") == (state, asked["cmd"])


async def test_an_answer_sent_behind_a_sign_of_life_is_watched_too() -> None:
    """The gateway has answered the first, and is gone when the second is sent: 15 s at most."""
    async with module_client() as client:
        seen = await client.run(
            _HELD
            + """
            const first = messages[0].finish();
            await turn();
            socket.say({ type: "response", cmd: "FIN", ref: 1, data: "OK" });
            const second = messages[1].finish();
            await turn();
            clock.pass(15_000);
            const { state } = s;
            await s.close();
            return [state, await first, await second];
            """
        )

    assert ["waiting", True, False] == seen


async def test_a_drain_is_a_state_until_the_close() -> None:
    """Answers are taken, status frames change nothing, and the next connection is connected."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.deliver("a")
        await client.run(_TAKE, 1)
        leaving = {"state": "CLOSE_WAIT", "reason": "drain", "reconnect_after_ms": 0}
        await peer.say(response("CLS", leaving))
        await client.run(STANDS, "draining")
        await peer.say(response("NOP", {"state": "connected", "nsqds": 1}))
        await client.run("globalThis.answer = messages[0].finish()")
        [told] = await peer.heard()
        await peer.say(response("FIN", "OK", told["ref"]))
        answer = await client.run("return [await answer, s.state]")
        await peer.close(1012)
        await sockets.subscribed()
        await client.run(STANDS, "connected")
        states = await client.run("return s.states")

    assert [True, "draining"] == answer
    expected = ["connecting", "connected", "draining", "waiting", "connecting", "connected"]
    assert expected == states


async def test_a_gateway_that_answers_stays() -> None:
    """Anything that it says is an answer."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop()")
        peer = await subscribe_client(client, sockets)
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


async def test_a_page_that_becomes_visible_sends_a_ping_at_once() -> None:
    """Also one that has a network again; a page that is hidden only sends what it has to say."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run(_PAGE)
        peer = await subscribe_client(client, sockets)
        await peer.deliver("a")
        await client.run(_TAKE, 1)
        script = "document.hidden = true; messages[0].finish(); happens('visibilitychange')"
        await client.run(script + "; s.publish('t', 'x').catch(() => {})")
        told = await peer.heard() + await peer.heard()
        for name in ("visibilitychange", "online"):
            await client.run("document.hidden = false; happens(given[0])", name)
            told += await peer.heard()

    assert ["FIN", "PUB", "NOP", "NOP"] == [each["cmd"] for each in told]


async def test_a_page_that_goes_offline_drops_its_connection_at_once() -> None:
    """Its messages are lost, its answers are sent; `online` reconnects at once."""
    async with module_client() as client:
        seen = await client.run(
            _PAGE
            + _HELD
            + """
            const [a, b, c] = messages;
            const answers = [c.touch()];
            await turn();
            answers.push(b.finish());
            happens("offline");
            const { state, reason } = s.details.at(-1);
            const lost = messages.map(({ signal }) => signal.aborted);
            happens("online");
            await turn();
            Fake.made[1].open();
            const seen = [state, reason, lost, await Promise.all(answers), s.state];
            s.close();
            return [...seen, socket.sent.map(({ cmd }) => cmd), Fake.made.length];
            """
        )

    lost, commands = [True, False, True], ["TOUCH", "FIN"]
    expected = ["waiting", "the browser is offline", lost, [False, False], "connected", commands, 2]
    assert expected == seen


async def test_a_page_that_becomes_visible_reconnects_at_once() -> None:
    """A waiting module reconnects now, and not again when the wait would have ended."""
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
        peer = await subscribe_client(client, sockets, maxInFlight=7)
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
