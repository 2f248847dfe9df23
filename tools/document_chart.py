"""
Bring helm/values.schema.json and helm/README.md up to date: python tools/document_chart.py.

The comments of helm/values.yaml become the descriptions of the schema and the table of the README.
The settings of `serve` become the schema of `settings`, those of the Spark jobs the schema of
`pipeline.jobs`. The rest of the schema is maintained by hand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic_settings import BaseSettings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gateway.settings.pipeline import (  # noqa: E402  # noqa: E402
    ArchiveSettings,
    CompactSettings,
    MetricsSettings,
    ReplaySettings,
    VacuumSettings,
)
from gateway.settings.serve import ServeSettings  # noqa: E402 - the path comes first

HELM = ROOT / "helm"
VALUES = HELM / "values.yaml"
SCHEMA = HELM / "values.schema.json"
README = HELM / "README.md"
BIOME = ROOT / "tools" / "bin" / "browser" / "node_modules" / ".bin" / "biome"

_COMMENT = re.compile(r"^(\s*)# (-- )?(.*)$")
_KEY = re.compile(r"^(\s*)([A-Za-z_][A-Za-z0-9_]*):")
_HOST = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
_ADDRESS = rf"^{_HOST}:[0-9]{{1,5}}$"
# 1 to 65535: port 0 is for listening.
_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_REMOTE_ADDRESS = rf"^{_HOST}:{_PORT}$"
_REMOTE_ADDRESS_OR_URL = rf"^({_HOST}:{_PORT}|https?://[^\x00-\x20\x7f-\x9f]+)$"
# Neither YAML nor TOML accepts unescaped control characters.
_TEXT = {"type": "string", "pattern": r"^[^\x00-\x1f\x7f-\x9f]*$"}
_SHOWN_CHARACTERS = 60
_LONGEST_RUN_S = 31_536_000

_SECRET_ELSEWHERE = (
    "Not allowed here: a ConfigMap must not contain a secret. "
    "Put it into a Secret, and set secrets.auth.name."
)

_MODE_ELSEWHERE = "Not allowed here: pipeline.mode determines the master."

JOBS: dict[str, type[BaseSettings]] = {
    "archive": ArchiveSettings,
    "metrics": MetricsSettings,
    "replay": ReplaySettings,
    "compact": CompactSettings,
    "vacuum": VacuumSettings,
}
"""The settings class of each command that a job may run."""

_S3 = "s3a://messages"
_ARCHIVE_EXAMPLE = {
    "command": "archive",
    "settings": {"topic": ["orders"], "output": f"{_S3}/archive", "checkpoint": f"{_S3}/state/a"},
}
_METRICS_EXAMPLE = {
    "command": "metrics",
    "settings": {"topic": ["orders"], "checkpoint": f"{_S3}/state/m", "trigger_s": 5},
}
_COMPACT_EXAMPLE = {
    "command": "compact",
    "schedule": "17 * * * *",
    "settings": {"input": f"{_S3}/archive", "output": f"{_S3}/compact"},
}

_TABLE = "| value | meaning | default |\n| --- | --- | --- |\n"


def comments(text: str) -> dict[tuple[str, ...], str]:
    """Return the description of each value in *text*, by its path."""
    found: dict[tuple[str, ...], str] = {}
    path: list[tuple[int, str]] = []
    pending: list[str] = []
    for line in text.splitlines():
        comment = _COMMENT.match(line)
        if comment is not None:
            if comment[2]:
                pending = [comment[3]]
            elif pending:
                pending.append(comment[3])
            continue
        key = _KEY.match(line)
        if key is not None:
            indent = len(key[1])
            path = [step for step in path if step[0] < indent] + [(indent, key[2])]
            if pending:
                found[tuple(name for _, name in path)] = " ".join(pending)
        pending = []
    return found


# The schema


def schema() -> dict[str, Any]:
    """Return the schema on disk with its generated parts updated."""
    whole: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    described = comments(VALUES.read_text(encoding="utf-8"))
    whole["properties"]["settings"] = settings_schema()
    whole["properties"]["pipeline"]["properties"]["jobs"] = jobs_schema()
    for path, text in described.items():
        node = whole
        for name in path:
            node = node["properties"][name]
        if path[0] != "settings" or len(path) == 1:
            node.pop("description", None)
            rest = dict(node)
            node.clear()
            node.update({"description": text, **rest})
    return whole


def settings_schema() -> dict[str, Any]:
    """Return the schema of `settings`: every setting of `serve`, each nullable."""
    return _closed({name: _setting_schema(ServeSettings, name) for name in _names(ServeSettings)})


def jobs_schema() -> dict[str, Any]:
    """Return the schema of `pipeline.jobs`: jobs by name, with the settings of their command."""
    settings: dict[str, Any] = {}
    for kind in JOBS.values():
        settings = {name: _setting_schema(kind, name) for name in _names(kind)} | settings
    job = {
        **_closed(
            {
                "command": {"description": "Command that the job runs.", "enum": [*JOBS]},
                "schedule": {
                    "description": "Schedule, as a cron expression of five fields in UTC.",
                    "type": "string",
                    "pattern": r"^[0-9*/,-]+( [0-9A-Za-z*/,-]+){4}$",
                },
                "claim": {
                    "description": "PersistentVolumeClaim mounted at /data.",
                    "type": "string",
                    "pattern": "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$",
                },
                "storage": {
                    "description": "Volume created for /data.",
                    **_closed(
                        {
                            "size": {
                                "description": "Overrides pipeline.storage.size.",
                                "type": "string",
                                "pattern": "^[1-9][0-9]{0,3}(Mi|Gi|Ti)$",
                            }
                        }
                    ),
                    "required": ["size"],
                },
                "activeDeadlineSeconds": {
                    "description": "Overrides pipeline.activeDeadlineSeconds; 0 means never.",
                    "type": "integer",
                    "minimum": 0,
                    "maximum": _LONGEST_RUN_S,
                },
                "arguments": {
                    "description": "Flags of replay that are not settings: --yes skips the "
                    "prompt, which is required here; --dry-run only counts.",
                    "type": "array",
                    "items": {"enum": ["--yes", "--dry-run"]},
                },
                "settings": {
                    "description": "Settings of the command; null means its default.",
                    **_closed(settings),
                },
            }
        ),
        "required": ["command"],
        "allOf": [_only_of(command, kind) for command, kind in JOBS.items()],
    }
    return {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]([-a-z0-9]{0,28}[a-z0-9])?$"},
        "additionalProperties": job,
        "examples": [
            {},
            {"archive": _ARCHIVE_EXAMPLE},
            {"a": _ARCHIVE_EXAMPLE, "metrics": _METRICS_EXAMPLE, "compact": _COMPACT_EXAMPLE},
        ],
    }


def _only_of(command: str, kind: type[BaseSettings]) -> dict[str, Any]:
    """Return the rule that allows a job of *command* only the settings of *kind*."""
    names = {"propertyNames": {"enum": _names(kind)}}
    return {
        "if": {"properties": {"command": {"const": command}}},
        "then": {"properties": {"settings": names}},
    }


def _names(kind: type[BaseSettings]) -> list[str]:
    return list(kind.model_fields)


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _setting_schema(kind: type[BaseSettings], name: str) -> dict[str, Any]:
    field = kind.model_fields[name]
    extra = field.json_schema_extra
    allowed = str(extra["allowed"]) if isinstance(extra, dict) else ""
    if name == "auth_secret":
        return {"description": _SECRET_ELSEWHERE}
    if name == "master":
        return {"description": _MODE_ELSEWHERE}
    schema = _nullable(_kind_schema(str(field.annotation), field.default, allowed))
    for bound in field.metadata:
        for word, key in (("ge", "minimum"), ("le", "maximum")):
            if hasattr(bound, word):
                schema[key] = getattr(bound, word)
    return {"description": f"{field.description} Allowed: {allowed}.", **schema}


def _nullable(kind: dict[str, Any]) -> dict[str, Any]:
    if "enum" in kind:
        return {"enum": [*kind["enum"], None]}
    return {**kind, "type": [kind["type"], "null"]}


def _kind_schema(annotation: str, default: object, allowed: str) -> dict[str, Any]:
    """Return the schema for the values of a setting."""
    if annotation.startswith("tuple") or isinstance(default, tuple):
        return {"type": "array", "items": _item_schema(allowed)}
    if "Literal" in annotation:
        return {"enum": allowed.split(", ")}
    for python, kind in (("bool", "boolean"), ("float", "number"), ("int", "integer")):
        if python in annotation:
            return {"type": kind}
    if allowed.startswith("host:port"):
        return {"type": "string", "pattern": _ADDRESS}
    return dict(_TEXT)


def _item_schema(allowed: str) -> dict[str, Any]:
    """Return the schema for one item of a list setting, from its description of allowed values."""
    if allowed.startswith("host:port;"):
        return {"type": "string", "pattern": _REMOTE_ADDRESS}
    if allowed.startswith("host:port, http"):
        return {"type": "string", "pattern": _REMOTE_ADDRESS_OR_URL}
    return {**_TEXT, "minLength": 1}


# The README


def readme() -> str:
    """Return the text of the README with an updated table."""
    text = VALUES.read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    rows = []
    for path, meaning in comments(text).items():
        value = values
        for name in path:
            value = value[name]
        shown = json.dumps(value, ensure_ascii=False)
        is_long = path == ("settings",) or len(shown) > _SHOWN_CHARACTERS
        default = "see `values.yaml`" if is_long else f"`{shown}`"
        rows.append(f"| `{'.'.join(path)}` | {meaning} | {default} |")
    above = README.read_text(encoding="utf-8").partition(_TABLE)[0]
    return above + _TABLE + "\n".join(rows) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")
    if BIOME.exists():
        style = f"--config-path={ROOT / 'tools' / 'browser' / 'style.jsonc'}"
        subprocess.run([BIOME, "format", "--write", style, SCHEMA], cwd=ROOT, check=True)  # noqa: S603
