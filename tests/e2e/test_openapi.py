"""The contract in openapi.yaml is valid, and it is what the public port does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import httpx
import pytest
import yaml
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from gateway.access.rights import Identity, Rights
from gateway.client.nsqd_answers import NodeResponse, raise_for_results
from gateway.credentials import Secret
from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    CredentialRefused,
    Forbidden,
    GatewayError,
    InvalidRequest,
    LimitReached,
    NoBroker,
    NoNsqdHttpAddress,
    OutcomeUnknown,
    Overloaded,
    PartialFailure,
    PermissionDenied,
    RateLimited,
    RequestTimeout,
)
from gateway.protocol.http_api import HTTP_STATUS
from gateway.protocol.wire import Limits
from gateway.web.admin.routes import AdminContext, admin_router
from gateway.web.app import PUBLIC_ROUTES, AppContext, _PublicApp, create_app
from gateway.web.auth import AccessPolicy, AdminAccess, Principal
from gateway.web.errors import (
    ERROR_RESPONSES,
    INTERNAL_ERROR,
    NOT_FOUND,
    NSQD_ERROR_RESPONSES,
    UPGRADE_REQUIRED,
    problem_response,
)
from gateway.web.origins import OriginPolicy
from gateway.web.rate_limit import PublishBuckets
from gateway.web.responses import TITLES
from gateway.web.site.assets import static_files_router
from gateway.web.site.docs import docs_router
from gateway.web.subscribe.connection_limits import ConnectionLimits, UnauthenticatedLimit
from gateway.web.subscribe.request import (
    _PARAMETERS,
    _PULL_PARAMETERS,
    choose_subprotocol,
    parse_subscribe_request,
)
from gateway.web.whoami import whoami_router
from tests.support.gateways.public_http import public_http
from tests.support.http.asgi import http_client
from tests.support.http.raw_http import RawAnswer, send_raw_request
from tests.support.http.recording_publisher import RecordingPublisher
from tests.support.project import ROOT

CONTRACT: dict[str, Any] = yaml.safe_load((ROOT / "openapi.yaml").read_text(encoding="utf-8"))
EXAMPLES: dict[str, dict[str, Any]] = {
    name: example["value"]
    for name, example in CONTRACT["components"]["examples"].items()
    if name.isupper()
}
"""Problems; a name starts with nsqd's word, and goes on where that is said for two reasons."""
OPERATIONS = [(method, path) for path, methods in CONTRACT["paths"].items() for method in methods]
PROBLEM = OAS31Validator(CONTRACT["components"]["schemas"]["Problem"])


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        parts = node["$ref"].removeprefix("#/").split("/")
        node = CONTRACT
        for part in parts:
            node = node[part]
    return node


def responses_of(method: str, path: str) -> dict[int, dict[str, Any]]:
    """Return what the contract promises for an operation, by status."""
    responses = CONTRACT["paths"][path][method]["responses"]
    return {int(status): resolved(response) for status, response in responses.items()}


def examples_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the problems that a response of the contract shows."""
    # An answer to HEAD has none.
    media = response.get("content", {}).get("application/problem+json", {"examples": {}})
    examples = media["examples"].values()
    return [resolved(example)["value"] for example in examples]


def word_of(example: dict[str, Any]) -> str:
    """Return nsqd's word in a problem."""
    return str(example["message"])


def documented(method: str, path: str) -> set[tuple[int, str]]:
    """Return each pair of status and nsqd's word that the contract promises for an operation."""
    return {
        (status, token)
        for status, response in responses_of(method, path).items()
        if status >= 400
        for token in map(word_of, examples_of(response))
    }


def test_the_contract_is_valid() -> None:
    """It is OpenAPI 3.1, examples and all."""
    validate(CONTRACT)


