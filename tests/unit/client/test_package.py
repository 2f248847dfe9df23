"""Tests of what programs import from the package."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import gateway.client
from gateway import errors
from tests.support.project import ROOT

RAISED = {
    "AlreadyResponded",
    "AuthRequired",
    "BrokerRefused",
    "BrokerUnreachable",
    "LimitReached",
    "GatewayError",
    "InvalidRequest",
    "NoBroker",
    "OutcomeUnknown",
    "Overloaded",
    "PublishError",
    "SettingsError",
}


def test_every_error_that_the_client_raises_is_exported() -> None:
    """`gateway.client` exports the same classes."""
    exported = {name: getattr(gateway.client, name) for name in gateway.client.__all__}

    assert {name: getattr(errors, name) for name in RAISED}.items() <= exported.items()


def test_the_package_says_that_it_is_typed() -> None:
    """PEP 561: without the marker in the wheel, type checkers ignore every annotation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert files("gateway").joinpath("py.typed").is_file()
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["*"]
