"""The version is written in `gateway/__init__.py`; all other files repeat it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gateway import __version__
from tools.write_version import PLACES, VERSION, versions_in

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PLACES)
def test_a_file_repeats_the_version(name: str) -> None:
    """`python tools/write_version.py` writes it there."""
    assert {__version__} == set(versions_in(name))


def test_the_package_takes_its_version_from_the_code() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert ["version"] == project["project"]["dynamic"]
    assert {"attr": "gateway.__version__"} == project["tool"]["setuptools"]["dynamic"]["version"]


def test_no_document_names_an_image_of_another_version() -> None:
    """Documents that are written later are found too."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    image = rf"nsq-gateway(?:-pipeline)?:({VERSION})"
    named = {found for page in pages for found in re.findall(image, page.read_text())}

    assert {__version__} == named
