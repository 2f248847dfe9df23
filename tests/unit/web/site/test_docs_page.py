"""The page has all of the contract, and nothing that has to be loaded or run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
import yaml

from tests.support.project import ROOT
from tools.make_docs_page import documentation_page

CONTRACT: dict[str, Any] = yaml.safe_load((ROOT / "openapi.yaml").read_text(encoding="utf-8"))
PAGE = documentation_page(CONTRACT, "p { color: red; }")


class Reader(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        """Text outside of code."""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what there is."""
        self.names.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """See every element end in its turn."""
        assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        if not {"code", "pre", "style"} & set(self.open):
            self.words += data

    def values(self, attribute: str) -> list[str]:
        """Return the values of *attribute* everywhere."""
        return [value for name, value in self.attributes if name == attribute]


READER = Reader(PAGE)


def test_every_element_has_an_end() -> None:
    """Nothing is left open, or closed out of turn."""
    assert [] == READER.open


def test_nothing_is_loaded_and_nothing_runs() -> None:
    """Links lead to parts of the page and to the contract itself, and there is nothing else."""
    elsewhere = {link for link in READER.values("href") if not link.startswith("#")}

    assert {"openapi.yaml", "openapi.json", "asyncapi.yaml"} == elsewhere
    assert set() == READER.names & {"script", "link", "img", "iframe", "form", "object", "base"}
    assert set() == {name for name, _ in READER.attributes} & {"src", "style", "onclick"}


def test_every_link_within_the_page_leads_somewhere() -> None:
    """Operations, shapes and examples are where links say, once each."""
    targets = READER.values("id")
    links = {link[1:] for link in READER.values("href") if link.startswith("#")}

    assert set() == links - set(targets)
    assert len(set(targets)) == len(targets)


def test_every_operation_has_a_link_and_a_place() -> None:
    """A tag that is not in the list of tags would leave its operations out."""
    operations = {
        each["operationId"] for methods in CONTRACT["paths"].values() for each in methods.values()
    }

    assert set() == operations - set(READER.values("id"))
    assert set() == {f"#{each}" for each in operations} - set(READER.values("href"))


@pytest.mark.parametrize("example", CONTRACT["components"]["examples"])
def test_every_example_is_there(example: str) -> None:
    """A caller who sees an error finds it by its word."""
    assert f"example-{example}" in READER.values("id")


@pytest.mark.parametrize("name", CONTRACT["components"]["parameters"])
def test_every_parameter_is_there_with_its_text(name: str) -> None:
    """What a parameter means stands with each operation that takes it."""
    parameter = CONTRACT["components"]["parameters"][name]
    first_words = re.split(r"[`\n]", parameter["description"])[0].strip()

    assert f"<code>{parameter['name']}</code>" in PAGE
    assert first_words in READER.words


def test_no_markdown_is_left() -> None:
    """The contract uses nothing that the page does not read."""
    assert [] == re.findall(r"`|\*\*|^#|\]\(|^\||^\d+\. |~~~", READER.words, re.MULTILINE)


def test_a_command_is_ready_to_be_pasted() -> None:
    """Each operation has one, with the examples of what it needs."""
    assert (
        "<pre>curl --data-binary hello &#x27;http://127.0.0.1:8080/pub?topic=orders&#x27;" in PAGE
    )
    assert r"curl --data-binary $&#x27;one\ntwo\nthree\n&#x27;" in PAGE
    assert "<pre>curl http://127.0.0.1:8080/ping</pre>" in PAGE
    assert "<pre>websockets &#x27;ws://127.0.0.1:8080/sub?topic=orders&#x27;</pre>" in PAGE


def test_the_stylesheet_is_in_the_page_as_it_is() -> None:
    """Its hash is what the browser is told to allow."""
    assert "<style>p { color: red; }</style>" in PAGE


@pytest.mark.parametrize(
    "schema,expected",
    [
        ({"type": "integer", "minimum": 0, "maximum": 9, "default": 1}, "integer, 0 to 9, default"),
        ({"type": "integer", "minimum": 1}, "integer, at least 1"),
        ({"type": "string", "maxLength": 5}, "string, at most 5 bytes"),
        ({"const": "OK"}, "<code>OK</code>"),
        ({"type": ["array", "null"], "items": {"$ref": "#/x/Y"}}, "array or null of <a href="),
        ({}, "anything"),
    ],
)
def test_a_shape_is_told_in_a_few_words(schema: dict[str, Any], expected: str) -> None:
    """Type, limits with their unit, default."""
    contract = {
        "info": {"title": "t", "version": "1", "summary": "s", "description": "d"},
        "servers": [{"url": "http://h"}],
        "tags": [],
        "paths": {},
        "components": {
            "schemas": {
                "S": {"description": "d", "properties": {"member": schema}, "required": ["member"]}
            },
            "examples": {},
        },
    }

    assert f"<dt><code>member</code> {expected}" in documentation_page(contract, "")
