"""Administration and statistics by the access file, and /whoami."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.client.nsqd_answers import NodeResponse
from gateway.credentials import Secret
from gateway.web.admin.merge import merge_stats
from gateway.web.app import AppContext, create_app
from gateway.web.auth import AccessPolicy
from gateway.web.whoami import whoami_router
from tests.support.brokers.scripted_lookupd import ScriptedLookupd, respond, scripted_lookupd
from tests.support.gateways.access_file import TokenIssuer, api_key, grant, grant_claim
from tests.support.gateways.moved_control import EPOCH, MovedControl
from tests.support.http.admin_app import AdminAppOptions, admin_app
from tests.support.http.asgi import http_client
from tests.support.steps import run_steps

ADMINISTRATOR = "of-the-administrator"
KEYS = (
    api_key("operator", "operator", grant("^t$", "admin", channels=["^c$", "^$"])),
    api_key("of-channel", "of-channel", grant("^t$", "admin", channels=["^c$"])),
    api_key("watcher", "watcher", grant("^t$", "watch"), grant("^u", "publish")),
    api_key("everywhere", "everywhere", grant(".*", "watch")),
    api_key("publisher", "publisher", grant(".*", "publish", "subscribe")),
)


def stats_of(*topics: str) -> dict[str, Any]:
    """Return /stats as an nsqd has it, with somebody who publishes."""
    return {
        "version": "1.3.0",
        "health": "OK",
        "start_time": 1_700_000_000,
        "topics": [{"topic_name": name, "channels": [], "depth": 1} for name in topics],
        "memory": {"heap_objects": 7},
        "producers": [{"client_id": "somebody", "pub_counts": [{"topic": "secret", "count": 1}]}],
    }


@pytest.fixture
def control(tmp_path: Path) -> MovedControl:
    return MovedControl(tmp_path, *KEYS)


@pytest_asyncio.fixture
async def node() -> AsyncIterator[ScriptedLookupd]:
    async with scripted_lookupd() as node:
        node.rule = respond(200, json.dumps(stats_of("t", "t2", "u")).encode())
        yield node


@pytest_asyncio.fixture
async def gateway(node: ScriptedLookupd, control: MovedControl) -> AsyncIterator[httpx.AsyncClient]:
    setup = AdminAppOptions(
        secret=Secret(ADMINISTRATOR.encode()), policy=AccessPolicy(control=control)
    )
    async with admin_app(node.address, setup=setup) as gateway:
        yield gateway


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


# Administration


@pytest.mark.parametrize(
    "path,allowed",
    [
        ("/topic/{}?topic=t", {"operator"}),
        ("/topic/{}?topic=t2", set()),
        ("/channel/{}?topic=t&channel=c", {"operator", "of-channel"}),
        ("/channel/{}?topic=t&channel=d", set()),
        ("/channel/{}?topic=t2&channel=c", set()),
    ],
)
@pytest.mark.parametrize("action", ["create", "delete", "empty", "pause", "unpause"])
async def test_administration_needs_the_permission_for_just_this(
    action: str, path: str, allowed: set[str], gateway: httpx.AsyncClient, node: ScriptedLookupd
) -> None:
    """The administrator's secret allows everything; nsqd hears of nothing that is refused."""
    node.rule = respond(200, b"")
    found = set()
    for caller in ("operator", "of-channel", "watcher", "everywhere", "publisher", ADMINISTRATOR):
        node.questions.clear()
        answer = await gateway.post(path.format(action), headers=bearer(caller))
        if answer.status_code == httpx.codes.OK:
            found.add(caller)
        else:
            assert (403, "UNAUTHORIZED") == (answer.status_code, answer.json()["message"])
            assert [] == node.questions

    assert allowed | {ADMINISTRATOR} == found


@pytest.mark.parametrize("path", ["/topic/delete?topic=%ff%20", "/topic/pause?topic=t%0a"])
async def test_a_name_that_nsqd_does_not_check_needs_the_permission_too(
    path: str, gateway: httpx.AsyncClient, node: ScriptedLookupd
) -> None:
    answer = await gateway.post(path, headers=bearer("operator"))

    assert (403, []) == (answer.status_code, node.questions)


@pytest.mark.parametrize("path", ["/topic/create?topic=t", "/channel/empty?topic=t&channel=c"])
async def test_administration_needs_a_valid_credential(
    path: str, gateway: httpx.AsyncClient
) -> None:
    answers = [await gateway.post(path, headers=each) for each in ({}, bearer("wrong"))]

    assert [(401, "AUTH_REQUIRED"), (401, "AUTH_FAILED")] == [
        (answer.status_code, answer.json()["message"]) for answer in answers
    ]


# Statistics


