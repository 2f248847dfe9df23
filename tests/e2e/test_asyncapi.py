"""The contract in asyncapi.yaml is valid, and it is what the code takes and says."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import partial

import msgspec
import pytest
import yaml

from gateway.client.producer_pool import _REFUSALS
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    BrokerUnreachable,
    GatewayError,
    InvalidRequest,
    LimitReached,
    NoBroker,
    OutcomeUnknown,
    Overloaded,
    RateLimited,
)
from gateway.protocol.identify import IdentifyResponse
from gateway.protocol.wire import Limits
from gateway.session.auth import MAX_SECRET_BYTES
from gateway.session.json_frames import (
    _VERBS,
    BinaryMessageOut,
    Command,
    ErrorOut,
    MessageOut,
    ResponseOut,
    channel_gone_error,
    decode_frame,
    encode_frame,
    not_in_flight_error,
)
from gateway.session.session import Session
from gateway.session.types import CloseReason, PublishBodies, Refusal, SessionOptions
from gateway.web.errors import NSQD_ERROR_RESPONSES, CloseCode
from gateway.web.subscribe.access import SubscribeError, explain_subscribe_error
from gateway.web.subscribe.publishing import _outcome
from gateway.web.subscribe.request import _PARAMETERS, parse_subscribe_request
from gateway.web.subscribe.socket import CLOSE_CODES
from tests.support.project import ROOT
from tests.support.websocket.asyncapi_parser import parser_findings
from tests.support.websocket.contract import (
    CHANNEL,
    MESSAGES,
    QUERY,
    SCHEMAS,
    SOCKET_CONTRACT,
    Json,
    commands,
    contract_errors,
    examples,
    gateway_contract_errors,
    message_of,
    payload_of,
    resolved,
)

PAGE = (ROOT / "docs" / "websocket.md").read_text(encoding="utf-8")
OUT = (MessageOut, BinaryMessageOut, ResponseOut, ErrorOut)
MISUSES = {"E_INVALID", "E_BAD_TOPIC", "E_BAD_MESSAGE", "E_BAD_BODY"}


@pytest.mark.asyncapi
def test_the_contract_is_valid() -> None:
    """AsyncAPI's own parser finds neither an error nor a warning."""
    assert [] == parser_findings((ROOT / "asyncapi.yaml").read_text(encoding="utf-8"))


@pytest.mark.asyncapi
@pytest.mark.parametrize(
    "old,new", [("asyncapi: 3.0.0", "asyncapi: 3.9.9"), ("/messages/CLS", "/messages/CLX")]
)
def test_the_parser_sees_what_is_wrong(old: str, new: str) -> None:
    """A version that is not there and a reference into nothing are errors."""
    text = (ROOT / "asyncapi.yaml").read_text(encoding="utf-8")

    assert parser_findings(text.replace(old, new))


def test_every_message_is_in_the_channel_and_in_an_operation() -> None:
    """None is described and never said, and a command is what the gateway receives."""
    in_operations: dict[str, set[str]] = {"send": set(), "receive": set()}
    for operation in SOCKET_CONTRACT["operations"].values():
        said = in_operations[operation["action"]]
        said |= {_last(message) for message in operation["messages"]}
        in_operations["send"] |= {
            _last(message) for message in operation.get("reply", {}).get("messages", ())
        }

    assert set(MESSAGES) == set(CHANNEL["messages"])
    assert {name for name in MESSAGES if name.isupper()} == in_operations["receive"]
    assert {name for name in MESSAGES if not name.isupper()} == in_operations["send"]


def _last(reference: Json) -> str:
    name: str = reference["$ref"].rpartition("/")[2]
    return name


# Members: those of the classes and those of the contract


def types_of(schema: Json) -> set[str]:
    """Return the JSON types that *schema* takes; for a constant, that of its value."""
    schema = resolved(schema)
    for key in ("oneOf", "anyOf"):
        if key in schema and "type" not in schema:
            return set().union(*map(types_of, schema[key]))
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return {{str: "string", int: "integer", bool: "boolean"}[type(value)] for value in values}
    kinds = schema["type"]
    return set(kinds) if isinstance(kinds, list) else {kinds}


