"""The contract is served as it is."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator

import httpx
import pytest
import yaml

from gateway.web.app import AppContext, create_app
from gateway.web.site.docs import docs_router
from tests.support.http.asgi import http_client
from tests.support.project import ROOT
from tools.make_docs_page import JSON, PAGE, generate

CONTRACT = (ROOT / "openapi.yaml").read_text(encoding="utf-8")
SOCKET_CONTRACT = (ROOT / "asyncapi.yaml").read_text(encoding="utf-8")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the public application with nothing but the documentation."""
    parts = AppContext(routers=[docs_router()])
    async with http_client(create_app(parts)) as client:
        yield client


@pytest.mark.parametrize(
    "path,contract", [("/openapi.yaml", CONTRACT), ("/asyncapi.yaml", SOCKET_CONTRACT)]
)
async def test_the_contract_is_the_file_at_the_top_of_the_repository(
    path: str, contract: str, client: httpx.AsyncClient
) -> None:
    """Comments and order are as they were written."""
    answer = await client.get(path)

    assert (200, "application/yaml") == (answer.status_code, answer.headers["content-type"])
    assert contract == answer.content.decode()


async def test_the_json_says_the_same(client: httpx.AsyncClient) -> None:
    """For programs that read no YAML."""
    answer = await client.get("/openapi.json")

    assert (200, "application/json") == (answer.status_code, answer.headers["content-type"])
    assert yaml.safe_load(CONTRACT) == answer.json()


async def test_the_page_may_use_its_own_stylesheet_and_nothing_else(
    client: httpx.AsyncClient,
) -> None:
    """The policy names the hash of the one style element, which a browser compares."""
    answer = await client.get("/docs")
    style = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)

    assert style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert (200, "text/html; charset=utf-8") == (
        answer.status_code,
        answer.headers["content-type"],
    )
    assert (
        f"default-src 'none'; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ) == answer.headers["content-security-policy"]
    assert "no-referrer" == answer.headers["referrer-policy"]


@pytest.mark.parametrize("path", ["/openapi.yaml", "/openapi.json", "/asyncapi.yaml", "/docs"])
async def test_a_browser_takes_each_for_what_it_is(path: str, client: httpx.AsyncClient) -> None:
    """No type is guessed, and each answer has the id of its request."""
    answer = await client.get(path, headers={"X-Request-Id": "r-1"})

    assert "nosniff" == answer.headers["x-content-type-options"]
    assert "r-1" == answer.headers["x-request-id"]


def test_generated_files_are_up_to_date() -> None:
    assert generate() == {path: path.read_bytes() for path in (PAGE, JSON)}
