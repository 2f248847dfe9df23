"""The README's Python runs when pasted into an interpreter, and as a file."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT

import pytest

from tests.support.brokers.nsqd import real_nsqd
from tests.support.browser.doc_examples import README, blocks, section

_RUN_S = 30


@pytest.mark.nsqd
@pytest.mark.parametrize("flags", [["-i", "-q"], ["-"]], ids=["pasted", "a file"])
async def test_the_snippet_publishes_and_reads(flags: list[str]) -> None:
    (snippet,) = blocks("python", section(README, "From Python"))
    async with real_nsqd() as nsqd:
        program = snippet.replace("127.0.0.1:4150", nsqd.tcp_address)
        interpreter = await asyncio.create_subprocess_exec(
            sys.executable, *flags, stdin=PIPE, stdout=PIPE, stderr=STDOUT
        )
        async with asyncio.timeout(_RUN_S):
            said, _ = await interpreter.communicate(program.encode())

    assert (True, False) == (b"b'hello'" in said, b"Error" in said), said.decode()
