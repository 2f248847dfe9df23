"""What the documents name is there."""

from __future__ import annotations

import re

import pytest

from tests.support.project import ROOT

TESTS = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
PAGES = ["browser.md", "client.md", "websocket.md"]
"""Those that name the tests of what they say."""


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    """Beside what is said stands the name of a test; one that was renamed is renamed there."""
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text()))
    tests = "".join(TESTS.values())

    assert named
    assert [] == sorted(name for name in named if f"def {name}(" not in tests)


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    """A whole file of tests may stand for a row."""
    named = set(re.findall(r"`(?:tests/)?(test_\w+\.py)`", (ROOT / "docs" / page).read_text()))

    assert named <= {path.name for path in TESTS}


def test_every_section_of_the_sockets_contract_has_its_tests() -> None:
    """All but those that say nothing that a test could show, and no row is without one."""
    text = (ROOT / "docs" / "websocket.md").read_text()
    body, _, shown = text.partition("## Tests")
    sections = {line.removeprefix("## ") for line in body.splitlines() if line.startswith("## ")}
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", shown.partition("| --- |")[2], re.MULTILINE)
    named = {name for said, _ in rows for name in re.findall(r"\*\*(.*?)\*\*", said)}

    assert [] == [said for said, tests in rows if "`test_" not in tests]
    assert named == {section.partition(",")[0] for section in sections} - {"Memory per idle socket"}
