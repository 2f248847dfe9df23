"""
Serve the API description as YAML, as JSON, and as an HTML page.

openapi.yaml (HTTP) and asyncapi.yaml (WebSocket) are at the top of the repository. ``static/`` has
symbolic links to them. An editable install follows the links; a built package contains copies.
``tools/make_docs_page.py`` generates the JSON and the page from openapi.yaml.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from importlib import resources

from fastapi import APIRouter, Response

_HEADERS = {"X-Content-Type-Options": "nosniff"}
_PAGE_POLICY = (
    "default-src 'none'; style-src 'sha256-{}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)
_YAML = "application/yaml"  # RFC 9512


def docs_router() -> APIRouter:
    """
    Return routes for /openapi.yaml, /openapi.json, /asyncapi.yaml and /docs; none needs a secret.

    Raises:
        FileNotFoundError: The package was built without its static files.
    """
    folder = resources.files("gateway.web.site") / "static"
    router = APIRouter(tags=["Documentation"])
    for name, media_type in (
        ("openapi.yaml", _YAML),
        ("openapi.json", "application/json"),
        ("asyncapi.yaml", _YAML),
    ):
        content = (folder / name).read_bytes()
        router.add_api_route(f"/{name}", _endpoint(content, media_type, _HEADERS))
    page = (folder / "docs.html").read_bytes()
    router.add_api_route("/docs", _endpoint(page, "text/html", _page_headers(page)))
    return router


def _endpoint(
    content: bytes, media_type: str, headers: dict[str, str]
) -> Callable[[], Awaitable[Response]]:
    async def endpoint() -> Response:
        return Response(content, media_type=media_type, headers=headers)

    return endpoint


def _page_headers(page: bytes) -> dict[str, str]:
    """Return headers with which browsers let *page* use its own style element, and load nothing."""
    # The policy has the hash of the style, so that injected styles have no effect (CSP, hashes).
    style = _STYLE.search(page)
    digest = hashlib.sha256(style[1] if style else b"").digest()
    return {
        **_HEADERS,
        "Content-Security-Policy": _PAGE_POLICY.format(base64.b64encode(digest).decode()),
        "Referrer-Policy": "no-referrer",
    }
