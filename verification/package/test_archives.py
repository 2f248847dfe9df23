"""The files in the wheel and in the sdist."""

from __future__ import annotations

import tarfile
from pathlib import Path
from zipfile import ZipFile

from gateway import __version__
from verification.package.conftest import ROOT, build, project_files


def files_of(wheel: Path) -> dict[str, bytes]:
    """Return the files in *wheel*."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    packed = {name for name in files_of(wheel) if ".dist-info/" not in name}

    assert {*project_files("gateway", "pyspark_nsq")} == packed


def test_the_wheel_has_this_version_and_the_licence(wheel: Path) -> None:
    files = files_of(wheel)
    folder = f"nsq_gateway-{__version__}.dist-info"

    assert f"\nVersion: {__version__}\n".encode() in files[f"{folder}/METADATA"]
    assert (ROOT / "LICENSE").read_bytes() == files[f"{folder}/licenses/LICENSE"]


def test_the_contracts_in_the_wheel_are_files_and_not_links(wheel: Path) -> None:
    for name in ("asyncapi.yaml", "openapi.yaml"):
        packed = files_of(wheel)[f"gateway/web/site/static/{name}"]

        assert (ROOT / name).read_bytes() == packed


def test_the_checkout_builds_the_same_wheel_as_the_sdist(
    checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    build(checkout, tmp_path / "direct", "--wheel")
    [direct] = (tmp_path / "direct").glob("*.whl")

    assert wheel.name == direct.name
    assert files_of(wheel) == files_of(direct)


def test_the_sdist_has_what_it_needs_and_no_tests(dist: Path) -> None:
    [path] = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"LICENSE", "README.md", "CHANGELOG.md", "openapi.yaml", "pyproject.toml"} <= names
    assert [] == sorted(name for name in names if name.startswith(("tests", "verification")))
