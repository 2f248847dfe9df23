"""
Validate objects against the strict schemas of each Kubernetes version and of CRDs.

The package kubernetes-validate has those of Kubernetes. No package has those of the CRDs, so this
module lists the fields that the chart writes, and no others.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

Json = dict[str, Any]


def _folder(version: str) -> Path:
    spec = find_spec("kubernetes_validate")
    assert spec is not None, "kubernetes-validate is not installed"
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    return package / "kubernetes-json-schema" / f"v{version}.0-local-strict"


_REF = re.compile(r"(?:/api/_definitions\.json)?#/\$defs/([A-Za-z0-9._-]+)")
_GROUP = re.compile(r"^([^./]*)(?:\.[^/]*)?/")


def findings(found: Json, version: str) -> list[str]:
    """Return the schema errors of an object for a Kubernetes *version*, such as 1.30."""
    name = f"{found['kind']}/{found['metadata']['name']}"
    validator = _validator(found["apiVersion"], found["kind"], version)
    return [
        f"{name} {'.'.join(map(str, error.path))}: {error.message}"
        for error in validator.iter_errors(found)
    ]


@cache
def _validator(api_version: str, kind: str, version: str) -> Draft202012Validator:
    custom = CUSTOM.get((api_version, kind))
    if custom is not None:
        return Draft202012Validator(custom)
    group = _GROUP.sub(r"\1-", api_version)
    file = _folder(version) / f"{kind.lower()}-{group}.json"
    assert file.exists(), f"Kubernetes {version} has no {api_version} {kind}"
    text = file.read_text()
    # All definitions of a version are megabytes; an object needs a few.
    needed: Json = {}
    _gather(text, _definitions(version), needed)
    schema = json.loads(_REF.sub(r"#/$defs/\1", text))
    schema["$defs"] = json.loads(_REF.sub(r"#/$defs/\1", json.dumps(needed)))
    return Draft202012Validator(schema)


def _gather(text: str, definitions: Json, needed: Json) -> None:
    """Add to *needed* the definitions that *text* refers to, recursively."""
    for name in set(_REF.findall(text)) - needed.keys():
        if name in needed:
            continue
        needed[name] = definitions[name]
        _gather(json.dumps(definitions[name]), definitions, needed)


@cache
def _definitions(version: str) -> Json:
    found: Json = json.loads((_folder(version) / "_definitions.json").read_text())["$defs"]
    return found


# What CRDs bring


def _closed(required: list[str], **properties: Json) -> Json:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required,
        "properties": properties,
    }


def _list(items: Json, least: int = 1) -> Json:
    return {"type": "array", "minItems": least, "items": items}


_TEXT: Json = {"type": "string", "minLength": 1}
_TEXTS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
_COUNT: Json = {"type": "integer", "minimum": 0}
_OPEN: Json = {"type": "object"}
_METADATA = _closed(["name", "namespace", "labels"], name=_TEXT, namespace=_TEXT) | {}
_METADATA["properties"] |= {"labels": _TEXTS, "annotations": _TEXTS}
_DURATION: Json = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
_TIMEOUTS = _closed([], request=_DURATION, backendRequest=_DURATION)
_SCRAPE = _closed(
    ["port", "path"],
    port={"const": "management"},
    path={"const": "/metrics"},
    interval=_DURATION,
    scrapeTimeout=_DURATION,
)
_NAMESPACES = _closed(["matchNames"], matchNames=_list(_TEXT))
_SELECTOR = _closed(["matchLabels"], matchLabels={**_TEXTS, "minProperties": 3})
_RULE = {
    "oneOf": [
        _closed(
            ["alert", "expr"],
            alert=_TEXT,
            expr=_TEXT,
            labels=_TEXTS,
            annotations=_TEXTS,
            keep_firing_for=_TEXT,
            **{"for": _TEXT},
        ),
        _closed(["record", "expr"], record=_TEXT, expr=_TEXT, labels=_TEXTS),
    ]
}


_POD = _closed(["metadata", "spec"], metadata=_OPEN, spec=_OPEN)
"""A pod within a custom resource; `chart_jobs.bare_pods` extracts it for Kubernetes' own schema."""
_SPARK_MEMORY: Json = {"type": "string", "pattern": "^[1-9][0-9]*[mg]$"}
_SPARK_ROLE: Json = {
    "cores": {"type": "integer", "minimum": 1},
    "memory": _SPARK_MEMORY,
    "memoryOverhead": _SPARK_MEMORY,
    "template": _POD,
}
_SPARK = _closed(
    ["type", "sparkVersion", "mainApplicationFile", "driver", "executor"],
    type={"const": "Python"},
    mode={"const": "cluster"},
    sparkVersion=_TEXT,
    image=_TEXT,
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    imagePullSecrets=_list(_TEXT),
    mainApplicationFile={"type": "string", "pattern": "^local:///"},
    arguments=_list(_TEXT),
    restartPolicy=_closed(["type"], type={"enum": ["Never", "Always"]}),
    sparkConf=_TEXTS,
    driver=_closed(["cores", "memory", "template"], serviceAccount=_TEXT, **_SPARK_ROLE),
    executor=_closed(
        ["instances", "cores", "memory", "template"],
        instances={"type": "integer", "minimum": 1},
        **_SPARK_ROLE,
    ),
)


