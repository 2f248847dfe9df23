"""Examples cut out of docs/browser.md and the README."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.support.project import ROOT

DOCUMENT = (ROOT / "docs" / "browser.md").read_text()
README = (ROOT / "README.md").read_text()
ADDRESS = "http://127.0.0.1:8080"
"""Address of the gateway in examples."""


def section(text: str, title: str) -> str:
    """Return the text under the second-level heading that begins with *title*."""
    return text.partition(f"\n## {title}")[2].partition("\n## ")[0]


def blocks(language: str, text: str = DOCUMENT) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def script(words: str) -> str:
    """Return the one script of docs/browser.md that contains *words*."""
    (found,) = (block for block in blocks("js") if words in block)
    return found


def page_with(block: str) -> dict[str, str]:
    """Return the files of a page with a script, under the policy from docs/browser.md."""
    (_, policy) = blocks("html")
    page = f'<!doctype html>{policy}<script type="module" src="page.js"></script>'
    return {"index.html": page, "page.js": block}


async def command(line: str, folder: Path | None = None) -> int:
    """Run a shell command in *folder*, and return its exit status."""
    process = await asyncio.create_subprocess_shell(line, cwd=folder)
    return await process.wait()
