"""Render the chart with Helm 4's SDK: values in, objects out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import helm_python
import yaml
from helm_python import _native

from tests.support.project import ROOT

HELM = ROOT / "helm"
SCENARIOS = {path.name.removesuffix("-values.yaml"): path for path in (HELM / "ci").glob("*.yaml")}
"""Sets of values in helm/ci, by name."""

Json: TypeAlias = dict[str, Any]

RELEASE, NAMESPACE = "t", "gw"

MINIMAL_VALUES: Json = {"settings": {"nsqd_tcp_address": ["nsqd:4150"], "insecure": True}}
"""The minimal values that the chart accepts."""


class RenderError(Exception):
    """Helm failed to render; the text is its error."""


@dataclass(frozen=True)
class Render:
    """The objects and texts that Helm rendered."""

    texts: Mapping[str, str]
    """Rendered text by the template's path in the chart."""
    objects: tuple[Json, ...]

    def of(self, kind: str, matches: Callable[[Json], bool] = lambda _: True) -> list[Json]:
        """Return the objects of one *kind* that match; those of the pipeline are in `jobs`."""
        return [
            each
            for each in self.objects
            if each["kind"] == kind and matches(each) and not _is_of_pipeline(each)
        ]

    def one(self, kind: str) -> Json:
        """Return the only object of one *kind*."""
        (found,) = self.of(kind)
        return found

    def jobs(self, kind: str) -> dict[str, Json]:
        """Return the objects of one *kind* that are the pipeline's, by their names."""
        return {
            each["metadata"]["name"]: each
            for each in self.objects
            if each["kind"] == kind and _is_of_pipeline(each)
        }

    def job_toml(self, job: str) -> str:
        """Return the settings file of one *job*."""
        (found,) = [
            each["data"]["job.toml"]
            for each in self.jobs("ConfigMap").values()
            if each["metadata"]["labels"]["nsq-gateway/job"] == job
        ]
        text: str = found
        return text

    @property
    def workload(self) -> Json:
        """The Deployment, or the StatefulSet, that has the gateway's pods."""
        (found,) = [*self.of("Deployment"), *self.of("StatefulSet")]
        return found

    @property
    def pod(self) -> Json:
        """The pod of the gateway."""
        spec: Json = self.workload["spec"]["template"]["spec"]
        return spec

    @property
    def gateway(self) -> Json:
        """The container of the gateway."""
        (found,) = [each for each in self.pod["containers"] if each["name"] == "gateway"]
        container: Json = found
        return container

    @property
    def service(self) -> Json:
        """The public Service."""
        (found,) = [
            each
            for each in self.of("Service", lambda each: _component(each) == "gateway")
            if each["spec"].get("clusterIP") != "None"
        ]
        service: Json = found
        return service

    @property
    def toml(self) -> str:
        """The gateway's settings file."""
        (found,) = self.of("ConfigMap", lambda each: "gateway.toml" in each["data"])
        text: str = found["data"]["gateway.toml"]
        return text


def _component(found: Json) -> str:
    labels = found["metadata"].get("labels") or {}
    return str(labels.get("app.kubernetes.io/component", ""))


def _is_of_pipeline(found: Json) -> bool:
    return _component(found) == "pipeline"


@cache
def _chart() -> Any:  # noqa: ANN401 - the SDK has no type for what it gives
    helm_python.disable_logging()
    return helm_python.Chart.load(str(HELM))


def render(values: Json, *, release: str = RELEASE, namespace: str = NAMESPACE) -> Render:
    """Return the objects that the chart renders for *values*; raise RenderError on failure."""
    place = {"name": release, "namespace": namespace}
    try:
        answer = _native.call_string(
            "helm_render", _chart()._raw(), json.dumps(values), json.dumps(place)
        )
    except (helm_python.HelmValuesError, helm_python.HelmRenderError) as error:
        raise RenderError(str(error)) from error
    texts: dict[str, str] = {
        path.removeprefix("nsq-gateway/"): text for path, text in json.loads(answer).items()
    }
    objects = [
        each
        for path, text in texts.items()
        if path.endswith(".yaml")
        for each in yaml.load_all(text, _Loader)
        if each
    ]
    return Render(texts, tuple(objects))


def scenario(name: str) -> Json:
    values: Json = yaml.safe_load(SCENARIOS[name].read_text())
    return values


def merged(*layers: Json) -> Json:
    """Return *layers* merged as Helm merges values; later ones win."""
    result: Json = {}
    for layer in layers:
        for name, value in layer.items():
            is_deeper = isinstance(value, dict) and isinstance(result.get(name), dict)
            result[name] = merged(result[name], value) if is_deeper else value
    return result


def at(path: str, value: Any) -> Json:  # noqa: ANN401 - any value of the chart
    """Return nested values with *value* at the path ``a.b.c``."""
    first, _, rest = path.partition(".")
    return {first: at(rest, value) if rest else value}


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
