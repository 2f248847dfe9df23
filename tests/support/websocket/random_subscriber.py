"""A subscriber that behaves randomly between its subscription and its end."""

from __future__ import annotations

import random

from tests.support.gateways.gateway import RunningGateway
from tests.support.websocket.subscriber_client import Json, SubscriberClient

_MOST_DELIVERIES = 25
_PATIENCE_S = 0.1


async def run_random_subscriber(
    gateway: RunningGateway, topic: str, chance: random.Random
) -> list[str]:
    """
    Subscribe to channel "c", answer some deliveries, and close in a random way.

    Returns the bodies of those that were finished, in base64 where they are no text.
    """
    finished = []
    async with gateway.subscribe(topic, "c", max_in_flight=chance.randint(1, 40)) as client:
        for _ in range(chance.randint(1, _MOST_DELIVERIES)):
            try:
                delivery = await client.receive(within_s=_PATIENCE_S)
            except TimeoutError:
                break  # the others hold everything
            if delivery["type"] == "message" and await _answer(client, delivery, chance):
                finished.append(delivery.get("body") or delivery["body_base64"])
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


async def _answer(client: SubscriberClient, delivery: Json, chance: random.Random) -> bool:
    """Answer *delivery* in a random way; return whether it is finished."""
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