def test_the_contract_has_the_routes_of_the_app() -> None:
    routes = {
        (path.replace(":opt", "{name}"), method)
        for path, methods in PUBLIC_ROUTES.items()
        for method in methods
    }
    operations = {(path, method.upper()) for method, path in OPERATIONS}

    assert routes == operations - {("/pub", "OPTIONS"), ("/mpub", "OPTIONS")}


@pytest.mark.parametrize("method,path", OPERATIONS)
def test_every_status_and_word_comes_from_the_tables(method: str, path: str) -> None:
    """No pair is in the contract that the code does not know."""
    faults = [INTERNAL_ERROR, *ERROR_RESPONSES.values(), *NSQD_ERROR_RESPONSES.values()]
    known = {(status, token) for token, status in HTTP_STATUS.items()}
    known |= {(fault.status, fault.token) for fault in faults}
    known |= {(400, "INVALID_AUTHORIZATION"), (400, "INVALID_SUBPROTOCOL"), (400, "INVALID_ARG")}
    names = (*_PARAMETERS, *_PULL_PARAMETERS)
    known |= {(400, f"INVALID_ARG_{name.upper()}") for name in names}
    known |= {(fault.status, fault.token) for fault in (UPGRADE_REQUIRED, NOT_FOUND)}

    assert set() == documented(method, path) - known


@pytest.mark.parametrize("method,path", OPERATIONS)
def test_every_answer_with_a_body_has_an_example(method: str, path: str) -> None:
    """And no status is without words for a person."""
    for response in responses_of(method, path).values():
        assert response["description"]
        assert all(media["examples"] for media in response.get("content", {}).values())


def said_by_fastapi() -> dict[str, dict[str, Any]]:
    """Return what FastAPI says of its routes, all but the one that is a WebSocket."""
    # The routes only: nobody calls them.
    admin = cast("AdminContext", None)
    routers = [
        *(admin_router(admin), whoami_router(AccessPolicy())),
        *(docs_router(), static_files_router()),
    ]
    app = _PublicApp(AppContext(routers=routers))
    paths: dict[str, dict[str, Any]] = app._rest.openapi()["paths"]
    return {path: methods for path, methods in paths.items() if path != "/sub"}


FASTAPI = {
    (path, method): route
    for path, methods in said_by_fastapi().items()
    for method, route in methods.items()
}
IN_FRONT = {(path, method) for path in ("/pub", "/mpub") for method in ("post", "options")}
IN_FRONT |= {("/sub", "get"), ("/pull", "post"), ("/ack", "post")}
"""What is answered before FastAPI is asked."""
AROUND = {408, 431, 500}
"""What is said to a request that never arrives in whole, and by the handler of every failure."""


def test_the_contract_has_the_routes_of_fastapi() -> None:
    assert {(path, method) for method, path in OPERATIONS} == set(FASTAPI) | IN_FRONT


@pytest.mark.parametrize("path,method", FASTAPI)
def test_the_contract_has_the_statuses_of_fastapi(path: str, method: str) -> None:
    """In both directions; 422 is FastAPI's own word for what is answered 400 here."""
    statuses = {int(status) for status in FASTAPI[path, method]["responses"]} - {422}

    assert set(responses_of(method, path)) - AROUND == statuses - AROUND


@pytest.mark.parametrize("path,method", FASTAPI)
def test_the_contract_has_the_parameters_of_fastapi(path: str, method: str) -> None:
    """In both directions, and as much required."""
    in_contract, in_fastapi = (
        {
            (each["name"], each.get("required", False))
            for each in map(resolved, operation.get("parameters", ()))
            if each["in"] == "query"
        }
        for operation in (CONTRACT["paths"][path][method], FASTAPI[path, method])
    )

    assert in_contract == in_fastapi


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_problem_of_its_word(name: str) -> None:
    """Its members agree with each other and with the schema."""
    example = EXAMPLES[name]

    assert [] == [error.message for error in PROBLEM.iter_errors(example)]
    assert name.startswith(word_of(example))
    assert TITLES[example["status"]] == example["title"]
    assert (example["status"] in {408, 429, 502, 503}) is example["retryable"]


