"""The metrics job: invalid settings, the message format, and counts on a real Spark."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.errors import SettingsError
from gateway.pipeline.jobs.metrics import LateRowsListener, check_metrics, encode_window
from gateway.pipeline.schema import format_time
from gateway.settings.loader import load
from gateway.settings.pipeline import MetricsSettings
from tests.support.brokers.nsqd import RealNsqd, real_nsqd
from tests.support.brokers.v2_peer import body_and_attempts, v2_peer
from tests.support.spark import replays as spark_replays
from tests.support.spark.program import SparkProgram

US = 1_000_000
BEGIN_US = 1_793_000_040 * US
"""Start of a minute."""


def _settings(**given: str) -> MetricsSettings:
    flags = {"topic": "orders", "nsqd_tcp_address": "127.0.0.1:4150", "checkpoint": "/checkpoint"}
    return load(MetricsSettings, flags | given).settings


def test_metrics_have_a_channel_and_a_topic_of_their_own() -> None:
    """So no other consumer misses a message."""
    settings = _settings()

    check_metrics(settings)
    assert ("metrics", "metrics") == (settings.channel, settings.to_topic)


@pytest.mark.parametrize("to_topic", ["metrics", "counts"])
def test_metrics_of_their_own_messages_are_refused(to_topic: str) -> None:
    """They would produce messages without end."""
    with pytest.raises(SettingsError, match=r"^--to-topic: .* is read by --topic too: .*"):
        check_metrics(_settings(topic=f"orders,{to_topic}", to_topic=to_topic))


@pytest.mark.parametrize(
    "given, named",
    [
        ({"checkpoint": ""}, "--checkpoint"),
        ({"to_topic": ""}, "--to-topic"),
        ({"topic": ""}, "topic"),
        ({"channel": "m#ephemeral"}, "channel"),
        ({"nsqd_tcp_address": ""}, "--nsqd-tcp-address"),
    ],
)
def test_invalid_settings_are_refused_before_spark_starts(
    given: dict[str, str], named: str
) -> None:
    """With exit status 2 and the name of the setting."""
    with pytest.raises(SettingsError, match=named):
        check_metrics(_settings(**given))


def test_a_message_is_one_json_object_with_a_key_to_keep_the_last_by() -> None:
    """The key consists of topic and window_start."""
    row = {
        "topic": "orders",
        "start_us": BEGIN_US,
        "end_us": BEGIN_US + 60 * US,
        "count": 3,
        "bytes": 600,
        "redelivered": 1,
        "max_attempts": 2,
        "percentiles_ms": [1.0, 2.34567, 3.5],
    }

    assert {
        "topic": "orders",
        "window_start": "2026-10-26T07:34:00Z",
        "window_end": "2026-10-26T07:35:00Z",
        "count": 3,
        "bytes": 600,
        "redelivered": 1,
        "max_attempts": 2,
        "p50_ms": 1.0,
        "p95_ms": 2.346,
        "p99_ms": 3.5,
    } == json.loads(encode_window(row))


def test_a_moment_has_a_fraction_where_windows_have_one() -> None:
    """RFC 3339, in UTC."""
    assert "2026-10-26T07:34:00.500000Z" == format_time(BEGIN_US + US // 2)


@pytest.mark.parametrize("dropped, lines", [([0], 0), ([2, 3], 1)])
def test_late_messages_are_logged(dropped: list[int], lines: int) -> None:
    """Once for each batch that dropped some."""
    operators = [{"numRowsDroppedByWatermark": count} for count in dropped]

    with capture_logs() as logs:
        LateRowsListener(60).on_progress({"stateOperators": operators})

    assert lines == len(logs)
    assert all((5, 60) == (line["groups"], line["watermark_s"]) for line in logs)


async def _publish(nsqd: RealNsqd, topic: str, bodies: list[str]) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        url = f"http://{nsqd.http_address}/mpub"
        answer = await http.post(url, params={"topic": topic}, content="\n".join(bodies))
        answer.raise_for_status()


async def _hand_back(nsqd: RealNsqd, topic: str, count: int) -> None:
    """Receive *count* messages from the job's channel, and requeue them."""
    async with v2_peer(nsqd.tcp_address) as peer:
        await peer.send(f"SUB {topic} metrics\nRDY {count}\n".encode())
        _, *messages = await peer.frames(1 + count)
        assert [1] * count == [body_and_attempts(frame)[1] for frame in messages]
        await peer.send(b"RDY 0\n" + b"".join(b"REQ <id-%d> 0\n" % n for n in range(count)))
        await peer.send(b"CLS\n")
        assert (0, b"CLOSE_WAIT") == await peer.frame()


