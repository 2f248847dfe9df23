"""Which channels the topics have that a replay goes to: who consumes one of them would notice."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from gateway.client.channel_stats import read_stats, stats_question
from gateway.client.lookup import Discovery
from gateway.client.nsqd_http import NsqdHttp
from gateway.nsqd_access import read_access
from gateway.pipeline.replay_plan import NOBODY_TO_ASK, Channels
from gateway.settings_replay import ReplaySettings


async def find_channels(settings: ReplaySettings, topics: Collection[str]) -> Channels:
    """
    Return what nsqd says of *topics*, over HTTP, where its address is known.

    Every nsqlookupd is asked: one that does not answer may know of an nsqd that nobody else does.
    """
    discovery = Discovery(settings.nsqd_tcp_address, read_access(settings).lookup)
    nsqds = NsqdHttp(settings.nsqd_http_address, discovery)
    await discovery.start()
    try:
        lookupds = discovery.lookupds
        answers = await asyncio.gather(*(lookupd.ask(None) for lookupd in lookupds))
        named = zip(lookupds, answers, strict=True)
        silent_lookupds = sorted(lookupd.address for lookupd, answer in named if answer is None)
        found = {tcp: http for answer in answers for tcp, http in (answer or {}).items()}
        nodes = {*settings.nsqd_http_address, *(http for http in found.values() if http)}
        silent = {tcp for tcp, http in found.items() if http is None}
        if not nodes and not silent and not silent_lookupds:
            return NOBODY_TO_ASK
        await nsqds.start()
        channels, mute = await _channels_of(nsqds, nodes, topics)
        return Channels(channels, sorted(silent | mute), silent_lookupds)
    finally:
        await nsqds.stop()
        await discovery.stop()


async def _channels_of(
    nsqds: NsqdHttp, nodes: Collection[str], topics: Collection[str]
) -> tuple[dict[str, set[str]], set[str]]:
    """Return the channels of each topic at *nodes*, and those of them that did not say."""
    found: dict[str, set[str]] = {topic: set() for topic in topics}
    left = set(nodes)
    for topic in sorted(topics):
        if not left:
            break
        for answer in await nsqds.ask(stats_question(topic), nodes=sorted(left)):
            stats = read_stats(answer)
            if stats is None:
                # That takes the time of a whole question: not once for each topic.
                left.discard(answer.node)
                continue
            for name, channel in stats.channels():
                if name == topic:
                    found[topic].add(channel)
    return found, set(nodes) - left
