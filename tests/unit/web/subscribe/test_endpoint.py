"""A subscription behind a broker that wants AUTH: header, subprotocol entry, first frame."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.client.discovery import Discovery
from gateway.credentials import Secret
from gateway.errors import GatewayError
from gateway.protocol.commands import Auth, Finish, Ready, Subscribe
from gateway.protocol.frames import Message
from gateway.protocol.wire import Limits
from gateway.session.auth import AUTH_TIMEOUT_S
from gateway.web.auth import AccessPolicy
from gateway.web.http.publish import PublishHandler
from gateway.web.metrics import RATE_LIMITED
from gateway.web.subscribe.endpoint import SubscribeEndpoint, SubscribeOptions
from gateway.web.subscribe.publishing import SocketPublishing
from gateway.web.websocket.protocol import Upgrade
from tests.support.brokers.auth_broker import AuthBroker
from tests.support.brokers.scripted_broker import no_response, refuse
from tests.support.gateways.public_port import public_port
from tests.support.http.recording_publisher import RecordingPublisher
from tests.support.manual_clock import ManualClock, until
from tests.support.websocket.subscriber_client import (
    Json,
    SubscriberClient,
    open_socket,
    refused_upgrade,
    sub_url,
)

ALICE, BOB, OURS = "alice's-secret", "bob's-secret", "our-own-secret"
AUTHORIZATION = {"identity": "somebody", "identity_url": "", "permission_count": 1}
ID = b"0123456789abcdef"


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def entry(secret: str) -> str:
    return "nsq.auth." + base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")


def auth(secret: str) -> Json:
    return {"cmd": "AUTH", "secret": secret, "ref": "auth"}


async def commands(client: SubscriberClient, count: int) -> list[str]:
    """Return what the next *count* objects belong to."""
    return [(await client.receive())["cmd"] for _ in range(count)]


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[AuthBroker]:
    """A broker that wants AUTH and knows three secrets for the topic "t"."""
    broker = AuthBroker()
    broker.grants = {secret.encode(): {"t"} for secret in (ALICE, BOB, OURS)}
    await broker.start()
    yield broker
    await broker.stop()


@pytest_asyncio.fixture
async def port(broker: AuthBroker) -> AsyncIterator[str]:
    """The public port of a gateway in front of it."""
    async with public_port([broker.address]) as port:
        yield port


@pytest.fixture
def url(port: str) -> str:
    """The address of a subscription to the channel "c" of "t"."""
    return sub_url(port, "t", "c")


@pytest_asyncio.fixture
async def clock(port: str) -> AsyncIterator[ManualClock]:
    """Time that a test moves; at the end it runs again, for the port's sake."""
    del port
    clock = ManualClock()
    yield clock
    clock.run_on()


# With the upgrade


async def test_a_header_brings_the_secret(broker: AuthBroker, url: str) -> None:
    """It goes to the broker unchanged, and the client is told of the subscription only."""
    async with open_socket(url, headers=bearer(ALICE)) as client:
        first = await client.receive()

        assert ("SUB", "nothing came") == (first["cmd"], (await client.next_delivery())["ref"])
    assert [Auth(ALICE.encode())] == broker.all(Auth)


async def test_a_subprotocol_entry_brings_the_secret(broker: AuthBroker, url: str) -> None:
    """It is taken out; what is answered is the subprotocol that is spoken."""
    async with open_socket(url, subprotocols=[entry(ALICE), "nsq.json.v1"]) as client:
        assert ["SUB"] == await commands(client, 1)
        assert "nsq.json.v1" == client.connection.subprotocol
    assert [Auth(ALICE.encode())] == broker.all(Auth)


async def test_a_secret_that_is_not_known_is_403(url: str) -> None:
    """Before the upgrade; the text names what was asked for, which nsqd leaves out."""
    status, problem = await refused_upgrade(url, headers=bearer("wrong"))

    assert (403, "AUTH_FAILED", False) == (status, problem["message"], problem["retryable"])
    assert 'E_AUTH_FAILED AUTH failed; topic "t", channel "c"' == problem["detail"]


async def test_a_topic_that_was_not_granted_is_403(port: str) -> None:
    """The text is nsqd's, which names both."""
    status, problem = await refused_upgrade(sub_url(port, "u", "c"), headers=bearer(ALICE))

    assert (403, "UNAUTHORIZED") == (status, problem["message"])
    assert 'E_UNAUTHORIZED AUTH failed for SUB on "u" "c"' == problem["detail"]