@pytest.mark.parametrize("method,path", OPERATIONS)
def test_a_word_stands_at_its_status(method: str, path: str) -> None:
    """An operation refers to an example under the status that the example has."""
    wrong = [
        (status, example)
        for status, response in responses_of(method, path).items()
        if status >= 400
        for example in examples_of(response)
        if status != example["status"]
    ]

    assert [] == wrong


SHAPES = Registry().with_resource("urn:contract", DRAFT202012.create_resource(CONTRACT))


@pytest.mark.parametrize("name", ["Stats", "Info", "Whoami"])
def test_the_example_of_a_report_has_its_shape(name: str) -> None:
    """Members, types and null as the schema says."""
    shape = OAS31Validator({"$ref": f"urn:contract#/components/schemas/{name}"}, registry=SHAPES)
    example = CONTRACT["components"]["examples"][name]["value"]

    assert [] == [error.message for error in shape.iter_errors(example)]


OUTCOMES = [
    None,
    Overloaded(waiting_bytes=67_108_764, size_bytes=204, limit_bytes=67_108_864),
    LimitReached(EXAMPLES["FULL"]["detail"]),
    NoBroker(),
    AuthRequired("nsqd at 127.0.0.1:4150 requires AUTH and there is no secret"),
    CredentialRefused("no such key"),
    OutcomeUnknown(),
    BrokerRefused("E_PUB_FAILED", "PUB failed exiting"),
    BrokerRefused("E_AUTH_FIRST", "AUTH required before PUB"),
    BrokerRefused("E_AUTH_FAILED", 'AUTH failed; topic "orders"'),
    BrokerRefused("E_UNAUTHORIZED", 'AUTH failed for PUB on "orders" ""'),
    ValueError(),
]
ALICE = Principal(None, Identity("https://id.example.com", "alice", Rights()))
DENIED: dict[str, Callable[[], None]] = {
    "UNAUTHORIZED_PUBLISH": lambda: ALICE.check_publish("orders"),
    "UNAUTHORIZED_ADMIN": lambda: ALICE.check_admin("orders"),
    "UNAUTHORIZED_STATS": lambda: ALICE.check_stats("orders"),
}


@pytest.mark.parametrize("name", DENIED)
def test_the_example_of_a_missing_right_is_what_its_check_says(name: str) -> None:
    with pytest.raises(PermissionDenied) as caught:
        DENIED[name]()

    assert EXAMPLES[name] == problem_of(caught.value)


def test_the_example_of_a_bad_token_has_no_reason() -> None:
    assert EXAMPLES["AUTH_FAILED_TOKEN"] == problem_of(CredentialRefused("no such key"))


def problem_of(error: Exception) -> dict[str, Any]:
    _, _, body = problem_response(error, "3f6c0d1e9a7b4c52")
    document: dict[str, Any] = json.loads(body)
    return document


GOOD_REQUESTS = [("/pub?topic=orders", b"x"), ("/mpub?topic=orders", b"x")]
REQUESTS: list[tuple[str, bytes]] = [
    *GOOD_REQUESTS,
    ("/pub?topic=orders", b""),
    ("/pub?topic=orders", b"x" * 1_048_577),
    ("/pub?topic=a;", b"x"),
    ("/pub", b"x"),
    ("/pub?topic=a+b", b"x"),
    ("/pub?topic=orders&defer=-1", b"x"),
    ("/mpub?topic=orders", b"x" * 1_048_577),
    ("/mpub?topic=orders", b"x" * 5_242_881),
    ("/mpub?topic=a;", b"x"),
    ("/mpub", b"x"),
    ("/mpub?topic=a+b", b"x"),
    ("/mpub?topic=orders&binary=1", b"\0\0\0\0"),
    ("/mpub?topic=orders&binary=1", b"\0\0\0\1\0\0\0\2a"),
]


