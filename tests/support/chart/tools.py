"""External checkers of the chart: Helm 3, kube-score, checkov, and Kubernetes' examples."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.project import ROOT

_BIN = ROOT / "tools" / "bin"
_TIMEOUT_S = 120.0
_WARNING_GRADE, _BEST_GRADE = 5, 10
"""Grades of kube-score; 1 is critical."""


def helm() -> Path | None:
    """Return the path of Helm 3; None before it is built."""
    return _there("helm")


def kube_score() -> Path | None:
    """Return the path of kube-score; None before it is built."""
    return _there("kube-score")


def pod_security() -> Path | None:
    """Return the folder of passing and failing example pods; None before it is downloaded."""
    return _there("pod-security")


def checkov() -> Path | None:
    """Return the path of checkov; None before it is installed."""
    return _there("checkov")


def _there(name: str) -> Path | None:
    path = _BIN / name
    return path if path.exists() else None


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of the programs in the root of the repository; return the completed process."""
    return subprocess.run(
        [str(_BIN / name), *arguments],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "HELM_NO_PLUGINS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )


@dataclass(frozen=True)
class Finding:
    """One finding of a scanner."""

    file: str
    """The name of the file, without its suffix."""
    policy: str
    """Identifier of the rule in the scanner."""
    place: str
    """The object, as the scanner names it."""
    words: str


def failed_policies(framework: str, *paths: Path) -> list[Finding]:
    """Return checkov's findings for the files at *paths*; it runs offline."""
    ended = run(
        "checkov",
        *("--file", *map(str, paths), "--framework", framework, "--output", "json"),
        *("--quiet", "--compact", "--skip-download"),
    )
    report: dict[str, Any] = json.loads(ended.stdout)
    return [
        Finding(
            file=Path(check["file_path"]).stem,
            policy=check["check_id"],
            place=check["resource"],
            words=check["check_name"],
        )
        for check in report["results"]["failed_checks"]
    ]


def scores(path: Path, version: str) -> list[Finding]:
    """Return kube-score's warnings for the file at *path* and Kubernetes *version*."""
    ended = run(
        "kube-score", "score", "--output-format=json", f"--kubernetes-version=v{version}", str(path)
    )
    scored: list[dict[str, Any]] = json.loads(ended.stdout)
    grades = [check["grade"] for each in scored for check in each["checks"]]
    assert _BEST_GRADE in grades, ended.stdout + ended.stderr
    return [
        Finding(
            file=path.stem,
            policy=check["check"]["id"],
            place=f"{each['type_meta']['kind']}.{each['object_meta']['name']}",
            words=comment["summary"],
        )
        for each in scored
        for check in each["checks"]
        if check["grade"] <= _WARNING_GRADE and not check["skipped"]
        for comment in check["comments"]
    ]
