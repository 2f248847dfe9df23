"""What the documents name is there, and each of their promises has a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.web.errors import CloseCode
from tools.document_traceability import FOLDERS, PAGE, ROOT, missing, page, promises

TEST_FILES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "helm/*.md")
    for path in ROOT.glob(pattern)
)
SECTIONS_WITHOUT_A_PROMISE = {"Memory per idle socket"}


def test_every_test_that_proves_a_promise_is_there() -> None:
    """Named in tests/traceability.yaml; one that is renamed is renamed there."""
    assert [] == missing()


def test_the_page_of_promises_and_tests_is_current() -> None:
    """`make traceability` writes it."""
    assert page() == PAGE.read_text()


def test_every_promise_has_a_test_or_a_reason() -> None:
    without = [
        promise
        for sections in promises().values()
        for rows in sections.values()
        for promise, tests in rows.items()
        if not tests or (isinstance(tests, str) and len(tests) < 60)
    ]

    assert [] == without


@pytest.mark.parametrize("name", promises())
def test_every_page_and_section_with_a_promise_is_there(name: str) -> None:
    """A heading may say more than the name of its section."""
    lines = (ROOT / name).read_text().splitlines()
    headings = {line.lstrip("#").strip() for line in lines if line.startswith("#")}

    for section in promises()[name]:
        assert any(heading.startswith(section) for heading in headings), section


def test_every_section_of_the_sockets_contract_has_its_tests() -> None:
    """All but those that promise nothing that a test could show."""
    lines = (ROOT / "docs" / "websocket.md").read_text().splitlines()
    sections = {
        line.removeprefix("## ").partition(",")[0] for line in lines if line.startswith("## ")
    }

    assert sections - SECTIONS_WITHOUT_A_PROMISE == set(promises()["docs/websocket.md"]) - {
        "The WebSocket protocol"
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_every_file_of_tests_that_a_document_names_is_there(path: Path) -> None:
    """By its name: folders may change."""
    named = set(re.findall(r"`(?:[\w/]+/)?(test_\w+\.py)", path.read_text()))

    assert [] == sorted(named - TEST_FILES)


def test_troubleshooting_has_every_code_and_status() -> None:
    """Whatever an error response, an error frame or a close says is explained."""
    page_of_help = (ROOT / "docs" / "troubleshooting.md").read_text()
    contract = (ROOT / "openapi.yaml").read_text()
    frames = (ROOT / "asyncapi.yaml").read_text()
    names = set(re.findall(r"^ +message: ([A-Z][A-Z_]+)$", contract, re.MULTILINE))
    names |= set(re.findall(r"\bE_[A-Z_]+\b", frames))
    names = {re.sub("^INVALID_ARG_(?!TOPIC|CHANNEL).*", "INVALID_ARG", name) for name in names}
    numbers = {str(code.value) for code in CloseCode}
    numbers |= {
        status for status in re.findall(r'^ +"(\d{3})":', contract, re.MULTILINE) if status >= "400"
    }

    assert [] == sorted(name for name in names if f"`{name}`" not in page_of_help)
    assert [] == sorted(
        n for n in numbers if not re.search(rf"^\| [^|]*\b{n}\b", page_of_help, re.MULTILINE)
    )


def test_troubleshooting_has_no_code_that_nobody_sends() -> None:
    """Each code of the first columns stands in the gateway's own source."""
    page_of_help = (ROOT / "docs" / "troubleshooting.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    first_cells = re.findall(r"^\| ([^|]+) \|", page_of_help, re.MULTILINE)
    named = {name for cell in first_cells for name in re.findall(r"`([A-Z][A-Z_]+[A-Z])`", cell)}

    assert named
    assert [] == sorted(name for name in named if name not in source)