def shape_of(struct: type[msgspec.Struct]) -> Json:
    """Return the JSON Schema that msgspec reads from a class."""
    _, found = msgspec.json.schema_components([struct])
    shape: Json = found[struct.__name__]
    return shape


def members(schema: Json) -> dict[str, tuple[set[str], bool]]:
    """Return each member with its types, and whether it may be left out."""
    required = schema.get("required", ())
    return {
        name: (_without_number_twice(types_of(each)), name not in required)
        for name, each in schema["properties"].items()
    }


def _without_number_twice(kinds: set[str]) -> set[str]:
    return kinds - {"integer"} if "number" in kinds else kinds


def given(struct: type[msgspec.Struct]) -> dict[str, tuple[set[str], bool]]:
    """Return the same of a class: what may be null when it is not there is only left out."""
    found = {}
    for name, each in shape_of(struct)["properties"].items():
        kinds = _without_number_twice(types_of(each)) if each.keys() - {"default"} else set()
        is_optional = "default" in each
        found[name] = (kinds - {"null"} if is_optional and name != "ref" else kinds, is_optional)
    return found


@pytest.mark.parametrize("body", ["body", "body_base64"])
def test_a_delivery_has_the_members_of_its_class(body: str) -> None:
    """Two classes are one message of the contract: with text, or with bytes."""
    struct = MessageOut if body == "body" else BinaryMessageOut
    promised = members(SCHEMAS["Message"])
    other = {"body": "body_base64", "body_base64": "body"}[body]
    del promised[other]

    # msgspec has no default to tell that a lease may be missing.
    required = {name: (promised[name][0], False) for name in (body, "lease")}
    assert {**promised, **required} == given(struct)


@pytest.mark.parametrize("message", ["subscribed", "authenticated", "ok", "status", "closeWait"])
def test_a_response_has_the_members_of_its_class(message: str) -> None:
    """`data` is what the message says, all else is as in every response."""
    promised, has = members(payload_of(message)), given(ResponseOut)
    del promised["data"], has["data"]

    assert has.keys() == promised.keys()
    for name, (kinds, is_optional) in promised.items():
        assert (True, has[name][1]) == (kinds <= has[name][0], is_optional), name


def test_a_refusal_has_the_members_of_its_class() -> None:
    """Of `id` and `ids` none, or one."""
    assert members(SCHEMAS["Error"]) == given(ErrorOut)


def test_every_command_is_in_the_contract_and_none_besides() -> None:
    assert {str(verb.__struct_config__.tag) for verb in _VERBS} == set(commands())


@pytest.mark.parametrize("verb", _VERBS, ids=lambda verb: str(verb.__struct_config__.tag))
def test_a_command_has_the_members_of_its_class(verb: type[Command]) -> None:
    """Names and types; which are needed is seen below, for that is not in the types."""
    promised = members(commands()[str(verb.__struct_config__.tag)])

    assert {name: kinds for name, (kinds, _) in given(verb).items()} == {
        name: kinds for name, (kinds, _) in promised.items()
    }


# Commands: what the contract takes is what a session takes


def session() -> Session:
    """Return a session that is subscribed and holds nothing."""
    session = Session(SessionOptions(topic="t", channel="c"), now=0.0)
    session.on_source_opened(1, IdentifyResponse(msg_timeout=60_000, max_msg_timeout=900_000))
    session.next_frame(0.0)
    return session


def answers_to(*texts: str) -> list[Json]:
    """Return what a session says to *texts*, a frame each."""
    said = []
    subscriber = session()
    for text in texts:
        subscriber.receive(text, 0.0)
        while (frame := subscriber.next_frame(0.0)) is not None:
            said += [json.loads(line) for line in frame.split(b"\n")]
    return said


def is_taken(command: Json) -> bool:
    """Whether a session does not find anything wrong in the words of *command*."""
    return not {each.get("code") for each in answers_to(json.dumps(command))} & MISUSES


