"""Settings of `pipeline metrics` and `pipeline replay`."""

from __future__ import annotations

import pytest

from gateway.errors import SettingsError
from gateway.settings.loader import load
from gateway.settings.pipeline import MetricsSettings, ReplaySettings


def test_the_metrics_have_names_of_their_own() -> None:
    """Its default channel and topic are its own, its trigger 10 s."""
    settings = load(MetricsSettings, {}).settings

    assert ("metrics", "metrics", 60, 60, 10) == (
        settings.channel,
        settings.to_topic,
        settings.window_s,
        settings.watermark_s,
        settings.trigger_s,
    )


def test_a_replay_goes_nowhere_else_by_itself() -> None:
    """By default: no target topic, no rate limit, duplicate rows are published twice."""
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
    """The error contains the setting."""
    with pytest.raises(SettingsError, match=name.replace("_", "-")):
        load(kind, {name: value})
