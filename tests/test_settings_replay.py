"""The settings of the metrics and of the replay."""

from __future__ import annotations

import pytest

from gateway.errors import SettingsError
from gateway.settings_replay import MetricsSettings, ReplaySettings
from gateway.settings_sources import load


def test_the_metrics_have_names_of_their_own() -> None:
    """And look at a window every ten seconds."""
    settings = load(MetricsSettings, {}).settings

    assert ("metrics", "metrics", 60, 60, 10) == (
        settings.channel,
        settings.to_topic,
        settings.window_s,
        settings.watermark_s,
        settings.trigger_s,
    )


def test_a_replay_goes_nowhere_else_by_itself() -> None:
    """No topic is named, no rate, and rows that are there twice go twice."""
    settings = load(ReplaySettings, {"topic": "orders, refunds"}).settings

    assert ("", 0, False, ("orders", "refunds")) == (
        settings.to_topic,
        settings.rate,
        settings.distinct,
        settings.topic,
    )


@pytest.mark.parametrize(
    "kind, name, value",
    [
        (MetricsSettings, "window_s", 0),
        (MetricsSettings, "watermark_s", -1),
        (ReplaySettings, "rate", -1),
        (ReplaySettings, "max_files_per_batch", 0),
    ],
)
def test_a_number_out_of_range_is_refused(
    kind: type[MetricsSettings | ReplaySettings], name: str, value: int
) -> None:
    """With its name."""
    with pytest.raises(SettingsError, match=name.replace("_", "-")):
        load(kind, {name: value})
