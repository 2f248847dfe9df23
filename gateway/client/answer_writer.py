"""The answers of a consumer on their way out: what one turn of the loop finishes goes together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from gateway.client.consumption import (
    Action,
    Consumption,
    ConsumptionOptions,
    Delivery,
    Finish,
    Ready,
    Requeue,
    Touch,
)
from gateway.client.subscription import Subscription

_WRITTEN_AT_ONCE = 1_000
"""So many finished deliveries do not wait for the end of the turn."""


class AnswerWriter:
    """Writes what its `consumption` says; deliveries are claimed before they come here."""

    def __init__(self, subscription: Subscription, options: ConsumptionOptions) -> None:
        self._subscription = subscription
        wanted = subscription.options
        self.consumption = Consumption(
            options, subscription.plan, self, topic=wanted.topic, channel=wanted.channel
        )
        """What is not answered yet."""
        self._finished: list[Delivery] = []

    def finish(self, deliveries: Sequence[Delivery]) -> None:
        """Write FIN at the end of this turn of the event loop, or once there are many."""
        if not self._finished:
            asyncio.get_running_loop().call_soon(self.flush)
        self._finished += deliveries
        if len(self._finished) >= _WRITTEN_AT_ONCE:
            self.flush()

    def requeue(
        self, deliveries: Sequence[Delivery], *, delay_ms: int | None, backoff: bool
    ) -> None:
        """Write REQ, behind the FINs that came before."""
        self.flush()
        self.carry_out(
            self.consumption.requeued(deliveries, self._now(), delay_ms=delay_ms, backoff=backoff)
        )

    def touch(self, deliveries: Sequence[Delivery]) -> None:
        """Write TOUCH."""
        self.carry_out(self.consumption.touched(deliveries, self._now()))

    def flush(self) -> None:
        """Write the FINs that are gathered."""
        if not self._finished:
            return
        finished, self._finished = self._finished, []
        self.carry_out(self.consumption.finished(finished, self._now()))

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Write *actions*, in order."""
        subscription = self._subscription
        for action in actions:
            match action:
                case Ready(source, count):
                    subscription.write_ready([(source, count)])
                case Finish(source, ids):
                    subscription.finish(source, ids)
                case Requeue(source, ids, delay_ms):
                    subscription.requeue(source, ids, delay_ms=delay_ms)
                case Touch(source, ids):
                    subscription.touch(source, ids)
        subscription.see_to_timer()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
