"""An archive whose processes are killed during publishes, and the resulting rows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

import httpx

from tests.support.brokers.killable_broker import KillableBroker, killable_broker
from tests.support.spark.job import archive_job
from tests.support.spark.processes import kill
from tests.support.spark.program import SparkProgram
from tests.support.spark.stream import archived, end_reading, keep_reading, read_to_the_end

Victim: TypeAlias = Literal["application", "source", "worker"]

TOPIC = "t"
CHANNEL = "archive"
MOST_ROWS = 500
"""Maximum number of rows of a batch."""
MOST_IN_FLIGHT = 1_000
_MSG_TIMEOUT_MS = 5_000
_PAUSE_S = 0.05
_WAIT_S = 150.0
_SOURCE = "python_streaming_source_runner"
_WORKER = "pyspark.daemon pyspark.worker"


@dataclass(frozen=True)
class Plan:
    """Which processes are killed, how often, and when."""

    victim: Victim
    ack_mode: str
    kills: int
    seed: int
    broker: str = "nsqd"


@dataclass
class Outcome:
    """Published messages, and the rows in the archive."""

    plan: Plan
    published: set[str]
    rows: list[list[str]]
    """Rows of the archive: nsqd, id and body."""
    failures: int
    """Failures of the query, after which it was restarted."""

    @property
    def lost(self) -> list[str]:
        """Messages that were answered OK and are not there."""
        return sorted(self.published - {body for _, _, body in self.rows})

    @property
    def duplicates(self) -> int:
        """Number of duplicate rows."""
        return sum(count - 1 for count in Counter(body for _, _, body in self.rows).values())

    @property
    def renamed(self) -> list[str]:
        """Number of messages with two ids."""
        ids = {(nsqd, number, body) for nsqd, number, body in self.rows}
        return [body for body, count in Counter(body for _, _, body in ids).items() if count > 1]

    def __str__(self) -> str:
        """Return the numbers in one line."""
        plan = self.plan
        return (
            f"{plan.broker} {plan.ack_mode} {plan.victim} seed {plan.seed}: {plan.kills} kills, "
            f"{len(self.published)} published, {len(self.rows)} rows, {len(self.lost)} lost, "
            f"{self.duplicates} twice, {len(self.renamed)} renamed, {self.failures} restarts"
        )


async def run(plan: Plan, spark: SparkProgram, folder: Path) -> Outcome:
    """Archive, kill, and drain; all files are in *folder*."""
    async with killable_broker(plan.broker) as broker, channel_of(broker) as http:
        archive = _Archive(plan, spark, folder, broker)
        publisher = _Publisher(http, Random(plan.seed))
        end = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publisher.run(end))
            try:
                await archive.under_kills(publisher.published)
            finally:
                end.set()
        failures = 0
        if plan.victim != "application":
            # What is finished is in the archive, or in the spool.
            await until(lambda: _is_drained(http))
            failures = await spark.run(end_reading, str(folder))
        # It knows from nsqd what there is; what an application took with it comes back meanwhile.
        await spark.run(read_to_the_end, str(folder), archive.options)
        await until(lambda: _is_drained(http))
        rows = await spark.run(archived, str(folder))
    return Outcome(plan, publisher.published, rows, failures)


class _Publisher:
    """Publish a few messages twenty times a second."""

    def __init__(self, http: httpx.AsyncClient, random: Random) -> None:
        self._http = http
        self._random = random
        self.published: set[str] = set()
        """Bodies that were answered OK; all others have failed a test."""

    async def run(self, end: asyncio.Event) -> None:
        """Publish until *end* is set."""
        while not await _is_set(end, _PAUSE_S):
            first = len(self.published)
            some = [f"m-{first + number}" for number in range(self._random.randint(1, 8))]
            params = {"topic": TOPIC}
            answer = await self._http.post("/mpub", params=params, content="\n".join(some))
            answer.raise_for_status()
            self.published.update(some)


class _Archive:
    """The reading side."""

    def __init__(
        self, plan: Plan, spark: SparkProgram, folder: Path, broker: KillableBroker
    ) -> None:
        self._plan = plan
        self._spark = spark
        self._folder = folder
        self._random = Random(plan.seed)
        self.options = options_for(broker, folder, plan.ack_mode, _MSG_TIMEOUT_MS)

    async def under_kills(self, published: set[str]) -> None:
        """Kill as often as is planned, while *published* grows."""
        async with AsyncExitStack() as life:
            if self._plan.victim != "application":
                await self._spark.run(keep_reading, str(self._folder), self.options)
            for _ in range(self._plan.kills):
                if self._plan.victim == "application":
                    job = await life.enter_async_context(archive_job(self._folder, self.options))
                await self._at_a_moment(published)
                if self._plan.victim == "application":
                    await job.kill()
                else:
                    await asyncio.to_thread(kill, await self._one())
            # The last one is survived: messages come behind it.
            if self._plan.victim != "application":
                await self._at_a_moment(published)

    async def _at_a_moment(self, published: set[str]) -> None:
        """Return some time after the next batch."""
        batches = self._batches()
        await until(lambda: self._batches() > batches)
        count = len(published) + self._random.randint(1, 100)
        await until(lambda: len(published) >= count)

    def _batches(self) -> int:
        return len(list((self._folder / "checkpoint" / "commits").glob("[0-9]*")))

    async def _one(self) -> int:
        """Return a random process to kill: the source's, or a worker, not the workers' parent."""
        found: list[int] = []

        def is_there() -> bool:
            if self._plan.victim == "source":
                found[:] = self._spark.pids(_SOURCE)
            else:
                found[:] = self._spark.pids(_WORKER)[1:]
            return bool(found)

        await until(is_there)
        return self._random.choice(found)


def options_for(
    broker: KillableBroker, folder: Path, ack_mode: str, msg_timeout_ms: int
) -> dict[str, str]:
    """Return the options of a stream that reads the channel; a spool is in *folder*."""
    options = {
        "topic": TOPIC,
        "channel": CHANNEL,
        "nsqdTcpAddress": broker.tcp_address,
        "nsqdHttpAddress": broker.http_address,
        "ackMode": ack_mode,
        "maxRowsPerBatch": str(MOST_ROWS),
        "maxInFlight": str(MOST_IN_FLIGHT),
        "msgTimeoutMs": str(msg_timeout_ms),
        "pollMs": "50",
    }
    return options | ({"spoolDir": str(folder / "spool")} if ack_mode == "spool" else {})


@asynccontextmanager
async def channel_of(broker: KillableBroker) -> AsyncIterator[httpx.AsyncClient]:
    """Create the channel, so that it receives every message; yield an HTTP client."""
    url = f"http://{broker.http_address}"
    names = {"topic": TOPIC, "channel": CHANNEL}
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        for path in ("/topic/create", "/channel/create"):
            (await http.post(path, params=names)).raise_for_status()
        yield http


async def counts(http: httpx.AsyncClient) -> tuple[int, int, int]:
    """Return the numbers of waiting, in-flight and deferred messages."""
    answer = await http.get("/stats", params={"format": "json", "topic": TOPIC})
    [topic] = answer.raise_for_status().json()["topics"]
    [channel] = topic["channels"]
    waiting = topic["depth"] + channel["depth"]
    return waiting, channel["in_flight_count"], channel["deferred_count"]


async def _is_drained(http: httpx.AsyncClient) -> bool:
    return await counts(http) == (0, 0, 0)


async def until(is_so: Callable[[], Awaitable[bool] | bool]) -> None:
    """
    Return once the condition is true.

    Raises:
        TimeoutError: It is not so in time.
    """
    never = asyncio.Event()
    async with asyncio.timeout(_WAIT_S):
        while True:
            seen = is_so()
            if seen if isinstance(seen, bool) else await seen:
                return
            await _is_set(never, _PAUSE_S)


async def _is_set(event: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
