"""`gateway.client` exports what its documents name, and loads nothing of the server."""

from __future__ import annotations

import builtins
import inspect
import re
from importlib.resources import files
from pathlib import Path

import pytest

from gateway import client, errors

ROOT = Path(__file__).parents[3]
PAGES = ["client.md", "client_options.md"]
GO_NSQ_NAMES = {"ChangeMaxInFlight", "IsStarved"}
"""Names of go-nsq in a page, that it compares with ours."""


def class_names(page: str) -> set[str]:
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return set(re.findall(r"(?<![\w.-])[A-Z][a-z]+(?:[A-Z][a-z]+)*\b", "\n".join(blocks + spans)))


def raised_by(exported: type) -> set[str]:
    """Return the errors in the docstrings of *exported* and of its public methods."""
    methods = [value for name, value in vars(exported).items() if not name.startswith("_")]
    found: set[str] = set()
    for each in [exported, vars(exported).get("__init__"), *methods]:
        _, _, section = (inspect.getdoc(each) or "").partition("Raises:\n")
        found |= set(re.findall(r"^    (\w+): ", section, re.MULTILINE))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_class_that_a_page_names_is_exported(page: str) -> None:
    """Python's own and those of go-nsq aside."""
    known = {*client.__all__, *GO_NSQ_NAMES, *dir(builtins)}

    assert class_names(page) & {*client.__all__}
    assert [] == sorted(class_names(page) - known)


def test_an_error_that_the_client_raises_is_exported() -> None:
    classes = [value for name in client.__all__ if isinstance(value := getattr(client, name), type)]
    raised = set().union(*map(raised_by, classes))

    assert {"NoBroker", "SettingsError"} <= raised
    assert [] == sorted(name for name in raised - {*client.__all__} if hasattr(errors, name))


def test_every_exported_name_is_there_once() -> None:
    assert sorted(set(client.__all__)) == client.__all__
    assert [] == [name for name in client.__all__ if not hasattr(client, name)]


def test_the_package_is_marked_as_typed() -> None:
    """PEP 561: without the marker, type checkers ignore every annotation."""
    assert files("gateway").joinpath("py.typed").is_file()
