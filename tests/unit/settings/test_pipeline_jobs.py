"""Settings of the jobs on Spark."""

from __future__ import annotations

import pytest

from gateway.errors import SettingsError
from gateway.settings.loader import load
from gateway.settings.pipeline import ArchiveSettings, CompactSettings


def test_a_setting_of_spark_keeps_its_commas() -> None:
    """A comma separates settings only if another setting follows."""
    text = "spark.jars=a.jar,b.jar, spark.ui.enabled=true"

    settings = load(CompactSettings, {"spark_conf": (text, "spark.x.y=1=2")}).settings

    expected = ("spark.jars=a.jar,b.jar", "spark.ui.enabled=true", "spark.x.y=1=2")
    assert expected == settings.spark_conf


def test_settings_of_spark_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newlines and commas separate them."""
    monkeypatch.setenv("NSQ_GATEWAY_SPARK_CONF", "spark.a=1\nspark.b=2")

    assert ("spark.a=1", "spark.b=2") == load(CompactSettings, {}).settings.spark_conf


@pytest.mark.parametrize("text", ["driver.memory=1g", "spark.driver.memory", "x"])
def test_what_is_no_setting_of_spark_is_refused(text: str) -> None:
    """Spark would ignore it silently."""
    with pytest.raises(SettingsError, match=r"spark\.name=value"):
        load(CompactSettings, {"spark_conf": (text,)})


def test_a_job_has_no_management_port_unless_it_is_asked_for() -> None:
    """Several jobs and a gateway may run on one machine."""
    assert "" == load(ArchiveSettings, {}).settings.management_listen

    with pytest.raises(SettingsError, match="--management-listen"):
        load(ArchiveSettings, {"management_listen": "here"})


def test_an_archive_has_a_channel_of_its_own() -> None:
    """With the default channel of a stream it would share the messages."""
    assert "archive" == load(ArchiveSettings, {}).settings.channel
