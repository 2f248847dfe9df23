"""Invalid commands get a typed error and affect no other client."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.gateways.gateway import RunningGateway
from tests.support.websocket.raw_socket import BINARY, TEXT, RawWebSocket, raw_websocket
from tests.support.websocket.subscriber_client import Json, SubscriberClient

pytestmark = pytest.mark.asyncio(loop_scope="session")

FRAME_LIMIT_BYTES = 2 * 1_048_576
AT_ONCE_S = 2.0


@pytest_asyncio.fixture(loop_scope="session")
async def client(gateway: RunningGateway, topic: str) -> AsyncIterator[SubscriberClient]:
    """Return the subscriber that misbehaves; another one must get its message all the same."""
    bystanders_topic = f"{topic}-b"
    async with (
        gateway.subscribe(bystanders_topic, "c") as bystander,
        gateway.subscribe(topic, "c") as client,
    ):
        yield client
        await gateway.publish(bystanders_topic, b"unharmed")
        assert "unharmed" == (await bystander.message(within_s=AT_ONCE_S))["body"]


async def only_error(client: SubscriberClient, text: str) -> Json:
    """Send *text*; return its one answer, behind which the socket works as before."""
    await client.send_text(text)
    error = await client.receive()
    assert "nothing came" == (await client.next_delivery())["ref"]
    return error


@pytest.mark.parametrize(
    "text",
    [
        "garbage",
        "{",
        '{"cmd":"NOP"',
        "null",
        "7",
        '"NOP"',
        '[{"cmd":"NOP"}]',
        "\x00\x00\x00",
        "\ufeff{}",
    ],
    ids=["garbage", "a brace", "half", "null", "number", "string", "array", "zeros", "mark"],
)
async def test_a_line_that_is_no_object_is_refused(client: SubscriberClient, text: str) -> None:
    """A line that is not a JSON object answers E_INVALID without cmd and ref."""
    error = await only_error(client, text)

    told = (error["type"], error["cmd"], error["ref"], error["code"])
    assert ("error", None, None, "E_INVALID") == told


@pytest.mark.parametrize(
    "command",
    [
        {},
        {"cmd": None},
        {"cmd": 7},
        {"cmd": ["NOP"]},
        {"cmd": ""},
        {"cmd": "nop"},
        {"cmd": "NOP\n"},
        {"cmd": "JUMP"},
        {"cmd": "SUB", "topic": "t", "channel": "c"},
        {"cmd": "FIN"},
        {"cmd": "FIN", "id": 7},
        {"cmd": "FIN", "id": None},
        {"cmd": "FIN", "ids": []},
        {"cmd": "FIN", "ids": "0123456789abcdef-1"},
        {"cmd": "FIN", "ids": [1]},
        {"cmd": "FIN", "id": "0123456789abcdef-1", "ids": ["0123456789abcdef-1"]},
        {"cmd": "REQ", "id": "0123456789abcdef-1", "timeout_ms": -1},
        {"cmd": "REQ", "id": "0123456789abcdef-1", "timeout_ms": "0"},
        {"cmd": "REQ", "id": "0123456789abcdef-1", "timeout_ms": 1.5},
        {"cmd": "RDY"},
        {"cmd": "RDY", "count": -1},
        {"cmd": "RDY", "count": 2_501},
        {"cmd": "RDY", "count": 10**30},
        {"cmd": "RDY", "count": True},
    ],
    ids=json.dumps,
)
async def test_a_command_that_is_wrong_is_refused(client: SubscriberClient, command: Json) -> None:
    """A wrong name, a missing part, a wrong type or range answers E_INVALID with the ref."""
    error = await only_error(client, json.dumps({**command, "ref": "mine"}))

    assert ("error", "mine", "E_INVALID", False) == (
        error["type"],
        error["ref"],
        error["code"],
        error["retryable"],
    )


@pytest.mark.parametrize(
    "delivery_id",
    ["", "x", "-", "0123456789abcdef", "0123456789abcdef-1", "ä" * 16 + "-1", "\n", "0" * 100_000],
    ids=["empty", "letter", "dash", "no number", "unknown", "umlauts", "newline", "long"],
)
@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
async def test_an_id_that_is_not_held_is_refused(
    client: SubscriberClient, verb: str, delivery_id: str
) -> None:
    """The response has the command's own error code and the unknown id."""
    error = await only_error(client, json.dumps({"cmd": verb, "id": delivery_id}))

    assert (f"E_{verb}_FAILED", delivery_id) == (error["code"], error["id"])


