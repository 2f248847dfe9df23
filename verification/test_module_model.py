"""
nsq.js behind a network that stalls, delays and cuts, compared with a model.

Histories are drawn by seeds. ``NSQ_GATEWAY_FUZZ_S=600`` goes on with new ones for ten minutes;
``NSQ_GATEWAY_MODEL_SEEDS=one,two`` lives those through again.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.browser.module_model import ViolationKind, run_page, scaled_module, violations
from tests.support.fuzz import fuzz_rounds
from tests.support.gateways.gateway import RunningGateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.node]

SEEDS = os.environ.get("NSQ_GATEWAY_MODEL_SEEDS", "oak,elm,fir,yew").split(",")
FAULTS = 3
ROUNDS = 8
"""One of a thousand runs of a planted fault may need so many."""


async def found(gateway: RunningGateway, seeds: Sequence[str], module: Path) -> list[str]:
    """Return what the model forbids in the histories of *seeds*, which are lived at once."""
    lives = (run_page(gateway, seed, module, faults=FAULTS) for seed in seeds)
    histories = await asyncio.gather(*lives, return_exceptions=True)
    wrong = []
    for seed, history in zip(seeds, histories, strict=True):
        if isinstance(history, BaseException):
            wrong.append(f"seed {seed}: {''.join(traceback.format_exception(history))}")
        else:
            wrong += [f"seed {seed}: {each}" for each in violations(history)]
    return wrong


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", ["embedded"], indirect=True)
async def test_a_page_assumes_only_what_the_gateway_confirmed(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    """What it is told of its answers, deadlines and connection holds; nothing is left behind."""
    module = scaled_module(tmp_path)
    for number in fuzz_rounds():
        seeds = [uuid4().hex[:8] for _ in SEEDS] if number else SEEDS
        wrong = await found(gateway, seeds, module)
        assert not wrong, "\n".join(wrong)


MUTANTS = {
    "touch() is true before its answer": (
        'const isTouched = await this.#link.answer(this, "TOUCH");',
        'this.#link.answer(this, "TOUCH");\n    const isTouched = true;',
        ViolationKind.UNCONFIRMED,
    ),
    "deadline moves before the answer": (
        "if (isTouched) this.deadline = deadline;",
        "this.deadline = deadline;",
        ViolationKind.DEADLINE,
    ),
    "offline is not heard": ('event === "offline"', 'event === "never"', ViolationKind.DEAF),
    "an open answer is not watched": (
        "else this.watch(1, answers);",
        "else this.send(...answers);",
        ViolationKind.BLIND,
    ),
    "what was asked is forgotten at the end": (
        "for (const { reject } of this.#pending.values()) {",
        "for (const { reject } of []) {",
        ViolationKind.UNSETTLED,
    ),
}


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", ["embedded"], indirect=True)
@pytest.mark.parametrize("old,new,expected", MUTANTS.values(), ids=MUTANTS.keys())
async def test_a_module_that_assumes_more_is_found(
    gateway: RunningGateway, tmp_path: Path, old: str, new: str, expected: ViolationKind
) -> None:
    """Each planted fault is found as what it is, within a few rounds of histories."""
    module = scaled_module(tmp_path, (old, new))
    kinds: set[str] = set()
    for round_ in range(ROUNDS):
        if expected in kinds:
            break
        wrong = await found(gateway, [f"{seed} {round_}" for seed in SEEDS], module)
        kinds |= {kind for kind in ViolationKind for each in wrong if f": {kind}: " in each}

    assert expected in kinds
