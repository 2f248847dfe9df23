"""Write docs/configuration.md from the settings themselves: python tools/document_settings.py."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic_settings import BaseSettings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gateway.commands.flags import shown  # noqa: E402 - the path comes first
from gateway.settings import BrokerSettings, ServeSettings  # noqa: E402
from gateway.settings_commands import HealthSettings, PubSettings, SubSettings  # noqa: E402
from gateway.settings_common import Settings, flag_of, variable_of  # noqa: E402
from gateway.settings_jobs import (  # noqa: E402
    ArchiveSettings,
    CompactSettings,
    JobSettings,
    QueryJobSettings,
    StreamJobSettings,
)
from gateway.settings_nsqd import NsqdSettings  # noqa: E402
from gateway.settings_pipeline import SourceSettings  # noqa: E402
from gateway.settings_replay import MetricsSettings, ReplaySettings  # noqa: E402
from gateway.settings_sink import SinkSettings  # noqa: E402

PAGE = ROOT / "docs" / "configuration.md"

HEAD = """\
# Configuration

Written by `tools/document_settings.py` from the settings in `gateway/`; a test holds it current.

Each setting has one name in three forms: the flag below, the environment variable beside it, and
the flag's name with `_` for `-` as a key of the TOML file that `--config` (or
`NSQ_GATEWAY_CONFIG`) names. A flag beats the environment, the environment the file, the file the
default. Lists: repeat the flag, or separate with commas. A name that no setting has is an error,
and so is a table in the file. An empty variable is not set.

Durations of nsqd's own options are spelled as in Go (`1h30m`, `250ms`) or as a number of
milliseconds. `nsq-gateway settings` shows every value that `serve` would use, and where it comes
from; secrets are hidden.

One environment or file may serve all commands: each takes what it has, and passes over what
another one has.
"""

SECTIONS: tuple[tuple[str, str, type[BaseSettings], tuple[type[BaseSettings], ...]], ...] = (
    ("`nsq-gateway serve`", "", ServeSettings, (NsqdSettings, Settings)),
    (
        "Reaching nsqd",
        "`serve`, `pub` and `sub` have these. With `--url`, only the secret counts.",
        NsqdSettings,
        (Settings,),
    ),
    ("`nsq-gateway pub`", "", PubSettings, (NsqdSettings, Settings)),
    ("`nsq-gateway sub`", "", SubSettings, (NsqdSettings, Settings)),
    ("`nsq-gateway health`", "", HealthSettings, (Settings,)),
    ("`nsq-gateway broker`", "The names are nsqd's.", BrokerSettings, (Settings,)),
    (
        "The stream of Spark",
        "Options of the format `nsq` (`maxInFlight`), flags of the jobs; archive has its channel.",
        SourceSettings,
        (NsqdSettings, Settings),
    ),
    (
        "The sinks of Spark",
        "Options of the format `nsq` (`toTopic`, or `topic`), for streams and for batches.",
        SinkSettings,
        (NsqdSettings, Settings),
    ),
    ("The jobs on Spark", "All of them have these.", JobSettings, (Settings,)),
    ("The jobs that go on where they were", "", QueryJobSettings, (JobSettings,)),
    ("The jobs that read a stream", "", StreamJobSettings, (QueryJobSettings,)),
    (
        "`nsq-gateway pipeline archive`",
        "",
        ArchiveSettings,
        (SourceSettings, StreamJobSettings),
    ),
    ("`nsq-gateway pipeline compact`", "", CompactSettings, (JobSettings,)),
    (
        "`nsq-gateway pipeline metrics`",
        "Its channel is `metrics`, and a batch begins every 10 s (`--trigger-s`).",
        MetricsSettings,
        (SourceSettings, StreamJobSettings),
    ),
    (
        "`nsq-gateway pipeline replay`",
        "It has those of the sinks, too; without `--to-topic` it adds `.replay` to each topic.",
        ReplaySettings,
        (SinkSettings, QueryJobSettings),
    ),
    ("Logs", "Every command has these; of `pub` and `sub` the level is warning.", Settings, ()),
)
"""Heading, a sentence, the settings, and those of other sections that are left out."""


def page() -> str:
    """Return the text of the page."""
    lines = [HEAD]
    for heading, sentence, kind, others in SECTIONS:
        lines += [f"## {heading}", "", *([sentence, ""] if sentence else [])]
        lines += [*_table(kind, {name for other in others for name in other.model_fields}), ""]
    return "\n".join(lines)


def _table(kind: type[BaseSettings], others: set[str]) -> list[str]:
    rows = ["| setting | meaning | allowed | default |", "| --- | --- | --- | --- |"]
    for name, field in kind.model_fields.items():
        if name in others:
            continue
        extra = field.json_schema_extra
        allowed = extra["allowed"] if isinstance(extra, dict) else ""
        names = f"`{flag_of(name)}`<br>`{variable_of(name)}`"
        rows.append(f"| {names} | {field.description} | {allowed} | `{shown(field.default)}` |")
    return rows


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
