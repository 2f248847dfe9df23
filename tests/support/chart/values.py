"""Random values for the chart, generated from its schema."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tests.support.chart.checks import default_values
from tests.support.chart.render import MINIMAL_VALUES, Json, merged
from tools.document_chart import SCHEMA

_LONGEST_LIST = 2
_PEER = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
_API = [{"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "ports": [{"port": 6443}]}]
_MOST_REPLICAS = 50

_SKIPPED = frozenset(
    {
        # Other values hold on to these; `mended` sees to them.
        "settings",
        "terminationGracePeriodSeconds",
        "progressDeadlineSeconds",
        # A whole object of Kubernetes, which no schema here describes.
        "extraInitContainers",
        "extraContainers",
        "extraVolumeMounts",
        "filters",
        "claims",
        # Only with another type of Service.
        "nodePort",
        "externalTrafficPolicy",
        "loadBalancerClass",
        "loadBalancerSourceRanges",
    }
)

_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "drain_window_s": st.integers(0, 3_600) | st.floats(0, 3_600),
        "drain_delay_s": st.integers(0, 600) | st.floats(0, 600),
        "drain_in_flight_s": st.integers(0, 600) | st.floats(0, 600),
        "publish_timeout_ms": st.integers(1, 600_000),
        "max_sockets": st.integers(2, 4_000),
        "client_id": st.text(st.characters(exclude_categories=["Cc", "Cn", "Cs"]), min_size=1),
        "allow_origin": st.sampled_from([[], ["*"], ["https://a.example", "http://b.example:81"]]),
        "log_format": st.sampled_from(["auto", "json", "console"]),
        "publish_rate_limit": st.none() | st.floats(0.001, 10_000_000),
    },
)


def of_schema(node: Json) -> st.SearchStrategy[Any]:
    """Return values that *node* allows; its examples, where it has any."""
    if "anyOf" in node:
        return st.one_of(*map(of_schema, node["anyOf"]))
    choices = node.get("examples") or node.get("enum")
    if choices is None and "const" in node:
        choices = [node["const"]]
    return _of_kind(node) if choices is None else st.sampled_from(choices)


def _of_kind(node: Json) -> st.SearchStrategy[Any]:
    kind = node.get("type")
    if kind == "object":
        parts = {
            name: of_schema(child)
            for name, child in node.get("properties", {}).items()
            if name not in _SKIPPED
        }
        return st.fixed_dictionaries({}, optional=parts)
    if kind == "integer":
        return st.integers(node["minimum"], min(node["maximum"], node["minimum"] + 65_000))
    if kind == "boolean":
        return st.booleans()
    if kind == "array":
        return st.lists(of_schema(node["items"]), max_size=_LONGEST_LIST)
    pattern = node.get("pattern", "^[a-z]*$").removesuffix("$") + r"\Z"
    longest = node.get("maxLength", 63)
    return st.from_regex(pattern).filter(lambda text: len(text) <= longest)


def any_values() -> st.SearchStrategy[Json]:
    """Return values that the schema allows and that do not contradict each other."""
    whole = of_schema(json.loads(SCHEMA.read_text()))
    return st.builds(mended, whole, _SETTINGS)


def mended(values: Json, settings: Json) -> Json:
    """Add to *values* what enabled features require, and remove what they forbid."""
    found = merged(default_values(), MINIMAL_VALUES, values, {"settings": settings})
    _mend_broker(found)
    found["pipeline"]["networkPolicy"]["extraEgress"] = _API
    _mend_scaling(found)
    if found["serviceMonitor"]["enabled"]:
        found["podMonitor"]["enabled"] = False
    for monitor in ("podMonitor", "serviceMonitor"):
        found[monitor]["scrapeTimeout"] = found[monitor]["interval"]
    if found["httpRoute"]["enabled"]:
        found["httpRoute"]["parentRefs"] = [{"name": "public"}]
    if found["ingress"]["enabled"]:
        found["ingress"]["hosts"] = found["ingress"]["hosts"] or ["nsq.example.org"]
    if found["networkPolicy"]["enabled"]:
        for peers in ("publicFrom", "managementFrom", "nsqTo", "dnsTo"):
            found["networkPolicy"][peers] = found["networkPolicy"][peers] or _PEER
    if found["secrets"]["nsqdTls"]["keyKey"]:
        found["secrets"]["nsqdTls"]["certKey"] = "tls.crt"
    _mend_access(found)
    return found


def _mend_access(found: Json) -> None:
    access = found["access"]
    if access["secret"]["name"] or access["configMap"]["name"]:
        access["content"] = ""
    if access["secret"]["name"]:
        access["configMap"]["name"] = ""
    has_file = access["content"] or access["secret"]["name"] or access["configMap"]["name"]
    if not has_file:
        found["authServer"]["enabled"] = False
    if found["authServer"]["port"] in (8_080, 8_081):
        found["authServer"]["port"] = 4_180
    found["networkPolicy"]["authFrom"] = found["networkPolicy"]["authFrom"] or _PEER


def _mend_broker(found: Json) -> None:
    if not found["broker"]["embedded"]:
        found["broker"]["persistence"]["enabled"] = False
        return
    found["autoscaling"]["enabled"] = found["keda"]["enabled"] = False
    found["replicaCount"] = min(found["replicaCount"], 1)
    found["settings"]["nsqd_tcp_address"] = None
    found["pipeline"]["jobs"] = {}
    found["secrets"]["nsqdTls"]["name"] = ""
    if found["broker"]["persistence"]["enabled"]:
        # In the default memory, messages leave room for the sockets of the default and no more.
        found["settings"]["max_sockets"] = min(found["settings"].get("max_sockets", 1_000), 1_000)


def _mend_scaling(found: Json) -> None:
    scaling = found["autoscaling"]
    if found["keda"]["enabled"]:
        scaling["enabled"] = False
        found["keda"]["prometheusAddress"] = "http://prometheus:9090"
    scaling["maxReplicas"] = max(scaling["minReplicas"], scaling["maxReplicas"])
    if not scaling["socketsPerPod"]:
        scaling["socketsPerPod"] = 1
    most_sockets = found["settings"].get("max_sockets", 1_000)
    scaling["socketsPerPod"] = min(scaling["socketsPerPod"], most_sockets - 1)
    if not found["resources"].get("requests", {}).get("cpu"):
        scaling["cpuPercent"] = 0
