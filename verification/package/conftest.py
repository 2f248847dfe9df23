"""The wheel and the sdist, built as `make dist` builds them, and the wheel installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 600.0


def run(*command: str | Path, cwd: Path) -> str:
    """Run *command* outside of the checkout's environment; return its output, or fail with it."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NSQ_GATEWAY_", "PYTHON", "VIRTUAL_ENV"))
    }
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert 0 == ended.returncode, f"{command}\n{ended.stdout}"
    return ended.stdout


def build(source: Path, target: Path, *kinds: str) -> None:
    """Build packages of *kinds* from *source*; without *kinds* an sdist, and a wheel from it."""
    module = (sys.executable, "-m", "build", "--no-isolation")
    run(*module, *kinds, "--outdir", target, source, cwd=target.parent)


def project_files(*folders: str) -> list[str]:
    """Return the files of the project in *folders*, or all: those that git does not ignore."""
    options = ("--cached", "--others", "--exclude-standard", "-z")
    listed = run("git", "ls-files", *options, *folders, cwd=ROOT)
    return sorted(name for name in listed.split("\0") if (ROOT / name).is_file())


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project as git would clone it, without what earlier builds left."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in project_files():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    return folder


@pytest.fixture(scope="session")
def dist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sdist of the checkout, and the wheel that the sdist builds."""
    folder = tmp_path_factory.mktemp("package") / "dist"
    build(checkout, folder)
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """Return the wheel."""
    [path] = dist.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the wheel, and what requirements/run.txt pins; nothing else."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    install = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install")
    pins = ROOT / "requirements" / "run.txt"
    run(*install, "--require-hashes", "--requirement", pins, cwd=folder.parent)
    run(*install, "--no-index", "--no-deps", wheel, cwd=folder.parent)
    return folder