async def test_a_refusal_is_remembered_for_a_second(
    broker: AuthBroker, url: str, clock: ManualClock
) -> None:
    """Who tries again at once is answered the same, and the broker is not asked."""
    answers = [await refused_upgrade(url, headers=bearer("wrong")) for _ in range(3)]
    within = len(broker.all(Auth))
    await clock.advance(1.0)
    await refused_upgrade(url, headers=bearer("wrong"))

    assert (1, 2) == (within, len(broker.all(Auth)))
    assert 1 == len({(status, problem["detail"]) for status, problem in answers})


async def test_a_refusal_is_for_who_was_refused(url: str) -> None:
    await refused_upgrade(url, headers=bearer("wrong"))

    async with open_socket(url, headers=bearer(ALICE)) as client:
        assert ["SUB"] == await commands(client, 1)


@pytest.mark.parametrize(
    "headers,subprotocols,token",
    [
        (bearer(""), None, "INVALID_AUTHORIZATION"),
        (bearer("a b"), None, "INVALID_AUTHORIZATION"),
        ({}, ["nsq.auth.%", "nsq.json.v1"], "INVALID_AUTHORIZATION"),
        (bearer(ALICE), [entry(ALICE), "nsq.json.v1"], "INVALID_AUTHORIZATION"),
        ({}, [entry(ALICE)], "INVALID_SUBPROTOCOL"),
        ({}, [entry(ALICE), "mqtt"], "INVALID_SUBPROTOCOL"),
    ],
    ids=["empty", "two words", "no base64url", "two places", "alone", "beside another"],
)
async def test_a_secret_that_cannot_be_used_is_400(
    broker: AuthBroker, url: str, headers: Json, subprotocols: list[str] | None, token: str
) -> None:
    """No broker is asked, and nothing of the secret comes back."""
    status, problem = await refused_upgrade(url, headers=headers, subprotocols=subprotocols)

    assert (400, token) == (status, problem["message"])
    assert [] == broker.all(Auth)
    assert entry(ALICE) not in str(problem)


# With the first frame


async def test_without_a_secret_the_first_frame_brings_it(broker: AuthBroker, url: str) -> None:
    """AUTH is answered with what the broker said, then comes the subscription."""
    async with open_socket(url) as client:
        answer = await client.ask(auth(ALICE))

        assert {"type": "response", "cmd": "AUTH", "ref": "auth", "data": AUTHORIZATION} == answer
        assert ["SUB"] == await commands(client, 1)
    assert ["t"] == [command.topic for command in broker.all(Subscribe)]


async def test_what_is_subscribed_late_delivers_and_is_answered(
    broker: AuthBroker, url: str
) -> None:
    """The window is the broker's RDY, a message comes, its FIN goes back."""
    async with open_socket(f"{url}&max_in_flight=3") as client:
        await client.send(auth(ALICE))
        await commands(client, 2)
        peer = broker.peers[-1]
        ready = await peer.next(Ready)
        peer.send([Message(1, 1, ID, b"hello")])
        delivery = await client.message()
        await client.finish(delivery)

        assert (3, "hello", [Finish(ID)]) == (ready.count, delivery["body"], peer.all(Finish))


async def test_commands_behind_auth_wait_for_it(url: str) -> None:
    """In one frame or in two, the answers come in order."""
    async with open_socket(url) as client:
        await client.send(auth(ALICE), {"cmd": "NOP", "ref": 1})
        await client.send({"cmd": "NOP", "ref": 2})

        assert ["AUTH", "SUB", "NOP", "NOP"] == await commands(client, 4)


@pytest.mark.parametrize(
    "secret,topic,code,words",
    [
        ("wrong", "t", "E_AUTH_FAILED", 'AUTH failed; topic "t", channel "c"'),
        (ALICE, "u", "E_UNAUTHORIZED", 'AUTH failed for SUB on "u" "c"'),
    ],
)
async def test_a_secret_in_a_frame_that_is_refused_ends_the_socket(
    port: str, secret: str, topic: str, code: str, words: str
) -> None:
    """An error that names topic and channel, then 4503: do not come back."""
    async with open_socket(sub_url(port, topic, "c")) as client:
        error = await client.ask(auth(secret))
        closed, _ = await client.closed()

    assert ("error", "AUTH", "auth") == (error["type"], error["cmd"], error["ref"])
    assert (code, words, 4503) == (error["code"], error["message"], closed)


