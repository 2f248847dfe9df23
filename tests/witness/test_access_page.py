"""The example of docs/access.md, unchanged, run by a shell, and its files."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.access.policy import read_policy
from tests.support.browser.doc_examples import ADDRESS, blocks, section
from tests.support.gateways.gateway import RunningGateway, gateway_alone, poll_until
from tests.support.project import ROOT

PAGE = (ROOT / "docs" / "access.md").read_text()
EXAMPLE = section(PAGE, "A work queue with users")
_RUN_S = 60

_VARYING = (
    r'(?<="request_id":")\w+',
    r'(?<="expires_at":)[\d.]+',
    r'(?<=sha256 = ")\w+',
    r"(?<=until: )[^\n]+",
)


class Step(NamedTuple):
    """A block of the page for a shell, and what the page says that it prints."""

    command: str
    output: str | None


def steps() -> list[Step]:
    """Return the steps of the example, in order."""
    found = re.findall(r"```(\w+)\n(.*?)```", EXAMPLE, re.DOTALL)
    languages = [language for language, _ in found]
    return [
        Step(text, found[place + 1][1] if _is_output(languages, place + 1) else None)
        for place, (language, text) in enumerate(found)
        if language == "sh"
    ]


def _is_output(languages: list[str], place: int) -> bool:
    # The access file stands between two blocks of the shell, as no output of the first.
    first_file = languages.index("toml")
    return place < len(languages) and place != first_file and languages[place] != "sh"


def without_varying(text: str) -> str:
    """Return *text* without times, hashes and ids."""
    for pattern in _VARYING:
        text = re.sub(pattern, "…", text)
    return text.strip()


async def run(command: str, folder: Path) -> str:
    """Run *command* in *folder*, with the programs of this environment; return what it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-e",
        "-c",
        f"umask 077; {command}",
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=PIPE,
        stderr=STDOUT,
    )
    async with asyncio.timeout(_RUN_S):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def at(gateway: RunningGateway, command: str) -> str:
    """Return *command* for *gateway*; curl without its progress, sub with its address."""
    command = command.replace(ADDRESS, gateway.url).replace("curl ", "curl -sS ")
    return command.replace("nsq-gateway sub ", f"nsq-gateway sub --url {gateway.url} ")


async def test_the_example_of_the_page_prints_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (first, *before, start), after = _around_the_start()
    demo = tmp_path / "access-demo"

    await run(first.command, tmp_path)
    for step in before:
        seen = await run(step.command, demo)
        assert without_varying(step.output or seen) == without_varying(seen)
    flags = [
        word if word.startswith("--") else str(demo / word)
        for word in shlex.split(start.command)[2:]
    ]
    async with gateway_alone(*flags) as gateway:
        for step in after:
            if "nightly.key)" in step.command:
                await _key_counts(gateway, (demo / "nightly.key").read_text().strip())
            seen = await run(at(gateway, step.command), demo)
            assert without_varying(step.output or seen) == without_varying(seen)


def _around_the_start() -> tuple[list[Step], list[Step]]:
    """Return the steps up to the start of the gateway, and those after it."""
    found = steps()
    (place,) = [n for n, step in enumerate(found) if step.command.startswith("nsq-gateway serve")]
    second_shell, *after = found[place + 1 :]
    assert second_shell.command.splitlines()[-1] == "cd access-demo"
    return found[: place + 1], after


async def _key_counts(gateway: RunningGateway, key: str) -> None:
    """Wait until the gateway has read the file with *key*."""

    async def status() -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return (await gateway.http.get("/whoami", headers=headers)).status_code

    assert await poll_until(status, 200) == 200


def test_the_page_shows_the_access_file_of_the_example() -> None:
    assert blocks("toml", EXAMPLE)[0] == (ROOT / "examples/access/access.toml").read_text()


@pytest.mark.parametrize("number", range(len(blocks("toml", PAGE))))
def test_an_access_file_of_the_page_is_valid(number: int) -> None:
    assert read_policy(blocks("toml", PAGE)[number].encode()).warnings == ()
