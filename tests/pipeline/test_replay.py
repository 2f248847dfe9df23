"""A replay on a real Spark and a real nsqd; and what it refuses before any Spark is started."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path

import httpx
import pytest

from gateway.errors import SettingsError
from gateway.pipeline.replay import check_replay
from gateway.settings_replay import ReplaySettings
from gateway.settings_sources import load
from tests.support import spark_replays
from tests.support.nsqd import RealNsqd, real_nsqd
from tests.support.spark_program import SparkProgram

COUNT = 600
TWICE = 10
"""Messages that the archive has twice."""


def _settings(**given: str) -> ReplaySettings:
    flags = {"input": "/archive", "nsqd_tcp_address": "127.0.0.1:4150", "checkpoint": "/checkpoint"}
    return load(ReplaySettings, flags | given).settings


@pytest.mark.parametrize(
    "given, named",
    [
        ({"input": ""}, "--input"),
        ({"checkpoint": ""}, "--checkpoint"),
        ({"nsqd_tcp_address": ""}, "--nsqd-tcp-address"),
        ({"to_topic": "no spaces"}, "--to-topic"),
        ({"topic": "no spaces"}, "--topic"),
    ],
)
def test_what_is_missing_or_wrong_is_said_before_spark_is_started(
    given: dict[str, str], named: str
) -> None:
    """Exit status 2, and the flag."""
    with pytest.raises(SettingsError, match=re.escape(named)):
        check_replay(_settings(**given), is_dry_run=False)


def test_a_dry_run_needs_no_nsqd_and_no_checkpoint() -> None:
    """It publishes nothing."""
    check_replay(_settings(nsqd_tcp_address="", checkpoint=""), is_dry_run=True)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the archive is, once a test has written it."""
    return tmp_path_factory.mktemp("archive") / "rows"


@pytest.fixture
def written(spark: SparkProgram, archive: Path) -> str:
    """Return the path of an archive of COUNT messages, the first ten of them twice."""
    if not archive.exists():
        spark.call(spark_replays.write_archive, str(archive), COUNT)
    return str(archive)


async def _topics(nsqd: RealNsqd) -> dict[str, int]:
    """Return how many messages each topic has got."""
    async with httpx.AsyncClient(trust_env=False) as http:
        stats = await http.get(f"http://{nsqd.http_address}/stats", params={"format": "json"})
    return {topic["topic_name"]: topic["message_count"] for topic in stats.json()["topics"] or []}