@pytest.mark.java
class TestOnSpark:
    """Tests that share one Spark."""

    async def test_counts_and_percentiles_are_those_of_the_messages(
        self, spark: SparkProgram
    ) -> None:
        """By topic and window, compared with figures computed in Python."""
        dice = random.Random(9)
        rows: list[list[Any]] = []
        for number in range(1_500):
            ts = BEGIN_US + dice.randrange(120 * US)
            received = ts + dice.randrange(5 * US)
            topic = dice.choice(["orders", "refunds"])
            rows.append([topic, ts, received, dice.choice([1, 1, 1, 2, 5]), "x" * (number % 7)])
        flags = {
            "topic": "orders,refunds",
            "nsqd_tcp_address": "127.0.0.1:4150",
            "checkpoint": "/checkpoint",
        }
        bodies = await spark.run(spark_replays.count_in_windows, flags, rows)

        expected = []
        for start in (BEGIN_US, BEGIN_US + 60 * US):
            for topic in ("orders", "refunds"):
                mine = [r for r in rows if r[0] == topic and start <= r[1] < start + 60 * US]
                delays = sorted((r[2] - r[1]) / 1_000 for r in mine)
                ranks = {p: delays[math.ceil(p / 100 * len(delays)) - 1] for p in (50, 95, 99)}
                expected.append(
                    {
                        "topic": topic,
                        "window_start": format_time(start),
                        "window_end": format_time(start + 60 * US),
                        "count": len(mine),
                        "bytes": sum(len(r[4]) for r in mine),
                        "redelivered": sum(r[3] > 1 for r in mine),
                        "max_attempts": max(r[3] for r in mine),
                        **{f"p{p}_ms": round(value, 3) for p, value in ranks.items()},
                    }
                )
        assert expected == [json.loads(body) for body in bodies]

    @pytest.mark.nsqd
    async def test_a_window_is_published_again_when_it_has_changed_and_at_last_is_right(
        self, spark: SparkProgram, tmp_path: Path
    ) -> None:
        """Even if no later message advances the watermark."""
        async with real_nsqd() as nsqd:
            flags = {
                "topic": "orders,refunds",
                "nsqd_tcp_address": nsqd.tcp_address,
                "checkpoint": str(tmp_path / "checkpoint"),
                "window_s": 86_400,
                "trigger_s": 0,
            }
            async with spark_replays.consumer(nsqd, "metrics") as metrics:
                await _publish(nsqd, "refunds", ["one"])
                await _publish(nsqd, "orders", [f"{n:03}" for n in range(100)])
                await _hand_back(nsqd, "orders", 7)
                await spark.run(spark_replays.begin_metrics, flags)
                windows: dict[tuple[str, str], dict[str, Any]] = {}

                async def until(topic: str, count: int) -> int:
                    """Keep the last message of each window; return their number."""
                    seen = 0
                    while count != sum(w["count"] for k, w in windows.items() if k[0] == topic):
                        body = json.loads(await metrics.next())
                        windows[body["topic"], body["window_start"]] = body
                        seen += body["topic"] == topic
                    return seen

                await until("orders", 100)
                await until("refunds", 1)
                await _publish(nsqd, "orders", ["late"] * 50)
                assert await until("orders", 150) >= 1

        orders = [window for key, window in windows.items() if key[0] == "orders"]
        assert (500, 7, 2) == (
            sum(window["bytes"] for window in orders),
            sum(window["redelivered"] for window in orders),
            max(window["max_attempts"] for window in orders),
        )
        for window in windows.values():
            assert 0 < window["p50_ms"] <= window["p95_ms"] <= window["p99_ms"]
