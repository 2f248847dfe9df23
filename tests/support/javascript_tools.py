"""TypeScript, Biome and axe-core, which run in Node: witnesses for what browsers get from us."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "tools" / "browser"

_INSTALLED_BY_MAKE = ROOT / "tools" / "bin" / "browser"
_TIMEOUT_S = 120.0


def javascript_tools() -> Path | None:
    """Return the folder with all of them; None without Node, or before they are installed."""
    there = (_INSTALLED_BY_MAKE / "node_modules" / ".bin" / "tsc").exists()
    return _INSTALLED_BY_MAKE if there and shutil.which("node") else None


def axe_source() -> str:
    """Return axe-core as a script for a page, which has a global ``axe`` after it."""
    return (_INSTALLED_BY_MAKE / "node_modules" / "axe-core" / "axe.min.js").read_text()


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``tsc`` or ``biome`` in the root of the repository, and return how it ended."""
    return _run(str(_INSTALLED_BY_MAKE / "node_modules" / ".bin" / name), *arguments)


def node(script: str, *arguments: str) -> str:
    """Return what *script*, a module, prints in Node; an exception there is one here."""
    ended = _run("node", "--input-type=module", "--eval", script, "--", *arguments)
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout


def npm(*arguments: str, folder: Path) -> str:
    """Return what npm prints for *arguments* in *folder*; it asks nobody outside."""
    ended = _run("npm", "--offline", "--loglevel=error", "--ignore-scripts", *arguments, cwd=folder)
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout


def _run(program: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