async def answers(error: Exception | None, **headers: str) -> list[httpx.Response]:
    """Return what the public port says to every request, to good ones when there is an *error*."""
    requests = REQUESTS if error is None else GOOD_REQUESTS
    async with public_http(RecordingPublisher(error)) as port:
        port.http.headers.update({"X-Request-Id": "3f6c0d1e9a7b4c52", **headers})
        return [await port.http.post(target, content=body) for target, body in requests]


async def broken_off(target: str) -> tuple[RawAnswer, RawAnswer]:
    """Return what the public port says to a body that stays away, and to a head without end."""
    head = f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n".encode()
    async with public_http(RecordingPublisher(), http_limits={"request_timeout_s": 0.1}) as port:
        return await asyncio.gather(
            send_raw_request(port.address, head + b"\r\nx"),
            send_raw_request(port.address, head + b"X-A: " + b"a" * 200_000),
        )


async def too_fast(target: str) -> httpx.Response:
    """Return what the public port says to the second message of a caller that may send one."""
    quota = PublishBuckets(0.1, burst=1)
    async with public_http(RecordingPublisher(), rate_limit=quota) as port:
        assert 200 == (await port.http.post(target, content=b"x")).status_code
        return await port.http.post(target, content=b"x")


async def test_what_the_port_says_is_what_the_contract_says() -> None:
    """Bad requests and bad outcomes together give exactly the documented statuses and words."""
    all_answers = [answer for error in OUTCOMES for answer in await answers(error)]
    all_answers += await answers(None, origin="https://example.org")
    all_answers += await answers(None, authorization="Bearer")
    said = {
        (answer.url.path, answer.status_code, word_of(answer.json()))
        for answer in all_answers
        if answer.status_code != 200
    }
    for path in ("/pub", "/mpub"):
        target = f"{path}?topic=orders"
        said |= {(path, answer.status, answer.message) for answer in await broken_off(target)}
        refused = await too_fast(target)
        said.add((path, refused.status_code, word_of(refused.json())))

    assert {
        (path, status, token)
        for path in ("/pub", "/mpub")
        for status, token in documented("post", path)
    } == said


def headers_of(path: str, status: int, method: str = "post") -> list[str]:
    """Return the headers that the contract requires for an operation and its status."""
    headers = responses_of(method, path)[status]["headers"]
    return [name for name, header in headers.items() if resolved(header).get("required")]


@pytest.mark.parametrize("error", OUTCOMES, ids=str)
async def test_every_answer_has_the_documented_headers(error: Exception | None) -> None:
    """Required headers are there, whatever the outcome."""
    missing = [
        (answer.url.path, answer.status_code, name)
        for answer in await answers(error)
        for name in headers_of(answer.url.path, answer.status_code)
        if name not in answer.headers
    ]

    assert [] == missing


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
async def test_who_is_too_fast_is_told_when_to_come_back(path: str) -> None:
    """All documented headers of 429 are there."""
    answer = await too_fast(f"{path}?topic=orders")

    assert 429 == answer.status_code
    assert [] == [name for name in headers_of(path, 429) if name not in answer.headers]


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
@pytest.mark.parametrize(
    "status,headers",
    [
        (200, {}),
        (200, {"Origin": "https://friend.example"}),
        (204, {"Origin": "https://friend.example", "Access-Control-Request-Method": "POST"}),
        (403, {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}),
    ],
)
async def test_a_browser_that_asks_first_is_answered_as_documented(
    path: str, status: int, headers: dict[str, str]
) -> None:
    """Status and headers of OPTIONS: for a program, a page on the list, and a foreign one."""
    origins = OriginPolicy(["https://friend.example"])
    async with public_http(RecordingPublisher(), origins=origins) as port:
        answer = await port.http.options(path, headers=headers)

    needed = headers_of(path, status, "options")
    assert status == answer.status_code
    assert [] == [name for name in needed if name not in answer.headers]


