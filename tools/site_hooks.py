"""
Choose the files of the site, for MkDocs (mkdocs.yml).

The site has the documents of the whole repository under their paths in it. So a relative link leads
to the same document on the site and in the repository. Other files that a document links to, such
as openapi.yaml, are copied. The navigation is read from docs/README.md, the map of the documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
MAP = ROOT / "docs" / "README.md"
PAGES_ELSEWHERE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "examples/README.md",
    "helm/README.md",
    "tests/COVERAGE.md",
    "tests/TRACEABILITY.md",
)
"""Documents outside docs/ that the site has."""
INDEXES = {"docs/decisions/README.md", "docs/runbooks/README.md"}
"""Their folders are sections of the navigation."""

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^## (.+)$")
_ROW = re.compile(r"^\| \[(?P<title>[^\]]+)\]\((?P<path>[^)]+\.md)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation: the sections of the map, in its order."""
    navigation: list[dict[str, object]] = [{"Documentation": "docs/README.md"}]
    section: list[dict[str, object]] = []
    for line in MAP.read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.match(line):
            section = []
            navigation.append({heading[1]: section})
        elif row := _ROW.match(line):
            path = _path_in_repository(MAP, row["path"])
            title = row["title"].replace("`", "")
            below = list(_pages_below(path)) if path in INDEXES else []
            section.append({title: [{"Overview": path}, *below] if below else path})
    config.nav = navigation
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by the documents of the repository, and what they link to."""
    pages = [*PAGES_ELSEWHERE, *(_relative(path) for path in (ROOT / "docs").rglob("*.md"))]
    linked = {target for page in pages for target in _linked_files(ROOT / page)}
    own = [file for file in files if file.generated_by or not file.src_uri.endswith(".md")]
    chosen = Files([file for file in own if not _is_in_docs(file)])
    for path in sorted({*pages, *linked}):
        chosen.append(
            File(path, str(ROOT), config.site_dir, use_directory_urls=config.use_directory_urls)
        )
    return chosen


def _pages_below(index: str) -> Iterator[dict[str, str]]:
    folder = (ROOT / index).parent
    for path in sorted(folder.glob("*.md")):
        if path.name != "README.md":
            title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            yield {title: _relative(path)}


def _is_in_docs(file: File) -> bool:
    return file.abs_src_path is not None and Path(file.abs_src_path).is_relative_to(ROOT / "docs")


def _linked_files(page: Path) -> Iterator[str]:
    """Yield the paths of files, other than pages, that *page* links to or shows."""
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        parts = urlsplit(target)
        if parts.scheme or not parts.path or parts.path.endswith(".md"):
            continue
        path = _path_in_repository(page, parts.path)
        if (ROOT / path).is_file():
            yield path


def _path_in_repository(page: Path, target: str) -> str:
    path = (page.parent / target).resolve()
    if not path.is_relative_to(ROOT):
        raise PluginError(f"{_relative(page)} links to {target}, outside the repository")
    return _relative(path)


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
