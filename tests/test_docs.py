"""What the documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_that_the_clients_page_names_is_there() -> None:
    """Beside go-nsq's column stands the name of a test; one that was renamed is renamed there."""
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "client.md").read_text()))
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    assert named
    assert set() == {name for name in named if f"def {name}(" not in tests}


def test_every_file_that_the_clients_page_names_is_there() -> None:
    """A whole file of tests may stand for a row."""
    named = set(re.findall(r"`(test_\w+\.py)`", (ROOT / "docs" / "client.md").read_text()))

    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