@pytest.mark.java
@pytest.mark.nsqd
class TestOnSpark:
    """One Spark, one archive."""

    async def test_a_dry_run_counts_by_topic_and_publishes_nothing(
        self, spark: SparkProgram, written: str, tmp_path: Path
    ) -> None:
        """Rows, bytes, first and last time, and where they would go."""
        async with real_nsqd() as nsqd:
            flags = {
                "input": written,
                "where": "date = '2026-11-01' and hour = '10' and cast(body as string) < '2'",
                "nsqd_tcp_address": nsqd.tcp_address,
                "checkpoint": str(tmp_path / "checkpoint"),
            }
            seen = await spark.run(spark_replays.replay, flags, is_dry_run=True)
            topics = await _topics(nsqd)

        numbers = [n for n in [*range(360), *range(TWICE)] if str(n) < "2"]
        expected = []
        for topic, rest in (("orders", 0), ("refunds", 1)):
            mine = [n for n in numbers if n % 2 == rest]
            first, last = min(mine), max(mine)
            size = sum(len(str(n)) for n in mine)
            begin = int(spark_replays.BEGIN.timestamp()) * 1_000_000
            step = spark_replays.STEP_S * 1_000_000
            expected.append(
                [
                    topic,
                    f"{topic}.replay",
                    len(mine),
                    size,
                    begin + first * step,
                    begin + last * step,
                ]
            )
        assert expected == seen["tallies"]
        assert (0, {}) == (seen["rows"], topics)
        assert not (tmp_path / "checkpoint").exists()

    async def test_what_where_chooses_goes_to_replay_topics_once(
        self, spark: SparkProgram, written: str, tmp_path: Path
    ) -> None:
        """With distinct the rows that are there twice, too; a second run has nothing to do."""
        async with (
            real_nsqd() as nsqd,
            spark_replays.consumer(nsqd, "orders.replay") as orders,
            spark_replays.consumer(nsqd, "refunds.replay") as refunds,
        ):
            flags = {
                "input": written,
                "where": "cast(cast(body as string) as int) < 100",
                "distinct": True,
                "max_files_per_batch": 2,
                "nsqd_tcp_address": nsqd.tcp_address,
                "checkpoint": str(tmp_path / "checkpoint"),
            }
            first = await spark.run(spark_replays.replay, flags)
            bodies = [await orders.take(50), await refunds.take(50)]
            again = await spark.run(spark_replays.replay, flags)
            topics = await _topics(nsqd)

        assert ("done", 100, []) == (first["ending"], first["rows"], first["reasons"])
        assert [{str(n).encode() for n in range(rest, 100, 2)} for rest in (0, 1)] == list(
            map(set, bodies)
        )
        assert ("done", 0, 100) == (again["ending"], again["rows"], again["before"])
        assert {"orders.replay": 50, "refunds.replay": 50} == topics

    async def test_a_topic_that_came_since_the_count_is_not_passed_over(
        self, spark: SparkProgram, tmp_path: Path
    ) -> None:
        """Nobody has learned of it, so the replay ends; the next one counts it, and goes on."""
        folder = str(tmp_path / "rows")
        await spark.run(spark_replays.add_topic, folder, "orders", 4)
        async with real_nsqd() as nsqd:
            flags = {
                "input": folder,
                "nsqd_tcp_address": nsqd.tcp_address,
                "checkpoint": str(tmp_path / "checkpoint"),
            }
            first = await spark.run(spark_replays.replay, flags, newcomer="late")
            again = await spark.run(spark_replays.replay, flags)
            topics = await _topics(nsqd)

        assert "would again: " in first["failed"]
        assert "topic late came to the archive since it was counted" in first["failed"]
        assert "done" == again["ending"]
        assert 3 == topics["late.replay"]
        assert 4 <= topics["orders.replay"]

    async def test_a_rate_is_kept_over_all_tasks(
        self, spark: SparkProgram, written: str, tmp_path: Path
    ) -> None:
        """60 messages at 20 a second are not there before almost three seconds are over."""
        async with (
            real_nsqd() as nsqd,
            spark_replays.consumer(nsqd, "all.again") as consumer,
        ):
            flags = {
                "input": written,
                "topic": "refunds",
                "where": "cast(cast(body as string) as int) between 100 and 219",
                "to_topic": "all.again",
                "rate": 20,
                "nsqd_tcp_address": nsqd.tcp_address,
                "checkpoint": str(tmp_path / "checkpoint"),
            }
            replaying = asyncio.create_task(spark.run(spark_replays.replay, flags))
            loop = asyncio.get_running_loop()
            await consumer.next()
            began_at = loop.time()
            await consumer.take(59)
            took_s = loop.time() - began_at
            seen = await replaying

        assert 60 == seen["rows"]
        assert took_s > 1.5

    @pytest.mark.parametrize(
        "flags, words",
        [
            ({"where": "ts >= "}, r"--where 'ts >= '.*Syntax error at or near end of input"),
            ({"where": "nothing = 1"}, r"`nothing` cannot be resolved"),
            ({"where": "ts"}, r"is not a boolean"),
            ({"where": "ts >= 'soon'"}, r"'soon' .* cannot be cast"),
            ({"where": "cast(nsqd as int) = 1"}, r"'n:1' .* cannot be cast"),
            ({"input": "/there/is/none"}, r"--input .*does not exist"),
            ({"topic": "refunds", "where": "true", "to_topic": "refunds"}, r"--yes"),
        ],
    )
    async def test_what_cannot_be_meant_is_refused_in_a_sentence(
        self,
        spark: SparkProgram,
        written: str,
        tmp_path: Path,
        flags: dict[str, str],
        words: str,
    ) -> None:
        """Spark's own words, one line; nothing is published."""
        given = {
            "input": written,
            "nsqd_tcp_address": "127.0.0.1:1",
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        seen = await spark.run(spark_replays.replay, given | flags)

        assert re.search(words, seen["refused"])
        assert "\n" not in seen["refused"]
        assert "SQLSTATE" not in seen["refused"]

    async def test_a_checkpoint_of_another_replay_or_job_is_refused(
        self, spark: SparkProgram, written: str, tmp_path: Path
    ) -> None:
        """What is done of one says nothing of the other."""
        async with real_nsqd() as nsqd:
            flags = {
                "input": written,
                "where": "body = '1'",
                "nsqd_tcp_address": nsqd.tcp_address,
                "checkpoint": str(tmp_path / "checkpoint"),
            }
            done = await spark.run(spark_replays.replay, flags)
            other = await spark.run(spark_replays.replay, flags | {"where": "body = '2'"})
            of_archive = flags | {"checkpoint": f"{written}.checkpoint"}
            foreign = await spark.run(spark_replays.replay, of_archive)

        assert 2 == done["rows"]
        assert "another where (body = '1' there, body = '2' now)" in other["refused"]
        assert "another job" in foreign["refused"]

    async def test_a_topic_with_channels_is_asked_about(
        self, spark: SparkProgram, written: str, tmp_path: Path
    ) -> None:
        """Who agrees gets what was asked for."""
        async with (
            real_nsqd() as nsqd,
            spark_replays.consumer(nsqd, "live", "billing") as billing,
        ):
            flags = {
                "input": written,
                "where": "body = '41'",
                "to_topic": "live",
                "nsqd_tcp_address": nsqd.tcp_address,
                "nsqd_http_address": nsqd.http_address,
                "checkpoint": str(tmp_path / "checkpoint"),
            }
            refused = await spark.run(spark_replays.replay, flags)
            nothing = await _topics(nsqd)
            agreed = await spark.run(spark_replays.replay, flags, agrees=True)
            body = await billing.next()

        reason = "live has a channel (billing), whose consumers get every message"
        assert ([reason], {"live": 0}) == (refused["reasons"], nothing)
        assert ("done", 1, b"41") == (agreed["ending"], agreed["rows"], body)

    async def test_a_killed_replay_goes_on_and_repeats_a_batch_at_most(
        self, spark: SparkProgram, written: str, tmp_path: Path
    ) -> None:
        """SIGKILL for the whole job, started as a user starts it; another process goes on."""
        checkpoint = str(tmp_path / "checkpoint")
        async with (
            real_nsqd() as nsqd,
            spark_replays.consumer(nsqd, "orders.replay") as orders,
        ):
            flags = {
                "input": written,
                "topic": "orders",
                "max_files_per_batch": 1,
                "nsqd_tcp_address": nsqd.tcp_address,
                "checkpoint": checkpoint,
            }
            slowly = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
            async with spark_replays.job(tmp_path, "replay", *slowly, "--rate=50") as job:
                await orders.take(60)
                await job.kill()
            seen = await spark.run(spark_replays.replay, flags)
            total = (await _topics(nsqd))["orders.replay"]
            await orders.take(total - 60)

        numbers = Counter(int(body) for body in orders.bodies)
        assert set(range(0, COUNT, 2)) == set(numbers)
        assert "done" == seen["ending"]
        assert "305 rows" in job.said
        largest_file = 190
        assert total - (COUNT // 2 + TWICE // 2) <= largest_file