@pytest.mark.parametrize(
    "ref",
    [[1], {"a": 1}, [[[[]]]]],
    ids=json.dumps,
)
async def test_a_ref_that_is_no_scalar_is_refused(client: SubscriberClient, ref: object) -> None:
    """A list or an object as ref answers E_INVALID with ref null."""
    error = await only_error(client, json.dumps({"cmd": "NOP", "ref": ref}))

    assert ("E_INVALID", "NOP", None) == (error["code"], error["cmd"], error["ref"])


@pytest.mark.parametrize("ref", [0, -1, 1.5, 2**63, 10**30, "", "\x00", "\U0001f600", True, False])
async def test_a_ref_is_returned_unchanged(client: SubscriberClient, ref: object) -> None:
    answer = await client.ask({"cmd": "NOP", "ref": ref})

    assert repr(ref) == repr(answer["ref"])


@pytest.mark.parametrize(
    "text",
    ['{"cmd":"NOP","ref":"\\ud800"}', '{"cmd":"\\udfff"}', '{"cmd":"NOP","ref":1e999}'],
    ids=["lone surrogate", "as cmd", "infinite"],
)
async def test_a_value_that_json_cannot_give_back_is_refused(
    client: SubscriberClient, text: str
) -> None:
    """Half a surrogate pair or a number without end answers E_INVALID."""
    assert "E_INVALID" == (await only_error(client, text))["code"]


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"cmd":' * 100_000, '{"cmd":"NOP","x":' + "[" * 100_000],
    ids=["lists", "objects", "in a field nobody reads"],
)
async def test_deep_nesting_is_refused(client: SubscriberClient, text: str) -> None:
    """A hundred thousand brackets answer E_INVALID and cost no more than that."""
    assert "E_INVALID" == (await only_error(client, text))["code"]


async def test_an_invalid_line_affects_no_other_line(client: SubscriberClient) -> None:
    """Lines before and behind a bad one are carried out, and answered in their order."""
    await client.send_text('{"cmd":"NOP","ref":1}\nnonsense\n\n  \r\n{"cmd":"NOP","ref":2}\r\n')
    answers = await client.receive_until(2)

    assert [1, None, 2] == [answer["ref"] for answer in answers]


async def test_an_empty_frame_is_nothing(client: SubscriberClient) -> None:
    """A frame without a command is silent, as NOP without a ref is."""
    await client.send_text("")

    assert "nothing came" == (await client.next_delivery())["ref"]


async def test_unknown_fields_are_ignored(client: SubscriberClient) -> None:
    """A field of a later version does no harm."""
    answer = await client.ask({"cmd": "NOP", "ref": 1, "later": {"deep": [1, 2]}})

    assert "OK" == answer["data"]


async def test_ten_thousand_silent_commands_in_a_frame_are_carried_out(
    client: SubscriberClient,
) -> None:
    """Ten thousand NOPs without a ref have no answer, and what follows has one."""
    await client.send(*[{"cmd": "NOP"}] * 10_000)

    assert "nothing came" == (await client.next_delivery())["ref"]


async def test_ten_thousand_refs_in_a_frame_are_answered_each(client: SubscriberClient) -> None:
    await client.send(*({"cmd": "NOP", "ref": ref} for ref in range(10_000)))
    answers = await client.receive_until(9_999)

    assert list(range(10_000)) == [answer["ref"] for answer in answers]


