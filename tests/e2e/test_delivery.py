"""A POST reaches a subscriber, and its FIN, REQ or TOUCH reaches the broker."""

from __future__ import annotations

import base64
import re
import time
from collections import Counter

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.gateways.gateway import RunningGateway
from tests.support.websocket.subscriber_client import Json, open_socket

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_published_message_reaches_a_subscriber(
    gateway: RunningGateway, topic: str
) -> None:
    """The delivery has the body, the names, and attempts 1."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"hello")
        delivery = await client.message()

    told = {name: delivery[name] for name in ("topic", "channel", "attempts", "body")}
    assert {"topic": topic, "channel": "c", "attempts": 1, "body": "hello"} == told


async def test_a_delivery_has_an_id_of_its_own(gateway: RunningGateway, topic: str) -> None:
    """An id is NSQ's 16 digits, a dash, and the number of the delivery."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"hello")
        delivery = await client.message()

    assert re.fullmatch(r"[0-9a-f]{16}-[0-9]+", delivery["id"])


async def test_a_delivery_has_the_time_of_its_publish(gateway: RunningGateway, topic: str) -> None:
    """timestamp_ns is the moment of publishing, in nanoseconds since 1970, as a string."""
    async with gateway.subscribe(topic, "c") as client:
        before_ns = time.time_ns()
        await gateway.publish(topic, b"hello")
        after_ns = time.time_ns()
        delivery = await client.message()

    assert str is type(delivery["timestamp_ns"])
    assert before_ns <= int(delivery["timestamp_ns"]) <= after_ns


async def test_a_delivery_has_its_deadline(gateway: RunningGateway, topic: str) -> None:
    """deadline_ms is the rest of the requested message timeout."""
    async with gateway.subscribe(topic, "c", msg_timeout_ms=30_000) as client:
        await gateway.publish(topic, b"hello")
        delivery = await client.message()

    assert 20_000 < delivery["deadline_ms"] <= 30_000


async def test_the_answer_to_a_subscription_repeats_it(gateway: RunningGateway, topic: str) -> None:
    """The first frame names topic, channel, window and message timeout."""
    url = gateway.sub_url(topic, "c", max_in_flight=7, msg_timeout_ms=5_000)
    async with open_socket(url) as client:
        answer = await client.receive()

    data = {"topic": topic, "channel": "c", "max_in_flight": 7, "msg_timeout_ms": 5_000}
    assert {"type": "response", "cmd": "SUB", "ref": None, "data": data} == answer


async def test_the_message_timeout_is_the_brokers_own_when_none_is_asked(
    gateway: RunningGateway, topic: str
) -> None:
    """Without msg_timeout_ms and max_in_flight it is nsqd's 60 s, and a window of 10."""
    async with open_socket(gateway.sub_url(topic, "c")) as client:
        answer = await client.receive()

    data = answer["data"]
    assert (60_000, 10) == (data["msg_timeout_ms"], data["max_in_flight"])


async def test_fin_ends_a_message(gateway: RunningGateway, topic: str) -> None:
    """After FIN the broker holds nothing: not in flight, not waiting, not to come back."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"hello")
        await client.finish(await client.message())

        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_fin_without_a_ref_is_silent(gateway: RunningGateway, topic: str) -> None:
    """FIN, REQ, TOUCH, RDY and NOP without a ref have no answer when they succeed."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"hello")
        await gateway.publish(topic, b"again")
        first, second = await client.messages(2)
        await client.send(
            {"cmd": "TOUCH", "id": first["id"]},
            {"cmd": "FIN", "id": first["id"]},
            {"cmd": "REQ", "id": second["id"], "timeout_ms": 60_000},
            {"cmd": "RDY", "count": 5},
            {"cmd": "NOP"},
        )

        assert "nothing came" == (await client.next_delivery())["ref"]


