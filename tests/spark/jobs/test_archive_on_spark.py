"""The archive command with a real Spark and a real nsqd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.brokers.restartable_nsqd import RestartableNsqd, restartable_nsqd
from tests.support.gateways.gateway import poll_until
from tests.support.spark.compaction import Row, rows_of_duckdb, rows_of_pyarrow, rows_of_spark
from tests.support.spark.pipeline_job import Job, pipeline_job
from tests.support.spark.processes import kill
from tests.support.spark.program import SparkProgram

pytestmark = [pytest.mark.nsqd, pytest.mark.java]

CHANNEL = "archive"


class Nsqd:
    """An HTTP client of nsqd."""

    def __init__(self, nsqd: RestartableNsqd, http: httpx.AsyncClient) -> None:
        self._nsqd = nsqd
        self._http = http

    async def post(self, path: str, topic: str, content: str = "") -> None:
        """Send a POST request."""
        url = f"http://{self._nsqd.http_address}{path}"
        params = {"topic": topic, "channel": CHANNEL}
        (await self._http.post(url, params=params, content=content)).raise_for_status()

    async def left(self, topic: str) -> tuple[int, int]:
        """Return the number of messages waiting and in flight."""
        url = f"http://{self._nsqd.http_address}/stats"
        stats = (await self._http.get(url, params={"format": "json", "topic": topic})).json()
        [channel] = stats["topics"][0]["channels"]
        return channel["depth"], channel["in_flight_count"]


def bodies(first: int, count: int) -> str:
    """Return *messages*, one per line."""
    return "\n".join(str(number) for number in range(first, first + count))


def metrics_of(text: str) -> dict[str, float]:
    """Return the pipeline's samples from /metrics, without labels."""
    return {
        sample.name.removeprefix("nsq_gateway_pipeline_"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("nsq_gateway_pipeline_")
    }


async def test_the_archive(spark: SparkProgram, tmp_path: Path) -> None:
    """By spark-submit with --available-now; then as a stream, with a failure, until SIGTERM."""
    output = tmp_path / "archive"
    async with (
        restartable_nsqd() as lasting,
        httpx.AsyncClient(trust_env=False, timeout=30) as http,
    ):
        nsqd = Nsqd(lasting, http)
        for topic in "ab":
            await nsqd.post("/topic/create", topic)
            await nsqd.post("/channel/create", topic)
        await nsqd.post("/mpub", "a", bodies(0, 300))
        await nsqd.post("/mpub", "b", bodies(0, 200))
        flags = ("archive", "--topic=a,b", f"--nsqd-tcp-address={lasting.tcp_address}")
        folders = (f"--output={output}", f"--checkpoint={tmp_path / 'checkpoint'}")
        now = ("--available-now", "--idle-s=2")

        async with pipeline_job(tmp_path, *flags, *folders, *now, is_submitted=True) as job:
            assert 0 == await job.ended()
            await job.said(r'"rows": 500, [^\n]*"event": "job ended"')

        assert (0, 0) == await poll_until(lambda: nsqd.left("a"), (0, 0))
        assert (0, 0) == await poll_until(lambda: nsqd.left("b"), (0, 0))
        rows = read_by_all(spark, output)
        expected = [("a", str(number)) for number in range(300)]
        expected += [("b", str(number)) for number in range(200)]
        assert sorted(expected) == sorted((topic, body) for topic, _, body in rows)

        more = ("--trigger-s=3600", "--management-listen=127.0.0.1:0", "--retries=1000")
        async with pipeline_job(tmp_path, *flags, *folders, *more) as job:
            archived, left = await stream(job, lasting, nsqd, http)
            assert 0 == await job.ended()

        # Nothing of the first run came again; what was not archived is back in nsqd, at once.
        assert (left, 0) == await poll_until(lambda: nsqd.left("a"), (left, 0))
        assert 150 == archived + left
        again = read_by_all(spark, output)
        assert len(rows) + archived == len(again) == len({(topic, mid) for topic, mid, _ in again})


async def stream(
    job: Job, lasting: RestartableNsqd, nsqd: Nsqd, http: httpx.AsyncClient
) -> tuple[int, int]:
    """Run *job* through a failure to its end; return the messages archived, and the others."""
    management = (await job.said(r'"address": "([^"]+)", "event": "management port'))[1]

    async def ready() -> int:
        return (await http.get(f"http://{management}/readyz")).status_code

    async def counted() -> dict[str, Any]:
        return metrics_of((await http.get(f"http://{management}/metrics")).text)

    async def source() -> int:
        return len(job.pids("python_streaming_source_runner"))

    await job.said('"query started"')
    # What the process of the sockets says is in the log of the job, as a line of its own.
    await job.said(r'"topic": "[ab]", "event": "subscribed", "level": "info"')
    assert 200 == await poll_until(ready, 200)
    while not await source():
        assert 200 == await ready()
    await lasting.kill()
    kill(job.pids("python_streaming_source_runner")[0])
    failed = '"event": "query failed, restarting it"'
    await job.said(failed)
    await lasting.start()
    await job.said(f"{failed}.*query started")
    await nsqd.post("/mpub", "a", bodies(300, 100))
    while not (metrics := await counted()).get("input_rows_total"):
        await ready()
    await nsqd.post("/mpub", "a", bodies(400, 50))
    archived = int(metrics["input_rows_total"])
    held = 150 - archived
    # The next batch is an hour away: what came since is held, and what was archived is finished.
    assert (0, held) == await poll_until(lambda: nsqd.left("a"), (0, held))
    assert 1 <= metrics["query_restarts_total"]
    assert 0 < metrics["last_progress_timestamp_seconds"]
    job.terminate()
    return archived, held


async def test_a_job_with_a_killed_jvm_reports_it_and_what_to_do(tmp_path: Path) -> None:
    """As when memory runs out: one sentence, and exit status 1, so that it is restarted."""
    async with restartable_nsqd() as nsqd:
        flags = ("archive", "--topic=a", f"--nsqd-tcp-address={nsqd.tcp_address}")
        folders = (f"--output={tmp_path / 'archive'}", f"--checkpoint={tmp_path / 'checkpoint'}")
        async with pipeline_job(tmp_path, *flags, *folders) as job:
            await job.said('"query started"')
            [jvm] = job.pids("org.apache.spark.deploy.SparkSubmit")
            kill(jvm)
            assert 1 == await job.ended()
            await job.said(
                rf"nsq-gateway: Spark's JVM \(process {jvm}\) was killed by SIGKILL, as happens "
                r"when memory runs out: .* Nothing is lost: start it again with the same flags"
            )


def read_by_all(spark: SparkProgram, folder: Path) -> list[Row]:
    by_spark = [(topic, mid, body) for topic, mid, body in spark.call(rows_of_spark, str(folder))]
    assert by_spark == rows_of_duckdb(str(folder))
    assert by_spark == rows_of_pyarrow(str(folder))
    return by_spark
