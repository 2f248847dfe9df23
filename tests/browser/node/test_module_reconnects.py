"""nsq.js in Node against a scripted gateway: when it reconnects, and when not."""

from __future__ import annotations

import pytest

from tests.support.browser.module_client import BEGIN, STANDS, module_client, subscribe_client
from tests.support.gateways.scripted_sockets import (
    HttpAnswer,
    error,
    refused,
    response,
    scripted_sockets,
)

pytestmark = [pytest.mark.asyncio(loop_scope="function"), pytest.mark.node]

RETRIED = [1001, 1011, 1012, 1013, 1014, 4000, 4001, 4004, 4499]
FINAL = [1000, 1002, 1003, 1007, 1009, 4500, 4501, 4503, 4508, 4999]

_AGAIN = "clock.pass(s.details.at(-1).retryInMs)"
_WITH_FUNCTION = 'given[0] = { secret: () => "s3cret" };'


# Close codes


async def test_the_module_reconnects_after_a_fault() -> None:
    """`waiting` tells the code, then there is another socket; so does a connection that breaks."""
    seen = []
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop()")
        peer = await subscribe_client(client, sockets)
        for code in RETRIED:
            await peer.close(code)
            seen.append((await client.run(STANDS, "waiting"))["code"])
            await client.run(_AGAIN)
            peer = await sockets.subscribed()
            await client.run(STANDS, "connected")
        peer.abort()
        seen.append((await client.run(STANDS, "waiting"))["code"])
        await client.run(_AGAIN)
        await sockets.subscribed()

    assert [*RETRIED, 1006] == seen


async def test_a_permanent_error_ends_the_subscription() -> None:
    """`closed` is rejected with the word and the code, and an error tells it."""
    seen = {}
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        for code in FINAL:
            peer = await subscribe_client(client, sockets)
            await peer.say(error("SUB", "E_WORD"))
            await peer.close(code, "why")
            script = (
                "return [await s.closed.catch(shown), s.state, s.errors.map(({ code }) => code)]"
            )
            seen[code] = await client.run(script)

    text = "E_WORD in so many words (closed with {})"
    expected = {"name": "NsqError", "code": "E_WORD", "retryable": False}
    assert {
        code: [{**expected, "message": text.format(code), "status": code}, "closed", ["E_WORD"] * 2]
        for code in FINAL
    } == seen


async def test_a_permanent_close_without_an_error_frame_ends_the_subscription() -> None:
    """Where no error came before, the reason of the close tells."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets)
        await peer.close(1009, "too large")
        seen = await client.run(
            "const { code, message } = await s.closed.catch(shown); return [code, message]"
        )

    assert ["CLOSED", "too large (closed with 1009)"] == seen


async def test_a_secret_that_is_refused_later_ends_it() -> None:
    """4003 wants another secret, and text has no other."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets, secret="s3cret")
        await peer.say(error("AUTH", "E_AUTH_FAILED"))
        await peer.close(4003)
        seen = await client.run("return (await s.closed.catch(shown)).code")

    assert "E_AUTH_FAILED" == seen


async def test_a_function_gives_another_secret() -> None:
    """After 4003 it is asked again, and the new secret is told."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("let n = 0; given[0] = { secret: async () => `s${++n}` };" + BEGIN)
        first = await sockets.next()
        told = await first.heard()
        await first.say(response("AUTH", "OK", 1), response("SUB", {"msg_timeout_ms": 1_000}))
        await first.close(4003)
        told += await (await sockets.next()).heard()

    assert [{"cmd": "AUTH", "secret": f"s{n}", "ref": 1} for n in (1, 2)] == told


async def test_a_secret_that_is_refused_at_once_ends_it() -> None:
    """Also with a function: 4503 says to stop."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run(_WITH_FUNCTION + BEGIN)
        peer = await sockets.next()
        await peer.say(error("AUTH", "E_UNAUTHORIZED", ref=1))
        await peer.close(4503)
        seen = await client.run(
            "const { code, status } = await s.ready.catch(shown); return [code, status]"
        )

    assert ["E_UNAUTHORIZED", 4503] == seen


@pytest.mark.parametrize("secret", ["", None])
async def test_no_secret_is_no_auth(secret: str | None) -> None:
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        peer = await subscribe_client(client, sockets, secret=secret)
        await client.run("s.publish('t', 'x')")
        first = await peer.heard()

    assert ["PUB"] == [each["cmd"] for each in first]


async def test_a_failing_secret_function_is_called_again() -> None:
    """An `error` event tells what the function threw, and nothing connects meanwhile."""
    script = """
    let n = 0;
    const secret = () => { if (!n++) throw new RangeError("no key"); return "s3cret"; };
    given[0] = { secret };
    """
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run(script + BEGIN)
        peer = await sockets.next()
        told = await peer.heard()
        errors, states = await client.run("return [s.errors, s.states]")

    assert [("RangeError", "no key")] == [(each["code"], each["message"]) for each in errors]
    assert (["s3cret"], ["connecting", "waiting", "connecting"]) == (
        [each["secret"] for each in told],
        states,
    )


# Backoff, with a clock that is moved