async def test_req_brings_a_message_back(gateway: RunningGateway, topic: str) -> None:
    """After REQ the same message comes again, with attempts 2 and another delivery id."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"hello")
        first = await client.message()
        await client.send({"cmd": "REQ", "id": first["id"]})
        second = await client.message()

    assert (2, "hello") == (second["attempts"], second["body"])
    assert first["id"] != second["id"]
    assert first["id"].partition("-")[0] == second["id"].partition("-")[0]


async def test_req_with_a_timeout_brings_it_back_later(
    gateway: RunningGateway, warm_topic: str
) -> None:
    """REQ with timeout_ms waits so long before the message comes again."""
    async with gateway.subscribe(warm_topic, "c") as client:
        await gateway.publish(warm_topic, b"hello")
        first = await client.message()
        asked_at = time.monotonic()
        await client.ask({"cmd": "REQ", "id": first["id"], "timeout_ms": 300, "ref": 1})
        second = await client.message()
        elapsed_s = time.monotonic() - asked_at

    assert 2 == second["attempts"]
    assert elapsed_s >= 0.3


async def test_req_with_an_enormous_timeout_is_taken(gateway: RunningGateway, topic: str) -> None:
    """A timeout_ms beyond every limit neither fails nor costs the subscription."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"hello")
        first = await client.message()
        requeue = {"cmd": "REQ", "id": first["id"], "timeout_ms": 10**25, "ref": 1}
        assert "OK" == (await client.ask(requeue)).get("data")

        assert (0, 0, 1) == await gateway.counts_become(topic, "c", (0, 0, 1))
        await gateway.publish(topic, b"more")
        assert "more" == (await client.message())["body"]


async def test_touch_puts_the_timeout_off(gateway: RunningGateway, warm_topic: str) -> None:
    """A message that is touched can be finished after its first timeout has passed."""
    async with gateway.subscribe(warm_topic, "c", msg_timeout_ms=1_000) as client:
        await gateway.publish(warm_topic, b"hello")
        delivery = await client.message()
        await client.stays_silent(for_s=0.55)
        await client.ask({"cmd": "TOUCH", "id": delivery["id"], "ref": 1})
        await client.stays_silent(for_s=0.55)
        await client.finish(delivery)

        assert (0, 0, 0) == await gateway.counts_become(warm_topic, "c", (0, 0, 0))


async def test_a_message_without_an_ack_is_redelivered(
    gateway: RunningGateway, warm_topic: str
) -> None:
    """After its timeout it comes again with attempts 2; FIN for the first delivery is refused."""
    async with gateway.subscribe(warm_topic, "c", msg_timeout_ms=1_000) as client:
        await gateway.publish(warm_topic, b"hello")
        first = await client.message()
        second = await client.message()
        refusal = await client.ask({"cmd": "FIN", "id": first["id"], "ref": "late"})
        await client.finish(second)

    assert 2 == second["attempts"]
    assert ("E_FIN_FAILED", first["id"], "late") == (
        refusal["code"],
        refusal["id"],
        refusal["ref"],
    )


async def test_a_delivery_that_timed_out_occupies_the_window(
    gateway: RunningGateway, warm_topic: str
) -> None:
    """With a window of one, a client that does not answer gets no second message, ever."""
    async with gateway.subscribe(warm_topic, "c", msg_timeout_ms=1_000, max_in_flight=1) as client:
        await gateway.publish(warm_topic, b"hello")
        first = await client.message()
        assert (1, 0, 0) == await gateway.counts_become(warm_topic, "c", (1, 0, 0))
        assert "nothing came" == (await client.next_delivery())["ref"]
        await client.send({"cmd": "FIN", "id": first["id"]})
        refusal, second = await client.receive(), await client.message()
        await client.finish(second)

    assert ("E_FIN_FAILED", 2) == (refusal["code"], second["attempts"])


