"""
Write `gateway.__version__` wherever a file has to repeat it: `python tools/write_version.py`.

The wheel takes its version from `gateway/__init__.py`. Contracts, chart, image, npm package and the
commands in the documents cannot read that file, so this script keeps them equal, and
`tests/unit/test_version.py` fails if they are not. Run `python tools/make_docs_page.py` afterwards:
the page of `/docs` contains the contract.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gateway import __version__  # noqa: E402 - found in the root

VERSION = r"\d+\.\d+\.\d+[\w.-]*"
_IMAGE = rf"(nsq-gateway(?:-pipeline)?:)({VERSION})"
_INFO = rf'(info: {{ title: nsq-gateway, version: "|^info:\n  title: .*\n  version: ")({VERSION})'
PLACES = {
    "Dockerfile": rf"(^ARG VERSION=)({VERSION})",
    "asyncapi.yaml": _INFO,
    "docs/docker.md": _IMAGE,
    "docs/kubernetes.md": _IMAGE,
    "gateway/web/site/static/package.json": rf'(^  "version": ")({VERSION})',
    "helm/Chart.yaml": rf'(^(?:version: |appVersion: "))({VERSION})',
    "openapi.yaml": rf"{_INFO}|(^ +gateway: )({VERSION})",
}
"""By file, a pattern whose groups are pairs: the text before a version, and the version."""


def versions_in(name: str) -> list[str]:
    """Return the versions that the file *name* repeats, in order."""
    found = re.finditer(PLACES[name], (ROOT / name).read_text(), re.MULTILINE)
    return [match[match.lastindex or 0] for match in found]


def write_version(name: str, version: str) -> None:
    """Replace each version in the file *name* by *version*."""
    path = ROOT / name
    path.write_text(
        re.sub(
            PLACES[name],
            lambda match: match[(match.lastindex or 0) - 1] + version,
            path.read_text(),
            flags=re.MULTILINE,
        )
    )


if __name__ == "__main__":
    for each in PLACES:
        write_version(each, __version__)