async def test_another_command_first_ends_the_socket(url: str) -> None:
    """E_AUTH_FIRST, then 4501."""
    async with open_socket(url) as client:
        error = await client.ask({"cmd": "RDY", "count": 1, "ref": 1})
        closed, _ = await client.closed()

    assert ("RDY", 1, "E_AUTH_FIRST", 4501) == (error["cmd"], error["ref"], error["code"], closed)


async def test_no_auth_in_time_ends_the_socket(url: str, clock: ManualClock) -> None:
    """Ten seconds after the upgrade."""
    async with open_socket(url) as client:
        await clock.advance(AUTH_TIMEOUT_S)
        error = await client.receive()
        closed, _ = await client.closed()

    assert ("E_AUTH_FIRST", 4501) == (error["code"], closed)


async def test_a_second_auth_is_invalid_and_the_socket_stays(url: str) -> None:
    async with open_socket(url, headers=bearer(ALICE)) as client:
        await commands(client, 1)
        error = await client.ask(auth(BOB))

        assert "E_INVALID" == error["code"]
        assert "nothing came" == (await client.next_delivery())["ref"]


async def test_a_broker_that_went_meanwhile_is_told(broker: AuthBroker, url: str) -> None:
    """1014: come back later."""
    async with open_socket(url) as client:
        await broker.stop()
        error = await client.ask(auth(ALICE))
        closed, _ = await client.closed()

    assert ("NO_BROKER", True, 1014) == (error["code"], error["retryable"], closed)


async def test_a_channel_that_is_full_is_told(broker: AuthBroker, url: str) -> None:
    """1013: AUTH was right; there may be room later."""
    broker.on(Subscribe, refuse("E_SUB_FAILED", "SUB failed consumers for t:c exceeds limit of 1"))
    async with open_socket(url) as client:
        error = await client.ask(auth(ALICE))
        closed, reason = await client.closed()

    assert ("E_SUB_FAILED", True, 1013) == (error["code"], error["retryable"], closed)
    assert "a limit of consumers or sockets is reached; try again later" == reason


async def test_sockets_that_wait_for_auth_are_few(broker: AuthBroker) -> None:
    """A share of all that may be open; who has said it makes room, and who has gone too."""
    async with public_port([broker.address], max_sockets=10) as port:
        url = sub_url(port, "t", "c")
        async with open_socket(url) as client:
            status, problem = await refused_upgrade(url)
            await client.send(auth(ALICE))
            await commands(client, 2)
            async with open_socket(url) as second:
                await second.send(auth(ALICE))
                await commands(second, 2)

    assert (503, "FULL", True) == (status, problem["message"], problem["retryable"])


async def test_a_socket_whose_auth_is_not_answered_ends_with_a_drain(
    broker: AuthBroker,
) -> None:
    """A broker that is silent holds up no shutdown."""
    broker.on(Auth, no_response)
    async with AsyncExitStack() as life:
        async with public_port([broker.address]) as port:
            socket = open_socket(sub_url(port, "t", "c"))
            client = await life.enter_async_context(socket)
            await client.send(auth(ALICE))
            await until(lambda: bool(broker.all(Auth)))
        closed, _ = await client.closed()

    assert 1012 == closed


# What the gateway asks for


async def test_a_secret_may_be_asked_for_whatever_the_broker_says(broker: AuthBroker) -> None:
    """--require-auth: AUTH is answered OK by a broker that wants none."""
    broker.wants_auth(wants=False)
    access = AccessPolicy(require_auth=True)
    async with public_port([broker.address], access=access) as port:
        async with open_socket(sub_url(port, "t", "c")) as client:
            refused = await client.ask({"cmd": "NOP"})
            closed, _ = await client.closed()
        async with open_socket(sub_url(port, "t", "c")) as client:
            answer = await client.ask(auth(ALICE))
            subscribed = await commands(client, 1)

    assert ("E_AUTH_FIRST", 4501) == (refused["code"], closed)
    assert ("OK", ["SUB"]) == (answer["data"], subscribed)


async def test_a_broker_that_wants_no_auth_gets_none(broker: AuthBroker, url: str) -> None:
    """A header is not passed on; AUTH in a frame is answered OK."""
    broker.wants_auth(wants=False)
    async with open_socket(url, headers=bearer(ALICE)) as client:
        await commands(client, 1)
    async with open_socket(url) as client:
        await commands(client, 1)
        answer = await client.ask(auth(ALICE))

    assert ("OK", []) == (answer["data"], broker.all(Auth))