async def test_a_deferred_message_comes_later(gateway: RunningGateway, warm_topic: str) -> None:
    """defer=300 publishes at once and delivers after 300 ms at the earliest."""
    async with gateway.subscribe(warm_topic, "c") as client:
        posted_at = time.monotonic()
        await gateway.publish(warm_topic, b"later", defer=300)
        delivery = await client.message()
        elapsed_s = time.monotonic() - posted_at
        await client.finish(delivery)

    assert ("later", 1) == (delivery["body"], delivery["attempts"])
    assert elapsed_s >= 0.3


async def test_a_body_that_is_not_utf8_comes_as_base64(gateway: RunningGateway, topic: str) -> None:
    """Such a body stands in body_base64, and there is no body."""
    body = b"\xff\xfe\x00binary"
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, body)
        delivery = await client.message()

    assert body == base64.b64decode(delivery["body_base64"])
    assert "body" not in delivery


@pytest.mark.parametrize(
    "body",
    [b"\x00" * 100, 'line\nbreak "quote" \\ \u2028 \U0001f600'.encode(), b"x" * 1_048_576],
    ids=["zeros", "what JSON escapes", "as long as allowed"],
)
async def test_a_body_arrives_unchanged(gateway: RunningGateway, topic: str, body: bytes) -> None:
    """Text of any length and any characters arrives unchanged."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, body)
        delivery = await client.message()

    assert body == delivery["body"].encode()


async def test_mpub_is_a_message_for_each_line(gateway: RunningGateway, topic: str) -> None:
    """The lines of one POST /mpub come as messages; empty ones are none."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.post("/mpub", b"one\ntwo\n\nthree\n", topic=topic)
        deliveries = await client.messages(3)

    assert ["one", "two", "three"] == [delivery["body"] for delivery in deliveries]


async def test_rdy_0_pauses_and_rdy_n_resumes(gateway: RunningGateway, topic: str) -> None:
    """With RDY 0 a message waits at the broker; with RDY 1 it comes."""
    async with gateway.subscribe(topic, "c") as client:
        await client.ask({"cmd": "RDY", "count": 0, "ref": 1})
        await gateway.ready_becomes(topic, "c", 0)
        await gateway.publish(topic, b"hello")
        assert (1, 0, 0) == await gateway.counts_become(topic, "c", (1, 0, 0))
        assert "nothing came" == (await client.next_delivery())["ref"]

        await client.send({"cmd": "RDY", "count": 1})
        assert "hello" == (await client.message())["body"]


async def test_no_more_than_max_in_flight_are_held(gateway: RunningGateway, topic: str) -> None:
    """With a window of 2 the third message comes only after a FIN."""
    async with gateway.subscribe(topic, "c", max_in_flight=2) as client:
        await gateway.post("/mpub", b"1\n2\n3\n4\n5", topic=topic)
        first, second = await client.messages(2)
        assert (3, 2, 0) == await gateway.counts_become(topic, "c", (3, 2, 0))
        assert "nothing came" == (await client.next_delivery())["ref"]

        await client.send({"cmd": "FIN", "id": first["id"]})
        third = await client.message()

    assert [1, 1, 1] == [delivery["attempts"] for delivery in (first, second, third)]


