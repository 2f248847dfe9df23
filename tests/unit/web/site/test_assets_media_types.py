"""The type of a file is said by its name, and is the same on every system."""

from __future__ import annotations

import mimetypes

import pytest

from gateway.web.site.assets import media_type_of


@pytest.mark.parametrize(
    "name,media_type",
    [
        ("index.html", "text/html"),
        ("style.css", "text/css"),
        ("app.js", "text/javascript"),
        ("APP.JS", "text/javascript"),
        ("module.mjs", "text/javascript"),
        ("app.js.map", "application/json"),
        ("data.json", "application/json"),
        ("manifest.webmanifest", "application/manifest+json"),
        ("notes.md", "text/markdown"),
        ("notes.txt", "text/plain"),
        ("code.wasm", "application/wasm"),
        ("sign.svg", "image/svg+xml"),
        ("picture.png", "image/png"),
        ("picture.webp", "image/webp"),
        ("letters.woff2", "font/woff2"),
        ("app.js.gz", "application/octet-stream"),
        ("noname", "application/octet-stream"),
        ("odd.xyzzy", "application/octet-stream"),
        ("data:,a.js", "text/javascript"),
        ("http://a.js", "text/javascript"),
        ("", "application/octet-stream"),
    ],
)
def test_a_name_has_a_type(name: str, media_type: str) -> None:
    """What nobody knows is bytes, and so is what is compressed."""
    assert media_type == media_type_of(name)


def test_the_tables_of_the_system_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have called scripts plain text, and browsers run none of those."""
    mimetypes.init()
    monkeypatch.setitem(mimetypes.types_map, ".js", "text/plain")
    monkeypatch.setitem(mimetypes.types_map, ".html", "text/plain")

    kinds = [media_type_of("app.js"), media_type_of("index.html")]

    assert ["text/javascript", "text/html"] == kinds
