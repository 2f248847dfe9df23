"""docs/logs.md has every event that is logged, and no other."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.support.project import ROOT, tree_of

_ROW = re.compile(r"^\| `([^`]+)` \| (\w+) \| (.*?) ?\|$", re.MULTILINE)
_LEVELS = {"debug", "info", "warning", "error", "exception"}


def constants(tree: ast.Module) -> dict[str, str]:
    return {
        ast.unparse(node.targets[0]): node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def phrases(said: ast.expr, named: dict[str, str]) -> list[str]:
    """Return what *said* may be: a text, one that has a name, or either of two."""
    if isinstance(said, ast.IfExp):
        return phrases(said.body, named) + phrases(said.orelse, named)
    return [named.get(ast.unparse(said)) or str(ast.literal_eval(said))]


@cache
def logged() -> list[tuple[str, str, list[str]]]:
    """Return event, level and fields of every line that the code can log."""
    found = []
    for path in (ROOT / "gateway").rglob("*.py"):
        tree = tree_of(path)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _LEVELS
                and "log" in ast.unparse(node.func.value)
            ):
                level = node.func.attr.replace("exception", "error")
                names = [keyword.arg for keyword in node.keywords if keyword.arg]
                fields = [name for name in names if name != "exc_info"]
                found += [
                    (event, level, fields) for event in phrases(node.args[0], constants(tree))
                ]
    return found


def of_page() -> dict[str, tuple[str, set[str]]]:
    """Return level and words of the fields of each event on the page."""
    text = (ROOT / "docs" / "logs.md").read_text()
    return {
        event: (level, set(re.findall(r"\w+", fields)))
        for event, level, fields in _ROW.findall(text)
    }


def test_every_event_is_on_the_page_with_its_level() -> None:
    """Who searches for a phrase finds what it means."""
    levels: dict[str, set[str]] = {}
    for event, level, _ in logged():
        levels.setdefault(event, set()).add(level)
    page = of_page()

    # A second level of an event is named beside its fields.
    assert {event: (True, set[str]()) for event in page} == {
        event: (page[event][0] in found, found - {page[event][0]} - page[event][1])
        for event, found in levels.items()
        if event in page
    }
    assert levels.keys() == page.keys()


def test_every_field_is_on_the_page() -> None:
    """Those that are given by name; the others stand beside them."""
    page = of_page()

    missing = {
        (event, field)
        for event, _, fields in logged()
        for field in fields
        if field not in page[event][1]
    }

    assert set() == missing