def _custom(api_version: str, kind: str, spec: Json) -> tuple[tuple[str, str], Json]:
    return (api_version, kind), _closed(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=_METADATA,
        spec=spec,
    )


CUSTOM = dict(
    (
        _custom("sparkoperator.k8s.io/v1beta2", "SparkApplication", _SPARK),
        _custom(
            "sparkoperator.k8s.io/v1beta2",
            "ScheduledSparkApplication",
            _closed(
                ["schedule", "template"],
                schedule=_TEXT,
                timeZone=_TEXT,
                concurrencyPolicy={"enum": ["Allow", "Forbid", "Replace"]},
                template=_SPARK,
            ),
        ),
        _custom(
            "gateway.networking.k8s.io/v1",
            "HTTPRoute",
            _closed(
                ["parentRefs", "rules"],
                parentRefs=_list(
                    _closed(
                        ["name"],
                        name=_TEXT,
                        namespace=_TEXT,
                        sectionName=_TEXT,
                        group=_TEXT,
                        kind=_TEXT,
                        port=_COUNT,
                    )
                ),
                hostnames=_list(_TEXT),
                rules=_list(
                    _closed(
                        ["matches", "backendRefs"],
                        matches=_list(
                            _closed(
                                ["path"],
                                path=_closed(
                                    ["type", "value"],
                                    type={"enum": ["Exact", "PathPrefix"]},
                                    value={"type": "string", "pattern": "^/"},
                                ),
                            )
                        ),
                        filters=_list(_OPEN),
                        timeouts=_TIMEOUTS,
                        backendRefs=_list(_closed(["name", "port"], name=_TEXT, port=_COUNT)),
                    )
                ),
            ),
        ),
        _custom(
            "monitoring.coreos.com/v1",
            "PodMonitor",
            _closed(
                ["selector", "podMetricsEndpoints"],
                selector=_SELECTOR,
                namespaceSelector=_NAMESPACES,
                podMetricsEndpoints=_list(_SCRAPE),
            ),
        ),
        _custom(
            "monitoring.coreos.com/v1",
            "ServiceMonitor",
            _closed(
                ["selector", "endpoints"],
                selector=_SELECTOR,
                namespaceSelector=_NAMESPACES,
                endpoints=_list(_SCRAPE),
            ),
        ),
        _custom(
            "monitoring.coreos.com/v1",
            "PrometheusRule",
            _closed(
                ["groups"],
                groups=_list(
                    _closed(["name", "rules"], name=_TEXT, rules=_list(_RULE), interval=_DURATION)
                ),
            ),
        ),
        _custom(
            "keda.sh/v1alpha1",
            "ScaledObject",
            _closed(
                ["scaleTargetRef", "triggers"],
                scaleTargetRef=_closed(["name"], apiVersion=_TEXT, kind=_TEXT, name=_TEXT),
                pollingInterval=_COUNT,
                minReplicaCount=_COUNT,
                maxReplicaCount=_COUNT,
                advanced=_closed(
                    [], horizontalPodAutoscalerConfig=_closed(["behavior"], behavior=_OPEN)
                ),
                triggers=_list(
                    _closed(
                        ["type", "metadata"],
                        type=_TEXT,
                        metricType={"enum": ["Utilization", "AverageValue", "Value"]},
                        metadata=_TEXTS,
                    )
                ),
            ),
        ),
    )
)
"""Closed schemas by apiVersion and kind."""
