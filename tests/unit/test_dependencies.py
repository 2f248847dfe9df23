"""pyproject.toml declares the packages that the code imports, and no others."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import ROOT, tree_of

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

MODULES = {
    "google-re2": "re2",
    "opentelemetry-api": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "pyjwt": "jwt",
    "python-snappy": "snappy",
}
"""The module of each distribution that has another name."""
PINNED_BY = {"pydantic_core": "pydantic", "py4j": "pyspark"}
"""Modules of a distribution that another one pins to a single version."""
NEEDED_BY = {"pandas": "pyspark"}
"""Distributions without an import: another one needs them, and does not declare them."""


def imported_modules(sources: Iterable[ast.Module]) -> set[str]:
    """Return the modules from outside of the standard library and of this project."""
    names = set()
    for tree in sources:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
    own = {"gateway", "pyspark_nsq", *sys.stdlib_module_names}
    return {name for name in names if name.partition(".")[0] not in own}


def distribution_of(module: str, declared: Iterable[str]) -> str:
    """Return the most specific of the *declared* distributions that has *module*, or its name."""
    module = PINNED_BY.get(module.partition(".")[0], module)
    names = {MODULES.get(each, each.replace("-", "_")): each for each in declared}
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        if found := names.get(".".join(parts[:count])):
            return found
    return parts[0]


def names_of(requirements: Iterable[str]) -> set[str]:
    return {re.match(r"[\w.-]+", each)[0].lower() for each in requirements}  # type: ignore[index]


def differences(modules: Iterable[str], declared: set[str]) -> dict[str, list[str]]:
    needed = {distribution_of(module, declared) for module in modules}
    return {
        "missing": sorted(needed - declared),
        "superfluous": sorted(declared - needed - NEEDED_BY.keys()),
    }


def code_of(folder: str) -> list[Path]:
    """Return the files of one part of the code: `pipeline`, or all the others."""
    pipeline = [*(ROOT / "gateway" / "pipeline").rglob("*.py"), ROOT / "pyspark_nsq/__init__.py"]
    if folder == "pipeline":
        return pipeline
    return sorted({*(ROOT / "gateway").rglob("*.py")} - {*pipeline})


def test_the_gateway_declares_what_it_imports() -> None:
    """The extra `tracing` is imported only if traces are sent."""
    declared = names_of([*PROJECT["dependencies"], *EXTRAS["tracing"]])

    assert {"missing": [], "superfluous": []} == differences(
        imported_modules(map(tree_of, code_of("gateway"))), declared
    )


def test_the_pipeline_declares_what_it_imports_in_addition() -> None:
    extras = names_of([*EXTRAS["spark"], *EXTRAS["iceberg"]])
    found = differences(
        imported_modules(map(tree_of, code_of("pipeline"))),
        names_of(PROJECT["dependencies"]) | extras,
    )

    assert [] == found["missing"]
    assert [] == sorted(extras & {*found["superfluous"]})


@pytest.mark.parametrize(
    "source, declared, expected",
    [
        ("import msgspec.json", {"msgspec"}, ([], [])),
        ("from pydantic_core import ErrorDetails", {"pydantic"}, ([], [])),
        ("def f():\n    from starlette import types", {"fastapi"}, (["starlette"], ["fastapi"])),
        (
            "import opentelemetry.sdk.trace",
            {"opentelemetry-api", "opentelemetry-sdk"},
            ([], ["opentelemetry-api"]),
        ),
    ],
)
def test_a_difference_is_found(
    source: str, declared: set[str], expected: tuple[list[str], list[str]]
) -> None:
    found = differences(imported_modules([ast.parse(source)]), declared)

    assert expected == (found["missing"], found["superfluous"])
