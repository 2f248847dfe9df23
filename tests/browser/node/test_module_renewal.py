"""nsq.js in Node against a fake WebSocket: how it renews a secret before it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.browser.module_client import ModuleClient, module_client

pytestmark = [pytest.mark.asyncio(loop_scope="function"), pytest.mark.node]

LIFE_MS = 100_000
DUE_MS = 75_000
"""When a secret of LIFE_MS is renewed, as the jitter is always the middle here."""
DAY_MS = 86_400_000
SUBSCRIBED = ["connecting", "connected"]

# A gateway that answers AUTH with `data`, or an error if that is text of its code, and a probe at
# once. `pass` moves the clock; `auths` has the time and the secret of each AUTH.
_BEGIN = """
clock.stop();
Math.random = () => 0.5;
const beganMs = clock.nowMs;
globalThis.data = { identity: "alice", permission_count: 1, expires_in_ms: given[0] };
globalThis.auths = [];
globalThis.longestMs = 0;
class Gateway extends Fake {
  constructor(...given) {
    super(...given);
    globalThis.gateway = this;
    setImmediate(() => this.open());
  }
  send(text) {
    super.send(text);
    for (const { cmd, ref, secret } of this.sent.splice(0)) {
      if (cmd === "NOP") this.say({ type: "response", cmd, ref, data: "OK" });
      if (cmd !== "AUTH") continue;
      auths.push([clock.nowMs - beganMs, secret]);
      const answer = data.code ? { type: "error", ...data } : { type: "response", data };
      queueMicrotask(() => this.say({ cmd, ref, ...answer }));
    }
  }
}
globalThis.pass = async (ms) => {
  const untilMs = clock.nowMs + ms;
  for (;;) {
    longestMs = Math.max(longestMs, ...clock.delaysMs);
    const dueMs = Math.min(...[...clock.timers.values()].map((timer) => timer.dueMs));
    if (dueMs > untilMs) break;
    clock.pass(dueMs - clock.nowMs);
    await turn();
  }
  clock.pass(untilMs - clock.nowMs);
};
globalThis.renewalTimers = () => clock.delaysMs.filter((delayMs) => delayMs !== 20_000);
globalThis.asked = 0;
globalThis.secret = async () => `s${++asked}`;
"""
_SUBSCRIBE = """
globalThis.s = subscribe({ topic: "t", channel: "c", WebSocket: Gateway, secret });
await stands(s, "connected");
await turn();
"""
_PAGE = """
globalThis.document = { hidden: true };
globalThis.page = new EventTarget();
globalThis.addEventListener = (...given) => page.addEventListener(...given);
"""
_PASS = "await pass(given[0]); return auths.map(([atMs]) => atMs)"


@asynccontextmanager
async def subscribed(life_ms: float | None, script: str = "") -> AsyncIterator[ModuleClient]:
    """Subscribe as ``s`` with secrets that end after *life_ms*; *script* may replace ``secret``."""
    async with module_client() as client:
        await client.run(_BEGIN + script + _SUBSCRIBE, life_ms)
        yield client


async def test_a_secret_is_renewed_on_its_socket_before_it_ends() -> None:
    """Each response tells the end of the next one, and the subscription stays as it is."""
    async with subscribed(LIFE_MS) as client:
        await client.run(_PASS, 3 * DUE_MS)
        auths, states, errors = await client.run("return [auths, s.states, s.errors]")

    assert [[0, "s1"], [DUE_MS, "s2"], [2 * DUE_MS, "s3"], [3 * DUE_MS, "s4"]] == auths
    assert (SUBSCRIBED, []) == (states, errors)


@pytest.mark.parametrize("life_ms, due_ms", [(20_000, 15_000), (3_000, 2_000), (1_500, 1_000)])
async def test_it_is_renewed_a_second_before_the_end_but_not_within_a_second(
    life_ms: float, due_ms: float
) -> None:
    async with subscribed(life_ms) as client:
        before = await client.run(_PASS, due_ms - 1)
        after = await client.run(_PASS, 1)

    assert ([0], [0, due_ms]) == (before, after)


async def test_a_life_longer_than_a_timer_is_renewed_in_time() -> None:
    """Browsers and Node run a timer of more than 2^31 ms at once."""
    async with subscribed(40 * DAY_MS) as client:
        await client.run("data.expires_in_ms = null")
        auths = await client.run(_PASS, 30 * DAY_MS)
        longest_ms = await client.run("return longestMs")

    assert [0, 30 * DAY_MS] == auths
    assert longest_ms < 2**31


@pytest.mark.parametrize("life_ms", [None, 0, -1, 1_000])
async def test_a_secret_with_no_end_or_a_near_one_is_not_renewed(life_ms: float | None) -> None:
    async with subscribed(life_ms) as client:
        assert [] == await client.run("return renewalTimers()")


@pytest.mark.parametrize("data", ["'OK'", "{ identity: 'alice', permission_count: 1 }"])
async def test_what_nsqd_answers_plans_no_renewal(data: str) -> None:
    """Its auth servers tell the gateway no time, and OK is the answer where nothing wants AUTH."""
    async with subscribed(LIFE_MS, f"globalThis.data = {data};") as client:
        assert ([], []) == tuple(await client.run("return [renewalTimers(), s.errors]"))


async def test_a_secret_that_is_text_is_not_renewed() -> None:
    async with subscribed(LIFE_MS, "globalThis.secret = 's3cret';") as client:
        auths, timers = await client.run("return [auths, renewalTimers()]")

    assert ([[0, "s3cret"]], []) == (auths, timers)


_THROWS = """
globalThis.secret = () => {
  if (asked++) throw given[1] ?? new RangeError(`no key at ${clock.nowMs - beganMs}`);
  return "s1";
};
"""


async def test_a_function_that_throws_is_called_again_before_the_end() -> None:
    """Each failure is an `error` event, each pause a part of the time left, a second at least."""
    async with subscribed(LIFE_MS, _THROWS) as client:
        await client.run(_PASS, 2 * LIFE_MS)
        auths, states, errors = await client.run("return [auths, s.states, s.errors]")

    expected = [75_000, 93_750, 98_437.5, 99_437.5]
    assert [f"no key at {at_ms:g}" for at_ms in expected] == [each["message"] for each in errors]
    assert ([[0, "s1"]], SUBSCRIBED) == (auths, states)


async def test_a_function_that_recovers_renews_the_secret() -> None:
    script = """
    globalThis.secret = () => {
      if (++asked === 2) throw new RangeError("no key");
      return `s${asked}`;
    };
    """
    async with subscribed(LIFE_MS, script) as client:
        auths = await client.run(_PASS, LIFE_MS)

    assert [0, 93_750] == auths


async def test_a_refused_renewal_is_reported_and_not_repeated() -> None:
    """The stream goes on until 4003; the next connection asks for another secret."""
    async with subscribed(LIFE_MS) as client:
        refusal = {"code": "E_AUTH_FAILED", "message": "refused", "retryable": False}
        await client.run("globalThis.lasting = data; data = given[0]", refusal)
        await client.run(_PASS, LIFE_MS)
        state = await client.run("return s.state")
        await client.run("data = lasting; gateway.end(4003)")
        await client.run("await pass(s.details.at(-1).retryInMs); await stands(s, 'connected')")
        auths, errors = await client.run("return [auths, s.errors]")

    assert ("connected", [0, DUE_MS]) == (state, [at_ms for at_ms, _ in auths[:2]])
    assert ["s1", "s2", "s3"] == [secret for _, secret in auths]
    assert [("E_AUTH_FAILED", "AUTH")] == [(each["code"], each["cmd"]) for each in errors]


async def test_a_socket_that_ends_while_the_function_runs_is_not_renewed() -> None:
    """Nothing is sent or reported, and no timer stays but that of the next attempt."""
    script = """
    const late = () => new Promise((resolve) => (globalThis.give = resolve));
    globalThis.secret = () => (asked++ ? late() : "s1");
    """
    async with subscribed(LIFE_MS, script) as client:
        await client.run(_PASS, DUE_MS)
        await client.run("gateway.end(1012); give('s2'); await turn()")
        auths, errors, timers = await client.run("return [auths, s.errors, clock.timers.size]")

    assert ([[0, "s1"]], [], 1) == (auths, errors, timers)


async def test_a_subscription_that_ended_keeps_no_timer() -> None:
    async with subscribed(LIFE_MS) as client:
        await client.run("s.close(); gateway.end(1000); await s.closed")

        assert [] == await client.run("return clock.delaysMs")


@pytest.mark.parametrize("event", ["visibilitychange", "online", "message"])
async def test_a_page_with_late_timers_renews_by_the_clock(event: str) -> None:
    """When it wakes, or when a frame arrives; and once."""
    happen = (
        "gateway.deliver('1')" if event == "message" else "page.dispatchEvent(new Event(given[0]))"
    )
    async with subscribed(LIFE_MS, _PAGE) as client:
        await client.run("clock.nowMs += given[0] - 1", DUE_MS)  # no timer runs
        await client.run(f"{happen}; await turn()", event)
        before = await client.run("return auths.length")
        await client.run("clock.nowMs += 1")
        await client.run(f"{happen}; {happen}; await turn()", event)
        after = await client.run("return auths.length")

    assert (1, 2) == (before, after)
