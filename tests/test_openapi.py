"""The contract in openapi.yaml is valid, and it is what the public port does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from gateway.errors import (
    AuthRequired,
    BrokerRefused,
    Forbidden,
    Full,
    InvalidRequest,
    NoBroker,
    OutcomeUnknown,
    Overloaded,
)
from gateway.protocol.http_api import HTTP_STATUS
from gateway.protocol.wire import Limits
from gateway.web.app import PUBLIC_ROUTES, WebParts, create_app
from gateway.web.faults import FAULTS, INTERNAL_ERROR, REFUSALS, TITLES, problem
from tests.support.asgi import http_client
from tests.support.recording_publisher import RecordingPublisher

CONTRACT: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[1] / "openapi.yaml").read_text(encoding="utf-8")
)
EXAMPLES: dict[str, dict[str, Any]] = {
    token: example["value"] for token, example in CONTRACT["components"]["examples"].items()
}
OPERATIONS = [(method, path) for path, methods in CONTRACT["paths"].items() for method in methods]
PROBLEM = OAS31Validator(CONTRACT["components"]["schemas"]["Problem"])


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """Return what *node* is or refers to."""
    while "$ref" in node:
        parts = node["$ref"].removeprefix("#/").split("/")
        node = CONTRACT
        for part in parts:
            node = node[part]
    return node


def documented(method: str, path: str) -> set[tuple[int, str]]:
    """Return each pair of status and token that the contract promises for an operation."""
    pairs = set()
    for status, response in CONTRACT["paths"][path][method]["responses"].items():
        for media in resolved(response)["content"].values():
            pairs |= {(int(status), token) for token in media["examples"]}
    return pairs


def test_the_contract_is_valid() -> None:
    """It is OpenAPI 3.1, examples and all."""
    validate(CONTRACT)


def test_the_contract_has_the_routes_of_the_app() -> None:
    """Every route but the WebSocket is in it, and none besides."""
    routes = {(path, method) for path, methods in PUBLIC_ROUTES.items() for method in methods}

    assert routes - {("/sub", "GET")} == {(path, method.upper()) for method, path in OPERATIONS}


@pytest.mark.parametrize("method,path", OPERATIONS)
def test_every_status_and_word_comes_from_the_tables(method: str, path: str) -> None:
    """No pair is in the contract that the code does not know."""
    faults = [INTERNAL_ERROR, *FAULTS.values(), *REFUSALS.values()]
    known = {(status, token) for token, status in HTTP_STATUS.items()}
    known |= {(fault.status, fault.token) for fault in faults}
    known |= {(200, "OK"), (400, "INVALID_AUTHORIZATION")}

    assert set() == documented(method, path) - known


@pytest.mark.parametrize("token", EXAMPLES)
def test_an_example_is_a_problem_of_its_word(token: str) -> None:
    """Its members agree with each other and with the schema."""
    example = EXAMPLES[token]

    assert [] == [error.message for error in PROBLEM.iter_errors(example)]
    assert (token, TITLES[example["status"]]) == (example["message"], example["title"])
    assert (example["status"] == 503) is example["retryable"]


@pytest.mark.parametrize("method,path", OPERATIONS)
def test_a_word_stands_at_its_status(method: str, path: str) -> None:
    """An operation refers to an example under the status that the example has."""
    pairs = documented(method, path) - {(200, "OK")}

    assert pairs == {(EXAMPLES[token]["status"], token) for _, token in pairs}


OUTCOMES = [
    None,
    Overloaded(waiting_bytes=67_108_865, limit_bytes=67_108_864),
    Full(EXAMPLES["FULL"]["detail"]),
    NoBroker(),
    AuthRequired("nsqd at 127.0.0.1:4150 asks for AUTH and there is no secret"),
    OutcomeUnknown(),
    BrokerRefused("E_PUB_FAILED", "PUB failed exiting"),
    BrokerRefused("E_AUTH_FIRST", "AUTH required before PUB"),
    BrokerRefused("E_AUTH_FAILED", 'AUTH failed; topic "orders"'),
    BrokerRefused("E_UNAUTHORIZED", 'AUTH failed for PUB on "orders" ""'),
    ValueError(),
]
REQUESTS: list[tuple[str, bytes]] = [
    ("/pub?topic=orders", b"x"),
    ("/pub?topic=orders", b""),
    ("/pub?topic=orders", b"x" * 1_048_577),
    ("/pub?topic=a;", b"x"),
    ("/pub", b"x"),
    ("/pub?topic=a+b", b"x"),
    ("/pub?topic=orders&defer=-1", b"x"),
    ("/mpub?topic=orders", b"x"),
    ("/mpub?topic=orders", b"x" * 1_048_577),
    ("/mpub?topic=orders", b"x" * 5_242_881),
    ("/mpub?topic=a;", b"x"),
    ("/mpub", b"x"),
    ("/mpub?topic=a+b", b"x"),
    ("/mpub?topic=orders&binary=1", b"\0\0\0\0"),
    ("/mpub?topic=orders&binary=1", b"\0\0\0\1\0\0\0\2a"),
]


async def nobody(*_: object) -> None:
    """Subscribe nobody."""


async def answers(error: Exception | None, **headers: str) -> list[httpx.Response]:
    """Return what the app says to every request when publishing ends with *error*."""
    parts = WebParts(publisher=RecordingPublisher(error), limits=Limits(), subscribe=nobody)
    client = http_client(create_app(parts))
    client.headers["X-Request-Id"] = "3f6c0d1e9a7b4c52"
    client.headers.update(headers)
    return [await client.post(target, content=body) for target, body in REQUESTS]


async def test_what_the_app_says_is_what_the_contract_says() -> None:
    """Bad requests and bad outcomes together give exactly the documented pairs."""
    said: dict[str, set[tuple[int, str]]] = {"/pub": set(), "/mpub": set()}
    all_answers = [answer for error in OUTCOMES for answer in await answers(error)]
    all_answers += await answers(None, origin="https://example.org")
    all_answers += await answers(None, authorization="Bearer")
    for answer in all_answers:
        token = "OK" if answer.status_code == 200 else answer.json()["message"]
        said[answer.url.path].add((answer.status_code, token))

    assert {path: documented("post", path) for path in said} == said


def headers_of(path: str, status: int) -> list[str]:
    """Return the headers that the contract promises for a POST and its status."""
    return list(resolved(CONTRACT["paths"][path]["post"]["responses"][str(status)])["headers"])


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


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("MISSING_ARG_TOPIC", "topic is missing"),
        *(error for error in OUTCOMES if error is not None),
        Forbidden(EXAMPLES["FORBIDDEN"]["detail"]),
    ],
    ids=str,
)
def test_an_example_is_what_the_app_would_send(error: Exception) -> None:
    """The texts of the contract are those of the code."""
    _, _, body = problem(error, "3f6c0d1e9a7b4c52")
    document = yaml.safe_load(body)

    assert EXAMPLES[document["message"]] == document


async def test_the_examples_of_bad_requests_are_what_the_app_sends() -> None:
    """Value, limit and unit are spelled in the contract as in the code."""
    bad = await answers(None) + await answers(None, authorization="Bearer")
    sent = [answer.json() for answer in bad if answer.status_code != 200]
    # A line that is too big tells its number, which a single message does not have.
    documents = {json["message"]: json for json in reversed(sent)}

    assert {token: EXAMPLES[token] for token in documents} == documents