async def test_callers_without_a_secret_may_be_lent_ours(broker: AuthBroker) -> None:
    """--auth-anonymous: who brings one uses that; there is no further AUTH beside ours."""
    access = AccessPolicy(anonymous_secret=Secret(OURS.encode()))
    async with public_port([broker.address], access=access) as port:
        async with open_socket(sub_url(port, "t", "c")) as client:
            await commands(client, 1)
            error = await client.ask(auth(ALICE))
        async with open_socket(sub_url(port, "t", "c"), headers=bearer(BOB)) as client:
            await commands(client, 1)

    assert [OURS.encode(), BOB.encode()] == [command.secret for command in broker.all(Auth)]
    assert "E_INVALID" == error["code"]


# Later


async def test_a_revoked_secret_ends_its_socket_only(broker: AuthBroker) -> None:
    """An error frame, then 4003; the socket of another secret goes on."""
    access = AccessPolicy(reauth_interval_s=1.0)
    async with (
        public_port([broker.address], access=access) as port,
        open_socket(sub_url(port, "t", "c"), headers=bearer(ALICE)) as alice,
        open_socket(sub_url(port, "t", "c"), headers=bearer(BOB)) as bob,
    ):
        await commands(alice, 1)
        await commands(bob, 1)
        del broker.grants[ALICE.encode()]
        error = await alice.receive()
        closed, _ = await alice.closed()
        answer = await bob.next_delivery()

    assert ("AUTH", None, "E_AUTH_FAILED") == (error["cmd"], error["ref"], error["code"])
    assert (4003, "nothing came") == (closed, answer["ref"])


async def test_a_broker_that_wants_auth_from_now_on_is_given_it(
    broker: AuthBroker, url: str
) -> None:
    """It came back with an auth server: the socket stays, and AUTH within ten seconds holds."""
    broker.wants_auth(wants=False)
    async with open_socket(url) as client:
        await commands(client, 1)
        await broker.stop()
        await client.receive()  # disconnected
        broker.wants_auth(wants=True)
        before = len(broker.peers)
        await broker.start()
        # The subscription comes back, and is told. The publisher, refused when the gateway began,
        # asks once in 30 s at most.
        await until(lambda: any(peer.ended.is_set() for peer in broker.peers[before:]))
        answer = await client.ask(auth(ALICE))
        connected = await client.receive()

    assert (AUTHORIZATION, "connected") == (answer["data"], connected["data"]["state"])


async def test_a_secret_that_was_given_for_nothing_is_used_later(
    broker: AuthBroker, url: str
) -> None:
    """The client said AUTH when nobody wanted it; it need not say it again."""
    broker.wants_auth(wants=False)
    async with open_socket(url) as client:
        await commands(client, 1)
        await client.ask(auth(ALICE))
        await broker.stop()
        await client.receive()  # disconnected
        broker.wants_auth(wants=True)
        await broker.start()
        connected = await client.receive()

    assert "connected" == connected["data"]["state"]
    assert [Auth(ALICE.encode())] == broker.all(Auth)


# Viewers


async def test_viewers_with_one_secret_are_one_to_nsq(broker: AuthBroker, port: str) -> None:
    """However each brings it; the brokers' answer to AUTH is that of all who say it in a frame."""
    url = sub_url(port, "t")
    async with (
        open_socket(url, headers=bearer(ALICE)) as one,
        open_socket(url) as two,
        open_socket(url, headers=bearer(BOB)) as other,
    ):
        answer = await two.ask(auth(ALICE))
        first, second, third = [
            (await client.receive())["data"]["channel"] for client in (one, two, other)
        ]

    assert AUTHORIZATION == answer["data"]
    assert first == second != third
    # Without a secret NSQ was asked whether it wants one.
    assert [Auth(ALICE.encode()), Auth(BOB.encode())] == broker.all(Auth)


async def test_a_revoked_secret_ends_all_its_viewers(broker: AuthBroker) -> None:
    """Each gets the error frame, then 4003; those of another secret go on."""
    access = AccessPolicy(reauth_interval_s=1.0)
    async with (
        public_port([broker.address], access=access) as port,
        open_socket(sub_url(port, "t"), headers=bearer(ALICE)) as one,
        open_socket(sub_url(port, "t"), headers=bearer(ALICE)) as two,
        open_socket(sub_url(port, "t"), headers=bearer(BOB)) as other,
    ):
        for client in (one, two, other):
            await commands(client, 1)
        del broker.grants[ALICE.encode()]
        codes = [(await client.receive())["code"] for client in (one, two)]
        closed = [(await client.closed())[0] for client in (one, two)]
        answer = await other.next_delivery()

    assert (["E_AUTH_FAILED"] * 2, [4003] * 2) == (codes, closed)
    assert "nothing came" == answer["ref"]


