"""
Policies of checkov and kube-score that the chart does not follow, with reasons.

They are listed here and not as annotations of objects, which would also silence the scanners of the
chart's users.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tests.support.chart.render import Json
from tests.support.chart.tools import Finding

_GATEWAY = r"^(Deployment|StatefulSet|Pod)\.(?!.*-job-)(?!.*-test\b)"
_JOB = r"-job-"
_TEST = r"-test\b"


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """A policy that the chart does not follow."""

    policy: str
    """Identifier of the policy in checkov or kube-score."""
    reason: str
    of: str = ""
    """A regular expression that finds the objects that it is waived for; empty: all."""
    words: str = ""
    """A regular expression that finds the finding that it is waived for; empty: all of the rule."""
    unless: str = ""
    """The path of a value that, once it is set, lets the policy be kept; empty: none does."""
    only: str = ""
    """The name of the only set of values in helm/ci that it is waived for; empty: all."""

    def covers(self, finding: Finding, values: Json) -> bool:
        """Return whether *finding*, in objects rendered with *values*, is waived."""
        return (
            self.policy == finding.policy
            and re.search(self.of, finding.place) is not None
            and re.search(self.words, finding.words) is not None
            and self.only in ("", finding.file)
            and not (self.unless and _value_at(values, self.unless))
        )


def _value_at(values: Json, path: str) -> Any:  # noqa: ANN401 - any value of the chart
    first, _, rest = path.partition(".")
    return _value_at(values[first], rest) if rest else values[first]


_THROTTLED = "a limit of CPU throttles the event loop and every socket with it, and likewise Spark"
_TAG_STAYS = "the tag of a version is never moved, so a node need not ask for an image that it has"
_YOURS_TO_SAY = "only who installs knows who may come in; networkPolicy.enabled makes the policies"
_ENDS = "it ends by itself, and takes no connection"

WAIVERS = (
    # checkov
    Waiver(policy="CKV_K8S_11", reason=_THROTTLED),
    Waiver(policy="CKV_K8S_15", reason=_TAG_STAYS),
    Waiver(
        policy="CKV_K8S_43",
        of=rf"{_GATEWAY}|{_TEST}",
        unless="image.digest",
        reason="a tag names the image while no digest is given",
    ),
    Waiver(
        policy="CKV_K8S_43",
        of=_JOB,
        unless="pipeline.image.digest",
        reason="a tag names the image while no digest is given",
    ),
    Waiver(policy="CKV2_K8S_6", unless="networkPolicy.enabled", reason=_YOURS_TO_SAY),
    Waiver(policy="CKV2_K8S_6", of=_TEST, reason=_ENDS),
    Waiver(policy="CKV_K8S_8", of=_TEST, reason=_ENDS),
    Waiver(policy="CKV_K8S_9", of=_TEST, reason=_ENDS),
    Waiver(
        policy="CKV_K8S_38",
        of=_JOB,
        reason="a driver asks the API of the cluster for executors, and may do nothing else there",
    ),
    # kube-score
    Waiver(policy="container-resources", words="CPU limit is not set", reason=_THROTTLED),
    Waiver(policy="container-image-pull-policy", reason=_TAG_STAYS),
    Waiver(policy="pod-networkpolicy", unless="networkPolicy.enabled", reason=_YOURS_TO_SAY),
    Waiver(policy="pod-networkpolicy", of=_TEST, reason=_ENDS),
    Waiver(
        policy="deployment-has-host-podantiaffinity",
        of=_GATEWAY,
        reason="topologySpreadConstraints spread the pods, and leave none without a node",
    ),
    Waiver(
        policy="deployment-replicas",
        of=_GATEWAY,
        only="keda",
        reason="KEDA sets them",
    ),
    Waiver(
        policy="deployment-replicas",
        of=_GATEWAY,
        only="trial",
        reason="one pod is what a trial is",
    ),
    Waiver(
        policy="deployment-strategy",
        of=_GATEWAY,
        only="trial",
        reason="two embedded brokers share no messages, so their pod is recreated",
    ),
    Waiver(
        policy="networkpolicy-targets-pod",
        of=r"-pipeline$",
        only="operator",
        reason="the Spark operator makes the pods, so none is among the objects",
    ),
)
"""All waivers; each applies to some values in helm/ci. helm/README.md lists those of checkov."""


def not_waived(findings: list[Finding], values: dict[str, Json]) -> list[Finding]:
    """Return the *findings* that no waiver covers; *values* are the values of each file."""
    return [
        finding
        for finding in findings
        if not any(waiver.covers(finding, values[finding.file]) for waiver in WAIVERS)
    ]
