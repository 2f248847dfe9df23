"""What others say of the chart: Helm 3, kube-score, checkov, and Kubernetes' own examples."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_BIN = ROOT / "tools" / "bin"
_TIMEOUT_S = 120.0


def helm() -> Path | None:
    """Return Helm 3; None before it is built."""
    return _there("helm")


def kube_score() -> Path | None:
    """Return kube-score; None before it is built."""
    return _there("kube-score")


def pod_security() -> Path | None:
    """Return the folder with the pods that pass and that fail; None before it is there."""
    return _there("pod-security")


def checkov() -> Path | None:
    """Return checkov; None before it is installed."""
    return _there("checkov")


def _there(name: str) -> Path | None:
    path = _BIN / name
    return path if path.exists() else None


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of the programs in the root of the repository, and return how it ended."""
    return subprocess.run(
        [str(_BIN / name), *arguments],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "HELM_NO_PLUGINS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )


def failed_policies(framework: str, *paths: Path) -> list[str]:
    """Return what checkov finds in the files at *paths*, a line each; it asks nobody outside."""
    ended = run(
        "checkov",
        *("--file", *map(str, paths), "--framework", framework, "--output", "json"),
        *("--quiet", "--compact", "--skip-download"),
    )
    report: dict[str, Any] = json.loads(ended.stdout)
    return [
        f"{check['file_path']} {check['check_id']} {check['resource']}: {check['check_name']}"
        for check in report["results"]["failed_checks"]
    ]


def scores(path: Path, version: str) -> list[str]:
    """Return what kube-score finds in the file at *path* for Kubernetes *version*, a line each."""
    ended = run(
        "kube-score", "score", "--output-format=ci", f"--kubernetes-version=v{version}", str(path)
    )
    lines = ended.stdout.splitlines()
    assert any(line.startswith("[OK]") for line in lines), ended.stdout + ended.stderr
    return [line for line in lines if line.startswith(("[CRITICAL]", "[WARNING]"))]