# Without an upgrade


def asked(query: bytes = b"topic=t", *headers: tuple[bytes, bytes]) -> Upgrade:
    more = [(b"x-request-id", b"r"), (b"host", b"gateway"), *headers]
    return Upgrade(path="/sub", query=query, headers=more, subprotocols=(), peer="192.0.2.1")


def endpoint(**options: Any) -> SubscribeEndpoint:  # noqa: ANN401 - a test names any option
    """Return an endpoint that knows no NSQ, for what may be asked of it needs none."""
    publisher = RecordingPublisher()
    callers = PublishHandler(publisher, Limits()).rate_limiter
    return SubscribeEndpoint(
        SubscribeOptions(
            discovery=Discovery([]), publishing=SocketPublishing(publisher, callers), **options
        )
    )


@pytest.mark.parametrize(
    "upgrade,status,token",
    [
        (asked(b"topic=t&chanel=c"), 400, "INVALID_ARG"),
        (asked(b""), 400, "MISSING_ARG_TOPIC"),
        (asked(b"topic=t", (b"origin", b"http://evil")), 403, "FORBIDDEN"),
        (asked(b"topic=t", (b"authorization", b"Bearer a b")), 400, "INVALID_AUTHORIZATION"),
        (replace(asked(), subprotocols=("nsq.v2",)), 400, "INVALID_SUBPROTOCOL"),
    ],
    ids=["a slip", "no topic", "foreign page", "bad secret", "another subprotocol"],
)
async def test_what_is_refused_can_be_asked_for(upgrade: Upgrade, status: int, token: str) -> None:
    """The answer is the one that the upgrade gets, to the letter."""
    subscribe = endpoint()

    told = subscribe.refuse(upgrade)

    with pytest.raises(GatewayError) as caught:
        await subscribe.accept(upgrade)
    assert subscribe.refusal(caught.value, "r") == told
    assert told is not None
    assert (status, token) == (told[0], json.loads(told[2])["message"])


def test_where_all_is_well_there_is_nothing_to_tell() -> None:
    """For our own page, a program, and however often it is asked: no seat is taken."""
    subscribe = endpoint(max_sockets=1)
    own = asked(b"topic=t", (b"origin", b"http://gateway"))

    assert [None] * 4 == [subscribe.refuse(upgrade) for upgrade in (own, asked(), own, asked())]


async def test_a_secret_that_has_its_sockets_is_told_so_however_it_comes(
    broker: AuthBroker,
) -> None:
    """By a plain GET as by the upgrade; in a frame it is one caller too many as well."""
    before = RATE_LIMITED.counts["socket",]
    async with (
        public_port([broker.address], max_sockets_per_secret=1) as port,
        open_socket(sub_url(port, "t", "c"), headers=bearer(ALICE)),
        httpx.AsyncClient(base_url=port, trust_env=False) as client,
    ):
        asked_for = await client.get("/sub?topic=t", headers=bearer(ALICE))
        after_asking = RATE_LIMITED.counts["socket",]
        status, problem = await refused_upgrade(sub_url(port, "t", "c"), headers=bearer(ALICE))
        async with open_socket(sub_url(port, "t", "c")) as late:
            await late.send(auth(ALICE))
            error = await late.receive()
            closed, reason = await late.closed()

    assert (503, "FULL") == (asked_for.status_code, asked_for.json()["message"])
    assert (503, problem["detail"]) == (status, asked_for.json()["detail"])
    assert ("FULL", 1013) == (error["code"], closed)
    # True for this limit of the gateway, too, of which nsqd knows nothing.
    assert "a limit of consumers or sockets is reached; try again later" == reason
    assert (0, 2) == (after_asking - before, RATE_LIMITED.counts["socket",] - before)


async def test_no_room_and_a_drain_can_be_asked_for(broker: AuthBroker, port: str) -> None:
    """Both with the time after which to come back."""
    del port
    async with (
        public_port([broker.address], max_sockets=1) as full,
        httpx.AsyncClient(base_url=full, trust_env=False) as client,
        open_socket(sub_url(full, "t", "c"), headers=bearer(ALICE)),
    ):
        answer = await client.get("/sub?topic=t")
    drained = endpoint()
    await drained.drain(0)
    told = drained.refuse(asked())

    assert (503, "FULL", "5") == (
        answer.status_code,
        answer.json()["message"],
        answer.headers["retry-after"],
    )
    assert told is not None
    assert (503, "EXITING") == (told[0], json.loads(told[2])["message"])
    assert (b"retry-after", b"1") in told[1]