FILES = [(method, path) for method, path in OPERATIONS if path.startswith(("/nsq", "/console"))]


@pytest.mark.parametrize("method,path", FILES)
async def test_what_a_browser_gets_has_the_documented_headers(method: str, path: str) -> None:
    """Names and, where the contract tells them, values: whole, kept, and not there."""
    http = http_client(create_app(AppContext(routers=[static_files_router()])))
    whole = await http.request(method, path.format(name="console.js"))
    known = {"If-None-Match": whole.headers["etag"]}
    kept = await http.request(method, path.format(name="console.js"), headers=known)
    answers = [whole, kept]
    if path.endswith("}"):
        answers.append(await http.request(method, path.format(name="nothing.js")))

    wrong = [
        (answer.status_code, name)
        for answer in answers
        for name, header in responses_of(method, path)[answer.status_code]["headers"].items()
        if not OAS31Validator(resolved(header)["schema"]).is_valid(answer.headers.get(name))
    ]
    assert [200, 304, 404][: len(answers)] == [answer.status_code for answer in answers]
    assert [] == wrong


async def test_the_example_of_what_is_not_there_is_what_the_app_sends() -> None:
    http = http_client(create_app(AppContext(routers=[static_files_router()])))
    id_of_example = {"X-Request-Id": "3f6c0d1e9a7b4c52"}

    answer = await http.get("/console/nothing.js", headers=id_of_example)

    assert EXAMPLES["NOT_FOUND"] == answer.json()


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
async def test_what_is_broken_off_has_the_documented_headers(path: str) -> None:
    """The caller is told that the connection ends."""
    missing = [
        (answer.status, name)
        for answer in await broken_off(f"{path}?topic=orders")
        for name in headers_of(path, answer.status)
        if name.lower() not in answer.headers
    ]

    assert [] == missing


@pytest.mark.parametrize(
    "name,error",
    [
        ("MISSING_ARG_TOPIC", InvalidRequest("MISSING_ARG_TOPIC", "topic is missing")),
        ("MISSING_ARG_CHANNEL", InvalidRequest("MISSING_ARG_CHANNEL", "channel is missing")),
        *(
            (problem_of(error)["message"], error)
            for error in OUTCOMES
            if error is not None and not isinstance(error, CredentialRefused)
        ),
        ("REQUEST_TIMEOUT", RequestTimeout(30.0)),
        ("RATE_LIMITED", RateLimited(limit_per_s=100.0, retry_after_s=0.3)),
        ("NO_BROKER_HTTP", NoNsqdHttpAddress()),
        ("PARTLY_DONE", PartialFailure(["nsqd 127.0.0.1:4151: no complete answer within 5 s"])),
    ],
    ids=str,
)
def test_an_example_is_what_the_app_would_send(name: str, error: Exception) -> None:
    """The texts of the contract are those of the code."""
    assert EXAMPLES[name] == problem_of(error)


def test_the_example_of_a_disallowed_page_is_what_the_app_sends() -> None:
    """The page is of another origin, and --allow-origin does not list it."""
    with pytest.raises(Forbidden) as caught:
        OriginPolicy().check([b"https://example.org"], b"127.0.0.1:8080")

    assert EXAMPLES["FORBIDDEN"] == problem_of(caught.value)


@pytest.mark.parametrize(
    "name,secret,headers",
    [
        ("FORBIDDEN_CLOSED", None, []),
        ("FORBIDDEN_SECRET", Secret(b"ours"), [(b"authorization", b"Bearer theirs")]),
        ("AUTH_REQUIRED", Secret(b"ours"), []),
    ],
)
async def test_the_examples_of_what_is_closed_are_what_the_app_sends(
    name: str, secret: Secret | None, headers: list[tuple[bytes, bytes]]
) -> None:
    """Whoever is kept out of administration reads what would let them in."""

    async def yes() -> bool:
        return True

    access = AdminAccess(secret, is_closed=lambda: True, probe_auth=yes)

    with pytest.raises(GatewayError) as caught:
        await access.check(headers)

    assert EXAMPLES[name] == problem_of(caught.value)


