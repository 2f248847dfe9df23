"""Find the lines of values in a TOML text, for error messages; `tomllib` does not tell. PURE."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

_HIDDEN = re.compile(
    r"""'''.*?'''|\"{3}.*?\"{3}|'[^'\n]*'|"(?:[^"\\\n]|\\.)*"|\#[^\n]*""", re.DOTALL
)
"""Strings and comments, which may contain anything."""
_NOT_NEWLINE = re.compile(r"[^\n]")
_HEADER = re.compile(r"^[ \t]*(\[\[?[ \t]*([\w.\- \t]*?)[ \t]*\]\]?)[ \t]*$", re.MULTILINE)


class TomlLines:
    """
    The lines of the entries and keys of the valid TOML document *text*.

    Keys in quotes are not found; the line is then that of the entry they are in.
    """

    def __init__(self, text: str) -> None:
        self._text = _HIDDEN.sub(lambda found: _NOT_NEWLINE.sub(" ", found[0]), text)
        self._newlines = [found.start() for found in re.finditer("\n", self._text)]
        self._names: list[str] = []
        """The names in all headers, ``[name]`` or ``[[name]]``."""
        self._starts: list[int] = []
        """Where these headers begin."""
        self._by_name: dict[str, list[int]] = {}
        """Places in these lists."""
        self._arrays: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """The ranges of the tables in each array, by the range that it is searched in."""
        for found in _HEADER.finditer(self._text):
            name = ".".join(part.strip() for part in found[2].split("."))
            self._by_name.setdefault(name, []).append(len(self._names))
            self._names.append(name)
            self._starts.append(found.start(1))

    def line(self, *path: str | int) -> int:
        """
        Return the line of the value at *path*, such as ``("key", 2, "grants", 0, "topic")``.

        If it is not found, return the line of the innermost table that is. Lines begin at 1.
        """
        # Keys of the document itself are before the first header.
        begin, end = 0, self._starts[0] if self._starts else len(self._text)
        limits = 0, len(self._text)
        name = ""
        for part in path:
            if isinstance(part, int):
                found = self._table(name, part, limits) or self._inline_table(part, begin, end)
            else:
                name = f"{name}.{part}" if name else part
                found = self._key(part, begin, end) or self._table(name, 0, limits)
            if found is None:
                break
            begin, end = found
            if isinstance(part, int):
                limits = found
        return bisect_right(self._newlines, begin - 1) + 1

    def _key(self, key: str, begin: int, end: int) -> tuple[int, int] | None:
        """Return the range that begins with ``key =``."""
        found = re.compile(rf"(?<![\w.-]){re.escape(key)}\s*[=.]").search(self._text, begin, end)
        return None if found is None else (found.start(), end)

    def _table(self, name: str, place: int, limits: tuple[int, int]) -> tuple[int, int] | None:
        """Return the range of the table *place* with the header *name* within *limits*."""
        found = self._by_name.get(name, [])
        begin, end = limits
        at = place + bisect_left(found, begin, key=self._starts.__getitem__)
        if at >= len(found) or self._starts[found[at]] >= end:
            return None
        # The table ends where a header follows that is not below it.
        following = found[at] + 1
        while following < len(self._names) and self._names[following].startswith(f"{name}."):
            following += 1
        return (
            self._starts[found[at]],
            self._starts[following] if following < len(self._starts) else len(self._text),
        )

    def _inline_table(self, place: int, begin: int, end: int) -> tuple[int, int] | None:
        """Return the range of the table *place* of the array that begins at *begin*."""
        found = self._arrays.get((begin, end))
        if found is None:
            # All of them at once: an array may have thousands.
            found = self._arrays[begin, end] = list(self._inline_tables(begin, end))
        return found[place] if place < len(found) else None

    def _inline_tables(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        depth = start = 0
        for found in re.compile(r"[{}]").finditer(self._text, begin, end):
            if found[0] == "{":
                if depth == 0:
                    start = found.start()
                depth += 1
            else:
                depth -= 1
                if depth == 0:
                    yield start, found.start()
