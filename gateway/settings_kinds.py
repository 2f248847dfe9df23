"""The settings of every program."""

from __future__ import annotations

from pydantic_settings import BaseSettings

from gateway.settings import BrokerSettings, ServeSettings
from gateway.settings_commands import HealthSettings, PubSettings, SubSettings
from gateway.settings_jobs import ArchiveSettings, CompactSettings
from gateway.settings_pipeline import SourceSettings
from gateway.settings_replay import MetricsSettings, ReplaySettings
from gateway.settings_sink import SinkSettings

KINDS: tuple[type[BaseSettings], ...] = (
    ServeSettings,
    BrokerSettings,
    PubSettings,
    SubSettings,
    HealthSettings,
    SourceSettings,
    SinkSettings,
    ArchiveSettings,
    CompactSettings,
    MetricsSettings,
    ReplaySettings,
)
"""Those of every program: one environment and one file may serve them all."""