@pytest.mark.parametrize("token", ["TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"])
def test_the_examples_of_what_is_not_there_are_what_the_app_sends(token: str) -> None:
    """Two nsqd were asked, and neither has it."""
    body = b'{"message":"%b"}' % token.encode()

    with pytest.raises(InvalidRequest) as caught:
        raise_for_results(
            [NodeResponse(node=node, status=404, body=body) for node in ("a:1", "b:1")]
        )

    assert EXAMPLES[token] == problem_of(caught.value)


async def test_the_examples_of_bad_requests_are_what_the_app_sends() -> None:
    """Value, limit and unit are spelled in the contract as in the code."""
    bad = await answers(None) + await answers(None, authorization="Bearer")
    sent = [answer.json() for answer in bad if answer.status_code != 200]
    # A line that is too big tells its number, which a single message does not have.
    documents = {json["message"]: json for json in reversed(sent)}

    assert {token: EXAMPLES[token] for token in documents} == documents


WRONG_SUBSCRIPTIONS = [
    "chanel=c&topic=orders",
    "topic=a;b",
    "channel=c",
    "topic=a+b",
    "topic=a+b&channel=c",
    "topic=orders&channel=a+b",
    "topic=orders&channel=c&max_in_flight=0",
    "topic=orders&msg_timeout_ms=1",
    "topic=orders&ack=yes",
    "topic=orders&requeue_on_close_ms=-1",
    "topic=orders&max_attempts=-1",
    "topic=orders&channel=c&sample_rate=50",
]


def refusal_of(attempt: Callable[[], object]) -> dict[str, Any]:
    """Return the problem that a subscription is refused with."""
    with pytest.raises(GatewayError) as caught:
        attempt()
    return problem_of(caught.value)


def test_the_examples_of_wrong_subscriptions_are_what_the_app_sends() -> None:
    """Every 400 of /sub has a request here that is answered with it, word for word."""
    sent = [
        refusal_of(
            partial(
                parse_subscribe_request, query.encode(), max_in_flight_limit=2_500, limits=Limits()
            )
        )
        for query in WRONG_SUBSCRIPTIONS
    ]
    sent.append(refusal_of(partial(choose_subprotocol, ["nsq.v2"])))
    said = {each["message"]: each for each in sent}
    promised = {
        word_of(example): example
        for example in examples_of(responses_of("get", "/sub")[400])
        if word_of(example) != "INVALID_AUTHORIZATION"
    }

    assert promised == said


def _full_of_sockets() -> None:
    seats = ConnectionLimits(1_000)
    for _ in range(1_001):
        seats.acquire("203.0.113.7")


def _full_for_an_address() -> None:
    seats = ConnectionLimits(1_000, limit_per_address=20)
    for _ in range(21):
        seats.acquire("203.0.113.7")


def _full_of_waiting() -> None:
    room = UnauthenticatedLimit(100)
    for _ in range(101):
        room.acquire(object())


def _refused_by_nsqd() -> None:
    description = "SUB failed consumers for orders:billing exceeds limit of 2"
    raise BrokerRefused("E_SUB_FAILED", description)


@pytest.mark.parametrize(
    "name,attempt",
    [
        ("FULL_OF_SOCKETS", _full_of_sockets),
        ("FULL_FOR_ADDRESS", _full_for_an_address),
        ("FULL_OF_WAITING", _full_of_waiting),
        ("SUB_FAILED", _refused_by_nsqd),
    ],
)
def test_the_examples_of_subscriptions_that_find_no_room_are_what_the_app_sends(
    name: str, attempt: Callable[[], object]
) -> None:
    """Counts and limits are told."""
    assert EXAMPLES[name] == refusal_of(attempt)
