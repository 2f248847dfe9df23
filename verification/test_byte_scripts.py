"""
Twenty thousand scripts of bytes get the same from the broker as from nsqd.

``NSQ_GATEWAY_FUZZ_SEED=1`` plays the scripts of one seed, `make fuzz` those of many.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.brokers.script_player import play_at_both
from tests.support.fuzz import fuzz_seeds, print_seed

pytestmark = [pytest.mark.nsqd, pytest.mark.fuzz]

COUNT = 20_000


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_every_script_is_answered_as_by_nsqd(where: str, tmp_path: Path) -> None:
    """Answers, messages, closes and the counters of /stats are the same."""
    flags = (f"--data-path={tmp_path}",) if where == "disk" else ()
    for seed in fuzz_seeds(1):
        with print_seed(seed):
            outcome = await play_at_both(seed, COUNT // 2, *flags)
            print(  # noqa: T201 - make verify shows it with -rP
                f"{outcome.kinds}, {len(outcome.unsteady)} with a difference that did not come back"
            )

            assert [] == outcome.differences
            assert len(outcome.unsteady) < COUNT / 200
