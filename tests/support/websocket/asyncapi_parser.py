"""AsyncAPI's own parser, which runs in Node and validates asyncapi.yaml."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.support.project import ROOT

_BUILT_BY_MAKE = ROOT / "tools" / "bin"
_TIMEOUT_S = 180.0
_WARNING = 1


class Finding(NamedTuple):
    """A finding of the parser, with its place in the document."""

    severity: int
    """0 is an error, 1 a warning; more than that is advice."""
    code: str
    path: str
    message: str


def asyncapi_parser() -> Path | None:
    """Return the path of the parser; None without Node, or before it is installed."""
    program = _BUILT_BY_MAKE / "asyncapi" / "validate.mjs"
    return program if program.exists() and shutil.which("node") else None


def parser_findings(document: str) -> list[Finding]:
    """Return the parser's errors and warnings for *document*, which may be YAML."""
    program = asyncapi_parser()
    assert program is not None
    node = shutil.which("node")
    assert node is not None
    run = subprocess.run(
        [node, program],
        input=document.encode(),
        capture_output=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    findings = [Finding(**each) for each in json.loads(run.stdout)]
    return [finding for finding in findings if finding.severity <= _WARNING]
