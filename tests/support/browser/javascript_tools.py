"""TypeScript, Biome and axe-core, run in Node to check the JavaScript we serve."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.project import ROOT

CONFIGURATION = ROOT / "tools" / "browser"

_INSTALLED_BY_MAKE = ROOT / "tools" / "bin" / "browser"
_TIMEOUT_S = 120.0


def javascript_tools() -> Path | None:
    """Return the folder of all tools; None without Node, or before they are installed."""
    there = (_INSTALLED_BY_MAKE / "node_modules" / ".bin" / "tsc").exists()
    return _INSTALLED_BY_MAKE if there and shutil.which("node") else None


def axe_source() -> str:
    """Return axe-core as a script for a page; it defines a global ``axe``."""
    return (_INSTALLED_BY_MAKE / "node_modules" / "axe-core" / "axe.min.js").read_text()


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``tsc`` or ``biome`` in the root of the repository; return the completed process."""
    return _run(str(_INSTALLED_BY_MAKE / "node_modules" / ".bin" / name), *arguments)


def node(script: str, *arguments: str) -> str:
    """Run *script*, a module, in Node; return its output, or raise if it fails."""
    ended = _run("node", "--input-type=module", "--eval", script, "--", *arguments)
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout


def npm(*arguments: str, folder: Path) -> str:
    """Run npm with *arguments* in *folder*, offline; return its output."""
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
