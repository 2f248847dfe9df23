"""Whether a secret still holds is asked again, and who is ended by the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from gateway.client.connection import ConnectionOptions
from gateway.credentials import Secret
from gateway.errors import BrokerRefused
from gateway.protocol.commands import Auth, Ready, StartClose, Subscribe
from gateway.web.subscribe.reauth import Grant, Reauthenticator
from tests.support.brokers.auth_broker import AuthBroker
from tests.support.brokers.scripted_broker import no_response, refuse
from tests.support.manual_clock import ManualClock, turn, until

INTERVAL_S = 60.0
PERIOD_S = 60.2
ALICE, BOB = b"alice", b"bob"


class Holder:
    """A socket that has subscribed on some brokers, and keeps why it was ended."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.refused: list[BrokerRefused] = []

    def auth_addresses(self) -> Sequence[str]:
        """Return where it is."""
        return self.addresses

    def on_secret_refused(self, error: BrokerRefused) -> None:
        """Keep the reason."""
        self.refused.append(error)

    @property
    def codes(self) -> list[str]:
        """The codes of the reasons."""
        return [error.code for error in self.refused]


class Looking:
    """Rechecks, and time that passes one period after the other."""

    def __init__(self, phase: float = 0.0) -> None:
        self.clock = ManualClock()
        self.reauthenticator = Reauthenticator(INTERVAL_S, random=lambda: phase)

    def watch(self, holder: Holder, secret: bytes = ALICE, *, topic: str = "t") -> Grant:
        """Watch *holder* with a secret."""
        claim = Grant(secret=Secret(secret), topic=topic, channel="c")
        self.reauthenticator.watch(claim, ConnectionOptions(secret=claim.secret), holder)
        return claim

    async def after(self, seconds: float) -> None:
        """Let *seconds* pass, and the checks that begin then end."""
        await self.clock.advance(seconds)
        watched = self.reauthenticator._watched
        await until(lambda: all(each.check is None for each in watched.values()))
        await turn()


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[AuthBroker]:
    """A broker that takes Alice's secret for the topic "t"."""
    broker = AuthBroker()
    broker.grants[ALICE] = {"t"}
    await broker.start()
    yield broker
    await broker.stop()


@pytest_asyncio.fixture
async def other() -> AsyncIterator[AuthBroker]:
    """Another one, that knows no secret."""
    broker = AuthBroker()
    await broker.start()
    yield broker
    await broker.stop()


async def test_a_secret_is_looked_at_once_an_interval(broker: AuthBroker) -> None:
    """As long as it holds, nothing else happens."""
    looking, holder = Looking(), Holder(broker.address)
    looking.watch(holder)

    for seconds in (0.0, PERIOD_S, PERIOD_S):
        await looking.after(seconds)

    assert 3 == len(broker.all(Auth))
    assert [] == holder.codes


async def test_the_first_look_is_at_a_random_moment(broker: AuthBroker) -> None:
    """Sockets that came together are not looked at together."""
    looking = Looking(phase=0.5)
    looking.watch(Holder(broker.address))

    await looking.after(0.49 * PERIOD_S)
    before = len(broker.all(Auth))
    await looking.after(0.02 * PERIOD_S)

    assert (0, 1) == (before, len(broker.all(Auth)))


async def test_a_look_takes_no_message(broker: AuthBroker) -> None:
    """AUTH, SUB of the same topic and channel, no RDY, and it leaves."""
    looking = Looking()
    looking.watch(Holder(broker.address))

    await looking.after(0.0)
    peer = await broker.peer()
    await peer.gone()

    assert [Auth(ALICE)] == peer.all(Auth)
    assert [Subscribe("t", "c")] == peer.all(Subscribe)
    assert [] == peer.all(Ready)
    assert 1 == len(peer.all(StartClose))


async def test_two_refusals_in_a_row_end_the_socket(broker: AuthBroker) -> None:
    """The second one, an interval after the first; then nobody is asked any more."""
    looking, holder = Looking(), Holder(broker.address)
    looking.watch(holder)
    broker.grants.clear()

    await looking.after(0.0)
    once = holder.codes
    await looking.after(PERIOD_S)
    twice = holder.codes
    await looking.after(PERIOD_S)

    assert ([], ["E_AUTH_FAILED"]) == (once, twice)
    assert (2, 0) == (len(broker.all(Auth)), len(looking.reauthenticator))


