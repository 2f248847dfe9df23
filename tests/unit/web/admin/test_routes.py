"""The routes: nsqd's checks in nsqd's order, and what several nodes come to as one answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from gateway.client.nsqd_http import NsqdHttpOptions
from gateway.credentials import Secret
from gateway.protocol.http_api import ROUTES
from gateway.web.admin.routes import operation
from tests.support.brokers.scripted_lookupd import (
    Rule,
    ScriptedLookupd,
    respond,
    scripted_lookupd,
    send_raw,
    silent,
)
from tests.support.http.admin_app import AdminAppOptions, admin_app

TOPIC_ROUTES = [path for path in ROUTES if path.startswith("/topic/")]
CHANNEL_ROUTES = [path for path in ROUTES if path.startswith("/channel/")]
REPORTS = ["/stats", "/stats?format=json", "/info"]
ALL = [(path, "POST") for path in (*TOPIC_ROUTES, *CHANNEL_ROUTES)] + [
    (path, "GET") for path in REPORTS
]
SECRET = Secret(b"of-the-administrator")
NO_TOPIC = respond(404, b'{"message":"TOPIC_NOT_FOUND"}')
NO_CHANNEL = respond(404, b'{"message":"CHANNEL_NOT_FOUND"}')


@pytest_asyncio.fixture
async def node() -> AsyncIterator[ScriptedLookupd]:
    """Return what answers as an nsqd: done."""
    async with scripted_lookupd() as node:
        node.rule = respond(200, b"")
        yield node


@pytest_asyncio.fixture
async def other() -> AsyncIterator[ScriptedLookupd]:
    async with scripted_lookupd() as other:
        other.rule = respond(200, b"")
        yield other


@pytest_asyncio.fixture
async def gateway(node: ScriptedLookupd) -> AsyncIterator[httpx.AsyncClient]:
    """Return a gateway that knows one nsqd."""
    async with admin_app(node.address) as gateway:
        yield gateway


async def ask(gateway: httpx.AsyncClient, method: str, url: str) -> tuple[int, str]:
    """Return the status, and the token of an error."""
    answer = await gateway.request(method, url)
    is_error = answer.headers.get("content-type") == "application/problem+json"
    return answer.status_code, answer.json()["message"] if is_error else ""


def with_names(path: str) -> str:
    """Return *path* with a topic and a channel, which the others do not mind."""
    return f"{path}{'&' if '?' in path else '?'}topic=t&channel=c"


# Checks

UNCHECKED = ["/topic/delete", "/topic/pause", "/topic/unpause"]


@pytest.mark.parametrize(
    "query,expected",
    [
        ("", (400, "MISSING_ARG_TOPIC")),
        ("?topic=a;b", (400, "INVALID_REQUEST")),
        ("?topic=%zz", (400, "INVALID_REQUEST")),
        ("?channel=c", (400, "MISSING_ARG_TOPIC")),
    ],
)
@pytest.mark.parametrize("path", [*TOPIC_ROUTES, *CHANNEL_ROUTES])
async def test_what_is_wrong_everywhere_is_told_before_anybody_is_asked(
    path: str,
    query: str,
    expected: tuple[int, str],
    gateway: httpx.AsyncClient,
    node: ScriptedLookupd,
) -> None:
    """In nsqd's words."""
    assert expected == await ask(gateway, "POST", path + query)
    assert [] == node.questions


@pytest.mark.parametrize("topic", ["", "a+b", "a%0A", "%FF", "x" * 65])
@pytest.mark.parametrize("path", TOPIC_ROUTES)
async def test_a_bad_topic_is_refused_where_nsqd_looks_at_it(
    path: str, topic: str, gateway: httpx.AsyncClient, node: ScriptedLookupd
) -> None:
    """Elsewhere nsqd looks for it, and so it is asked for as it is."""
    answer = await ask(gateway, "POST", f"{path}?topic={topic}")

    if path in UNCHECKED:
        assert (200, "") == answer
        assert [f"{path}?topic={topic}"] == [question.target for question in node.questions]
    else:
        assert (400, "INVALID_TOPIC") == answer


