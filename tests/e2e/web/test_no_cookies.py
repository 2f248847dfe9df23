"""No route uses cookies, so a page of another site has no credential to send along."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest
import pytest_asyncio

from gateway.protocol.http_api import ROUTES
from gateway.web.app import PUBLIC_ROUTES
from gateway.web.whoami import WHOAMI
from tests.support.gateways.access_file import KeyGrant, key_of, write_access_file
from tests.support.gateways.gateway import RunningGateway, gateway_alone
from tests.support.project import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = key_of("alice")
BEARER = {"Authorization": f"Bearer {KEY}"}
COOKIES = {"Cookie": f"nsq={KEY}; token={KEY}; session={KEY}; Authorization=Bearer {KEY}"}
OTHER_SITE = {
    "Origin": "https://evil.example.org",
    "Referer": "https://evil.example.org/",
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
}
# The media types that a form can have: a browser sends them without a preflight.
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain")
QUERY = {"topic": "orders", "channel": "billing"}
OTHER_QUERY = {"topic": "forged", "channel": "billing"}
# /ping tells nothing; without --allow-origin and AUTH, a socket is closed.
CLOSED = sorted({WHOAMI, *ROUTES} - {"/ping", "/config/:opt"})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def keyed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("access")
    grants = [KeyGrant(".*", ("publish", "subscribe", "admin"), [".*"])]
    path = write_access_file(folder / "access.toml", {"alice": grants})
    async with gateway_alone(
        f"--access-file={path}", f"--static-dir={ROOT / 'examples'}", "--allow-origin=*"
    ) as gateway:
        yield gateway


@pytest.mark.parametrize("headers", [{}, BEARER, COOKIES], ids=["nothing", "bearer", "cookies"])
async def test_no_response_sets_a_cookie(keyed: RunningGateway, headers: dict[str, str]) -> None:
    """Of any route, with any method, whether it succeeds or not."""
    paths = [path.replace(":opt", "console.js") for path in PUBLIC_ROUTES]
    seen = set()
    for path in [*paths, "/worker.mjs", "/missing"]:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            answer = await keyed.http.request(
                method, path, params=QUERY, headers=headers, content=b"x"
            )
            seen.add(answer.status_code)
            assert "set-cookie" not in answer.headers, (method, path)

    assert {HTTPStatus.OK, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED} <= seen


@pytest.mark.parametrize("form", FORMS)
async def test_a_form_of_another_site_is_refused(keyed: RunningGateway, form: str) -> None:
    """Cookies are no credential, even with the key in them, and nothing is done."""
    answers = {}
    for path in CLOSED:
        method = "POST" if "POST" in PUBLIC_ROUTES[path] else "GET"
        headers = {**COOKIES, **OTHER_SITE, "Content-Type": form}
        answer = await keyed.http.request(
            method, path, params=OTHER_QUERY, headers=headers, content=b"x"
        )
        answers[path] = answer.status_code
    stats = await keyed.http.get("/stats", params={"format": "json"}, headers=BEARER)

    assert dict.fromkeys(CLOSED, HTTPStatus.UNAUTHORIZED) == answers
    assert "forged" not in {each["topic_name"] for each in stats.json()["topics"]}
