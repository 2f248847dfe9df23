"""Whatever subscribers do, each message is finished by one of them, once."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.gateway import RunningGateway
from tests.support.subscriber_client import Json, SubscriberClient

pytestmark = pytest.mark.asyncio(loop_scope="session")

MESSAGES = 400
CLIENTS = 6
LIVES = 8
MOST_DELIVERIES = 25


async def answer(client: SubscriberClient, delivery: Json, chance: random.Random) -> bool:
    """Do something with *delivery*; True when it is finished. Other deliveries are passed by."""
    match chance.choice(["FIN", "FIN", "REQ", "TOUCH", "nothing"]):
        case "FIN":
            await client.send({"cmd": "FIN", "id": delivery["id"], "ref": delivery["id"]})
            answers = await client.receive_until(delivery["id"])
            return "OK" == answers[-1].get("data")
        case "nothing":
            pass
        case verb:
            await client.send({"cmd": verb, "id": delivery["id"]})
    return False


async def live(gateway: RunningGateway, topic: str, chance: random.Random) -> list[str]:
    """Subscribe, answer some deliveries, leave in some way; return the bodies finished."""
    finished = []
    async with gateway.subscribe(topic, "c", max_in_flight=chance.randint(1, 40)) as client:
        for _ in range(chance.randint(1, MOST_DELIVERIES)):
            try:
                delivery = await client.receive(within_s=0.1)
            except TimeoutError:
                break  # the others hold everything
            if delivery["type"] == "message" and await answer(client, delivery, chance):
                finished.append(delivery["body"])
        match chance.choice(["close", "reset", "CLS", "nonsense"]):
            case "reset":
                client.connection.transport.abort()
            case "CLS":
                await client.send({"cmd": "CLS"})
            case "nonsense":
                await client.send_text("nonsense\n" * 1_000)
                await client.closed()
            case _:
                pass
    return finished


@pytest.mark.parametrize("seed", range(2))
async def test_every_message_is_finished_once_whatever_clients_do(
    gateway: RunningGateway, topic: str, seed: int
) -> None:
    """What nobody has finished is all there for a last subscriber, and nothing else is."""
    bodies = [f"{number:03}" for number in range(MESSAGES)]

    async def live_on(chance: random.Random) -> list[str]:
        return [body for _ in range(LIVES) for body in await live(gateway, topic, chance)]

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