@pytest.mark.parametrize(
    "query,token",
    [
        ("?topic=a+b", "INVALID_ARG_TOPIC"),
        ("?topic=&channel=c", "INVALID_ARG_TOPIC"),
        ("?topic=t", "MISSING_ARG_CHANNEL"),
        ("?topic=t&channel=", "INVALID_ARG_CHANNEL"),
        ("?topic=t&channel=a+b", "INVALID_ARG_CHANNEL"),
        ("?topic=t&topic=%20&channel=%20&channel=c", "INVALID_ARG_CHANNEL"),
    ],
)
@pytest.mark.parametrize("path", CHANNEL_ROUTES)
async def test_a_channel_route_has_words_of_its_own(
    path: str, query: str, token: str, gateway: httpx.AsyncClient
) -> None:
    assert (400, token) == await ask(gateway, "POST", path + query)


@pytest.mark.parametrize("path", ["/stats?format=json;", "/stats?topic=%z"])
async def test_the_query_of_stats_is_read_strictly(path: str, gateway: httpx.AsyncClient) -> None:
    """As nsqd does; that of /info is not read at all."""
    assert (400, "INVALID_REQUEST") == await ask(gateway, "GET", path)


@pytest.mark.parametrize(
    "query,asked",
    [
        ("", "format=text"),
        ("?format=xml", "format=text"),
        ("?format=json", "format=json"),
        ("?format=json&topic=a%23b&channel=", "format=json&topic=a%23b&channel="),
        (
            "?include_clients=nonsense&include_mem&other=1",
            "format=text&include_clients=nonsense&include_mem=",
        ),
    ],
)
async def test_every_filter_is_nsqds_to_understand(
    query: str, asked: str, gateway: httpx.AsyncClient, node: ScriptedLookupd
) -> None:
    """Each goes out as it came in, also empty."""
    await gateway.get(f"/stats{query}")

    assert f"/stats?{asked}" == (await node.question()).target


# Several nodes


@pytest.mark.parametrize("path", [*TOPIC_ROUTES, *CHANNEL_ROUTES])
async def test_done_is_an_empty_answer(path: str, gateway: httpx.AsyncClient) -> None:
    """With the header that go-nsq reads, and without a type."""
    answer = await gateway.post(with_names(path))

    assert (200, b"") == (answer.status_code, answer.content)
    assert {"content-length": "0", "x-nsq-content-type": "nsq; version=1.0"} == {
        name: value for name, value in answer.headers.items() if name != "x-request-id"
    }


@pytest.mark.parametrize(
    "rules,expected",
    [
        ((respond(200, b""), NO_TOPIC), (200, "")),
        ((NO_CHANNEL, respond(200, b"")), (200, "")),
        ((NO_TOPIC, NO_TOPIC), (404, "TOPIC_NOT_FOUND")),
        ((NO_TOPIC, NO_CHANNEL), (404, "CHANNEL_NOT_FOUND")),
        ((respond(200, b""), respond(500, b"")), (502, "PARTLY_DONE")),
        ((NO_TOPIC, send_raw(b"")), (502, "PARTLY_DONE")),
        ((silent, silent), (502, "PARTLY_DONE")),
    ],
)
@pytest.mark.parametrize("path", ["/topic/pause", "/channel/delete"])
async def test_several_answers_are_one(
    path: str,
    rules: tuple[Rule, Rule],
    expected: tuple[int, str],
    node: ScriptedLookupd,
    other: ScriptedLookupd,
) -> None:
    """404 from some is no failure, and 502 for those that failed."""
    node.rule, other.rule = rules
    setup = AdminAppOptions(options=NsqdHttpOptions(timeout_s=0.2 if silent in rules else 10.0))
    async with admin_app(node.address, other.address, setup=setup) as gateway:
        assert expected == await ask(gateway, "POST", with_names(path))


async def test_each_node_that_failed_has_a_line(
    node: ScriptedLookupd, other: ScriptedLookupd
) -> None:
    other.rule = respond(500, b'{"message":"INTERNAL_ERROR"}')
    async with admin_app(node.address, other.address) as gateway:
        answer = await gateway.post("/topic/empty?topic=t")

    problem = answer.json()
    assert (502, "Bad Gateway", True) == (
        answer.status_code,
        problem["title"],
        problem["retryable"],
    )
    assert [
        "the request failed on these nodes, and may be repeated:",
        f"nsqd {other.address}: answered 500 INTERNAL_ERROR",
    ] == problem["detail"].splitlines()


