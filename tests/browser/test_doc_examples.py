"""The examples of docs/browser.md and the README, unchanged, run by a shell and Node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.support.brokers.killable_broker import KillableBroker
from tests.support.browser.browser_page import BrowserPage
from tests.support.browser.browsers import Visitor
from tests.support.browser.doc_examples import (
    ADDRESS,
    DOCUMENT,
    README,
    blocks,
    command,
    page_with,
    script,
    section,
)
from tests.support.browser.example_page_gateway import gateway_with_pages
from tests.support.browser.fixtures import PAIRED, SECRET
from tests.support.gateways.gateway import RunningGateway, gateway_alone, poll_until

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOTHING_LEFT = (0, 0, 0)

NO_ICON = "404"
"""A browser asks for an icon that a page of fifteen lines does not have."""


async def test_the_readme_shows_the_page_of_the_document() -> None:
    first, ours = section(DOCUMENT, "Five minutes"), section(README, "A page of your own")

    assert blocks("html", first) == blocks("html", ours)
    assert blocks("sh", first) == blocks("sh", ours)
    assert len(blocks("html", first)[0].splitlines()) <= 15


@pytest.mark.parametrize("number", range(len(blocks("sh"))))
async def test_a_command_of_the_document_is_one_of_a_shell(number: int, tmp_path: Path) -> None:
    (tmp_path / "block.sh").write_text(blocks("sh")[number])

    assert 0 == await command("sh -n block.sh", tmp_path)


@pytest.mark.node
@pytest.mark.parametrize("number", range(len(blocks("js"))))
async def test_a_script_of_the_document_is_javascript(number: int, tmp_path: Path) -> None:
    """Node parses it as a module."""
    (tmp_path / "block.mjs").write_text(blocks("js")[number])

    assert 0 == await command("node --check block.mjs", tmp_path)


@PAIRED
async def test_the_page_of_the_document_works(
    shared_broker: KillableBroker, visitor: Visitor, tmp_path: Path
) -> None:
    """Its commands, its page: what curl publishes arrives, and is finished with a click."""
    make_folder, start, publish, *_ = blocks("sh")
    assert 0 == await command(make_folder, tmp_path)
    (tmp_path / "page" / "index.html").write_text(blocks("html")[0])
    (folder,) = re.findall(r'^make run ARGS="--static-dir (\w+)"$', start, re.MULTILINE)
    async with gateway_with_pages(tmp_path / folder, shared_broker) as gateway:
        page = await visitor.open(gateway.url)
        assert 0 == await command(publish.replace(ADDRESS, gateway.url))
        await expect(page.locator("li")).to_contain_text("hello")
        held = await gateway.counts_become("greetings", "page", (0, 1, 0))
        await page.get_by_role("button", name="Finish").click()
        await expect(page.locator("li")).to_have_count(0)
        left = await gateway.counts_become("greetings", "page", NOTHING_LEFT)
        visitor.found_nothing_wrong(gateway.address, besides=NO_ICON)

    assert ((0, 1, 0), NOTHING_LEFT) == (held, left)


@pytest.mark.parametrize(
    "words,channel,body",
    [
        ("for await (const message of orders)", ("orders", "billing"), b'{"order":7}'),
        ('fetch("/bill"', ("orders", "billing"), b'{"order":7}'),
        ('fetch("/nsq-token"', ("orders", "billing"), b"x"),
        ("paid.has(order)", ("payments", "ledger"), b'{"order":7,"amount":1}'),
    ],
    ids=["iterate", "work", "secret", "twice"],
)
async def test_a_script_of_the_document_does_its_work(
    words: str, channel: tuple[str, str], body: bytes, visitor: Visitor, tmp_path: Path
) -> None:
    """Under the policy of the document, with a server that answers what the script asks for."""
    wants_secret = "secret" in script(words)
    for name, text in page_with(script(words)).items():
        (tmp_path / name).write_text(text)
    flags = ["--require-auth"] if wants_secret else []
    async with gateway_alone(f"--static-dir={tmp_path}", *flags) as gateway:
        page = await visitor.context.new_page()
        for path in ("bill", "nsq-token"):
            await page.route(f"**/{path}", lambda route: route.fulfill(status=200, body=SECRET))
        await page.goto(gateway.url)
        credentials = {"Authorization": f"Bearer {SECRET}"} if wants_secret else {}
        await gateway.channels_become(channel[0], [channel[1]])
        for _ in range(2):
            query = {"topic": channel[0]}
            await gateway.http.post("/pub", content=body, params=query, headers=credentials)
        held = (0, 2, 0) if wants_secret else NOTHING_LEFT  # the script with a secret only connects
        counts = await gateway.counts_become(*channel, held)
        visitor.found_nothing_wrong(gateway.address, besides=NO_ICON)

    assert held == counts


async def viewers_of(gateway: RunningGateway, topic: str) -> int:
    answer = await gateway.http.get("/stats", params={"format": "json", "topic": topic})
    topics = answer.raise_for_status().json()["topics"]
    names = [channel["channel_name"] for each in topics or [] for channel in each["channels"]]
    return len([name for name in names if name.startswith("gw.")])


async def test_the_script_for_another_origin_connects(visitor: Visitor, pages: BrowserPage) -> None:
    """The module that a page gets from the gateway connects to where it came from."""
    async with gateway_alone(f"--allow-origin={pages.ours}") as gateway:
        page = await visitor.open(pages.ours)
        block = script('from "http://127.0.0.1:8080/nsq.js"').replace(ADDRESS, gateway.url)
        await page.add_script_tag(type="module", content=block)
        viewers = await poll_until(lambda: viewers_of(gateway, "orders"), 1)
        visitor.found_nothing_wrong(
            gateway.address, pages.ours.removeprefix("http://"), besides=NO_ICON
        )

    assert 1 == viewers
