"""asyncapi.yaml for tests: which message an object is, and how it breaks the contract."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeAlias

import yaml
from openapi_schema_validator import OAS31Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from tests.support.project import ROOT

Json: TypeAlias = dict[str, Any]

SOCKET_CONTRACT: Json = yaml.safe_load((ROOT / "asyncapi.yaml").read_text(encoding="utf-8"))
CHANNEL: Json = SOCKET_CONTRACT["channels"]["subscription"]
QUERY: Json = CHANNEL["bindings"]["ws"]["query"]["properties"]
MESSAGES: Json = SOCKET_CONTRACT["components"]["messages"]
SCHEMAS: Json = SOCKET_CONTRACT["components"]["schemas"]

_OF_RESPONSE = {"SUB": "subscribed", "AUTH": "authenticated", "CLS": "closeWait"}


def _close(node: object) -> None:
    """Forbid undeclared members in a schema, at any depth."""
    if isinstance(node, list):
        for each in node:
            _close(each)
    elif isinstance(node, dict):
        for each in node.values():
            _close(each)
        if "properties" in node and node.get("type") == "object":
            node.setdefault("additionalProperties", False)


# A client passes over members that it does not know; what the gateway sends has to be promised.
_STRICT = copy.deepcopy(SOCKET_CONTRACT)
_close(_STRICT["components"]["schemas"])
_REGISTRY: Registry[Any] = Registry().with_resource(
    "urn:contract", DRAFT202012.create_resource(_STRICT)
)


def commands() -> dict[str, Json]:
    return {name: payload_of(name) for name in MESSAGES if name.isupper()}


def payload_of(message: str) -> Json:
    return resolved(MESSAGES[message]["payload"])


def resolved(node: Json) -> Json:
    while "$ref" in node:
        found: Json = SOCKET_CONTRACT
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        node = found
    return node


def message_of(received: Json) -> str:
    """Return the message of the contract that an object from the gateway is."""
    if received.get("type") != "response":
        return str(received.get("type"))
    verb = str(received.get("cmd"))
    if verb == "NOP" and isinstance(received.get("data"), dict):
        return "status"
    return _OF_RESPONSE.get(verb, "ok")


def contract_errors(message: str, payload: Json) -> list[str]:
    """Return how *payload* breaks the contract of *message*; extra members count."""
    if message not in MESSAGES:
        return [f"{message!r} is no message of the contract"]
    reference = MESSAGES[message]["payload"]["$ref"]
    validator = OAS31Validator({"$ref": f"urn:contract{reference}"}, registry=_REGISTRY)
    return [
        f"{message}: {error.json_path} {error.message}" for error in validator.iter_errors(payload)
    ]


def gateway_contract_errors(received: Json) -> list[str]:
    return contract_errors(message_of(received), received)


def examples() -> Iterator[tuple[str, Json]]:
    """Yield each example of the contract, with the name of its message."""
    for name, message in MESSAGES.items():
        for example in message["examples"]:
            yield name, example["payload"]