@pytest.mark.parametrize("path,method", ALL)
async def test_without_a_node_nothing_is_done(path: str, method: str) -> None:
    """503, with the settings that name one."""
    async with admin_app() as gateway:
        answer = await gateway.request(method, with_names(path))

    problem = answer.json()
    assert (503, "NO_BROKER", "5") == (
        answer.status_code,
        problem["message"],
        answer.headers["retry-after"],
    )
    assert "--nsqd-http-address" in problem["detail"]


@pytest.mark.parametrize("path", REPORTS)
async def test_a_report_that_no_node_gives_is_a_failure(
    path: str, gateway: httpx.AsyncClient, node: ScriptedLookupd
) -> None:
    node.rule = send_raw(b"")
    answer = await gateway.get(path)

    assert 502 == answer.status_code
    assert f"nsqd {node.address}: " in answer.json()["detail"]


@pytest.mark.parametrize(
    "path,kind",
    [
        ("/stats", "text/plain; charset=utf-8"),
        ("/stats?format=json", "application/json; charset=utf-8"),
        ("/info", "application/json; charset=utf-8"),
    ],
)
async def test_a_report_is_headed_as_nsqd_does(
    path: str, kind: str, gateway: httpx.AsyncClient, node: ScriptedLookupd
) -> None:
    """Type, length and the header of NSQ."""
    report = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": []}
    node.rule = respond(200, json.dumps(report).encode())
    answer = await gateway.get(path)

    assert (200, kind, "nsq; version=1.0", str(len(answer.content))) == (
        answer.status_code,
        answer.headers["content-type"],
        answer.headers["x-nsq-content-type"],
        answer.headers["content-length"],
    )


# Access


@pytest.mark.parametrize("path,method", ALL)
async def test_where_auth_is_asked_for_everything_is_closed(
    path: str, method: str, node: ScriptedLookupd
) -> None:
    """Before anything else is looked at; no node is asked."""
    async with admin_app(node.address, setup=AdminAppOptions(is_closed=True)) as gateway:
        answer = await gateway.request(method, path, headers={"Authorization": "Bearer of-nsqd"})

    assert (403, "FORBIDDEN") == (answer.status_code, answer.json()["message"])
    assert "--admin-secret-file" in answer.json()["detail"]
    assert [] == node.questions


@pytest.mark.parametrize("path,method", ALL)
async def test_the_secret_of_the_administrator_opens_everything(
    path: str, method: str, node: ScriptedLookupd
) -> None:
    """Without it 401, which says how; with another one 403."""
    report = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": []}
    node.rule = respond(200, json.dumps(report).encode())
    url = with_names(path)
    async with admin_app(
        node.address, setup=AdminAppOptions(secret=SECRET, is_closed=True)
    ) as gateway:
        without = await gateway.request(method, url)
        wrong = await gateway.request(method, url, headers={"Authorization": "Bearer x"})
        right = {"Authorization": f"Bearer {SECRET.reveal().decode()}"}
        opened = await gateway.request(method, url, headers=right)

    assert (401, "Bearer") == (without.status_code, without.headers["www-authenticate"])
    assert (403, 200) == (wrong.status_code, opened.status_code)
    assert not any("authorization" in question.headers for question in node.questions)


# The schema


def test_the_schema_of_the_application_shows_the_parameters() -> None:
    """Though FastAPI does not read them."""
    app = FastAPI()
    for path in (*TOPIC_ROUTES, *CHANNEL_ROUTES, "/stats", "/info"):
        app.add_api_route(path, lambda: None, **operation(path))
    paths = app.openapi()["paths"]

    names = {
        path: [parameter["name"] for parameter in each.get("parameters", ())]
        for path, (each,) in ((path, methods.values()) for path, methods in paths.items())
    }
    expected = {path: ["topic"] for path in TOPIC_ROUTES}
    expected |= {path: ["topic", "channel"] for path in CHANNEL_ROUTES}
    expected["/stats"] = ["format", "topic", "channel", "include_clients", "include_mem"]
    assert {**expected, "/info": []} == names
    assert {path: methods[0].lower() for path, methods in ROUTES.items() if path in paths} == {
        path: method for path, (method,) in paths.items()
    }
