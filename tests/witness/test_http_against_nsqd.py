"""
The gateway answers the same bytes like nsqd's HTTP, and stores the same messages.

What is sent stands in tests/support/http_requests_*.py. One nsqd is asked itself, a gateway stands
in front of another one. Where the two are meant to differ is in intended_differences.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.gateways.gateway import RunningGateway, gateway_with_nsqd
from tests.support.http.http_requests import NSQD_FLAGS, Talk, topic_of
from tests.support.http.http_requests_admin import CHANNELS, STATISTICS, TOPICS
from tests.support.http.http_requests_framing import CHUNKS, ENDS, EXPECTATIONS, LENGTHS, PIPELINES
from tests.support.http.http_requests_heads import HEADERS, METHODS, PATHS
from tests.support.http.http_requests_publish import DELAYS, FRAMES, LINES, NAMES, PUBLISHING, SIZES
from tests.support.http.http_transcripts import outcomes
from tests.support.http.intended_differences import DIFFERENCES, intended

TALKS: Mapping[str, Mapping[str, Talk]] = {
    "names": NAMES,
    "sizes": SIZES,
    "delays": DELAYS,
    "lines": LINES,
    "frames": FRAMES,
    "publishing": PUBLISHING,
    "methods": METHODS,
    "paths": PATHS,
    "headers": HEADERS,
    "expectations": EXPECTATIONS,
    "lengths": LENGTHS,
    "chunks": CHUNKS,
    "pipelines": PIPELINES,
    "ends": ENDS,
    "topics": TOPICS,
    "channels": CHANNELS,
    "statistics": STATISTICS,
}


@dataclass(frozen=True)
class Pair:
    """Two brokers with the same limits, one of them behind a gateway."""

    nsqd: RealNsqd
    gateway: RunningGateway
    behind: RealNsqd


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[Pair]:
    """Both ways to an nsqd; each talk has topics of its own."""
    async with (
        real_nsqd(*NSQD_FLAGS) as nsqd,
        real_nsqd(*NSQD_FLAGS) as behind,
        gateway_with_nsqd([behind.tcp_address], [behind.http_address]) as gateway,
    ):
        yield Pair(nsqd, gateway, behind)


@pytest.mark.nsqd
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("talks", TALKS.values(), ids=TALKS)
async def test_the_gateway_answers_as_nsqd_does(pair: Pair, talks: Mapping[str, Talk]) -> None:
    """
    The same bytes have the same answers, leave the connection open or not, and fill the topics.

    An intended difference has to be there, too.
    """
    nsqds = pair.nsqd.http_address
    theirs = await outcomes(talks, asked=nsqds, behind=nsqds)
    ours = await outcomes(talks, asked=pair.gateway.address, behind=pair.behind.http_address)

    expected = {talk: intended(talk, outcome) for talk, outcome in theirs.items()}
    assert {} == {
        talk: {"nsqd": theirs.get(talk), "expected": expected.get(talk), "gateway": ours.get(talk)}
        for talk in {**expected, **ours}
        if expected.get(talk) != ours.get(talk)
    }


def test_every_talk_has_topics_of_its_own() -> None:
    """No two talks, of whatever table, have the same name or the same topic."""
    names = [name for talks in TALKS.values() for name in talks]

    assert [] == [name for name, count in Counter(names).items() if count > 1]
    assert len(names) == len(set(map(topic_of, names)))


def test_every_intended_difference_is_about_a_talk() -> None:
    """A talk that is renamed is renamed in the list of differences too."""
    names = {name for talks in TALKS.values() for name in talks}
    named = [name for difference in DIFFERENCES for name in difference.talks]

    assert [] == [name for name in named if name not in names]
