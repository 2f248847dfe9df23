"""HTML as nested calls: text is escaped, what `element` and `prose` return is not again."""

from __future__ import annotations

import re
from html import escape

_VOID = frozenset({"br", "meta"})
_MARKS = re.compile(r"`(?P<code>[^`]+)`|\*\*(?P<strong>[^*]+)\*\*")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str) -> Html:
    """
    Return an element with *children* in it.

    An underscore in an attribute's name is a dash; one at its end is dropped: ``class_``.
    """
    pairs = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    ]
    start = f"<{name}{''.join(pairs)}>"
    return Html(start if name in _VOID else f"{start}{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """Return *children* one after the other."""
    return Html("".join(each if isinstance(each, Html) else escape(each) for each in children))


def prose(text: str) -> Html:
    """
    Return paragraphs and lists of what the contract uses of Markdown.

    A blank line ends a paragraph; lines that start with ``- `` are a list; within a line there are
    only `code` and **strong**.
    """
    return join(*map(_block, re.split(r"\n\s*\n", text.strip())))


def line(text: str) -> Html:
    """Return *text* with its `code` and **strong**, without a paragraph around it."""
    parts: list[str] = []
    start = 0
    for mark in _MARKS.finditer(text):
        name = str(mark.lastgroup)
        parts += [text[start : mark.start()], element(name, mark[name])]
        start = mark.end()
    return join(*parts, text[start:])


def _block(text: str) -> Html:
    if not text.startswith("- "):
        return element("p", line(text))
    items = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    return element("ul", *(element("li", line(item.strip())) for item in items))