async def test_a_grant_that_was_taken_away_ends_the_socket(broker: AuthBroker) -> None:
    """The secret is known still, and may no longer subscribe here."""
    looking, holder = Looking(), Holder(broker.address)
    looking.watch(holder)
    broker.grants[ALICE] = {"u"}

    await looking.after(0.0)
    await looking.after(PERIOD_S)

    assert ['E_UNAUTHORIZED AUTH failed for SUB on "t" "c"'] == [str(e) for e in holder.refused]


async def test_one_bad_interval_ends_nobody(broker: AuthBroker) -> None:
    """nsqd refuses too while its auth server is down; between two refusals one look was good."""
    looking, holder = Looking(), Holder(broker.address)
    looking.watch(holder)

    for is_good in (False, True, False, True):
        broker.grants = {ALICE: {"t"}} if is_good else {}
        await looking.after(PERIOD_S)

    assert ([], 4) == (holder.codes, len(broker.all(Auth)))


async def test_a_channel_that_is_full_says_nothing_against_a_secret(broker: AuthBroker) -> None:
    """E_SUB_FAILED comes after the question whether it may."""
    looking, holder = Looking(), Holder(broker.address)
    looking.watch(holder)
    broker.on(Subscribe, refuse("E_SUB_FAILED", "SUB failed consumers for t:c exceeds limit of 1"))

    await looking.after(0.0)
    await looking.after(PERIOD_S)

    assert [] == holder.codes


async def test_a_broker_that_is_away_says_nothing(broker: AuthBroker) -> None:
    """Neither for a secret nor against it: a refusal before and one after make two."""
    looking, holder = Looking(), Holder(broker.address)
    looking.watch(holder)
    broker.grants.clear()

    await looking.after(0.0)
    await broker.stop()
    await looking.after(PERIOD_S)
    away = holder.codes
    await broker.start()
    await looking.after(PERIOD_S)

    assert ([], ["E_AUTH_FAILED"]) == (away, holder.codes)


async def test_a_broker_that_wants_no_auth_any_more_has_nothing_against_it(
    broker: AuthBroker,
) -> None:
    looking, holder = Looking(), Holder(broker.address)
    looking.watch(holder)
    broker.grants.clear()
    broker.wants_auth(wants=False)

    await looking.after(0.0)
    await looking.after(PERIOD_S)

    assert ([], []) == (holder.codes, broker.all(Auth))


async def test_a_socket_without_a_broker_that_wants_auth_is_left_alone() -> None:
    looking, holder = Looking(), Holder()
    looking.watch(holder)

    await looking.after(0.0)
    await looking.after(PERIOD_S)

    assert [] == holder.codes


async def test_a_broker_that_came_back_is_asked(broker: AuthBroker) -> None:
    """A socket that lost it is not subscribed there; a SUB could make what was deleted."""
    looking, holder = Looking(), Holder(broker.address)
    looking.watch(holder)
    await looking.after(0.0)
    subscribed = len(broker.all(Subscribe))

    holder.addresses = ()
    await looking.after(PERIOD_S)
    broker.grants.clear()
    await looking.after(PERIOD_S)
    await looking.after(PERIOD_S)

    assert ["E_AUTH_FAILED"] == holder.codes
    assert (1, 1) == (subscribed, len(broker.all(Subscribe)))


async def test_one_of_several_brokers_alone_ends_nobody(
    broker: AuthBroker, other: AuthBroker
) -> None:
    """They are asked in turn: one that refuses all by itself is ill."""
    looking, holder = Looking(), Holder(broker.address, other.address)
    looking.watch(holder)

    for _ in range(4):
        await looking.after(PERIOD_S)

    assert [] == holder.codes
    assert (2, 2) == (len(broker.all(Auth)), len(other.all(Auth)))