ID = "0123456789abcdef-1"
COMMANDS: list[Json] = [
    {"cmd": "FIN"},
    {"cmd": "FIN", "id": ID},
    {"cmd": "FIN", "id": 7},
    {"cmd": "FIN", "id": ID, "ref": [1]},
    {"cmd": "FIN", "id": ID, "ids": [ID]},
    {"cmd": "FIN", "ids": []},
    {"cmd": "FIN", "ids": [7]},
    {"cmd": "FIN", "ids": ID},
    {"cmd": "FIN", "ids": [ID, ID]},
    {"cmd": "REQ", "id": ID},
    {"cmd": "REQ", "id": ID, "timeout_ms": 0},
    {"cmd": "REQ", "id": ID, "timeout_ms": 2**50},
    {"cmd": "REQ", "id": ID, "timeout_ms": -1},
    {"cmd": "REQ", "id": ID, "timeout_ms": "0"},
    {"cmd": "REQ", "id": ID, "timeout_ms": 0.5},
    {"cmd": "TOUCH", "id": ID},
    {"cmd": "TOUCH"},
    {"cmd": "RDY"},
    {"cmd": "RDY", "count": 0},
    {"cmd": "RDY", "count": 2_500},
    {"cmd": "RDY", "count": 2_501},
    {"cmd": "RDY", "count": -1},
    {"cmd": "RDY", "count": True},
    {"cmd": "PUB", "topic": "t", "body": "x"},
    {"cmd": "PUB", "topic": "t#ephemeral", "body": "x"},
    {"cmd": "PUB", "topic": "a b", "body": "x"},
    {"cmd": "PUB", "topic": "", "body": "x"},
    {"cmd": "PUB", "topic": "t" * 65, "body": "x"},
    {"cmd": "PUB", "topic": 7, "body": "x"},
    {"cmd": "PUB", "body": "x"},
    {"cmd": "PUB", "topic": "t"},
    {"cmd": "PUB", "topic": "t", "body": ""},
    {"cmd": "PUB", "topic": "t", "body": {"json": True}},
    {"cmd": "PUB", "topic": "t", "body_base64": "/w=="},
    {"cmd": "PUB", "topic": "t", "body_base64": "/w="},
    {"cmd": "PUB", "topic": "t", "body_base64": ""},
    {"cmd": "PUB", "topic": "t", "body_base64": "_w=="},
    {"cmd": "PUB", "topic": "t", "body": "x", "body_base64": "/w=="},
    {"cmd": "DPUB", "topic": "t", "body": "x"},
    {"cmd": "DPUB", "topic": "t", "body": "x", "defer_ms": 0},
    {"cmd": "DPUB", "topic": "t", "body": "x", "defer_ms": 3_600_000},
    {"cmd": "DPUB", "topic": "t", "body": "x", "defer_ms": 3_600_001},
    {"cmd": "DPUB", "topic": "t", "body": "x", "defer_ms": -1},
    {"cmd": "MPUB", "topic": "t"},
    {"cmd": "MPUB", "topic": "t", "bodies": []},
    {"cmd": "MPUB", "topic": "t", "bodies": ["x", ""]},
    {"cmd": "MPUB", "topic": "t", "bodies": ["x", 7]},
    {"cmd": "MPUB", "topic": "t", "bodies": ["x", "y"]},
    {"cmd": "MPUB", "topic": "t", "bodies": "x"},
    {"cmd": "MPUB", "topic": "t", "bodies_base64": ["/w=="]},
    {"cmd": "MPUB", "topic": "t", "bodies": ["x"], "bodies_base64": ["/w=="]},
    {"cmd": "AUTH"},
    {"cmd": "AUTH", "secret": ""},
    {"cmd": "AUTH", "secret": "s" * MAX_SECRET_BYTES},
    {"cmd": "AUTH", "secret": "s" * (MAX_SECRET_BYTES + 1)},
    {"cmd": "CLS"},
    {"cmd": "CLS", "ref": {"a": 1}},
    {"cmd": "NOP"},
    {"cmd": "NOP", "ref": None},
    {"cmd": "NOP", "ref": 1.5},
    {"cmd": "NOP", "ref": False},
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: json.dumps(command)[:60])
def test_a_session_takes_what_the_contract_takes_and_nothing_else(command: Json) -> None:
    """Types, bounds, what has to be there, and what excludes each other."""
    assert (not contract_errors(command["cmd"], command)) is is_taken(command)


