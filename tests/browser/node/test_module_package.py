"""The folder of nsq.js as npm sees it: package.json is ours, and says what Python's side says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import __version__
from tests.support.project import ROOT

STATIC = ROOT / "gateway" / "web" / "site" / "static"


@pytest.fixture
def package() -> dict[str, Any]:
    package: dict[str, Any] = json.loads((STATIC / "package.json").read_text())
    return package


def test_the_module_has_the_version_of_the_gateway(package: dict[str, Any]) -> None:
    """One number for both: a page and the gateway that served it are of one kind."""
    assert __version__ == package["version"]


def test_the_package_leads_to_the_module_and_its_types(package: dict[str, Any]) -> None:
    """It needs Node 20 and nothing else, and who imports it gets the file that is served."""
    exported = {"types": "./nsq.d.ts", "default": "./nsq.js"}

    assert ("nsq-gateway", "module", "MIT") == tuple(
        package[name] for name in ("name", "type", "license")
    )
    assert (exported, ["nsq.js", "nsq.d.ts"]) == (package["exports"]["."], package["files"])
    assert [] == [name for name in package["files"] if not (STATIC / name).is_file()]
    assert {"node": ">=20"} == package["engines"]
    assert set() == {"dependencies", "peerDependencies"} & set(package)


def test_the_readme_uses_what_there_is(package: dict[str, Any]) -> None:
    """It imports the package by its name, and leads to the documents by words alone."""
    text = (STATIC / "README.md").read_text()

    assert f'import {{ subscribe }} from "{package["name"]}";' in text
    assert "docs/browser.md" in text
    assert "](" not in text
