"""What a file is, by its name: the same everywhere, whatever table of types the system has."""

from __future__ import annotations

import mimetypes

BYTES = "application/octet-stream"

_OWN_TYPES = {
    # A browser runs no module of another type; Python has said application/javascript, too.
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".cjs": "text/javascript",
    # What not every Python knows.
    ".avif": "image/avif",
    ".map": "application/json",
    ".md": "text/markdown",
    ".ogg": "audio/ogg",
    ".otf": "font/otf",
    ".ttf": "font/ttf",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}


def _table() -> mimetypes.MimeTypes:
    # An instance of its own reads no file of the system, only what Python brings.
    table = mimetypes.MimeTypes()
    for suffix, media_type in _OWN_TYPES.items():
        table.add_type(media_type, suffix)
    return table


_TABLE = _table()


def media_type_of(name: str) -> str:
    """Return the media type of a file called *name*; without a charset, for text is UTF-8."""
    found, encoding = _TABLE.guess_type(f"/{name}")
    # What is compressed goes out as it is: nobody is told to unpack it.
    return BYTES if found is None or encoding is not None else found
