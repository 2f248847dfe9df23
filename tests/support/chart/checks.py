"""Checks that every render of the chart must pass; each yields a line per finding."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import yaml

from gateway.server.gateway import max_answer_s, max_drain_s
from gateway.settings.serve import ServeSettings
from tests.support.chart.jobs import bare_pods, is_allowed_a_token, job_files, job_pods, pods
from tests.support.chart.kubernetes_schemas import findings
from tests.support.chart.pod_security import violations
from tests.support.chart.render import HELM, NAMESPACE, Json, Render

Check: TypeAlias = Callable[[Render], list[str]]

VERSIONS = tuple(f"1.{minor}" for minor in range(30, 38))
"""The versions of Kubernetes that the chart is for."""

_MAX_NAME = 63
# A label of its pods has the name, "-" and a hash of ten characters.
_MAX_STATEFUL_SET_NAME = 52
_EMPTY: tuple[Any, ...] = (None, [], {})


def schemas(render: Render) -> list[str]:
    """Return schema errors of the oldest and the newest Kubernetes; see `all_schemas`."""
    return _schemas(render, (VERSIONS[0], VERSIONS[-1]))


def all_schemas(render: Render) -> list[str]:
    """Return schema errors of all supported versions of Kubernetes."""
    return _schemas(render, VERSIONS)


def _schemas(render: Render, versions: tuple[str, ...]) -> list[str]:
    return [
        f"{version}: {line}"
        for version in versions
        for each in (*render.objects, *bare_pods(render))
        for line in findings(each, version)
    ]


def restricted(render: Render) -> list[str]:
    """Return violations of the Pod Security Standard "restricted", and mounted tokens."""
    lines = []
    for pod, owner in pods(render):
        lines += violations(pod["metadata"], pod["spec"])
        lines += [
            f"{owner}: {name} is not off"
            for name in ("automountServiceAccountToken", "enableServiceLinks")
            if pod["spec"].get(name) is not False
            and not (name.startswith("automount") and is_allowed_a_token(pod, render))
        ]
    return lines


def stateful_sets(render: Render) -> list[str]:
    """Return what makes a StatefulSet of one pod fail: its name, its Service, its volumes."""
    lines = []
    headless = {
        each["metadata"]["name"]
        for each in render.of("Service")
        if each["spec"].get("clusterIP") == "None"
    }
    for each in render.of("StatefulSet"):
        name, spec = each["metadata"]["name"], each["spec"]
        if len(name) > _MAX_STATEFUL_SET_NAME:
            lines.append(f"{name!r} is longer than {_MAX_STATEFUL_SET_NAME}")
        if spec["serviceName"] not in headless:
            lines.append(f"{spec['serviceName']} is no headless Service")
        if spec["replicas"] > 1:
            lines.append(f"{spec['replicas']} pods, each with messages of its own")
        # Kubernetes refuses every later change of these.
        lines += [
            f"a claim has the labels {claim['metadata']['labels']}"
            for claim in spec.get("volumeClaimTemplates", [])
            if claim["metadata"].get("labels")
        ]
    return lines


def names(render: Render) -> list[str]:
    """Return names that are too long or duplicate, and objects in another namespace."""
    seen: set[tuple[str, str]] = set()
    lines = []
    for each in render.objects:
        key = (each["kind"], each["metadata"]["name"])
        if key in seen:
            lines.append(f"{key} is there twice")
        seen.add(key)
        labels = (each["metadata"].get("labels") or {}).values()
        if "helm.sh/chart" in each["metadata"].get("labels", {}) and (
            each["metadata"].get("namespace") != NAMESPACE
        ):
            lines.append(f"{key} is in no namespace, or in another one")
        lines += [
            f"{each['kind']}: {name!r} is longer than {_MAX_NAME}"
            for name in (key[1], *labels)
            if len(name) > _MAX_NAME
        ]
    return lines


def unrendered_templates(render: Render) -> list[str]:
    """Return template expressions that were not rendered; alerts and dashboards may have some."""
    lines = []
    for path, text in render.texts.items():
        if path in ("templates/prometheusrule.yaml", "templates/dashboards.yaml"):
            continue
        lines += [f"{path}: {word}" for word in ("{{", "<no value>", "%!") if word in text]
    return lines


def selectors(render: Render) -> list[str]:
    workload = render.workload["spec"]
    labels = workload["template"]["metadata"]["labels"]
    wanted = workload["selector"]["matchLabels"]
    found: list[tuple[str, Json]] = [
        (f"Service {each['metadata']['name']}", each["spec"]["selector"])
        for each in render.of("Service")
    ]
    for kind, field in (
        ("PodDisruptionBudget", "selector"),
        ("NetworkPolicy", "podSelector"),
        ("PodMonitor", "selector"),
    ):
        found += [(kind, each["spec"][field]["matchLabels"]) for each in render.of(kind)]
    found += [
        (each["topologyKey"], each["labelSelector"]["matchLabels"])
        for each in render.pod.get("topologySpreadConstraints", [])
    ]
    lines = [f"{who} selects {what}" for who, what in found if what != wanted]
    if not wanted.items() <= labels.items():
        lines.append(f"the pods have {labels}")
    services = [each["metadata"]["labels"] for each in render.of("Service")]
    for each in render.of("ServiceMonitor"):
        match = each["spec"]["selector"]["matchLabels"]
        if 1 != sum(match.items() <= service.items() for service in services):
            lines.append(f"ServiceMonitor does not select one Service: {match}")
    return lines


def network(render: Render) -> list[str]:
    """Return NetworkPolicy rules that are empty: these allow all traffic."""
    rules = [
        (way, rule.get(peers), rule.get("ports"))
        for policy in render.of("NetworkPolicy")
        for way, peers in (("ingress", "from"), ("egress", "to"))
        for rule in policy["spec"][way]
    ]
    return [
        f"{way}: {peers} {ports}"
        for way, peers, ports in rules
        if peers in _EMPTY or ports in _EMPTY or {} in peers
    ]


def public(render: Render) -> list[str]:
    """Return a finding if metrics are reachable through the public Service."""
    ports = [(each["name"], each["targetPort"]) for each in render.service["spec"]["ports"]]
    return [] if ports == [("http", "http")] else [f"the Service has {ports}"]


def seconds(render: Render) -> list[str]:
    """Return timeouts that are too short for what they must cover."""
    settings = settings_of(render)
    spec, pod = render.workload["spec"], render.pod
    sleep = (
        render.gateway.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    )
    drain_s = settings.drain_delay_s + max_drain_s(settings)
    end_s = math.ceil(drain_s + max_answer_s(settings))
    lines = []
    grace = pod["terminationGracePeriodSeconds"]
    if grace < sleep + end_s + 5:
        lines.append(f"grace of {grace} s, {sleep} s of sleep, {end_s} s of drain, 5 s to spare")
    probe = render.gateway["startupProbe"]
    step = grace + spec["minReadySeconds"] + probe["periodSeconds"] * probe["failureThreshold"]
    if spec.get("progressDeadlineSeconds", step) < step:
        lines.append(f"{spec['progressDeadlineSeconds']} s for a step of {step} s")
    ping_s = settings.ping_interval_s + settings.ping_timeout_s
    if settings == settings.model_copy(update=DEFAULT_PINGS) and ping_s > PROXY_IDLE_S:
        lines.append(f"pings take {ping_s} s, docs say {PROXY_IDLE_S}")
    return lines


PROXY_IDLE_S = 40
"""Minimum idle timeout of proxies, as documented."""
DEFAULT_PINGS = {
    name: ServeSettings.model_fields[name].default for name in ("ping_interval_s", "ping_timeout_s")
}


def settings_of(render: Render) -> ServeSettings:
    """Return the settings that the gateway loads from its ConfigMap; errors pass through."""
    return ServeSettings.model_validate(tomllib.loads(render.toml))


def mounts(render: Render) -> list[str]:
    """Return settings that name a file no volume has, and volumes that are not mounted."""
    given = tomllib.loads(render.toml)
    places = [each["mountPath"] for each in render.gateway["volumeMounts"]]
    lines = [
        f"{name} is {value}, which is not mounted"
        for name, value in given.items()
        if str(value).startswith("/etc/nsq-gateway/")
        and not any(str(value).startswith(f"{place}/") for place in places)
    ]
    if given.get("broker_data_path") not in (None, *places):
        lines.append(f"broker_data_path is {given['broker_data_path']}, which is not mounted")
    mounted = {each["name"] for each in render.gateway["volumeMounts"]}
    claimed = render.workload["spec"].get("volumeClaimTemplates", [])
    volumes = {each["name"] for each in render.pod["volumes"]}
    volumes |= {each["metadata"]["name"] for each in claimed}
    return lines + [f"volume {name}" for name in sorted(mounted - volumes)]


def ports(render: Render) -> list[str]:
    """Return container ports that differ from the ports in the settings."""
    given = tomllib.loads(render.toml)
    wanted = {
        "http": int(given["listen"].rpartition(":")[2]),
        "management": int(given["management_listen"].rpartition(":")[2]),
    }
    if "auth_listen" in given:
        wanted["auth"] = int(given["auth_listen"].rpartition(":")[2])
    found = {each["name"]: each["containerPort"] for each in render.gateway["ports"]}
    return [] if wanted == found else [f"{found} are not {wanted}"]


def strategies(render: Render) -> list[str]:
    """Return rolling-update settings without a rolling update, which Kubernetes rejects."""
    spec = render.workload["spec"]
    strategy = spec.get("strategy") or spec["updateStrategy"]
    rolls = strategy["type"] == "RollingUpdate"
    return [] if rolls or {"type"} == strategy.keys() else [f"{strategy}"]


def variables(render: Render) -> list[str]:
    """Return duplicate variables, and variables that contradict the file."""
    given = tomllib.loads(render.toml)
    env = [(each["name"], each.get("value")) for each in render.gateway["env"]]
    names = [name for name, _ in env]
    lines = [f"{name} is there twice" for name in sorted(set(names)) if names.count(name) > 1]
    return lines + [
        f"{variable} is not {given[name]}"
        for name in ("listen", "management_listen")
        if dict(env).get(variable := f"NSQ_GATEWAY_{name.upper()}") != given[name]
    ]


CHECKS: tuple[Check, ...] = (
    schemas,
    restricted,
    stateful_sets,
    job_files,
    job_pods,
    names,
    unrendered_templates,
    selectors,
    network,
    public,
    seconds,
    mounts,
    ports,
    strategies,
    variables,
)


def all_findings(render: Render) -> Iterator[str]:
    for check in CHECKS:
        yield from (f"{check.__name__}: {line}" for line in check(render))


def default_values() -> Json:
    values: Json = yaml.safe_load((HELM / "values.yaml").read_text())
    return values