def test_what_is_no_command_is_in_no_schema() -> None:
    """Nothing that starts with another verb is described."""
    assert [] != contract_errors("SUB", {"cmd": "SUB"})
    assert not is_taken({"cmd": "SUB"})


# Examples


@pytest.mark.parametrize("message,payload", list(examples()))
def test_an_example_is_a_message_of_its_name(message: str, payload: Json) -> None:
    assert [] == contract_errors(message, payload)
    assert message == (payload["cmd"] if message.isupper() else message_of(payload))


def decoded(payload: Json) -> MessageOut | BinaryMessageOut | ResponseOut | ErrorOut:
    """Return an object from the gateway as the class that says it."""
    if payload["type"] == "message":
        if "body" in payload:
            return msgspec.convert(payload, MessageOut)
        return msgspec.convert(payload, BinaryMessageOut)
    if payload["type"] == "response":
        return msgspec.convert(payload, ResponseOut)
    return msgspec.convert(payload, ErrorOut)


@pytest.mark.parametrize(
    "payload", [payload for name, payload in examples() if not name.isupper()], ids=json.dumps
)
def test_an_example_from_the_gateway_is_what_it_would_send(payload: Json) -> None:
    """Through the real classes and the real encoder it comes out as it went in."""
    assert payload == json.loads(encode_frame([decoded(payload)]))


@pytest.mark.parametrize(
    "payload", [payload for name, payload in examples() if name.isupper()], ids=json.dumps
)
def test_an_example_to_the_gateway_is_taken(payload: Json) -> None:
    """A session finds nothing wrong with it."""
    assert [] == [
        each for each in decode_frame(json.dumps(payload)) if not isinstance(each, Command)
    ]
    assert is_taken(payload)


def test_the_texts_of_refusals_are_those_of_the_code() -> None:
    [fin] = decode_frame('{"cmd":"FIN","id":"0d3a9c0f11ab4002-1","ref":7}')
    late = not_in_flight_error(fin, ["0d3a9c0f11ab4002-1"])  # type: ignore[arg-type]
    gone = channel_gone_error(("orders", "billing"))
    shown = {each["name"]: each["payload"] for each in MESSAGES["error"]["examples"]}

    assert shown["tooLate"] == json.loads(encode_frame([late]))
    assert shown["channelGone"] == json.loads(encode_frame([gone]))
    assert [shown["noCommand"]] == answers_to("[]")


def on_the_page() -> Iterable[Json]:
    """Return every JSON object that stands in a block of docs/websocket.md."""
    for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            yield json.loads(line)


@pytest.mark.parametrize("payload", list(on_the_page()), ids=json.dumps)
def test_every_example_of_the_page_holds(payload: Json) -> None:
    """Through the real classes, and against the contract."""
    if "type" in payload:
        assert payload == json.loads(encode_frame([decoded(payload)]))
        assert [] == gateway_contract_errors(payload)
    else:
        assert is_taken(payload)
        assert [] == contract_errors(payload["cmd"], payload)


def test_no_schema_of_an_object_is_without_a_name() -> None:
    """Programs that make types of the contract name them after it."""
    assert [] == [where for name, each in SCHEMAS.items() for where in nameless(each, name)]


def nameless(schema: Json, where: str) -> Iterator[str]:
    """Yield where below the top of *schema* an object, a choice or one of several has no title."""
    below = [(f"{where}/oneOf", each, True) for each in schema.get("oneOf", ())]
    for name, each in schema.get("properties", {}).items():
        is_made_a_type = bool(each.keys() & {"properties", "enum", "oneOf"})
        below.append((f"{where}/{name}", each, is_made_a_type))
    for place, each, needs_name in below:
        if needs_name and not each.keys() & {"title", "$ref"}:
            yield place
        yield from nameless(each, place)


