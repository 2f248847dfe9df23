"""The chart in the hands of Helm 3, beside Helm 4's SDK that renders it in the other tests."""

from __future__ import annotations

import pytest
import yaml

from tests.support.chart import tools as chart_tools
from tests.support.chart.render import NAMESPACE, RELEASE, SCENARIOS, Json, render, scenario

pytestmark = pytest.mark.helm

every_scenario = pytest.mark.parametrize("name", sorted(SCENARIOS))


def sorted_objects(objects: list[Json]) -> list[Json]:
    """Return *objects* in one order, whoever rendered them."""
    return sorted(objects, key=lambda each: (each["kind"], each["metadata"]["name"]))


@every_scenario
def test_helm_finds_nothing_to_complain_of(name: str) -> None:
    """`helm lint --strict`: warnings count."""
    ended = chart_tools.run("helm", "lint", "helm", "--strict", "--values", str(SCENARIOS[name]))

    assert (0, True) == (ended.returncode, "0 chart(s) failed" in ended.stdout), ended.stdout


@every_scenario
def test_helm_3_and_helm_4_render_the_same(name: str) -> None:
    """Whoever installs it with which of the two gets the same objects."""
    ended = chart_tools.run(
        "helm",
        *("template", RELEASE, "helm", "--namespace", NAMESPACE, "--kube-version", "1.34.0"),
        *("--values", str(SCENARIOS[name])),
    )
    assert 0 == ended.returncode, ended.stderr
    objects = [each for each in yaml.safe_load_all(ended.stdout) if each]

    assert sorted_objects(objects) == sorted_objects([*render(scenario(name)).objects])


def test_an_old_kubernetes_is_refused() -> None:
    """1.29 has no sleep hook by default; Helm says so before it installs."""
    ended = chart_tools.run(
        "helm",
        *("template", RELEASE, "helm", "--kube-version", "1.29.0"),
        *("--values", str(SCENARIOS["insecure"])),
    )

    assert 0 != ended.returncode
    assert "requires kubeVersion: >=1.30.0-0" in ended.stderr
