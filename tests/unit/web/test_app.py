"""Every path of the public port, and every one that is none."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from gateway.errors import Forbidden, LimitReached, NoBroker
from gateway.web import app as app_module
from gateway.web.app import AppContext, _PublicApp, create_app
from gateway.web.errors import problem_response
from gateway.web.origins import OriginPolicy
from gateway.web.responses import HttpResponse, request_id_from
from gateway.web.websocket.protocol import Upgrade
from tests.support.gateways.public_http import public_http
from tests.support.http.asgi import Exchange, http_client
from tests.support.http.recording_publisher import RecordingPublisher

FRIEND = OriginPolicy(("http://friend",))


@pytest.fixture
def publisher() -> RecordingPublisher:
    """A publisher that a test can make fail."""
    return RecordingPublisher()


@pytest.fixture
def parts() -> AppContext:
    """What is behind publishing, which one foreign page may use."""
    return AppContext(origins=FRIEND)


@pytest_asyncio.fixture
async def client(publisher: RecordingPublisher) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the whole public port."""
    async with public_http(publisher, origins=FRIEND) as served:
        yield served.http


async def test_ping_answers_ok_without_the_header_of_nsq(parts: AppContext) -> None:
    """As nsqd's own."""
    answer = await http_client(create_app(parts)).get("/ping", headers={"X-Request-Id": "r-1"})

    assert (200, "OK") == (answer.status_code, answer.text)
    assert {
        "content-type": "text/plain; charset=utf-8",
        "content-length": "2",
        "x-request-id": "r-1",
    } == dict(answer.headers)


async def test_a_publish_is_answered_in_front(
    client: httpx.AsyncClient, publisher: RecordingPublisher
) -> None:
    """POST /pub and /mpub reach the publisher."""
    answers = [
        await client.post("/pub?topic=t", content=b"a"),
        await client.post("/mpub?topic=t", content=b"b\nc"),
    ]

    assert [200, 200] == [answer.status_code for answer in answers]
    assert [("t", [b"a"], 0), ("t", [b"b", b"c"], 0)] == publisher.published


