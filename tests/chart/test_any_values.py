"""Whatever values the schema takes: the chart renders them, and what has to hold does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.support.chart.checks import all_findings, default_values, settings_of
from tests.support.chart.render import (
    MINIMAL_VALUES,
    Json,
    RenderError,
    at,
    merged,
    render,
    scenario,
)
from tests.support.chart.values import any_values
from tools.document_chart import jobs_schema

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
# Each example is a whole render; to make a counterexample smaller would take minutes.
_FEW = settings().max_examples // 2
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@settings(suppress_health_check=_QUIET, max_examples=_FEW, phases=_PHASES)
@given(values=any_values())
@example(values=MINIMAL_VALUES)
def test_any_values_render_and_keep_every_rule(values: Json) -> None:
    """Strict schemas, restricted pods, times, names, selectors: the same as for the scenarios."""
    assert [] == list(all_findings(render(values)))


_NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?", fullmatch=True)


@settings(suppress_health_check=_QUIET, max_examples=10)
@given(release=_NAMES, override=st.sampled_from(["nameOverride", "fullnameOverride"]), name=_NAMES)
@example(release="r" * 53, override="nameOverride", name="n" * 53)
def test_no_name_is_too_long_whatever_the_release(release: str, override: str, name: str) -> None:
    """53 characters are the most that Helm takes."""
    values = merged(scenario("full"), {override: name})

    assert [] == list(all_findings(render(values, release=release)))


def switches(values: Json, path: str = "") -> list[tuple[str, bool]]:
    """Return the path and the default of every value that is true or false."""
    found = []
    for name, value in values.items():
        here = f"{path}.{name}".lstrip(".")
        if isinstance(value, dict):
            found += switches(value, here)
        elif isinstance(value, bool):
            found.append((here, value))
    return found


EMBEDDED: Json = {
    "broker": {"embedded": True},
    "replicaCount": 1,
    "settings": {"nsqd_tcp_address": None},
}
# Some values only mean something beside others.
BESIDE: dict[str, Json] = {
    "authServer.enabled": at("access.secret.name", "access"),
    "broker.embedded": EMBEDDED,
    "broker.persistence.enabled": EMBEDDED,
    "broker.persistence.retain": merged(EMBEDDED, at("broker.persistence.enabled", True)),
    "httpRoute.enabled": at("httpRoute.parentRefs", [{"name": "public"}]),
    "ingress.enabled": at("ingress.hosts", ["nsq.example.org"]),
    "keda.enabled": at("keda.prometheusAddress", "http://prometheus:9090"),
    "pipeline.serviceAccount.create": {
        "pipeline": {
            "mode": "spark-submit",
            "jobs": {"metrics": jobs_schema()["examples"][2]["metrics"]},
        }
    },
    "networkPolicy.enabled": at(
        "networkPolicy",
        {name: [{"ipBlock": {"cidr": "192.0.2.0/24"}}] for name in ("publicFrom", "nsqTo")},
    ),
}


def _of(values: Json, path: str) -> Any:  # noqa: ANN401 - any value
    first, _, rest = path.partition(".")
    return _of(values[first], rest) if rest else values[first]


PATHS = [
    path
    for path, _ in switches(
        {
            name: value
            for name, value in default_values().items()
            if name not in ("podSecurityContext", "securityContext", "settings")
        }
    )
]


@pytest.mark.parametrize("path", PATHS)
def test_each_switch_alone_changes_what_is_rendered(path: str) -> None:
    """On and off differ, and every rule holds for both."""
    on = render(merged(MINIMAL_VALUES, BESIDE.get(path, {}), at(path, True)))
    off = render(merged(MINIMAL_VALUES, at(path, False)))

    assert [] == [*all_findings(on), *all_findings(off)]
    assert on.texts != off.texts


@given(port=st.integers(1, 65_535), management=st.integers(1, 65_535))
@settings(max_examples=15)
def test_ports_follow_the_settings(port: int, management: int) -> None:
    """One place says where the gateway listens; two equal ports are refused."""
    listen = {"listen": f"0.0.0.0:{port}", "management_listen": f"[::]:{management}"}
    values = merged(MINIMAL_VALUES, {"settings": listen, "serviceMonitor": {"enabled": True}})
    if port == management:
        with pytest.raises(RenderError, match="metrics must not be public"):
            render(values)
        return

    found = render(values)

    assert [] == list(all_findings(found))
    assert listen["listen"] == settings_of(found).listen
