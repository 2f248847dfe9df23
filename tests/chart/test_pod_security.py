"""Our check of restricted pods agrees with the examples of Kubernetes itself."""

from __future__ import annotations

import pytest
import yaml

from tests.support.chart import tools as chart_tools
from tests.support.chart.pod_security import violations


@pytest.mark.pod_security
@pytest.mark.parametrize("verdict,least", [("pass", 20), ("fail", 70)])
def test_the_check_agrees_with_the_examples_of_kubernetes(verdict: str, least: int) -> None:
    """Every pod that has to pass does, and every one that has to fail does."""
    folder = chart_tools.pod_security()
    assert folder is not None
    pods = {path.name: yaml.safe_load(path.read_text()) for path in (folder / verdict).iterdir()}

    found = {name: violations(pod["metadata"], pod["spec"]) for name, pod in pods.items()}

    assert least <= len(found)
    assert [] == [name for name, lines in found.items() if bool(lines) != (verdict == "fail")]
