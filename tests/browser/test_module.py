"""The JavaScript module in real browsers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page

from tests.support.browser.browser_page import BrowserPage
from tests.support.browser.browsers import Visitor, run
from tests.support.browser.fixtures import PAIRED, SECRET
from tests.support.browser.module_page import consumer, module_page
from tests.support.gateways.gateway import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "żółć 漢字 🐇"
NOTHING_LEFT = (0, 0, 0)
DELAY_MS = 300
# What a browser writes when a socket is refused; no page can keep it from that.
SOCKET_REFUSED = r"WebSocket connection to|can.t establish a connection|status of 40[03]"


@pytest_asyncio.fixture(loop_scope="session")
async def page(
    visitor: Visitor, pages: BrowserPage, allowing: RunningGateway
) -> AsyncIterator[Page]:
    """Return a page with the module, of another origin than the gateway; all must go well."""
    yield await module_page(visitor, pages, allowing)
    visitor.found_nothing_wrong(allowing.address, pages.ours.removeprefix("http://"))


# Taking messages


@PAIRED
async def test_a_page_iterates_and_finishes(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """Each message has what was published; `finish` is the end of it."""
    await allowing.publish(topic, TEXT.encode())
    await allowing.publish(topic, b'{"price":7}')
    seen = await run(
        page,
        """
        const seen = [];
        const subscription = subscribe(given[0]);
        await subscription.ready;
        for await (const message of subscription) {
          const { topic, channel, attempts, body, bytes } = message;
          const ageMs = Date.now() - Number(message.timestampNs / 1_000_000n);
          const both = [message.finish(), message.finish()];
          const [isFirst, isSecond] = await Promise.all(both);
          seen.push({ topic, channel, attempts, body, size: bytes.length, isFirst, isSecond,
                      isRecent: Math.abs(ageMs) < 60_000, isAnswered: message.isAnswered });
          if (seen.length === 2) break;
        }
        return [seen, subscription.state, errors];
        """,
        consumer(topic),
    )

    same = {"topic": topic, "channel": "c", "attempts": 1, "isRecent": True}
    answers = {"isFirst": True, "isSecond": False, "isAnswered": True}
    bodies = [TEXT, '{"price":7}']
    assert [
        [
            {**same, **answers, "body": body, "size": len(body.encode())}
            for body in sorted(bodies, key=[each["body"] for each in seen[0]].index)
        ],
        "closed",
        [],
    ] == seen
    assert NOTHING_LEFT == await allowing.counts_become(topic, "c", NOTHING_LEFT)


@PAIRED
async def test_work_that_returns_has_finished(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """The callback form: what is fulfilled is finished, what throws comes again later."""
    await allowing.publish(topic, b'{"price":7}')
    seen = await run(
        page,
        """
        const seen = [];
        let done;
        const isDone = new Promise((resolve) => (done = resolve));
        const subscription = subscribe(given[0], async (message) => {
          seen.push([message.attempts, message.json().price]);
          if (message.attempts === 1) throw new Error("not now");
          done();
        });
        await isDone;
        await new Promise((resolve) => setTimeout(resolve));
        await subscription.close();
        return [seen, errors.map(({ text }) => text)];
        """,
        consumer(topic),
    )

    assert [[[1, 7], [2, 7]], ["Error: not now"]] == seen
    assert NOTHING_LEFT == await allowing.counts_become(topic, "c", NOTHING_LEFT)


@PAIRED
async def test_a_message_is_requeued_with_a_delay(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """It comes again as another delivery, not before its time."""
    await allowing.publish(topic, b"later")
    first, second, elapsed_ms, errors = await run(
        page,
        """
        const [options, delayMs] = given;
        const subscription = subscribe(options);
        const messages = subscription[Symbol.asyncIterator]();
        const { value: first } = await messages.next();
        const since = performance.now();
        first.requeue(delayMs);
        const { value: second } = await messages.next();
        const elapsedMs = performance.now() - since;
        second.finish();
        await subscription.close();
        const look = ({ id, attempts, body }) => ({ id, attempts, body });
        return [look(first), look(second), elapsedMs, errors];
        """,
        consumer(topic),
        DELAY_MS,
    )

    assert ("later", 1, 2, []) == (second["body"], first["attempts"], second["attempts"], errors)
    assert first["id"] != second["id"]
    assert elapsed_ms >= DELAY_MS


@PAIRED
async def test_touch_puts_the_deadline_off(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """Touched in time, a message is held longer than its timeout, and can be finished then."""
    await allowing.publish(topic, b"slow")
    held_ms, moved_ms, touched, is_finished, errors = await run(
        page,
        """
        const subscription = subscribe(given[0]);
        const { value: message } = await subscription[Symbol.asyncIterator]().next();
        const since = Date.now();
        const deadline = message.deadline;
        const touched = [];
        while (Date.now() < since + 2_600) {
          await new Promise((resolve) => setTimeout(resolve, 300));
          touched.push(await message.touch());
        }
        const movedMs = message.deadline - deadline;
        const isFinished = await message.finish();
        const heldMs = Date.now() - since;
        await subscription.close();
        return [heldMs, movedMs, touched.every(Boolean), isFinished, errors];
        """,
        consumer(topic, msgTimeoutMs=2_000),
    )

    assert (True, True, []) == (touched, is_finished, errors)
    assert held_ms > 2_000
    assert moved_ms > 2_000
    assert NOTHING_LEFT == await allowing.counts_become(topic, "c", NOTHING_LEFT)


@PAIRED
async def test_an_answer_that_comes_too_late_is_told(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """An `error` event with E_FIN_FAILED; the redelivery can be finished."""
    await allowing.publish(topic, b"slow")
    seen = await run(
        page,
        """
        const subscription = subscribe(given[0]);
        const messages = subscription[Symbol.asyncIterator]();
        const { value: first } = await messages.next();
        const { value: second } = await messages.next(); // nsqd has waited long enough
        const told = new Promise((resolve) => subscription.addEventListener("error", resolve));
        first.finish();
        const { detail } = await told;
        second.finish();
        await subscription.close();
        return [first.attempts, second.attempts, detail.code, detail.ids, first.id];
        """,
        consumer(topic, msgTimeoutMs=1_000),
    )

    assert [1, 2, "E_FIN_FAILED", [seen[-1]], seen[-1]] == seen
    assert NOTHING_LEFT == await allowing.counts_become(topic, "c", NOTHING_LEFT)


@PAIRED
async def test_answers_of_one_turn_go_out_together(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """A hundred messages that are finished in one turn of the event loop are one frame."""
    await allowing.post("/mpub", b"\n".join(b"%d" % each for each in range(100)), topic=topic)
    frames = await run(
        page,
        """
        const frames = [];
        class Heard extends WebSocket {
          send(text) {
            frames.push(text);
            super.send(text);
          }
        }
        const messages = [];
        let all;
        const areAll = new Promise((resolve) => (all = resolve));
        const subscription = subscribe({ ...given[0], WebSocket: Heard }, async (message) => {
          messages.push(message);
          if (messages.length === 100) all();
          await areAll;
        });
        await areAll;
        await new Promise((resolve) => setTimeout(resolve)); // the turn is over
        await subscription.close();
        return frames.map((text) => text.split("\\n").map((line) => JSON.parse(line)));
        """,
        consumer(topic, maxInFlight=100),
    )

    told = [(each["cmd"], len(each.get("ids", ()))) for frame in frames for each in frame]
    assert [("FIN", 100), ("CLS", 0)] == told
    assert NOTHING_LEFT == await allowing.counts_become(topic, "c", NOTHING_LEFT)


@PAIRED
async def test_break_closes_and_requeues(page: Page, allowing: RunningGateway, topic: str) -> None:
    """Messages that the loop had not received are redelivered at once, with one more attempt."""
    await allowing.post("/mpub", b"a\nb\nc\nd", topic=topic)
    bodies, state = await run(
        page,
        """
        const bodies = [];
        const subscription = subscribe(given[0]);
        for await (const message of subscription) {
          bodies.push(message.body);
          message.finish();
          break;
        }
        return [bodies, subscription.state];
        """,
        consumer(topic),
    )
    async with allowing.subscribe(topic, "c") as other:
        rest = [each["body"] for each in await other.messages(3)]

    assert ("closed", list("abcd")) == (state, sorted(bodies + rest))


@PAIRED
async def test_break_does_not_wait_for_an_answer_that_never_comes(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """Leaving the loop with an unanswered message does not wait for its timeout."""
    await allowing.publish(topic, b"in hand")
    elapsed_ms = await run(
        page,
        """
        const subscription = subscribe(given[0]);
        let since;
        for await (const message of subscription) {
          since = performance.now();
          break;
        }
        return performance.now() - since;
        """,
        consumer(topic, msgTimeoutMs=10_000),
    )
    async with allowing.subscribe(topic, "c") as other:
        again = await other.message()

    assert ("in hand", True) == (again["body"], elapsed_ms < 5_000)


@PAIRED
async def test_a_viewer_sees_everything_and_answers_nothing(
    page: Page, allowing: RunningGateway, topic: str
) -> None:
    """Without a channel; `finish` says that no answer is wanted."""
    await run(page, "globalThis.s = subscribe(given[0]); return s.ready", {"topic": topic})
    await allowing.publish(topic, b"seen")
    seen = await run(
        page,
        """
        for await (const message of s)
          return [message.body, message.isAnswered, await message.finish(), s.dropped, errors];
        """,
    )

    assert ["seen", True, False, 0, []] == seen


# Publishing


@PAIRED
async def test_a_page_publishes(page: Page, topic: str) -> None:
    """Text and bytes, one and several, come out as they went in."""
    seen = await run(
        page,
        """
        const [options, text] = given;
        const subscription = subscribe(options);
        await subscription.publish(options.topic, text);
        await subscription.publish(options.topic, new Uint8Array([0, 255, 128]));
        await subscription.publish(options.topic, new Uint8Array([1, 2, 3, 4]).subarray(1, 3));
        await subscription.publishAll(options.topic, ["one", new Uint8Array([254]).buffer]);
        const bodies = [];
        for await (const message of subscription) {
          message.finish();
          bodies.push([...message.bytes]);
          if (bodies.length === 5) break;
        }
        return bodies;
        """,
        consumer(topic),
        TEXT,
    )

    expected = [TEXT.encode(), b"\0\xff\x80", b"\2\3", b"one", b"\xfe"]
    assert sorted(list(each) for each in expected) == sorted(seen)


@PAIRED
async def test_a_publish_may_be_put_off(page: Page, topic: str) -> None:
    body, elapsed_ms = await run(
        page,
        """
        const [options, deferMs] = given;
        const subscription = subscribe(options);
        await subscription.ready;
        const since = performance.now();
        await subscription.publish(options.topic, "later", { deferMs });
        const { value } = await subscription[Symbol.asyncIterator]().next();
        const elapsedMs = performance.now() - since;
        value.finish();
        await subscription.close();
        return [value.body, elapsedMs];
        """,
        consumer(topic),
        DELAY_MS,
    )

    assert "later" == body
    assert elapsed_ms >= DELAY_MS


@PAIRED
async def test_a_publish_that_is_refused_is_an_error(page: Page, topic: str) -> None:
    """It has the gateway's code, and says that a retry will not succeed."""
    seen = await run(
        page,
        """
        const subscription = subscribe(given[0]);
        const error = await subscription.publish("not a topic", "x").catch((error) => error);
        await subscription.close();
        const late = await subscription.publish(given[0].topic, "x").catch((error) => error);
        const look = (error) => [error instanceof NsqError, error.code, error.retryable];
        return [look(error), late instanceof NsqError, errors];
        """,
        consumer(topic),
    )

    assert [[True, "E_BAD_TOPIC", False], True, []] == seen


