"""What a job's session asks for, and what is said where it cannot be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.errors import SettingRefused, StartError
from gateway.pipeline import session
from gateway.pipeline.session import check_java, is_submitted, open_session, spark_settings
from gateway.settings_jobs import ArchiveSettings, JobSettings
from gateway.settings_sources import load


def settings_of(**given: object) -> ArchiveSettings:
    """Return the settings of an archive."""
    return load(ArchiveSettings, {"topic": "t", "nsqd_tcp_address": "x:1"} | given).settings


def java_that_says(folder: Path, text: str) -> None:
    """Put a java into *folder*, as JAVA_HOME would name it."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    binary.chmod(0o755)


def test_no_java_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With what to install, and where it was looked for."""
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
    """Spark would end with a page about class files."""
    java_that_says(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(StartError, match=f"{expected}: Spark needs Java 17"):
        check_java()


def test_a_java_that_is_new_enough_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever else it says."""
    java_that_says(tmp_path, 'Picked up X\nopenjdk version "21" 2023')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    check_java()


def test_asynchronous_progress_is_refused_with_the_reason() -> None:
    """A message would be finished before its batch is in the log."""
    conf = "spark.sql.streaming.asyncProgressTrackingEnabled=true"

    with pytest.raises(SettingRefused, match="could be lost"):
        spark_settings(load(JobSettings, {"spark_conf": conf}).settings)


def test_the_master_is_a_setting_of_spark() -> None:
    """And beats one that stands among those."""
    given = {"spark_conf": "spark.master=local[9], spark.x.y=a=b", "master": "local[1]"}

    expected = {"spark.master": "local[1]", "spark.x.y": "a=b"}
    assert expected == spark_settings(load(JobSettings, given).settings)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return an environment that may be changed."""
    changed = {"PATH": os.environ["PATH"]}
    monkeypatch.setattr(os, "environ", changed)
    return changed


def test_a_secret_goes_by_the_environment_and_nothing_else_of_ours_does(
    environment: dict[str, str],
) -> None:
    """The processes of Spark get the settings as options; a flag beats what stood there."""
    environment |= {"NSQ_GATEWAY_AUTH_SECRET": "old", "NSQ_GATEWAY_TOPIC": "other"}

    session._hand_on_secret(settings_of(auth_secret="hush"))

    ours = {name: value for name, value in environment.items() if name.startswith("NSQ_")}
    assert {"NSQ_GATEWAY_AUTH_SECRET": "hush"} == ours


def test_a_secret_by_flag_is_refused_under_spark_submit(environment: dict[str, str]) -> None:
    """The JVM has begun without it; the text does not show it."""
    environment["PYSPARK_GATEWAY_PORT"] = "1"
    assert is_submitted()

    with pytest.raises(SettingRefused, match="--auth-secret-file") as refused:
        open_session(settings_of(auth_secret="hush"), "archive")

    assert "hush" not in str(refused.value)


def test_a_secret_that_the_jvm_has_too_is_taken_under_spark_submit(
    environment: dict[str, str],
) -> None:
    """It was in the environment of both."""
    environment |= {"PYSPARK_GATEWAY_PORT": "1", "NSQ_GATEWAY_AUTH_SECRET": "hush"}

    session._hand_on_secret(settings_of(auth_secret="hush"))

    assert "hush" == environment["NSQ_GATEWAY_AUTH_SECRET"]