async def test_each_ref_is_answered_once(gateway: RunningGateway, topic: str) -> None:
    """Every command with a ref gets exactly one answer that carries it, of whatever type it is."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.post("/mpub", b"1\n2", topic=topic)
        first, second = await client.messages(2)
        await client.send(
            {"cmd": "NOP", "ref": 1},
            {"cmd": "TOUCH", "id": first["id"], "ref": "two"},
            {"cmd": "FIN", "id": first["id"], "ref": 3.5},
            {"cmd": "FIN", "id": first["id"], "ref": False},
            {"cmd": "REQ", "id": second["id"], "timeout_ms": 60_000, "ref": ""},
            {"cmd": "RDY", "count": 5, "ref": 0},
            {"cmd": "RDY", "count": -1, "ref": -1},
            {"cmd": "BAD", "ref": "bad"},
            {"cmd": "NOP", "ref": "last"},
        )
        answers = await client.receive_until("last")

    expected = [1, "two", 3.5, False, "", 0, -1, "bad", "last"]
    assert Counter(map(repr, expected)) == Counter(repr(answer["ref"]) for answer in answers)


async def test_fin_of_many_ids_names_the_unknown_ones(gateway: RunningGateway, topic: str) -> None:
    """One error lists the ids that are not held; the others are finished."""
    unknown = "0123456789abcdef-9"
    async with gateway.subscribe(topic, "c") as client:
        await gateway.post("/mpub", b"1\n2", topic=topic)
        first, second = await client.messages(2)
        ids = [first["id"], unknown, second["id"]]
        refusal = await client.ask({"cmd": "FIN", "ids": ids, "ref": 1})

        assert ("error", "E_FIN_FAILED", 1, [unknown]) == (
            refusal["type"],
            refusal["code"],
            refusal["ref"],
            refusal["ids"],
        )
        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_a_second_fin_is_refused(gateway: RunningGateway, topic: str) -> None:
    """An id is answered once; the socket stays."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"hello")
        delivery = await client.message()
        await client.finish(delivery)
        refusal = await client.ask({"cmd": "FIN", "id": delivery["id"]})

        assert ("E_FIN_FAILED", False) == (refusal["code"], refusal["retryable"])
        assert "nothing came" == (await client.next_delivery())["ref"]


async def test_cls_takes_answers_until_all_are_there(gateway: RunningGateway, topic: str) -> None:
    """After CLS comes CLOSE_WAIT, FIN still counts, and after the last one 1000."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"hello")
        delivery = await client.message()
        answer = await client.ask({"cmd": "CLS", "ref": 1})
        await client.finish(delivery)

        assert ("CLS", 1, "CLOSE_WAIT") == (answer["cmd"], answer["ref"], answer["data"]["state"])
        assert 1000 == (await client.closed())[0]
    assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_cls_with_nothing_in_flight_closes_at_once(
    gateway: RunningGateway, topic: str
) -> None:
    """CLOSE_WAIT is followed by 1000 when there is nothing to wait for."""
    async with gateway.subscribe(topic, "c") as client:
        await client.ask({"cmd": "CLS"})

        with pytest.raises(ConnectionClosed):
            await client.receive()
        assert 1000 == client.connection.close_code


async def test_a_second_cls_is_refused(gateway: RunningGateway, topic: str) -> None:
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"hello")
        delivery = await client.message()
        await client.ask({"cmd": "CLS", "ref": 1})
        refusal = await client.ask({"cmd": "CLS", "ref": 2})
        await client.finish(delivery)

        assert ("E_INVALID", 2) == (refusal["code"], refusal["ref"])
        assert 1000 == (await client.closed())[0]


async def test_cls_waits_no_longer_than_the_message_timeout(
    gateway: RunningGateway, topic: str
) -> None:
    """A client that answers nothing after CLS is closed with 1000 all the same."""
    async with gateway.subscribe(topic, "c", msg_timeout_ms=1_000) as client:
        await gateway.publish(topic, b"hello")
        await client.message()
        asked_at = time.monotonic()
        await client.ask({"cmd": "CLS", "ref": 1})
        code, _ = await client.closed()
        elapsed_s = time.monotonic() - asked_at

    assert 1000 == code
    assert elapsed_s < 5.0


async def test_an_ack_that_the_broker_refuses_later_is_an_error(
    gateway: RunningGateway, topic: str
) -> None:
    """A FIN that was passed on, and that the broker refuses, comes back as an error of its own."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"hello")
        delivery = await client.message()
        await gateway.empty_channel(topic, "c")
        passed_on = await client.ask({"cmd": "FIN", "id": delivery["id"], "ref": 1})
        refusal = await client.receive()

    assert ("OK", 1) == (passed_on["data"], passed_on["ref"])
    assert ("error", "FIN", None, "E_FIN_FAILED", delivery["id"]) == (
        refusal["type"],
        refusal["cmd"],
        refusal["ref"],
        refusal["code"],
        refusal["id"],
    )


