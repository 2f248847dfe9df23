"""Each message is finished by one subscriber, once, however subscribers behave."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.gateways.gateway import RunningGateway
from tests.support.websocket.random_subscriber import run_random_subscriber

pytestmark = pytest.mark.asyncio(loop_scope="session")

MESSAGES = 400
CLIENTS = 6
LIVES = 8


@pytest.mark.parametrize("seed", range(2))
async def test_every_message_is_finished_once_whatever_clients_do(
    gateway: RunningGateway, topic: str, seed: int
) -> None:
    """The last subscriber receives exactly the unfinished messages."""
    bodies = [f"{number:03}" for number in range(MESSAGES)]

    async def live_on(chance: random.Random) -> list[str]:
        return [
            body
            for _ in range(LIVES)
            for body in await run_random_subscriber(gateway, topic, chance)
        ]

    finished = await asyncio.gather(
        gateway.post("/mpub", "\n".join(bodies).encode(), topic=topic),
        *(live_on(random.Random(f"{seed} {client}")) for client in range(CLIENTS)),
    )
    done = [body for some in finished[1:] for body in some or []]
    async with gateway.subscribe(topic, "c", max_in_flight=MESSAGES) as last:
        rest = await last.messages(MESSAGES - len(done))
        await last.send({"cmd": "FIN", "ids": [delivery["id"] for delivery in rest]})

        assert (0, 0, 0) == await gateway.counts_become(topic, "c", (0, 0, 0))
    print(f"{len(done)} finished on the way, {len(rest)} at the end")  # noqa: T201 - how hard it was
    assert bodies == sorted(done + [delivery["body"] for delivery in rest])
