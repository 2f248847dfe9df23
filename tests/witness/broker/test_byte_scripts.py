"""
Scripts of bytes get the same answers, closes and counters from the broker as from nsqd.

verification/test_byte_scripts.py plays more of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.brokers.script_player import play_at_both, play_behind_auth

pytestmark = pytest.mark.nsqd


async def test_a_thousand_scripts_are_answered_as_by_nsqd() -> None:
    """Every command in every state, cut and changed at random; dialogues with a channel."""
    outcome = await play_at_both(seed=0, count=1_000)

    assert [] == outcome.differences
    assert set() == outcome.missing


async def test_scripts_are_answered_alike_when_an_answer_waits_for_the_disk(tmp_path: Path) -> None:
    """Also to a client that has ended its half of the connection meanwhile."""
    outcome = await play_at_both(0, 500, f"--data-path={tmp_path}")

    assert [] == outcome.differences


async def test_scripts_are_answered_alike_behind_an_auth_server() -> None:
    """With every permission, with some, with none, and without AUTH."""
    outcome = await play_behind_auth(0, 500)

    assert [] == outcome.differences
    assert {b"E_AUTH_FIRST", b"E_AUTH_FAILED", b"E_UNAUTHORIZED"} <= set(outcome.answers)
