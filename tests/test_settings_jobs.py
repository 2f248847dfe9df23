"""The settings of the jobs on Spark."""

from __future__ import annotations

import pytest

from gateway.errors import SettingsError
from gateway.settings_jobs import ArchiveSettings, CompactSettings
from gateway.settings_sources import load


def test_a_setting_of_spark_keeps_its_commas() -> None:
    """A comma is between two settings only where the next one begins."""
    text = "spark.jars=a.jar,b.jar, spark.ui.enabled=true"

    settings = load(CompactSettings, {"spark_conf": (text, "spark.x.y=1=2")}).settings

    expected = ("spark.jars=a.jar,b.jar", "spark.ui.enabled=true", "spark.x.y=1=2")
    assert expected == settings.spark_conf


def test_settings_of_spark_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on a line, or behind commas."""
    monkeypatch.setenv("NSQ_GATEWAY_SPARK_CONF", "spark.a=1\nspark.b=2")

    assert ("spark.a=1", "spark.b=2") == load(CompactSettings, {}).settings.spark_conf


@pytest.mark.parametrize("text", ["driver.memory=1g", "spark.driver.memory", "x"])
def test_what_is_no_setting_of_spark_is_refused(text: str) -> None:
    """Spark would pass over it in silence."""
    with pytest.raises(SettingsError, match=r"spark\.name=value"):
        load(CompactSettings, {"spark_conf": (text,)})


def test_a_job_has_no_management_port_unless_it_is_asked_for() -> None:
    """Several jobs run on one machine, and beside a gateway."""
    assert "" == load(ArchiveSettings, {}).settings.management_listen

    with pytest.raises(SettingsError, match="--management-listen"):
        load(ArchiveSettings, {"management_listen": "here"})


def test_an_archive_has_a_channel_of_its_own() -> None:
    """It would share messages with a stream otherwise."""
    assert "archive" == load(ArchiveSettings, {}).settings.channel
