"""
How the routes of administration show themselves in the application's schema.

The contract is openapi.yaml; the parameters are read from the query by hand, so FastAPI does not
know them by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.web.answers import TITLES

_OPERATIONS: Mapping[str, tuple[str, str]] = {
    "/topic/create": ("createTopic", "Make a topic where it is missing."),
    "/topic/delete": ("deleteTopic", "Delete a topic with its channels and messages."),
    "/topic/empty": ("emptyTopic", "Throw away what a topic holds for channels to come."),
    "/topic/pause": ("pauseTopic", "Hold back what is published to a topic."),
    "/topic/unpause": ("unpauseTopic", "Let a topic give its messages to its channels again."),
    "/channel/create": ("createChannel", "Make a channel where it is missing."),
    "/channel/delete": (
        "deleteChannel",
        "Delete a channel with its messages; its consumers are disconnected.",
    ),
    "/channel/empty": ("emptyChannel", "Throw away what a channel holds, in flight or not."),
    "/channel/pause": ("pauseChannel", "Give consumers of a channel nothing new."),
    "/channel/unpause": ("unpauseChannel", "Give consumers of a channel messages again."),
    "/stats": ("stats", "Report topics, channels and clients of every nsqd."),
    "/info": ("info", "Report what every nsqd is."),
}
"""The id and the summary of each path, as in openapi.yaml."""

_FILTERS = ("format", "topic", "channel", "include_clients", "include_mem")
_ALWAYS = (400, 401, 403, 500, 502, 503)
"""Beside 200; what the server itself answers, 408 and 431, is before every route."""


def operation(path: str) -> dict[str, Any]:
    """Return what `APIRouter.add_api_route` is told of *path* beside its function."""
    operation_id, summary = _OPERATIONS[path]
    is_report = path in {"/stats", "/info"}
    statuses = _ALWAYS if is_report or path.endswith("/create") else (*_ALWAYS, 404)
    return {
        "methods": ["GET" if is_report else "POST"],
        "operation_id": operation_id,
        "summary": summary,
        "tags": ["State" if is_report else "Topics and channels"],
        "responses": {status: {"description": TITLES[status]} for status in sorted(statuses)},
        "openapi_extra": {"parameters": _parameters(path)},
    }


def _parameters(path: str) -> list[dict[str, Any]]:
    if path == "/info":
        return []
    if path == "/stats":
        return [_parameter(name, required=False) for name in _FILTERS]
    names = ("topic", "channel") if path.startswith("/channel/") else ("topic",)
    return [_parameter(name, required=True) for name in names]


def _parameter(name: str, *, required: bool) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": {"type": "string"}}
