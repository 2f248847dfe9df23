"""A check finds what is planted against it: silence in the other tests means something."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.chart.checks import (
    Check,
    mounts,
    names,
    network,
    ports,
    public,
    restricted,
    schemas,
    seconds,
    selectors,
    stateful_sets,
    strategies,
    unrendered_templates,
    variables,
)
from tests.support.chart.render import Json, Render, render, scenario

Damage = Callable[[Render], None]


def _spec(found: Render, kind: str) -> Json:
    spec: Json = found.one(kind)["spec"]
    return spec


PLANTED: list[tuple[Check, Damage]] = [
    (schemas, lambda found: found.pod.update(terminationGracePeriodSecond=1)),
    (schemas, lambda found: _spec(found, "PodMonitor").update(portMetricsEndpoints=[])),
    (restricted, lambda found: found.pod.update(hostNetwork=True)),
    (restricted, lambda found: found.gateway["securityContext"].pop("capabilities")),
    (restricted, lambda found: found.pod.update(enableServiceLinks=True)),
    (names, lambda found: found.one("HTTPRoute")["metadata"].update(name="n" * 64)),
    (names, lambda found: found.one("HTTPRoute")["metadata"].update(namespace="other")),
    (selectors, lambda found: found.service["spec"]["selector"].update(a="b")),
    (selectors, lambda found: _spec(found, "NetworkPolicy")["podSelector"].update(matchLabels={})),
    (network, lambda found: _spec(found, "NetworkPolicy")["egress"][0].update(to=[])),
    (network, lambda found: _spec(found, "NetworkPolicy")["ingress"][0].pop("from")),
    (public, lambda found: found.service["spec"]["ports"].append({"name": "m", "targetPort": 1})),
    (seconds, lambda found: found.pod.update(terminationGracePeriodSeconds=65)),
    (seconds, lambda found: _spec(found, "Deployment").update(progressDeadlineSeconds=150)),
    (mounts, lambda found: found.gateway.update(volumeMounts=[])),
    (mounts, lambda found: found.pod.update(volumes=[])),
    (ports, lambda found: found.gateway["ports"][0].update(containerPort=9)),
    (strategies, lambda found: _spec(found, "Deployment")["strategy"].update(type="Recreate")),
    (variables, lambda found: found.gateway["env"].pop(1)),
    (variables, lambda found: found.gateway["env"].append(found.gateway["env"][0])),
]


def _claim(found: Render) -> Json:
    (claim,) = _spec(found, "StatefulSet")["volumeClaimTemplates"]
    metadata: Json = claim["metadata"]
    return metadata


PLANTED_WITH_A_VOLUME: list[tuple[Check, Damage]] = [
    (stateful_sets, lambda found: found.one("StatefulSet")["metadata"].update(name="n" * 53)),
    (stateful_sets, lambda found: _spec(found, "StatefulSet").update(serviceName="t-nsq-gateway")),
    (stateful_sets, lambda found: _spec(found, "StatefulSet").update(replicas=2)),
    (stateful_sets, lambda found: _claim(found).update(labels={"helm.sh/chart": "1"})),
    (mounts, lambda found: _spec(found, "StatefulSet").pop("volumeClaimTemplates")),
    (mounts, lambda found: found.gateway["volumeMounts"].pop()),
    (restricted, lambda found: found.pod.update(hostNetwork=True)),
    (schemas, lambda found: _spec(found, "StatefulSet").update(progressDeadlineSeconds=600)),
]


@pytest.mark.parametrize(
    "name,check,damage",
    [
        *(("full", *each) for each in PLANTED),
        *(("broker", *each) for each in PLANTED_WITH_A_VOLUME),
    ],
)
def test_a_check_finds_what_is_planted(name: str, check: Check, damage: Damage) -> None:
    found = render(scenario(name))
    damaged = replace(found, objects=tuple(copy.deepcopy(found.objects)))
    damage(damaged)

    assert [] == check(found)
    assert check(damaged)


def test_a_template_that_is_not_filled_in_is_found() -> None:
    found = render(scenario("full"))

    assert unrendered_templates(
        replace(found, texts={"templates/service.yaml": "name: {{ .Name }}"})
    )
