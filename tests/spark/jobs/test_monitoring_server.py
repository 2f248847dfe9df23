"""The management port of a job."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pyspark
import pytest
from prometheus_client.parser import text_string_to_metric_families

import gateway
from gateway.errors import SettingsError, StartError
from gateway.pipeline.jobs.archive import run_archive
from gateway.pipeline.jobs.metrics import run_metrics
from gateway.pipeline.jobs.monitoring import management
from gateway.pipeline.jobs.replay import ReplayPrompt, run_replay
from gateway.settings.loader import load
from gateway.settings.pipeline import ArchiveSettings, MetricsSettings, ReplaySettings


def test_it_answers_for_the_query() -> None:
    """/livez, /readyz and /metrics answer."""
    with (
        management("127.0.0.1:0") as port,
        httpx.Client(base_url=f"http://{port.address}", trust_env=False) as http,
    ):
        port.readiness = lambda: (False, "the query has failed")
        alive, ready, metrics = (http.get(path) for path in ("/livez", "/readyz", "/metrics"))
        other, posted = http.get("/"), http.post("/livez")

    assert (200, "alive\n") == (alive.status_code, alive.text)
    assert (503, "the query has failed\n") == (ready.status_code, ready.text)
    assert "process_cpu_seconds_total" in metrics.text
    assert (404, 405) == (other.status_code, posted.status_code)


def test_the_answer_to_a_refused_host_names_the_accepted_ones() -> None:
    """The answer has no flag of the gateway that jobs lack."""
    with management("127.0.0.1:0") as port:
        answer = httpx.get(
            f"http://{port.address}/livez", headers={"Host": "evil.example"}, trust_env=False
        )

    assert (403, False) == (answer.status_code, "--" in answer.text)
    assert "'evil.example' is not accepted; use an IP address, localhost or a" in answer.text


def test_a_silent_connection_delays_no_other() -> None:
    with management("127.0.0.1:0") as port:
        assert port.address is not None
        host, _, number = port.address.rpartition(":")
        port.readiness = lambda: (True, "ready")
        with socket.create_connection((host, int(number))):
            answer = httpx.get(f"http://{port.address}/readyz", trust_env=False)

    assert (200, "ready\n") == (answer.status_code, answer.text)


def test_it_listens_on_ipv6_too() -> None:
    with management("[::1]:0") as port:
        answer = httpx.get(f"http://{port.address}/livez", trust_env=False)

    assert 200 == answer.status_code


def test_it_answers_while_spark_starts() -> None:
    """Alive and not ready; the first scrape has the build info."""
    with (
        management("127.0.0.1:0") as port,
        httpx.Client(base_url=f"http://{port.address}", trust_env=False) as http,
    ):
        alive, ready, metrics = (http.get(path) for path in ("/livez", "/readyz", "/metrics"))

    assert (200, 503, "starting\n") == (alive.status_code, ready.status_code, ready.text)
    [build] = [
        sample.labels
        for family in text_string_to_metric_families(metrics.text)
        for sample in family.samples
        if sample.name == "nsq_gateway_pipeline_build_info" and sample.value == 1
    ]
    expected = {
        "version": gateway.__version__,
        "python": platform.python_version(),
        "spark": pyspark.__version__,
    }
    assert expected == build


def test_a_job_that_is_not_to_listen_does_not() -> None:
    """So several jobs can run on one machine."""
    with management("") as port:
        assert port.address is None


def test_a_port_in_use_is_reported_in_one_sentence() -> None:
    """The error has the flag and advice."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(StartError, match=rf"{address} \(--management-listen\): .*in use; stop"),
            management(address),
        ):
            pass


def archive(flags: Mapping[str, str]) -> None:
    run_archive(load(ArchiveSettings, {**flags, "topic": "t", "output": "/o"}).settings)


def metrics(flags: Mapping[str, str]) -> None:
    run_metrics(load(MetricsSettings, {**flags, "topic": "t"}).settings)


def replay(flags: Mapping[str, str]) -> None:
    settings = load(ReplaySettings, {**flags, "input": "/i"}).settings
    run_replay(settings, ReplayPrompt(is_confirmed=True), is_dry_run=False)


@pytest.mark.parametrize("job", [archive, metrics, replay])
def test_a_port_in_use_is_reported_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: Callable[[Mapping[str, str]], None]
) -> None:
    """Spark may take half a minute to start; this test has no Java at all."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        given = {"nsqd_tcp_address": "a:1", "checkpoint": "/c", "management_listen": listen}
        with pytest.raises(StartError, match=f"cannot listen on {listen}"):
            job(given)


@pytest.mark.parametrize("job", [archive, metrics])
def test_a_missing_secret_is_reported_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: Callable[[Mapping[str, str]], None]
) -> None:
    """As a usage error, not as a failed query; this test has no Java at all."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    where = {"nsqd_tcp_address": "a:1", "checkpoint": "/c"}
    with pytest.raises(SettingsError, match="/none"):
        job(where | {"auth_secret_file": "/none"})