async def test_nothing_comes_after_cls(gateway: RunningGateway, topic: str) -> None:
    """A message that is published after CLS stays for other consumers."""
    async with gateway.subscribe(topic, "c") as client:
        await gateway.publish(topic, b"held")
        await client.message()
        await client.ask({"cmd": "CLS", "ref": 1})
        await gateway.ready_becomes(topic, "c", 0)
        await gateway.publish(topic, b"next")

        assert (1, 1, 0) == await gateway.counts_become(topic, "c", (1, 1, 0))
        assert "nothing came" == (await client.next_delivery())["ref"]


async def test_nop_with_a_ref_is_answered(gateway: RunningGateway, topic: str) -> None:
    """NOP says that the gateway listens."""
    async with gateway.subscribe(topic, "c") as client:
        answer = await client.ask({"cmd": "NOP", "ref": 7})

    assert {"type": "response", "cmd": "NOP", "ref": 7, "data": "OK"} == answer


async def test_without_a_channel_there_is_one_of_its_own(
    gateway: RunningGateway, topic: str
) -> None:
    """Its name is gw., 26 base32 digits, #ephemeral; it goes with its socket."""
    async with open_socket(gateway.sub_url(topic)) as client:
        channel = (await client.receive())["data"]["channel"]
        there = await gateway.channels_become(topic, [channel])

    assert re.fullmatch(r"gw\.[a-z2-7]{26}#ephemeral", channel)
    assert [channel] == there
    assert [] == await gateway.channels_become(topic, [])


async def test_without_a_channel_messages_finish_by_themselves(
    gateway: RunningGateway, topic: str
) -> None:
    """A viewer gets each message once and owes no answer."""
    async with open_socket(gateway.sub_url(topic)) as client:
        channel = (await client.receive())["data"]["channel"]
        await gateway.publish(topic, b"hello")
        delivery = await client.message()

        assert "hello" == delivery["body"]
        assert (0, 0, 0) == await gateway.counts_become(topic, channel, (0, 0, 0))


@pytest.mark.parametrize(
    "command",
    [{"cmd": "FIN", "id": "a-1"}, {"cmd": "REQ", "id": "a-1"}, {"cmd": "RDY", "count": 1}],
    ids=lambda command: command["cmd"],
)
async def test_a_viewer_has_nothing_to_answer(
    gateway: RunningGateway, topic: str, command: Json
) -> None:
    """Without a channel FIN, REQ and RDY answer E_INVALID, and the socket stays."""
    async with gateway.subscribe(topic) as client:
        refusal = await client.ask({**command, "ref": 1})

        assert ("E_INVALID", 1) == (refusal["code"], refusal["ref"])
        assert "nothing came" == (await client.next_delivery())["ref"]


async def test_ack_auto_finishes_on_a_named_channel(gateway: RunningGateway, topic: str) -> None:
    """With ack=auto a message is finished once it is written, more than a window's worth too."""
    bodies = [str(number) for number in range(25)]
    async with gateway.subscribe(topic, "c", ack="auto", max_in_flight=4) as client:
        await gateway.post("/mpub", "\n".join(bodies).encode(), topic=topic)
        deliveries = await client.messages(25)

        assert sorted(bodies) == sorted(delivery["body"] for delivery in deliveries)
        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))


async def test_ack_client_without_a_channel_waits_for_fin(
    gateway: RunningGateway, topic: str
) -> None:
    url = gateway.sub_url(topic, ack="client")
    async with open_socket(url) as client:
        channel = (await client.receive())["data"]["channel"]
        await gateway.publish(topic, b"hello")
        delivery = await client.message()
        assert (0, 1, 0) == await gateway.counts_become(topic, channel, (0, 1, 0))

        await client.finish(delivery)
        assert (0, 0, 0) == await gateway.counts_become(topic, channel, (0, 0, 0))
