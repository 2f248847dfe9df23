"""What checkov and kube-score say of the chart: nothing, but for what chart_waivers explains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.chart import tools as chart_tools
from tests.support.chart.checks import VERSIONS, default_values
from tests.support.chart.jobs import pods
from tests.support.chart.render import (
    MINIMAL_VALUES,
    SCENARIOS,
    Render,
    at,
    merged,
    render,
    scenario,
)
from tests.support.chart.tools import Finding
from tests.support.chart.waivers import WAIVERS, Waiver, not_waived
from tools.document_chart import README

_OF_CHECKOV = tuple(each for each in WAIVERS if each.policy.startswith("CKV"))
_OF_KUBE_SCORE = tuple(each for each in WAIVERS if each not in _OF_CHECKOV)


def written(found: Render, path: Path) -> Path:
    """Return *path*, a file with all that was rendered now."""
    texts = [text for name, text in found.texts.items() if name.endswith(".yaml")]
    path.write_text("\n---\n".join(texts))
    return path


VALUES = {name: merged(default_values(), scenario(name)) for name in SCENARIOS}
"""All values of each of the SCENARIOS, the chart's own among them."""


def needless(waivers: tuple[Waiver, ...], findings: list[Finding]) -> list[Waiver]:
    return [
        waiver
        for waiver in waivers
        if not any(waiver.covers(finding, VALUES[finding.file]) for finding in findings)
    ]


@pytest.mark.checkov
def test_checkov_finds_nothing_that_is_not_explained(tmp_path: Path) -> None:
    """No policy fails for any set of values, but those that are waived; and each waiver is used."""
    paths = [written(render(scenario(name)), tmp_path / f"{name}.yaml") for name in SCENARIOS]

    findings = chart_tools.failed_policies("kubernetes", *paths)

    assert [] == not_waived(findings, VALUES)
    assert [] == needless(_OF_CHECKOV, findings)


@pytest.mark.checkov
def test_checkov_finds_what_is_wrong(tmp_path: Path) -> None:
    """Silence above is not that it looked at nothing."""
    render_of_a_root = at("securityContext", {"runAsUser": 0, "allowPrivilegeEscalation": True})
    path = written(render(merged(MINIMAL_VALUES, render_of_a_root)), tmp_path / "insecure.yaml")

    found = not_waived(chart_tools.failed_policies("kubernetes", path), VALUES)

    assert "CKV_K8S_20" in {each.policy for each in found}


@pytest.mark.kube_score
def test_kube_score_finds_nothing_that_is_not_explained(tmp_path: Path) -> None:
    """No warning, and nothing critical; kube-score knows versions as they come."""
    findings = [
        finding
        for name in SCENARIOS
        for finding in chart_tools.scores(
            written(render(scenario(name)), tmp_path / f"{name}.yaml"), VERSIONS[-1]
        )
    ]

    assert [] == not_waived(findings, VALUES)
    assert [] == needless(_OF_KUBE_SCORE, findings)


@pytest.mark.kube_score
def test_kube_score_finds_what_is_wrong(tmp_path: Path) -> None:
    """A waiver is about one finding: a limit of memory is missed though one of CPU is not."""
    without = at("resources.limits.memory", None)
    path = written(render(merged(scenario("insecure"), without)), tmp_path / "insecure.yaml")

    found = not_waived(chart_tools.scores(path, VERSIONS[-1]), VALUES)

    assert {("container-resources", "Memory limit is not set")} == {
        (each.policy, each.words) for each in found
    }


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_no_object_speaks_to_a_scanner(name: str) -> None:
    """What the project's own tests waive is nothing to whoever installs the chart."""
    found = render(scenario(name))
    metadata = [each["metadata"] for each in found.objects]
    metadata += [pod["metadata"] for pod, _ in pods(found)]

    annotations = {key for each in metadata for key in each.get("annotations") or {}}
    assert [] == [key for key in annotations if re.search("checkov|kube-score", key)]


@pytest.mark.parametrize("policy", sorted({each.policy for each in _OF_CHECKOV}))
def test_the_readme_names_what_is_waived(policy: str) -> None:
    """Whoever scans the chart finds why a policy is not kept."""
    assert policy in README.read_text()