# Codes


def codes() -> set[str]:
    """Return the codes of error frames that the contract names."""
    return {each["const"] for each in SCHEMAS["ErrorCode"]["oneOf"]}


def codes_of_the_session() -> set[str]:
    """Return each code that stands in gateway/session."""
    found = set()
    for path in (ROOT / "gateway" / "session").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"^(?:E_[A-Z_]+|CHANNEL_GONE)$", node.value))
    return found - {"E_"} | {f"E_{verb}_FAILED" for verb in ("FIN", "REQ", "TOUCH")}


def refusals_of_publishing() -> list[Refusal]:
    """Return what a publish may be refused with by NSQ or by the gateway."""
    publish = PublishBodies("PUB", None, "t", [b"x"])
    errors: list[BaseException] = [
        AuthRequired("a secret is asked for"),
        LimitReached("256 secrets publish"),
        NoBroker(),
        OutcomeUnknown(),
        Overloaded(waiting_bytes=1, size_bytes=1, limit_bytes=1),
        RateLimited(limit_per_s=1.0, retry_after_s=1.0),
        ValueError(),
        # The only one of the kind that is told with its own code, see the answers to an MPUB.
        *(BrokerRefused(code, "exiting") for code in _REFUSALS),
    ]
    outcomes = [_outcome(publish, error) for error in errors]
    return [outcome for outcome in outcomes if outcome is not None]


def refusals_of_joining() -> list[SubscribeError]:
    """Return what an AUTH may be refused with."""
    errors: list[Exception] = [
        BrokerUnreachable("127.0.0.1:4150", "gone"),
        LimitReached("256 secrets"),
        NoBroker(),
        ValueError(),
        *(BrokerRefused(code, "") for code in ("E_AUTH_FAILED", "E_UNAUTHORIZED", "E_SUB_FAILED")),
    ]
    return [explain_subscribe_error(error) for error in errors]


def test_the_contract_has_every_code_of_a_refusal_and_none_besides() -> None:
    """What the session says, what publishing ends in, why there is no subscription."""
    refusals = {each.code for each in refusals_of_publishing()}
    refusals |= {each.code for each in refusals_of_joining()}

    assert codes_of_the_session() | refusals == codes()


def test_what_may_be_tried_again_is_what_the_code_says() -> None:
    """By the member `retryable` of an error, whoever refuses; what a session refuses stays so."""
    retryable = {each.code for each in refusals_of_publishing() if each.retryable}
    retryable |= {each.code for each in refusals_of_joining() if each.is_retryable}
    retryable |= {channel_gone_error(("t", "c")).code}

    assert set(SCHEMAS["ErrorCode"]["x-retryable"]) == retryable


def test_nsqds_codes_are_those_of_the_table_of_faults() -> None:
    """What nsqd may answer to a command of a socket has a row there."""
    in_table = {code for code, _ in NSQD_ERROR_RESPONSES}

    assert {code for code in codes() if code in in_table} == in_table - {"E_BAD_CHANNEL"}


def test_the_page_has_every_code_of_a_refusal() -> None:
    """What a client may see, a reader finds."""
    assert [] == [code for code in codes() if f"`{code}`" not in PAGE]


def close_codes() -> dict[int, Json]:
    return {each["code"]: each for each in CHANNEL["x-close-codes"]}


def test_the_contract_has_every_close_code_and_none_besides() -> None:
    named = {code: each["name"] for code, each in close_codes().items()}

    assert {code.value: code.name for code in CloseCode} == named


def test_the_codes_of_others_are_none_of_ours() -> None:
    others = [each["code"] for each in CHANNEL["x-close-codes-of-others"]]

    assert [1001, 1005, 1006] == others
    assert not set(others) & set(close_codes())
    assert [] == [code for code in others if str(code) not in PAGE]


def test_from_4500_on_a_client_stays_away() -> None:
    for code, each in close_codes().items():
        if code >= 4000:
            assert ("stop" if code >= 4500 else "reconnect") == each["client"]