async def test_too_many_errors_close_the_socket(client: SubscriberClient) -> None:
    """Of ten thousand unknown commands about a hundred are answered, then it is 4508."""
    await client.send(*({"cmd": "JUMP", "ref": ref} for ref in range(10_000)))
    answers = [await client.receive() for _ in range(101)]

    assert list(range(101)) == [answer["ref"] for answer in answers]
    assert 4508 == (await client.closed())[0]


async def test_ten_thousand_unknown_ids_are_refused_together(client: SubscriberClient) -> None:
    ids = [f"{number:016x}-1" for number in range(10_000)]
    error = await client.ask({"cmd": "FIN", "ids": ids, "ref": 1})

    assert ("E_FIN_FAILED", ids) == (error["code"], error["ids"])


async def test_a_frame_in_parts_is_one(gateway: RunningGateway, topic: str) -> None:
    """A command cut into continuation frames is read as one."""
    async with raw_websocket(gateway.sub_url(topic, "c")) as raw:
        await raw.read_frame()
        await raw.send_frame(TEXT, b'{"cmd":"NOP",', is_final=False)
        await raw.send_frame(0, b'"ref"', is_final=False)
        await raw.send_frame(0, b":1}")
        _, payload = await raw.read_frame()

    assert 1 == json.loads(payload)["ref"]


async def closed_by(gateway: RunningGateway, topic: str, data: bytes) -> int:
    """Return the code with which a socket is closed after *data*; another one goes on."""
    async with gateway.subscribe(topic, "b") as bystander:
        async with raw_websocket(gateway.sub_url(topic, "c")) as raw:
            await raw.read_frame()
            await raw.send(data)
            code = await raw.close_code()
        await gateway.publish(topic, b"unharmed")
        assert "unharmed" == (await bystander.message(within_s=AT_ONCE_S))["body"]
    return code


async def test_a_binary_frame_closes_with_1003(gateway: RunningGateway, topic: str) -> None:
    data = b"\x82\x84" + bytes(4) + b"  V2"

    assert 1003 == await closed_by(gateway, topic, data)


async def test_text_that_is_not_utf8_closes_with_1007(gateway: RunningGateway, topic: str) -> None:
    """Latin-1 is no UTF-8."""
    data = b"\x81\x81" + bytes(4) + b"\xe4"

    assert 1007 == await closed_by(gateway, topic, data)


async def test_a_frame_above_the_limit_closes_with_1009(
    gateway: RunningGateway, topic: str
) -> None:
    """A frame is refused by the length that it announces, before a byte of it came."""
    data = b"\x81\xff" + struct.pack(">Q", FRAME_LIMIT_BYTES + 1) + bytes(4)

    assert 1009 == await closed_by(gateway, topic, data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\x02{}",
        b"\xf1\x82" + bytes(4) + b"{}",
        b"\x80\x82" + bytes(4) + b"{}",
        b"GET / HTTP/1.1\r\n",
    ],
    ids=["no mask", "reserved bits", "continues nothing", "another protocol"],
)
async def test_a_broken_frame_closes_with_1002(
    gateway: RunningGateway, topic: str, data: bytes
) -> None:
    """Violations of RFC 6455 close the socket with its own code."""
    assert 1002 == await closed_by(gateway, topic, data)


async def test_an_incomplete_frame_delays_no_other_socket(
    gateway: RunningGateway, topic: str
) -> None:
    """While one socket hangs in the middle of a frame, others come, work and go."""
    async with raw_websocket(gateway.sub_url(topic, "c")) as raw:
        await raw.read_frame()
        await raw.send(b"\x81\xfe\x01")
        async with gateway.subscribe(topic, "d") as other:
            await gateway.publish(topic, b"unharmed")
            delivery = await other.message(within_s=AT_ONCE_S)
        held = await first_delivery(raw)

    assert ("unharmed", "unharmed") == (delivery["body"], held["body"])


async def first_delivery(raw: RawWebSocket) -> Json:
    opcode, payload = await raw.read_frame()
    assert BINARY != opcode
    received: Json = json.loads(payload)
    return received