async def test_a_broker_that_is_away_is_stood_in_for(broker: AuthBroker, other: AuthBroker) -> None:
    """The next one is asked in the same look."""
    looking, holder = Looking(), Holder(broker.address, other.address)
    looking.watch(holder)
    await broker.stop()

    await looking.after(0.0)
    await looking.after(PERIOD_S)

    assert ["E_AUTH_FAILED"] == holder.codes


async def test_only_the_socket_of_the_secret_is_ended(broker: AuthBroker) -> None:
    looking = Looking()
    alice, elsewhere, bob = (Holder(broker.address) for _ in range(3))
    broker.grants = {ALICE: {"u"}, BOB: {"t"}}
    looking.watch(alice)
    looking.watch(elsewhere, topic="u")
    looking.watch(bob, BOB)

    await looking.after(0.0)
    await looking.after(PERIOD_S)

    assert (["E_UNAUTHORIZED"], [], []) == (alice.codes, elsewhere.codes, bob.codes)


async def test_sockets_with_one_claim_are_looked_at_together(broker: AuthBroker) -> None:
    """One question for all of them, and one answer ends them all."""
    looking = Looking()
    first, second = Holder(broker.address), Holder(broker.address)
    looking.watch(first)
    looking.watch(second)
    broker.grants.clear()

    await looking.after(0.0)
    await looking.after(PERIOD_S)

    assert 2 == len(broker.all(Auth))
    assert (["E_AUTH_FAILED"], ["E_AUTH_FAILED"]) == (first.codes, second.codes)


async def test_a_newcomer_with_the_same_claim_is_a_good_sign(broker: AuthBroker) -> None:
    """NSQ has taken the secret between two refusals."""
    looking, holder = Looking(), Holder(broker.address)
    looking.watch(holder)
    broker.grants.clear()
    await looking.after(0.0)

    looking.watch(Holder(broker.address))
    await looking.after(PERIOD_S)

    assert [] == holder.codes


async def test_who_is_forgotten_is_not_looked_at(broker: AuthBroker) -> None:
    """The last one to go ends the looks; to be forgotten twice is nothing."""
    looking = Looking()
    first, second = Holder(broker.address), Holder(broker.address)
    claim = looking.watch(first)
    looking.watch(second)

    looking.reauthenticator.forget(claim, first)
    await looking.after(0.0)
    looking.reauthenticator.forget(claim, second)
    looking.reauthenticator.forget(claim, second)
    await looking.after(PERIOD_S)

    assert (1, 0) == (len(broker.all(Auth)), len(looking.reauthenticator))


async def test_a_look_ends_with_its_socket(broker: AuthBroker) -> None:
    """A broker that does not answer holds nothing up."""
    looking, holder = Looking(), Holder(broker.address)
    claim = looking.watch(holder)
    broker.on(Subscribe, no_response)
    await looking.clock.advance(0.0)
    peer = await broker.peer()
    await peer.next(Subscribe)

    looking.reauthenticator.forget(claim, holder)

    await peer.gone()


async def test_looks_at_many_secrets_are_bounded(broker: AuthBroker) -> None:
    """A few dozen at a time, and each gets its turn."""
    looking = Looking()
    broker.grants = {b"%d" % number: {"t"} for number in range(40)}
    for secret in broker.grants:
        looking.watch(Holder(broker.address), secret)
    broker.on(Auth, no_response)

    await looking.clock.advance(0.0)
    await until(lambda: len(broker.all(Auth)) == 32)
    await turn(100)
    waiting = len(broker.all(Auth))
    broker.on(Auth, broker._auth)
    for peer in list(broker.peers):
        peer.close()
    await until(lambda: len(broker.all(Auth)) == 40)

    assert 32 == waiting


@pytest.mark.parametrize("interval_s,period_s", [(60.0, 60.2), (1.0, 1.2), (0.5, 0.6)])
def test_two_looks_are_a_little_more_than_an_interval_apart(
    interval_s: float, period_s: float
) -> None:
    """What is down for one interval is found once; two of them and a second are kept still."""
    reauthenticator = Reauthenticator(interval_s, random=lambda: 0.0)

    assert pytest.approx(period_s) == reauthenticator._period_s
