"""What checkov and kube-score say of the chart: nothing, but for what an annotation explains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import chart_tools
from tests.support.chart import LEAST, SCENARIOS, Render, at, merged, render, scenario
from tests.support.chart_checks import VERSIONS


def written(found: Render, path: Path) -> Path:
    """Return *path*, a file with all that was rendered now."""
    texts = [text for name, text in found.texts.items() if name.endswith(".yaml")]
    path.write_text("\n---\n".join(texts))
    return path


@pytest.mark.checkov
def test_checkov_finds_nothing_that_is_not_explained(tmp_path: Path) -> None:
    """No policy fails for any set of values; those that are waived say why, beside the object."""
    paths = [written(render(scenario(name)), tmp_path / f"{name}.yaml") for name in SCENARIOS]

    assert [] == chart_tools.failed_policies("kubernetes", *paths)


@pytest.mark.checkov
def test_checkov_finds_what_is_wrong(tmp_path: Path) -> None:
    """Silence above is not that it looked at nothing."""
    render_of_a_root = at("securityContext", {"runAsUser": 0, "allowPrivilegeEscalation": True})
    path = written(render(merged(LEAST, render_of_a_root)), tmp_path / "root.yaml")

    found = " ".join(chart_tools.failed_policies("kubernetes", path))

    assert "CKV_K8S_20" in found


@pytest.mark.kube_score
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_kube_score_finds_nothing_that_is_not_explained(name: str, tmp_path: Path) -> None:
    """No warning, and nothing critical; kube-score knows versions as they come."""
    values = scenario(name)
    # One pod is what a trial is.
    found = chart_tools.scores(written(render(values), tmp_path / "it.yaml"), VERSIONS[-1])

    assert [] == [line for line in found if not (name == "trial" and "few replicas" in line)]


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_waiver_has_a_reason(name: str) -> None:
    """CKV_…=why; and what kube-score ignores is explained beside it."""
    for found in render(scenario(name)).objects:
        annotations = found["metadata"].get("annotations") or {}
        for key, value in annotations.items():
            if key.startswith("checkov.io/skip"):
                policy, _, reason = value.partition("=")
                assert policy.startswith("CKV")
                assert 20 <= len(reason)
        assert ("kube-score/ignore" in annotations) == (
            "nsq-gateway/kube-score-reasons" in annotations
        )