@pytest.mark.parametrize(
    "caller,path,shown",
    [
        ("watcher", "/stats?format=json", ["t"]),
        ("operator", "/stats?format=json", ["t"]),
        ("of-channel", "/stats?format=json&topic=t", ["t"]),
        ("everywhere", "/stats?format=json", ["t", "t2", "u"]),
        (ADMINISTRATOR, "/stats?format=json", ["t", "t2", "u"]),
        ("watcher", "/stats?format=json&topic=t2", None),
        ("watcher", "/stats", None),
        ("watcher", "/stats?topic=t", None),
        ("watcher", "/stats?format=json&topic=t2&topic=t", None),
        ("publisher", "/stats?format=json", None),
        ("publisher", "/info", None),
    ],
)
async def test_statistics_are_those_of_the_callers_topics(
    caller: str, path: str, shown: list[str] | None, gateway: httpx.AsyncClient
) -> None:
    """The text has all topics, so it is for those who may see all."""
    answer = await gateway.get(path, headers=bearer(caller))

    if shown is None:
        assert (403, "UNAUTHORIZED") == (answer.status_code, answer.json()["message"])
    else:
        assert shown == [topic["topic_name"] for topic in answer.json()["topics"]]


async def test_a_filter_that_an_nsqd_does_not_know_shows_no_more(
    gateway: httpx.AsyncClient,
) -> None:
    """The node here answers with all of its topics, whatever the query says."""
    answer = await gateway.get("/stats?format=json&topic=t", headers=bearer("watcher"))

    assert ["t"] == [topic["topic_name"] for topic in answer.json()["topics"]]
    assert [] == answer.json()["producers"]


@pytest.mark.parametrize("nodes", [1, 3])
def test_topics_and_clients_of_others_are_left_out(nodes: int) -> None:
    answers = [
        NodeResponse(node=f"n{each}:1", status=200, body=json.dumps(stats_of("t", "t2")).encode())
        for each in range(nodes)
    ]
    merged = json.loads(
        b"".join(run_steps(merge_stats(answers, is_shown=lambda name: name == "t")))
    )

    assert [("t", f"n{each}:1") for each in range(nodes)] == [
        (topic["topic_name"], topic["node"]) for topic in merged["topics"]
    ]
    assert [] == merged["producers"]
    assert not {"t2", "somebody"}.intersection(json.dumps(merged).split('"'))


def test_a_list_that_nsqd_leaves_out_stays_out() -> None:
    body = json.dumps({**stats_of(), "topics": None, "producers": None}).encode()
    answers = [NodeResponse(node="n:1", status=200, body=body)]
    merged = json.loads(b"".join(run_steps(merge_stats(answers, is_shown=lambda _: True))))

    assert (None, None) == (merged["topics"], merged["producers"])


# Who one is


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(tmp_path)


async def whoami(policy: AccessPolicy, headers: dict[str, str]) -> httpx.Response:
    app = create_app(AppContext(routers=(whoami_router(policy),)))
    async with http_client(app) as http:
        return await http.get("/whoami", headers=headers)


async def test_a_token_is_told_whose_it_is_and_until_when(
    tmp_path: Path, issuer: TokenIssuer
) -> None:
    policy = AccessPolicy(control=MovedControl(tmp_path, issuer.entry))
    token = issuer.token("alice", grant_claim("^t$", "watch"), life_s=60, now=EPOCH)

    answer = await whoami(policy, bearer(token))

    assert {
        "identity": "alice",
        "issuer": issuer.url,
        "expires_at": EPOCH + 60,
        "grants": [{"topic": "^t$", "channels": [".*"], "permissions": ["watch"]}],
    } == answer.json()
    assert "no-store" == answer.headers["cache-control"]


async def test_a_key_without_an_end_has_none(control: MovedControl) -> None:
    answer = await whoami(AccessPolicy(control=control), bearer("watcher"))

    told = answer.json()
    assert ("watcher", "key", None, 2) == (
        *(told["identity"], told["issuer"], told["expires_at"]),
        len(told["grants"]),
    )


@pytest.mark.parametrize(
    "headers,status,token",
    [
        ({}, 401, "AUTH_REQUIRED"),
        (bearer("wrong"), 401, "AUTH_FAILED"),
        (bearer("a b"), 400, "INVALID_AUTHORIZATION"),
    ],
)
async def test_nobody_is_told_nothing(
    headers: dict[str, str], status: int, token: str, control: MovedControl
) -> None:
    answer = await whoami(AccessPolicy(control=control), headers)

    assert (status, token) == (answer.status_code, answer.json()["message"])


@pytest.mark.parametrize("headers", [{}, bearer("any")])
async def test_without_an_access_file_nobody_has_a_name(headers: dict[str, str]) -> None:
    answer = await whoami(AccessPolicy(), headers)

    nothing = dict.fromkeys(["identity", "issuer", "expires_at", "grants"])
    assert (200, nothing) == (answer.status_code, answer.json())
