"""Write docs/configuration.md from the settings themselves: python tools/document_settings.py."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic_settings import BaseSettings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gateway.cli import shown  # noqa: E402 - the path comes first
from gateway.settings import BrokerSettings, ServeSettings  # noqa: E402
from gateway.settings_sources import flag_of, variable_of  # noqa: E402

PAGE = ROOT / "docs" / "configuration.md"

HEAD = """\
# Configuration

Written by `tools/document_settings.py` from `gateway/settings.py`; a test holds it current.

Each setting has one name in three forms: the flag below, the environment variable beside it, and
the flag's name with `_` for `-` as a key of the TOML file that `--config` (or
`NSQ_GATEWAY_CONFIG`) names. A flag beats the environment, the environment the file, the file the
default. Lists: repeat the flag, or separate with commas. A name that no setting has is an error.
An empty variable is not set.

Durations of NSQ's own options are spelled as in Go (`1h30m`, `250ms`) or as a number of
milliseconds. `nsq-gateway settings` shows every value that would be used, and where it comes
from.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join(
        [
            HEAD,
            *_table("nsq-gateway serve", ServeSettings),
            "",
            *_table("nsq-gateway broker", BrokerSettings),
            "",
        ]
    )


def _table(command: str, kind: type[BaseSettings]) -> list[str]:
    rows = [f"## `{command}`", "", "| setting | meaning | allowed | default |"]
    rows.append("| --- | --- | --- | --- |")
    for name, field in kind.model_fields.items():
        extra = field.json_schema_extra
        allowed = extra["allowed"] if isinstance(extra, dict) else ""
        names = f"`{flag_of(name)}`<br>`{variable_of(name)}`"
        rows.append(f"| {names} | {field.description} | {allowed} | `{shown(field.default)}` |")
    return rows


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