async def delays_after(code: int, count: int) -> list[float]:
    """Return how long the module waits after each of *count* closes before SUB, in ms."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop();" + BEGIN, {})
        delays = []
        for _ in range(count):
            await (await sockets.next()).close(code)
            delays.append((await client.run(STANDS, "waiting"))["retryInMs"])
            await client.run(_AGAIN)
    return delays


async def test_the_backoff_doubles_up_to_half_a_minute() -> None:
    """Random from nothing to 0.5 s, 1 s, 2 s, … 30 s: here always the middle."""
    expected = [250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000]
    assert expected == await delays_after(1011, 8)


async def test_the_backoff_is_longer_where_there_is_no_room() -> None:
    """After 1013 it begins with 8 s."""
    assert [4_000, 8_000, 15_000] == await delays_after(1013, 3)


async def test_ten_seconds_of_a_connection_forgive_the_failures_before() -> None:
    """A connection that is lost after them is lost for the first time."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop();" + BEGIN, {})
        delays = []
        for held_ms in (0, 10_000, 10_001):
            peer = await sockets.subscribed()
            await client.run(STANDS, "connected")
            await client.run("clock.pass(given[0])", held_ms)
            await peer.close(1011)
            delays.append((await client.run(STANDS, "waiting"))["retryInMs"])
            await client.run(_AGAIN)

    assert [250, 500, 250] == delays


async def test_the_time_that_a_drain_names_is_waited_for() -> None:
    """And the jitter on top, so that those who were told one time do not come in one moment."""
    close_wait = {"state": "CLOSE_WAIT", "reason": "drain", "reconnect_after_ms": 1234}
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop();" + BEGIN, {})
        peer = await sockets.subscribed()
        await peer.say(response("CLS", close_wait))
        await peer.close(1012)
        waiting = await client.run(STANDS, "waiting")

    assert (1012, 1234 + 250) == (waiting["code"], waiting["retryInMs"])


@pytest.mark.parametrize(
    "told, least_ms", [(-5_000, 0), ("soon", 0), (1e300, 3_600_000), (3e9, 3_600_000)]
)
async def test_an_invalid_reconnect_delay_is_clamped(told: object, least_ms: int) -> None:
    """Below nothing it is nothing, and above an hour an hour: the backoff stays."""
    close_wait = {"state": "CLOSE_WAIT", "reason": "drain", "reconnect_after_ms": told}
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        await client.run("clock.stop();" + BEGIN, {})
        peer = await sockets.subscribed()
        await peer.say(response("CLS", close_wait))
        await peer.close(1012)
        waiting = await client.run(STANDS, "waiting")

    assert least_ms + 250 == waiting["retryInMs"]


# Refusals before the upgrade, which a page asks for over HTTP


async def test_a_refusal_that_is_for_good_ends_it() -> None:
    """The gateway's own words, whatever `ws` or a browser makes of it."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        sockets.refusal = refused(400, "INVALID_ARG", retryable=False)
        await client.run(BEGIN, {})
        seen = await client.run(
            "return [await s.ready.catch(shown), await s.closed.catch(shown), s.states]"
        )

    expected = {
        "name": "NsqError",
        "code": "INVALID_ARG",
        "message": "INVALID_ARG in so many words",
        "retryable": False,
        "status": 400,
    }
    assert [expected, expected, ["connecting", "closed"]] == seen


async def test_a_refusal_that_may_pass_is_waited_out() -> None:
    """As long as Retry-After says, and the backoff on top."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        sockets.refusal = refused(503, "FULL", retryable=True, Retry_After="5")
        await client.run("clock.stop();" + BEGIN, {})
        waiting = await client.run(STANDS, "waiting")
        errors = await client.run("return s.errors")
        sockets.refusal = None
        await client.run(_AGAIN)
        await sockets.subscribed()

    assert ("FULL in so many words", 5_250) == (waiting["reason"], waiting["retryInMs"])
    assert [("FULL", 503, True)] == [
        (each["code"], each["status"], each["retryable"]) for each in errors
    ]


@pytest.mark.parametrize(
    "answer",
    [
        HttpAnswer(status=502, body="<h1>Bad Gateway</h1>"),
        HttpAnswer(status=403, body={"error": "who are you?"}),
        HttpAnswer(status=426, body={"message": "UPGRADE_REQUIRED", "retryable": False}),
    ],
    ids=["html", "other-json", "nothing-wrong"],
)
async def test_an_error_from_a_proxy_does_not_end_the_subscription(answer: HttpAnswer) -> None:
    """What a proxy says is told and tried again; so is a socket that fails for no reason."""
    async with scripted_sockets() as sockets, module_client(sockets.url) as client:
        sockets.refusal = answer
        await client.run(BEGIN, {})
        await client.run(STANDS, "waiting")
        [told] = await client.run("return s.errors")
        sockets.refusal = None
        await sockets.subscribed()
        await client.run(STANDS, "connected")

    url = sockets.url.replace("http", "ws")
    assert f"{url} answers {answer.status}, but no WebSocket opens" == told["message"]
    assert ("NO_CONNECTION", True) == (told["code"], told["retryable"])


async def test_a_gateway_that_is_away_is_tried_again() -> None:
    """An `error` event says so at each try."""
    async with module_client() as client:
        await client.run(BEGIN, {})
        waiting = await client.run(STANDS, "waiting")
        await client.run("await stands(s, 'connecting')")
        await client.run(STANDS, "waiting")
        errors = await client.run("return s.errors")

    assert waiting["reason"].startswith("ws://127.0.0.1:9 is unreachable")
    assert ["NO_CONNECTION"] * 2 == [each["code"] for each in errors]
