"""A subscription over TCP, on nsqd that are named or found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Self, cast

import msgspec

from gateway.client.consumption import ConsumptionOptions
from gateway.client.delivery import Delivery
from gateway.client.ready import ReadyOptions
from gateway.client.subscriber import Subscriber, SubscriberOptions
from gateway.commands.feed import Received
from gateway.nsqd_access import NsqdAccess
from gateway.settings_commands import SubSettings


class NsqdFeed:
    """Wraps a `Subscriber`; see `Feed`."""

    def __init__(
        self, names: tuple[str, str], settings: SubSettings, access: NsqdAccess, *, window: int
    ) -> None:
        offer = msgspec.structs.replace(
            access.connection.offer,
            msg_timeout=settings.msg_timeout_ms,
            sample_rate=settings.sample_rate,
            output_buffer_size=settings.output_buffer_size,
            output_buffer_timeout=settings.output_buffer_timeout_ms,
        )
        options = SubscriberOptions(
            max_in_flight=window,
            # What is written is finished. Nothing fails here, so nothing is given up.
            consumption=ConsumptionOptions(max_attempts=0),
            connection=replace(access.connection, offer=offer, secret=access.secret),
            ready=ReadyOptions(
                low_rdy_idle_timeout_s=settings.low_rdy_idle_timeout_s,
                low_rdy_timeout_s=settings.low_rdy_timeout_s,
                rdy_redistribute_interval_s=settings.rdy_redistribute_interval_s,
            ),
        )
        self._window = window
        self._subscriber = Subscriber(
            *names, settings.nsqd_tcp_address, options, lookup=access.lookup
        )

    async def __aenter__(self) -> Self:
        """Subscribe; raises as `Subscriber.start` does."""
        await self._subscriber.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give back what is in flight, and leave."""
        await self._subscriber.stop()

    async def batches(self) -> AsyncIterator[Sequence[Received]]:
        """Give what comes; see `Feed`."""
        async for deliveries in self._subscriber.batches():
            yield [_received(delivery) for delivery in deliveries]

    async def set_window(self, count: int) -> None:
        """Let at most *count* messages be unanswered at a time."""
        if count != self._window:
            self._window = count
            self._subscriber.set_max_in_flight(count)

    async def finish(self, messages: Sequence[Received]) -> None:
        """Have *messages* counted as done."""
        self._subscriber.finish([_delivery(message) for message in messages])

    async def requeue(self, messages: Sequence[Received]) -> None:
        """Give *messages* back at once; nothing failed, so nothing slows down."""
        for message in messages:
            _delivery(message).requeue(0, backoff=False)


def _received(delivery: Delivery) -> Received:
    return Received(
        id=delivery.id.decode("latin-1"),
        attempts=delivery.attempts,
        timestamp_ns=str(delivery.timestamp_ns),
        nsqd=delivery.nsqd,
        body=delivery.body,
        handle=delivery,
    )


def _delivery(message: Received) -> Delivery:
    return cast("Delivery", message.handle)
