"""The replay with a real Spark and a real nsqd, and errors before Spark starts."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path

import httpx
import pytest

from gateway.errors import SettingsError
from gateway.pipeline.jobs.replay import check_replay
from gateway.settings.loader import load
from gateway.settings.pipeline import ReplaySettings
from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.spark import replays as spark_replays
from tests.support.spark.program import SparkProgram

COUNT = 600
TWICE = 10
"""Number of messages that are in the archive twice."""


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
def test_invalid_settings_are_refused_before_spark_starts(
    given: dict[str, str], named: str
) -> None:
    """With exit status 2 and the flag."""
    with pytest.raises(SettingsError, match=re.escape(named)):
        check_replay(_settings(**given), is_dry_run=False)


def test_a_dry_run_needs_no_nsqd_and_no_checkpoint() -> None:
    check_replay(_settings(nsqd_tcp_address="", checkpoint=""), is_dry_run=True)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the holder of the archive's path, which the first test writes."""
    return tmp_path_factory.mktemp("archive") / "rows"


@pytest.fixture
def written(spark: SparkProgram, archive: Path) -> str:
    """Return the path of an archive of COUNT messages, of which ten are there twice."""
    if not archive.exists():
        spark.call(spark_replays.write_archive, str(archive), COUNT)
    return str(archive)


async def _topics(nsqd: RealNsqd) -> dict[str, int]:
    """Return the number of messages that each topic has received."""
    async with httpx.AsyncClient(trust_env=False) as http:
        stats = await http.get(f"http://{nsqd.http_address}/stats", params={"format": "json"})
    return {topic["topic_name"]: topic["message_count"] for topic in stats.json()["topics"] or []}


@pytest.mark.java
@pytest.mark.nsqd
class TestOnSpark:
    """Tests that share one Spark and one archive."""

    async def test_a_dry_run_counts_by_topic_and_publishes_nothing(
        self, spark: SparkProgram, written: str, tmp_path: Path
    ) -> None:
        """With rows, bytes, first and last time, and target topics."""
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

    async def test_rows_chosen_by_where_go_to_replay_topics_once(
        self, spark: SparkProgram, written: str, tmp_path: Path
    ) -> None:
        """With --distinct, duplicate rows too; a second run has nothing to do."""
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

    async def test_a_topic_added_after_the_count_fails_the_replay(
        self, spark: SparkProgram, tmp_path: Path
    ) -> None:
        """The user has not confirmed it, so the replay fails; the next one counts it."""
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

        assert "would fail again: " in first["failed"]
        assert "topic late was added to the archive after the count" in first["failed"]
        assert "done" == again["ending"]
        assert 3 == topics["late.replay"]
        assert 4 <= topics["orders.replay"]

    async def test_rows_done_before_a_kill_are_those_committed(
        self, spark: SparkProgram, tmp_path: Path
    ) -> None:
        """The total is right after a kill at any time; an uncommitted batch is repeated."""
        folder = str(tmp_path / "rows")
        await spark.run(spark_replays.add_topic, folder, "orders#ephemeral", 4)
        await spark.run(spark_replays.add_topic, folder, "refunds", 3)
        commits = tmp_path / "checkpoint" / "commits"
        async with real_nsqd() as nsqd:
            flags = {
                "input": folder,
                "max_files_per_batch": 1,
                "nsqd_tcp_address": nsqd.tcp_address,
                "checkpoint": str(tmp_path / "checkpoint"),
            }
            first = await spark.run(spark_replays.replay, flags)
            again = await spark.run(spark_replays.replay, flags)
            (commits / "1").unlink()
            (commits / ".1.crc").unlink(missing_ok=True)
            killed = await spark.run(spark_replays.replay, flags)

        assert [(0, 7), (7, 0)] == [(each["before"], each["rows"]) for each in (first, again)]
        assert killed["rows"] in (3, 4)
        assert 7 == killed["before"] + killed["rows"]

    async def test_a_rate_is_kept_over_all_tasks(
        self, spark: SparkProgram, written: str, tmp_path: Path
    ) -> None:
        """60 messages at 20 a second take almost three seconds."""
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
    async def test_an_invalid_condition_is_refused_in_a_sentence(
        self,
        spark: SparkProgram,
        written: str,
        tmp_path: Path,
        flags: dict[str, str],
        words: str,
    ) -> None:
        """One line of Spark's error; nothing is published."""
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
        """The list of finished files is valid for one replay only."""
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
        """After confirmation the rows are published."""
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

        reason = "live has a channel (billing), whose consumers receive every message"
        assert ([reason], {"live": 0}) == (refused["reasons"], nothing)
        assert ("done", 1, b"41") == (agreed["ending"], agreed["rows"], body)

    async def test_a_killed_replay_continues_and_repeats_at_most_a_batch(
        self, spark: SparkProgram, written: str, tmp_path: Path
    ) -> None:
        """After SIGKILL of the whole job, another process continues with the checkpoint."""
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
        assert 305 == seen["before"] + seen["rows"]
        largest_file = 190
        assert total - (COUNT // 2 + TWICE // 2) <= largest_file
