"""
The contract for whoever asks: as it was written, as JSON, and as a page to read.

openapi.yaml (HTTP) and asyncapi.yaml (the WebSocket) stand at the top of the repository; what is in
``static/`` is a link to each, so that an editable install serves the file itself and a built
package has a copy.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

import msgspec
import yaml
from fastapi import APIRouter, Response

from gateway.web.docs_page import documentation_page

_STATIC = resources.files("gateway.web") / "static"
_HEADERS = {"X-Content-Type-Options": "nosniff"}
_PAGE_POLICY = (
    "default-src 'none'; style-src 'sha256-{}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# libyaml is ten times faster; a PyYAML without it reads the same.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Yaml(Response):
    media_type = "application/yaml"  # RFC 9512


class _Json(Response):
    media_type = "application/json"


class _Page(Response):
    media_type = "text/html"


def docs_router() -> APIRouter:
    """
    Return GET /openapi.yaml, /openapi.json, /asyncapi.yaml and /docs; they need no secret.

    Raises:
        FileNotFoundError: The package was built without its files.
    """
    text = (_STATIC / "openapi.yaml").read_text(encoding="utf-8")
    socket_text = (_STATIC / "asyncapi.yaml").read_text(encoding="utf-8")
    stylesheet = (_STATIC / "docs.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(stylesheet.encode()).digest()).decode()
    page_headers = {
        **_HEADERS,
        "Content-Security-Policy": _PAGE_POLICY.format(digest),
        "Referrer-Policy": "no-referrer",
    }
    router = APIRouter(tags=["Documentation"])

    @functools.cache
    def contract() -> dict[str, Any]:
        """Read the contract when somebody asks: it takes 20 ms, 200 without libyaml."""
        document: dict[str, Any] = yaml.load(text, _Loader)  # noqa: S506 - both are safe
        return document

    @functools.cache
    def page() -> str:
        return documentation_page(contract(), stylesheet)

    # Not coroutines: FastAPI lets plain functions run beside the event loop.

    @router.get("/openapi.yaml", response_class=_Yaml)
    def as_yaml() -> Response:
        return _Yaml(text, headers=_HEADERS)

    @router.get("/openapi.json", response_class=_Json)
    def as_json() -> Response:
        return _Json(msgspec.json.encode(contract()), headers=_HEADERS)

    @router.get("/asyncapi.yaml", response_class=_Yaml)
    def of_the_socket() -> Response:
        return _Yaml(socket_text, headers=_HEADERS)

    @router.get("/docs", response_class=_Page)
    def as_page() -> Response:
        return _Page(page(), headers=page_headers)

    return router
