"""Exported metrics of a job that ends: which runs export them, where, and with which name."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.errors import SettingsError
from gateway.pipeline.jobs.compact import CompactionResult
from gateway.pipeline.jobs.metrics_export import run_exported, set_row_count
from gateway.pipeline.jobs.runner import JobFailed, JobResult
from gateway.settings.loader import load
from gateway.settings.pipeline import ArchiveSettings, CompactSettings, ReplaySettings
from tests.support.chart.prometheus import promtool

PREFIX = "nsq_gateway_pipeline_job_"


def samples_of(text: str, command: str) -> dict[str, float]:
    """Return the samples of *command*, by name without the common prefix."""
    return {
        sample.name.removeprefix(PREFIX): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["command"] == command
    }


def job_names_of(text: str) -> set[str]:
    """Return the values of the label job_name."""
    families = text_string_to_metric_families(text)
    return {sample.labels["job_name"] for family in families for sample in family.samples}


def of_file(**more: str) -> Callable[[Path], CompactSettings]:
    """Return a function that makes settings of a compaction with metrics in a file."""
    return lambda path: load(CompactSettings, {"metrics_textfile": str(path), **more}).settings


def failing() -> CompactionResult:
    raise JobFailed("an hour was not compacted")


@contextmanager
def pushgateway(status: int = 200) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the address of a fake Pushgateway, and its requests: method, path and text."""
    pushed: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Record the request; PUT is not supported, because it would delete other metrics."""
            body = self.rfile.read(int(self.headers["Content-Length"]))
            pushed.append((self.command, self.path, body.decode()))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Do not log requests."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", pushed
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_run_that_ended_well_is_in_the_file(tmp_path: Path) -> None:
    """End, duration and rows; no metrics of a running stream or of the process."""
    path = tmp_path / "compact.prom"

    assert 7 == run_exported(of_file()(path), "compact", lambda: CompactionResult(rows=7)).rows

    found = samples_of(path.read_text(), "compact")
    assert {"failed", "rows", "duration_seconds"} | {
        f"last_{what}_timestamp_seconds" for what in ("run", "success")
    } == found.keys()
    assert {"compact"} == job_names_of(path.read_text())
    assert (0, 7) == (found["failed"], found["rows"])
    assert [path] == [*tmp_path.iterdir()]


@pytest.mark.promtool
def test_promtool_takes_the_file(tmp_path: Path) -> None:
    """node_exporter has the same rules."""
    path = tmp_path / "compact.prom"
    run_exported(of_file()(path), "compact", CompactionResult)

    assert "" == promtool("check", "metrics", said=path.read_text())


def test_a_run_that_failed_says_so_and_fails_as_before(tmp_path: Path) -> None:
    """Its error is raised unchanged; the rows of the previous run are replaced."""
    path = tmp_path / "compact.prom"
    run_exported(of_file()(path), "compact", CompactionResult)

    with pytest.raises(JobFailed, match="an hour was not compacted"):
        run_exported(of_file()(path), "compact", failing)

    assert 1 == samples_of(path.read_text(), "compact")["failed"]


def test_a_push_goes_under_the_name_of_the_job() -> None:
    """A name with a slash, as Kubernetes has, is encoded in base64."""
    with pushgateway() as (url, pushed):
        settings = load(ReplaySettings, {"metrics_push_url": url, "job_name": "gw/it"}).settings
        run_exported(settings, "replay", lambda: JobResult.DONE)

    [(method, path, text)] = pushed
    assert ("POST", "/metrics/job@base64/Z3cvaXQ=") == (method, path)
    assert {"gw/it"} == job_names_of(text)


def test_a_failed_run_leaves_the_last_success_as_it_is() -> None:
    """With POST a Pushgateway keeps metrics that are not sent."""
    with pushgateway() as (url, pushed):
        settings = load(CompactSettings, {"metrics_push_url": url}).settings
        with pytest.raises(JobFailed):
            run_exported(settings, "never succeeded", failing)

    found = samples_of(pushed[0][2], "never succeeded")
    assert 1 == found["failed"]
    assert "last_success_timestamp_seconds" not in found


@pytest.mark.parametrize(
    "command,flags,is_told",
    [
        ("archive", ("--available-now",), True),
        ("archive", (), False),
        ("compact", (), True),
        ("metrics", ("--available-now",), True),
        ("replay", (), True),
        ("replay", ("--dry-run",), False),
    ],
)
def test_every_command_tells_of_its_run(
    command: str, flags: tuple[str, ...], *, is_told: bool, tmp_path: Path
) -> None:
    """A run that lacks a setting fails before Spark starts, and is exported with its command."""
    path = tmp_path / "it.prom"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "gateway", "pipeline", command, *flags),
            *("--metrics-textfile", path, "--job-name", "nightly"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert 2 == ended.returncode, ended.stderr
    assert is_told == path.exists()
    if is_told:
        assert 1 == samples_of(path.read_text(), command)["failed"]
        assert {"nightly"} == job_names_of(path.read_text())


@pytest.mark.parametrize("result", [JobResult.TERMINATED, JobResult.INTERRUPTED])
def test_a_run_ended_by_a_signal_exports_nothing(result: JobResult, tmp_path: Path) -> None:
    path = tmp_path / "replay.prom"
    settings = load(ReplaySettings, {"metrics_textfile": str(path)}).settings

    assert result is run_exported(settings, "replay", lambda: result)

    assert not path.exists()


@pytest.mark.parametrize("is_now", [True, False])
def test_a_stream_tells_its_metrics_where_it_ends(is_now: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """An endless one is scraped; on a Pushgateway its failure would stay for ever."""
    path = tmp_path / "archive.prom"
    given = {"metrics_textfile": str(path), "available_now": is_now}
    settings = load(ArchiveSettings, given).settings

    run_exported(settings, "archive", lambda: JobResult.DONE)

    assert is_now == path.exists()


@pytest.mark.parametrize("has_failed", [False, True])
def test_rows_that_a_run_counts_itself_are_its_rows(has_failed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """A replay with --where publishes fewer rows than it reads; the next run starts at 0."""
    path = tmp_path / "replay.prom"
    settings = load(ReplaySettings, {"metrics_textfile": str(path)}).settings

    def run() -> JobResult:
        set_row_count("replay", 7)
        if has_failed:
            failing()
        return JobResult.DONE

    with pytest.raises(JobFailed) if has_failed else nullcontext():
        run_exported(settings, "replay", run)
    assert 7 == samples_of(path.read_text(), "replay")["rows"]

    run_exported(settings, "replay", lambda: JobResult.DONE)
    assert 7 != samples_of(path.read_text(), "replay")["rows"]


@pytest.mark.parametrize("status", [200, 500])
def test_a_pushgateway_that_fails_changes_no_run(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged, and the job succeeds."""
    with pushgateway(status) as (url, _):
        settings = load(CompactSettings, {"metrics_push_url": url}).settings
        assert 7 == run_exported(settings, "compact", lambda: CompactionResult(rows=7)).rows

    assert ("metrics not pushed" in caplog.text) == (status == 500)


def test_a_file_that_cannot_be_written_changes_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For example in a missing folder."""
    run_exported(of_file()(tmp_path / "none" / "it.prom"), "compact", CompactionResult)

    assert "metrics not written" in caplog.text


@pytest.mark.parametrize(
    "name,value,words",
    [
        ("metrics_push_url", "pushgateway:9091", "a Pushgateway is http://host:port"),
        ("metrics_push_url", "http://me:secret@pushgateway", "without user"),
        ("metrics_push_url", "http://pushgateway:99999", "a Pushgateway is http://host:port"),
        ("metrics_push_url", "http://pushgateway/?a=b", "query"),
        ("metrics_textfile", "/var/lib/metrics.txt", "end in .prom"),
    ],
)
def test_an_invalid_target_of_metrics_is_refused_at_once(name: str, value: str, words: str) -> None:
    """Before the run, whose metrics would be lost."""
    with pytest.raises(SettingsError, match=words):
        load(CompactSettings, {name: value})
