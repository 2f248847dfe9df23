"""The Spark session of a job: Java, settings, and the secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.errors import SettingRefused, StartError
from gateway.pipeline.jobs import spark as session
from gateway.pipeline.jobs.spark import check_java, is_submitted, open_session, spark_settings
from gateway.settings.loader import load
from gateway.settings.pipeline import ArchiveSettings, JobSettings


def settings_of(**given: object) -> ArchiveSettings:
    return load(ArchiveSettings, {"topic": "t", "nsqd_tcp_address": "x:1"} | given).settings


def java_that_says(folder: Path, text: str) -> None:
    """Create a fake java in *folder*, for JAVA_HOME."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    binary.chmod(0o755)


def test_a_missing_java_is_reported_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With advice, and the places searched."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(StartError, match=r"no java in JAVA_HOME .*needs Java 17 or later"):
        check_java()


@pytest.mark.parametrize(
    "version, expected",
    [('openjdk version "11.0.2" 2019', "Java 11"), ('java version "1.8.0_292"', "Java 8")],
)
def test_an_old_java_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, expected: str
) -> None:
    """Spark would fail with an error about class files."""
    java_that_says(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(StartError, match=f"{expected}: Spark needs Java 17"):
        check_java()


def test_a_java_that_is_new_enough_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever else it prints."""
    java_that_says(tmp_path, 'Picked up X\nopenjdk version "21" 2023')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    check_java()


def test_asynchronous_progress_is_refused_with_the_reason() -> None:
    """With it, messages would be finished before their batch is in the log."""
    conf = "spark.sql.streaming.asyncProgressTrackingEnabled=true"

    with pytest.raises(SettingRefused, match="could be lost"):
        spark_settings(load(JobSettings, {"spark_conf": conf}).settings)


def test_the_master_is_a_setting_of_spark() -> None:
    given = {"spark_conf": "spark.master=local[9], spark.x.y=a=b", "master": "local[1]"}

    expected = {"spark.master": "local[1]", "spark.x.y": "a=b"}
    assert expected == spark_settings(load(JobSettings, given).settings)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    changed = {"PATH": os.environ["PATH"]}
    monkeypatch.setattr(os, "environ", changed)
    return changed


def test_only_the_secret_stays_in_the_environment(
    environment: dict[str, str],
) -> None:
    """Spark's processes get settings as options; a flag replaces the variable."""
    environment |= {"NSQ_GATEWAY_AUTH_SECRET": "old", "NSQ_GATEWAY_TOPIC": "other"}

    session._export_secret(settings_of(auth_secret="hush"))

    ours = {name: value for name, value in environment.items() if name.startswith("NSQ_")}
    assert {"NSQ_GATEWAY_AUTH_SECRET": "hush"} == ours


def test_a_secret_by_flag_is_refused_under_spark_submit(environment: dict[str, str]) -> None:
    """The JVM runs already without the secret; the error does not contain it."""
    environment["PYSPARK_GATEWAY_PORT"] = "1"
    assert is_submitted()

    with pytest.raises(SettingRefused, match="--auth-secret-file") as refused:
        open_session(settings_of(auth_secret="hush"), "archive")

    assert "hush" not in str(refused.value)


def test_a_secret_that_the_jvm_has_too_is_taken_under_spark_submit(
    environment: dict[str, str],
) -> None:
    environment |= {"PYSPARK_GATEWAY_PORT": "1", "NSQ_GATEWAY_AUTH_SECRET": "hush"}

    session._export_secret(settings_of(auth_secret="hush"))

    assert "hush" == environment["NSQ_GATEWAY_AUTH_SECRET"]
