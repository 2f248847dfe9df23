"""What docs/browser.md and the README show, cut out as it stands there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.support.example_workers import ROOT

DOCUMENT = (ROOT / "docs" / "browser.md").read_text()
README = (ROOT / "README.md").read_text()
ADDRESS = "http://127.0.0.1:8080"
"""Of the gateway, in what is shown."""


def section(text: str, title: str) -> str:
    """Return what stands under the heading of second rank that begins with *title*."""
    return text.partition(f"\n## {title}")[2].partition("\n## ")[0]


def blocks(language: str, text: str = DOCUMENT) -> list[str]:
    """Return the blocks of code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def script(words: str) -> str:
    """Return the one script of docs/browser.md with *words* in it."""
    (found,) = (block for block in blocks("js") if words in block)
    return found


def page_with(block: str) -> dict[str, str]:
    """Return the files of a page with a script, under the policy that docs/browser.md gives."""
    (_, policy) = blocks("html")
    page = f'<!doctype html>{policy}<script type="module" src="page.js"></script>'
    return {"index.html": page, "page.js": block}


async def command(line: str, folder: Path | None = None) -> int:
    """Run a command as a shell does, in *folder*, and return its exit status."""
    process = await asyncio.create_subprocess_shell(line, cwd=folder)
    return await process.wait()