def test_every_reason_to_end_has_a_code() -> None:
    assert set(CloseReason) == set(CLOSE_CODES)


def test_the_page_has_every_close_code_and_none_besides() -> None:
    rows = re.findall(r"^\| (\d{4}) \| .* \| (\w+)", PAGE, re.MULTILINE)
    advice = {"backoff": "reconnect"}
    promised = {
        code: advice.get(each["client"], each["client"]) for code, each in close_codes().items()
    }

    assert promised == {int(code): word for code, word in rows}


# The address


read = partial(parse_subscribe_request, max_in_flight_limit=2_500, limits=Limits())
NUMBERS = [name for name, each in QUERY.items() if each["type"] == "integer"]


def test_the_contract_has_every_parameter_and_none_besides() -> None:
    assert _PARAMETERS == tuple(QUERY)


def test_the_page_has_every_parameter_and_none_besides() -> None:
    table = PAGE.partition("| parameter |")[2].partition("\n\n")[0]

    assert list(_PARAMETERS) == re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_the_other_contract_has_the_same_parameters() -> None:
    """openapi.yaml describes the upgrade, with the same bounds and defaults."""
    contract = yaml.safe_load((ROOT / "openapi.yaml").read_text(encoding="utf-8"))
    named = contract["components"]["parameters"]
    parameters = [
        named[_last(each)] if "$ref" in each else each
        for each in contract["paths"]["/sub"]["get"]["parameters"]
    ]
    there = {each["name"]: each["schema"] for each in parameters if each["in"] == "query"}
    here = {
        name: {key: value for key, value in each.items() if key != "description"}
        for name, each in QUERY.items()
    }

    assert here == there


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_the_address_has_the_bounds_of_the_contract(name: str) -> None:
    """The least and the greatest are taken, and nothing beyond; the page names both."""
    low, high = QUERY[name]["minimum"], QUERY[name]["maximum"]
    for value in (low, high):
        assert value == getattr(read(f"topic=t&{name}={value}".encode()), name)
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidRequest, match=str(value)):
            read(f"topic=t&{name}={value}".encode())

    [row] = re.findall(rf"^\| `{name}` .*$", PAGE, re.MULTILINE)
    assert str(low) in row
    assert str(high) in row


@pytest.mark.parametrize("name", [name for name in QUERY if "default" in QUERY[name]])
def test_a_default_of_the_address_is_that_of_the_contract(name: str) -> None:
    """What is left out is as if it had been said so."""
    default = QUERY[name]["default"]

    assert default == getattr(read(b"topic=t&channel=c"), name)
    [row] = re.findall(rf"^\| `{name}` .*$", PAGE, re.MULTILINE)
    assert str(default) in row.rpartition(" | ")[2]


def test_ack_has_the_values_of_the_contract() -> None:
    """And no other; who says nothing and names a channel finishes by themselves."""
    assert ["client", "auto"] == QUERY["ack"]["enum"]
    assert [False, True] == [
        read(f"topic=t&channel=c&ack={value}".encode()).is_auto_ack
        for value in QUERY["ack"]["enum"]
    ]
    with pytest.raises(GatewayError):
        read(b"topic=t&ack=other")
    assert [False, True] == [
        read(query).is_auto_ack for query in (b"topic=t&channel=c", b"topic=t")
    ]


def empty_members(node: yaml.Node | None) -> Iterator[str]:
    """Yield each name within braces that has no value, with its line."""
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from empty_members(each)
    if not isinstance(node, yaml.MappingNode):
        return
    for name, value in node.value:
        if node.flow_style and value.start_mark.index == value.end_mark.index:
            yield f"line {name.start_mark.line + 1}: {name.value}"
        yield from empty_members(value)


@pytest.mark.parametrize("contract", ["asyncapi.yaml", "openapi.yaml"])
def test_no_comma_cuts_a_description_in_two(contract: str) -> None:
    """In braces it ends an unquoted text, and what follows is a name without a value."""
    text = (ROOT / contract).read_text()

    assert [] == list(empty_members(yaml.compose(text)))
