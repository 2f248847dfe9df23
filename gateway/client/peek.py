"""
Look at messages of a channel: for free where the nsqd can, or by taking and giving them back.

The embedded broker shows the messages of a channel, and nothing changes. nsqd has no such request:
there, messages are delivered to a consumer and requeued at once, which raises their attempts, and
puts them at the end of the queue.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from gateway.aio import run_in_steps
from gateway.client.connection import ConnectionOptions
from gateway.client.consumer import Consumer, ConsumerOptions
from gateway.client.deliveries import Delivery, DeliveryOptions
from gateway.client.discovery import Discovery
from gateway.client.node_drains import find_tcp_addresses
from gateway.client.nsqd_answers import (
    ChannelCounts,
    NodeAnswer,
    NodeRequest,
    NodeResponse,
    is_ok,
    parse_counts,
    raise_for_results,
    stats_request,
)
from gateway.client.nsqd_http import NsqdHttp
from gateway.errors import (
    GatewayError,
    InvalidRequest,
    LimitReached,
    PartialFailure,
    PeekTakes,
)
from gateway.protocol.peek import PeekedMessage, PeekResponse, peeked_message

MAX_MESSAGES = 1_000
DEFAULT_MESSAGES = 10
MAX_BYTES = 4 * 1_048_576
"""Bytes of bodies taken from one nsqd after which no more is taken."""
_TAKE_S = 2.0
"""Maximum wait for the messages that are taken; they are given back after it at the latest."""
_MAX_TAKES = 2
"""Peeks that may take messages at the same time."""


_responses = msgspec.json.Decoder(PeekResponse)


class _Holder(NamedTuple):
    """An nsqd that has the channel."""

    node: str
    counts: ChannelCounts
    is_paused: bool


class ChannelPeek:
    """
    Look at messages of channels.

    *connection* are the options of the connections that take messages, with the gateway's secret.
    """

    def __init__(
        self, nsqds: NsqdHttp, discovery: Discovery, connection: ConnectionOptions
    ) -> None:
        self._nsqds = nsqds
        self._discovery = discovery
        self._connection = connection
        self._takes = 0

    async def peek(self, topic: str, channel: str, count: int, *, may_take: bool) -> PeekResponse:
        """
        Return up to *count* messages of *channel*, the oldest of each nsqd first.

        Raises:
            InvalidRequest: No nsqd has the channel.
            PeekTakes: An nsqd cannot show messages, and not *may_take*.
            LimitReached: Too many peeks take messages at the moment.
            PartialFailure: An nsqd does not answer, or its TCP address is unknown.
            GatewayError: See `NsqdHttp.request_all` and `Consumer.start`.
        """
        holders = await self._holders(topic, channel)
        free = await self._look(topic, channel, count, holders)
        if free is not None:
            return free
        if not may_take:
            raise PeekTakes
        if self._takes >= _MAX_TAKES:
            raise LimitReached(
                f"{_MAX_TAKES} peeks take messages at the moment, which is the limit; try again"
            )
        self._takes += 1
        try:
            return await self._take(topic, channel, count, holders)
        finally:
            self._takes -= 1

    async def _holders(self, topic: str, channel: str) -> list[_Holder]:
        """Return the nsqds that have the channel: a subscription would create it elsewhere."""
        answers = await self._nsqds.request_all(stats_request(topic))
        holders: list[_Holder] = []
        has_topic = False
        for answer in answers:
            counts = await run_in_steps(parse_counts(answer))
            if counts is None:
                raise_for_results([answer])  # names the nsqd and the reason
                raise PartialFailure([f"nsqd {answer.node}: its statistics are invalid"])
            for found in counts.topics:
                has_topic = True
                here = [each for each in found.channels if each.channel_name == channel]
                # Once, whatever the answer repeats: each holder is asked.
                if here and (not holders or holders[-1].node != answer.node):
                    is_paused = found.topic.paused or here[0].paused
                    holders.append(_Holder(answer.node, here[0], is_paused))
        if not holders:
            token = "CHANNEL_NOT_FOUND" if has_topic else "TOPIC_NOT_FOUND"
            raise InvalidRequest(token, f"no nsqd has the channel {channel} of topic {topic}")
        return holders

    # For free

    async def _look(
        self, topic: str, channel: str, count: int, holders: Sequence[_Holder]
    ) -> PeekResponse | None:
        """Return what the nsqds show; None if any of them cannot."""
        query = [("topic", topic.encode()), ("channel", channel.encode()), ("max", b"%d" % count)]
        request = NodeRequest(method="GET", path="/channel/peek", query=query)
        answers = await self._nsqds.request_all(request, nodes=[holder.node for holder in holders])
        messages: list[PeekedMessage] = []
        more = False
        for answer in answers:
            found = _decode(answer)
            if found is None:
                return None
            more = more or found.more
            messages += [replace(each, node=answer.node) for each in found.messages]
        shown = messages[:count]
        return PeekResponse(is_free=True, more=more or len(messages) > count, messages=shown)

    # By taking

    async def _take(
        self, topic: str, channel: str, count: int, holders: Sequence[_Holder]
    ) -> PeekResponse:
        # Where nothing waits, or the channel is paused, nothing would be delivered.
        waiting = [holder for holder in holders if holder.counts.depth > 0 and not holder.is_paused]
        depth = sum(holder.counts.depth for holder in waiting)
        if not waiting:
            return PeekResponse(is_free=False, more=False, messages=[])
        quotas = share_out(count, [holder.counts.depth for holder in waiting])
        asked = [(holder, quota) for holder, quota in zip(waiting, quotas, strict=True) if quota]
        addresses = await self._tcp_addresses([holder for holder, _ in asked])
        options = ConsumerOptions(
            connection=self._connection,
            # Never finished: a message with many attempts is shown as well.
            delivery=DeliveryOptions(max_attempts=0),
        )
        consumers = [
            Consumer(topic, channel, [address], dataclasses.replace(options, max_in_flight=quota))
            for address, (_, quota) in zip(addresses, asked, strict=True)
        ]
        # An error of one waits for the others, which have messages to give back.
        taken = await asyncio.gather(*map(_take_from, consumers), return_exceptions=True)
        messages: list[PeekedMessage] = []
        failures: list[str] = []
        for (holder, _), deliveries in zip(asked, taken, strict=True):
            if isinstance(deliveries, GatewayError):
                failures.append(f"nsqd {holder.node}: {deliveries}")
                continue
            if isinstance(deliveries, BaseException):
                raise deliveries
            messages += [_taken_message(holder.node, delivery) for delivery in deliveries]
        if failures:
            raise PartialFailure(failures)
        return PeekResponse(is_free=False, more=depth > len(messages), messages=messages)

    async def _tcp_addresses(self, holders: Sequence[_Holder]) -> list[str]:
        addresses: list[str] = []
        with closing(self._discovery.watch_nodes(lambda _: None)) as watch:
            for holder in holders:
                found = await find_tcp_addresses(
                    holder.node, self._nsqds, self._discovery, watch.addresses
                )
                if not found:
                    raise PartialFailure([f"nsqd {holder.node}: its TCP address is unknown"])
                addresses.append(min(found))
        return addresses


def share_out(count: int, depths: Sequence[int]) -> list[int]:
    """PURE. Return how many of *count* messages to take from each nsqd, at most its depth."""
    quotas = [0] * len(depths)
    left = min(count, sum(max(0, depth) for depth in depths))
    while left:
        for number, depth in enumerate(depths):
            if left and quotas[number] < depth:
                quotas[number] += 1
                left -= 1
    return quotas


async def _take_from(consumer: Consumer) -> list[Delivery]:
    """Return as many deliveries as *consumer* may have in flight, all given back by now."""
    taken: list[Delivery] = []
    await consumer.start()
    try:
        async with asyncio.timeout(_TAKE_S):
            await _collect(consumer, taken)
    except TimeoutError:
        pass  # other consumers were faster
    finally:
        consumer.set_max_in_flight(0)
        if taken:
            consumer.requeue(taken, 0, backoff=False)
        await consumer.stop()
    return taken


async def _collect(consumer: Consumer, taken: list[Delivery]) -> None:
    """Add deliveries to *taken*, until the window is full, or there are `MAX_BYTES`."""
    size_bytes = 0
    async for delivery in consumer:
        taken.append(delivery)
        size_bytes += len(delivery.body)
        if len(taken) >= consumer.options.max_in_flight or size_bytes > MAX_BYTES:
            return


def _decode(answer: NodeAnswer) -> PeekResponse | None:
    if not isinstance(answer, NodeResponse) or not is_ok(answer):
        return None
    try:
        return _responses.decode(answer.body)
    except (ValueError, RecursionError):
        return None


def _taken_message(node: str, delivery: Delivery) -> PeekedMessage:
    message = peeked_message(
        id_=delivery.id,
        timestamp_ns=delivery.timestamp_ns,
        attempts=delivery.attempts,
        state="queued",
        body=delivery.body,
    )
    return replace(message, node=node)