@pytest.mark.parametrize(
    "method,path,status,token",
    [
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("GET", "/config/max_msg_size", 404, "NOT_FOUND"),
        ("GET", "/debug/pprof/", 404, "NOT_FOUND"),
        ("GET", "/livez", 404, "NOT_FOUND"),
        ("GET", "/metrics", 404, "NOT_FOUND"),
        ("GET", "/pub", 405, "METHOD_NOT_ALLOWED"),
        ("PUT", "/mpub", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/ping", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/sub", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/sub", 426, "UPGRADE_REQUIRED"),
    ],
)
async def test_what_is_not_there_is_a_problem_with_the_word_of_nsqd(
    method: str, path: str, status: int, token: str, parts: AppContext
) -> None:
    """FastAPI's own bodies are never seen."""
    answer = await http_client(create_app(parts)).request(method, path)

    document = answer.json()
    assert (status, "application/problem+json") == (
        answer.status_code,
        answer.headers["content-type"],
    )
    assert (status, token) == (document["status"], document["message"])
    assert document["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "method,path,allow",
    [
        ("HEAD", "/ping", "GET, OPTIONS"),
        ("OPTIONS", "/ping", "GET, OPTIONS"),
        ("GET", "/pub", "OPTIONS, POST"),
        ("OPTIONS", "/mpub", "OPTIONS, POST"),
        ("DELETE", "/sub", "GET, OPTIONS"),
    ],
)
async def test_allow_tells_the_methods(
    method: str, path: str, allow: str, parts: AppContext
) -> None:
    """405 and OPTIONS have the same header."""
    answer = await http_client(create_app(parts)).request(method, path)

    assert allow == answer.headers["allow"]


async def test_a_nearly_right_path_is_redirected(parts: AppContext) -> None:
    """A slash or a capital letter leads to the path, with the query."""
    answer = await http_client(create_app(parts)).post("/Pub/?topic=t", content=b"a")

    assert (307, "/pub?topic=t") == (answer.status_code, answer.headers["location"])


async def test_sub_without_an_upgrade_tells_how_to_connect(parts: AppContext) -> None:
    """The answer names what to upgrade to, and the parameters."""
    answer = await http_client(create_app(parts)).get("/sub?topic=t")

    assert "websocket" == answer.headers["upgrade"]
    assert "ws://HOST/sub?topic=TOPIC&channel=CHANNEL" in answer.json()["detail"]


async def test_sub_without_an_upgrade_tells_why_one_would_be_refused() -> None:
    """A browser keeps the answer to an upgrade from its page; who is on the list may read this."""
    asked: list[Upgrade] = []

    def refuse(upgrade: Upgrade) -> HttpResponse:
        asked.append(upgrade)
        return problem_response(LimitReached("no room"), request_id_from(upgrade.headers))

    app = create_app(AppContext(origins=FRIEND, refuse_upgrade=refuse))
    headers = {"Origin": "http://friend", "X-Request-Id": "r-1"}

    answer = await http_client(app).get("/sub?topic=t", headers=headers)

    assert [b"topic=t"] == [upgrade.query for upgrade in asked]
    assert (503, "5", "no room", "r-1") == (
        answer.status_code,
        answer.headers["retry-after"],
        answer.json()["detail"],
        answer.json()["request_id"],
    )
    assert ("http://friend", "X-Request-Id, Retry-After, X-Nsq-Content-Type") == (
        answer.headers["access-control-allow-origin"],
        answer.headers["access-control-expose-headers"],
    )


async def test_a_page_that_may_not_subscribe_may_read_that() -> None:
    """Otherwise its script would take it for a gateway that is away, and try for ever."""

    def refuse(upgrade: Upgrade) -> HttpResponse:
        return problem_response(Forbidden("not this page"), request_id_from(upgrade.headers))

    app = create_app(AppContext(refuse_upgrade=refuse))

    answer = await http_client(app).get("/sub?topic=t", headers={"Origin": "http://evil"})

    assert (403, "not this page", "*") == (
        answer.status_code,
        answer.json()["detail"],
        answer.headers["access-control-allow-origin"],
    )


@pytest.mark.parametrize(
    "method,path,origin,status",
    [
        ("POST", "/pub?topic=t", "http://evil", 403),
        ("POST", "/mpub?topic=t", "http://evil", 403),
        ("POST", "/topic/create?topic=t", "http://evil", 403),
        ("POST", "/pub?topic=t", "null", 403),
        ("POST", "/pub?topic=t", "http://{host}", 200),
        ("POST", "/pub?topic=t", "http://friend", 200),
        ("GET", "/ping", "http://evil", 200),
    ],
)
async def test_a_post_of_a_foreign_page_is_forbidden(
    method: str, path: str, origin: str, status: int, client: httpx.AsyncClient
) -> None:
    """Our own pages and those on the list may post; reading is not meant."""
    page = origin.format(host=client.base_url.netloc.decode())

    answer = await client.request(method, path, content=b"a", headers={"Origin": page})

    assert status == answer.status_code


async def test_a_forbidden_page_publishes_nothing(
    client: httpx.AsyncClient, publisher: RecordingPublisher
) -> None:
    """403 comes before everything else, and cannot be read by the page."""
    answer = await client.post("/pub?topic=t", content=b"a", headers={"Origin": "http://evil"})

    assert "FORBIDDEN" == answer.json()["message"]
    assert "access-control-allow-origin" not in answer.headers
    assert [] == publisher.published


@pytest.mark.parametrize(
    "method,path,status",
    [
        ("POST", "/pub?topic=t", 200),
        ("POST", "/pub", 400),
        ("GET", "/ping", 200),
        ("GET", "/nothing", 404),
        ("PUT", "/pub", 405),
    ],
)
async def test_a_page_that_is_allowed_can_read_every_answer(
    method: str, path: str, status: int, client: httpx.AsyncClient
) -> None:
    answer = await client.request(method, path, content=b"a", headers={"Origin": "http://friend"})

    assert (status, "http://friend", "Origin") == (
        answer.status_code,
        answer.headers["access-control-allow-origin"],
        answer.headers["vary"],
    )


@pytest.mark.parametrize("path,status", [("/pub", 204), ("/mpub", 204), ("/nothing", 404)])
async def test_a_browser_may_ask_before_it_posts(
    path: str, status: int, client: httpx.AsyncClient
) -> None:
    """A preflight is answered where there is something to post to."""
    asked = {"Origin": "http://friend", "Access-Control-Request-Method": "POST"}

    answer = await client.options(path, headers=asked)

    assert (status, "http://friend") == (
        answer.status_code,
        answer.headers["access-control-allow-origin"],
    )


async def test_a_request_id_of_the_caller_is_on_every_answer(
    client: httpx.AsyncClient, publisher: RecordingPublisher
) -> None:
    """Good and bad answers, in front and behind, name the request."""
    client.headers["X-Request-Id"] = "mine"
    answers = [
        await client.post("/pub?topic=t", content=b"a"),
        await client.post("/pub", content=b"a"),
        await client.get("/ping"),
        await client.options("/ping"),
        await client.get("/nothing"),
    ]
    publisher.error = NoBroker("none")
    answers.append(await client.post("/pub?topic=t", content=b"a"))

    assert ["mine"] * 6 == [answer.headers["x-request-id"] for answer in answers]


async def test_a_publish_that_is_done_has_no_id_of_ours(client: httpx.AsyncClient) -> None:
    """There is nothing to look up; whatever went wrong has one."""
    done = await client.post("/pub?topic=t", content=b"a")
    refused = await client.post("/pub", content=b"a")

    assert (False, True) == ("x-request-id" in done.headers, "x-request-id" in refused.headers)


async def test_a_failure_behind_fastapi_is_a_problem_too(
    parts: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that nobody expected is 500 without its text."""

    def broken(*_: object) -> None:
        raise ValueError("inner")

    monkeypatch.setattr(app_module, "text_response", broken)

    answer = await http_client(create_app(parts)).get("/ping")

    assert (500, "INTERNAL_ERROR") == (answer.status_code, answer.json()["message"])
    assert "inner" not in answer.text


async def test_a_parameter_that_fastapi_refuses_is_a_problem_too(parts: AppContext) -> None:
    """A route's own checks answer 400 with nsqd's word, not FastAPI's 422."""
    app = _PublicApp(parts)

    async def double(number: int) -> int:
        return 2 * number

    app._rest.add_api_route("/double", double, methods=["GET"])

    answer = await http_client(app).get("/double?number=x")

    assert (400, "INVALID_REQUEST") == (answer.status_code, answer.json()["message"])


async def test_start_and_end_of_the_server_are_answered(parts: AppContext) -> None:
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    scope = {"type": "lifespan", "state": {}}

    exchange = await Exchange(scope, events).run(create_app(parts))

    assert ["lifespan.startup.complete", "lifespan.shutdown.complete"] == [
        event["type"] for event in exchange.sent
    ]
