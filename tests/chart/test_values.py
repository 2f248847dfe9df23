"""values.yaml, its schema, its README and the settings of the gateway say the same."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
import yaml

import gateway
from gateway.settings.serve import ServeSettings
from tests.support.chart.checks import default_values, settings_of
from tests.support.chart.render import (
    HELM,
    MINIMAL_VALUES,
    Json,
    RenderError,
    at,
    merged,
    render,
)
from tests.support.project import ROOT
from tools.document_chart import README, SCHEMA, comments, readme, schema, settings_schema

CHART = yaml.safe_load((HELM / "Chart.yaml").read_text())


def paths(schema: Json, values: Json, at: str = "") -> list[str]:
    """Return the paths that stand in one of the two only; `settings` has more than its defaults."""
    lines = []
    for name in schema.keys() | values.keys():
        path = f"{at}.{name}".lstrip(".")
        if name not in schema or name not in values:
            lines.append(path)
            continue
        properties = schema[name].get("properties")
        if properties is not None and isinstance(values[name], dict) and path != "settings":
            lines += paths(properties, values[name], path)
    return lines


def test_the_chart_is_for_this_version_of_the_gateway() -> None:
    """The tag of the image comes from there."""
    assert gateway.__version__ == CHART["appVersion"]


def test_the_chart_asks_for_the_kubernetes_that_has_the_sleep_hook() -> None:
    """A pause before SIGTERM without a shell is there from 1.30 on."""
    assert ">=1.30.0-0" == CHART["kubeVersion"]


def test_the_schema_and_the_readme_are_current() -> None:
    """`python tools/document_chart.py` writes both."""
    assert schema() == json.loads(SCHEMA.read_text())
    assert readme() == README.read_text()


def test_every_value_has_its_schema_and_the_reverse() -> None:
    """But for what a user may add, and a probe's fields that have Kubernetes' own defaults."""
    optional = {"successThreshold", "initialDelaySeconds", "claims", "request", "backendRequest"}
    found = paths(schema()["properties"], default_values())

    assert [] == [path for path in found if path.rpartition(".")[2] not in optional]


def test_every_value_is_described() -> None:
    """The README has a row for each value, or for the block it is in."""
    described = {".".join(path) for path in comments((HELM / "values.yaml").read_text())}

    def without(values: Json, at: str = "") -> list[str]:
        lines = []
        for name, value in values.items():
            path = f"{at}.{name}".lstrip(".")
            if path in described:
                continue
            lines += without(value, path) if isinstance(value, dict) and value else [path]
        return lines

    open_blocks = ("strategy",)
    assert [] == [path for path in without(default_values()) if not path.startswith(open_blocks)]


def test_every_setting_can_be_said_and_no_other() -> None:
    """The schema of `settings` is that of `nsq-gateway serve`."""
    assert ServeSettings.model_fields.keys() == settings_schema()["properties"].keys()


def test_every_setting_of_the_chart_reaches_the_file() -> None:
    """What is said in `settings` stands in the TOML as it was said."""
    given = {name: _example(kind) for name, kind in settings_schema()["properties"].items()}
    del given["auth_secret"]
    given |= {"listen": "0.0.0.0:80", "management_listen": "0.0.0.0:81", "workers": 1}
    # One kind of compression at a time.
    given["nsqd_snappy"] = False

    # No limit of memory is large enough for the highest values.
    values = merged(MINIMAL_VALUES, {"settings": given, "resources": {"limits": {"memory": None}}})

    assert given == tomllib.loads(render(values).toml)


def _example(kind: Json) -> object:
    """Return a value that the schema of a setting takes."""
    if "enum" in kind:
        return kind["enum"][0]
    first = kind.get("type", ["string"])[0]
    examples = {"boolean": True, "array": ["a:1"], "string": "[::1]:2"}
    return examples[first] if first in examples else kind["maximum"]


@pytest.mark.parametrize(
    "text", ['quote " and \\ backslash', "ünïcode <&>", "a#b", "{{ .Values }}", "\u2028"]
)
def test_any_text_survives_the_way_into_the_file(text: str) -> None:
    """What JSON escapes, TOML reads."""
    assert (
        text
        == settings_of(render(merged(MINIMAL_VALUES, at("settings.client_id", text)))).client_id
    )


@pytest.mark.parametrize("text", ["line\nbreak", "\x00", "\x7f", "\x80"])
def test_a_control_character_is_refused(text: str) -> None:
    with pytest.raises(RenderError, match="at '/settings/client_id'"):
        render(merged(MINIMAL_VALUES, at("settings.client_id", text)))


def test_what_the_settings_allow_fits_into_the_limit_of_memory() -> None:
    """The rows of docs/kubernetes.md, from the values of the chart; the sum is 1 GiB."""
    settings = settings_of(render(MINIMAL_VALUES))
    nsqds, mib = 3, 2**20
    parts = [
        72.0,
        1.1 * settings.publish_buffer_bytes / mib,
        2.0 * settings.nsqd_connections * nsqds,
        12 * settings.max_http_connections / 1024,
        72 * settings.max_sockets / 1024,
        1.25 * settings.sockets_buffer_bytes / mib,
    ]
    page = (ROOT / "docs" / "kubernetes.md").read_text().partition("## Memory")[2]
    rows = re.findall(r"^\| .* \| (\d+) \|$", page.partition("\n## ")[0], re.MULTILINE)

    assert [*map(round, parts), sum(map(round, parts))] == [int(row) for row in rows]
    assert "1Gi" == default_values()["resources"]["limits"]["memory"]
    assert 1023.9 < sum(parts) <= 1024
