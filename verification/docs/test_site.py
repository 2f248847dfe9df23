"""The site of the documents, built by `make site` and read over HTTP as a browser would."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import httpx
import pytest

import gateway.client
from tools.document_traceability import ROOT

MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}
"""What a browser gets by itself, without a click."""


@dataclass
class Page(HTMLParser):
    """The links of a page, what it loads, and its anchors."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Begin to parse."""
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for each element."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif tag == "a" and name == "href" and value:
                self.links.append(value)
            elif (tag, name) in LOADED and value:
                self.loaded.append(value)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serve files without a log."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Log nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; a link that leads nowhere is an error of the build."""
    if not MKDOCS.exists():
        reason = "MkDocs is missing: `make .venv-docs` installs it"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    target = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [MKDOCS, "build", "--quiet", "--strict", "--site-dir", target],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return target


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    """The address of the served site."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def pages(site: str) -> dict[str, Page]:
    """Every page that links lead to, from the first one; a link that fails is an error."""
    found: dict[str, Page] = {}
    waiting = [(site, site)]
    seen = {site}
    with httpx.Client() as client:
        while waiting:
            address, source = waiting.pop()
            response = client.get(address)
            assert response.status_code == 200, f"{source} leads to {address}"
            if not response.headers["content-type"].startswith("text/html"):
                continue
            page = found[address] = Page()
            page.feed(response.text)
            for link in page.links + page.loaded:
                target, _ = urldefrag(urljoin(address, link))
                if target.startswith(site) and target not in seen:
                    seen.add(target)
                    waiting.append((target, address))
    return found


@pytest.fixture(scope="module")
def sections(site: str) -> dict[str, str]:
    """The text of each section by its address, as the search has it."""
    index = httpx.get(site + "search/search_index.json").json()
    return {entry["location"]: f"{entry['title']} {entry['text']}" for entry in index["docs"]}


def test_every_document_of_the_map_is_reached(site: str, pages: dict[str, Page]) -> None:
    """From the first page, by links alone."""
    text = (ROOT / "docs" / "README.md").read_text()
    rows = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\.md\)", text, re.MULTILINE)
    wanted = {urljoin(f"{site}docs/", f"{row}.html") for row in rows}
    wanted = {address.replace("/README.html", "/index.html") for address in wanted}

    assert len(wanted) > 30
    assert set() == wanted - set(pages) - {f"{site}index.html"}


def test_every_anchor_that_a_link_names_is_there(site: str, pages: dict[str, Page]) -> None:
    """Those of the navigation, of the API and of raw HTML included."""
    missing = []
    for address, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(urljoin(address, link))
            other = pages.get(target)
            if anchor and other and unquote(anchor) not in other.anchors | {"__skip"}:
                missing.append(f"{address.removeprefix(site)} -> {link}")

    assert [] == missing


def test_the_site_loads_nothing_from_another_host(pages: dict[str, Page], folder: Path) -> None:
    """No font, script, style or picture; it is read without a network."""
    foreign = {
        resource for page in pages.values() for resource in page.loaded if urlsplit(resource).netloc
    }
    styles = "".join(path.read_text() for path in folder.rglob("*.css"))

    assert set() == foreign
    assert [] == re.findall(r"url\([\"']?(?:https?:)?//[^)]*", styles)
    assert [] == [path for path in folder.rglob("*.html") if "mermaid" in _classes(path)]


def _classes(path: Path) -> set[str]:
    """Return the classes in a page; the theme would load a script for `mermaid`."""
    found = re.findall(r'class="([^"]*)"', path.read_text())
    return {name for classes in found for name in classes.split()}


@pytest.mark.parametrize(
    "words,address",
    [
        ("OUTCOME_UNKNOWN", "docs/troubleshooting.html"),
        ("certificate Renewal restart", "docs/tls-and-proxies.html"),
        ("max-sockets", "docs/configuration.html"),
        ("Consumer Producer asyncio", "docs/client.html"),
        ("CertificateExpiry", "docs/runbooks/CertificateExpiry.html"),
        ("nsq_to_http", "docs/compared-with.html"),
        ("publish_many", "docs/client_api.html"),
    ],
)
def test_the_search_finds(words: str, address: str, sections: dict[str, str]) -> None:
    """A page whose sections have all of the words is among those that the search knows."""
    page = " ".join(text for place, text in sections.items() if place.startswith(address))

    assert all(word.lower() in page.lower() for word in words.split())


def test_the_search_has_a_section_for_each_setting(sections: dict[str, str]) -> None:
    """A search for a flag leads to the flag, not to the head of a long page."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    flags = re.findall(r"^### .*`(--[a-z0-9-]+)`$", text, re.MULTILINE)

    assert len(flags) > 100
    assert [] == [flag for flag in flags if f"docs/configuration.html#{flag}" not in sections]


@pytest.mark.parametrize("name", gateway.client.__all__)
def test_the_api_reference_shows_each_export(
    name: str, site: str, pages: dict[str, Page], sections: dict[str, str]
) -> None:
    """With its docstring, and in the search."""
    address = "docs/client_api.html"
    anchor = f"gateway.client.{name}"
    summary = (getattr(gateway.client, name).__doc__ or "").strip().partition("\n")[0]

    assert anchor in pages[site + address].anchors
    shown = re.sub(r"<[^>]*>|\s+", " ", sections[f"{address}#{anchor}"])
    assert _letters(summary) in _letters(shown)


def _letters(text: str) -> str:
    """Return *text* without what Markdown and HTML change."""
    return re.sub(r"[^A-Za-z0-9]", "", re.sub(r"&\w+;", "", text))


def test_the_site_has_a_page_for_what_is_not_there(site: str) -> None:
    """A wrong address leads back to the navigation."""
    page = httpx.get(site + "404.html")

    assert "docs/index.html" in page.text


def test_the_index_of_the_search_is_one_file(folder: Path) -> None:
    """It is loaded at the first search, so it stays below 2 MiB."""
    path = folder / "search" / "search_index.json"

    assert json.loads(path.read_text())["docs"]
    assert path.stat().st_size < 2 * 1024 * 1024