# AUTH and refusals


@pytest.mark.nsqd
async def test_a_secret_opens_the_topic(
    visitor: Visitor, pages: BrowserPage, guarded: RunningGateway, topic: str
) -> None:
    """Given as it is or by a function; it is in no address."""
    page = await module_page(visitor, pages, guarded)
    seen = await run(
        page,
        """
        const [options, secret] = given;
        const direct = subscribe({ ...options, secret });
        await direct.publish(options.topic, "hello");
        await direct[Symbol.asyncIterator]().next().then(({ value }) => value.finish());
        await direct.close();
        const asked = subscribe({ ...options, secret: async () => secret });
        await asked.ready;
        await asked.close();
        return errors;
        """,
        consumer(topic),
        SECRET,
    )

    assert [] == seen
    assert not [each for each in visitor.asked if SECRET in each]
    visitor.found_nothing_wrong(guarded.address, pages.ours.removeprefix("http://"))


@pytest.mark.nsqd
async def test_a_secret_that_is_refused_ends_the_subscription(
    visitor: Visitor, pages: BrowserPage, guarded: RunningGateway, topic: str
) -> None:
    """`ready`, `closed` and the iterator all tell, with the code of the close."""
    page = await module_page(visitor, pages, guarded)
    seen = await run(
        page,
        """
        const subscription = subscribe(given[0]);
        const look = ({ code, status }) => [code, status];
        const iterate = async () => {
          for await (const message of subscription) return message.body;
        };
        return [
          await subscription.ready.catch(look),
          await subscription.closed.catch(look),
          await iterate().catch(look),
          subscription.state,
        ];
        """,
        consumer(topic, secret="wrong"),
    )

    refused = ["E_AUTH_FAILED", 4503]
    assert [refused, refused, refused, "closed"] == seen


@PAIRED
async def test_a_wrong_address_is_an_error_and_not_retried(
    visitor: Visitor, pages: BrowserPage, allowing: RunningGateway, topic: str
) -> None:
    """A browser tells no status: the module has asked why."""
    page = await module_page(visitor, pages, allowing)
    seen = await run(
        page,
        """
        const subscription = subscribe(given[0]);
        const { code, status, message } = await subscription.ready.catch((error) => error);
        return [code, status, message];
        """,
        consumer(topic, maxInFlight=1_000_000),
    )

    assert ["INVALID_ARG_MAX_IN_FLIGHT", 400] == seen[:2]
    assert "max_in_flight" in seen[2]
    visitor.found_nothing_wrong(
        allowing.address, pages.ours.removeprefix("http://"), besides=SOCKET_REFUSED
    )


@PAIRED
async def test_a_name_that_is_nearly_an_option_is_a_type_error(page: Page, topic: str) -> None:
    """No request is sent to the gateway."""
    told = await run(
        page,
        "try { subscribe(given[0]); } catch (error) { return String(error); }",
        consumer(topic, chanel="d"),
    )

    assert told.startswith("TypeError")
    assert "chanel" in told
