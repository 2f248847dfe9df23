"""Checks of the Spark jobs that the chart renders, and the pods of a whole render."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml
from pydantic_settings import BaseSettings

from tests.support.chart.render import Json, Render
from tools.document_chart import JOBS

_STOP_S = 20
"""Time that a job needs to end, in addition to stop_wait_s."""


def pods(render: Render) -> list[tuple[Json, str]]:
    """Return every pod template in a render, with the object that owns it."""
    found = []
    for each in render.objects:
        kind, spec = each["kind"], each.get("spec") or {}
        name = f"{kind}/{each['metadata']['name']}"
        if kind == "Pod":
            found.append((each, name))
        elif kind in ("Deployment", "StatefulSet"):
            found.append((spec["template"], name))
        elif kind == "CronJob":
            found.append((spec["jobTemplate"]["spec"]["template"], name))
        elif kind.endswith("SparkApplication"):
            application = spec["template"] if kind.startswith("Scheduled") else spec
            found += [(application[role]["template"], name) for role in ("driver", "executor")]
        elif "executor.yaml" in (each.get("data") or {}):
            found.append((yaml.safe_load(each["data"]["executor.yaml"]), name))
    return found


def is_allowed_a_token(pod: Json, render: Render) -> bool:
    """Return whether *pod* is a driver whose account has a Role, which needs a token."""
    labels = pod["metadata"].get("labels") or {}
    bound = {
        subject["name"]
        for each in render.jobs("RoleBinding").values()
        for subject in each["subjects"]
    }
    is_driver = labels.get("nsq-gateway/role") == "driver"
    return is_driver and pod["spec"].get("serviceAccountName") in bound


def bare_pods(render: Render) -> list[Json]:
    """Return the pods that Spark creates from templates, as Kubernetes objects."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": owner.replace("/", "-").lower(), **pod["metadata"]},
            "spec": pod["spec"],
        }
        for pod, owner in pods(render)
        if owner.partition("/")[0] not in ("Pod", "Deployment", "StatefulSet", "CronJob")
    ]


def settings_of_job(render: Render, job: str, command: str) -> BaseSettings:
    """Return the settings that *job* loads from its ConfigMap; errors pass through."""
    given: dict[str, Any] = tomllib.loads(render.job_toml(job))
    kind = JOBS[command]
    return kind.model_validate({name: given[name] for name in given if name in kind.model_fields})


def _drivers(render: Render) -> list[tuple[Json, str]]:
    return [
        (pod, owner)
        for pod, owner in pods(render)
        if (pod["metadata"].get("labels") or {}).get("nsq-gateway/role") == "driver"
    ]


def _command(pod: Json, render: Render) -> str:
    (container,) = pod["spec"]["containers"]
    if container.get("args"):
        (command,) = [word for word in container["args"] if word in JOBS]
        return str(command)
    job = pod["metadata"]["labels"]["nsq-gateway/job"]
    kinds = ("SparkApplication", "ScheduledSparkApplication")
    (found,) = [
        each["spec"].get("template", each["spec"])
        for kind in kinds
        for each in render.jobs(kind).values()
        if each["metadata"]["labels"]["nsq-gateway/job"] == job
    ]
    return str(found["arguments"][0])


def job_files(render: Render) -> list[str]:
    """Return job settings that the job's command does not accept."""
    lines = []
    for pod, owner in _drivers(render):
        job = pod["metadata"]["labels"]["nsq-gateway/job"]
        command = _command(pod, render)
        given = tomllib.loads(render.job_toml(job))
        lines += [
            f"{owner}: {command} has no {name}"
            for name in given
            if name not in JOBS[command].model_fields
        ]
        settings_of_job(render, job, command)
    return lines


def job_pods(render: Render) -> list[str]:
    """Return job pods that lack a file, a volume, a port, or time to stop."""
    lines = []
    for pod, owner in _drivers(render):
        (container,) = pod["spec"]["containers"]
        given = tomllib.loads(render.job_toml(pod["metadata"]["labels"]["nsq-gateway/job"]))
        places = [each["mountPath"] for each in container["volumeMounts"]]
        lines += [
            f"{owner}: {name} is {value}, which is not mounted"
            for name, value in given.items()
            if str(value).startswith("/")
            and not any(f"{value}/".startswith(f"{place}/") for place in places)
        ]
        mounted = {each["name"] for each in container["volumeMounts"]}
        volumes = {each["name"] for each in pod["spec"]["volumes"]}
        if mounted != volumes:
            lines.append(f"{owner}: volumes {volumes}, mounts {mounted}")
        wanted = re.findall(r":(\d+)$", given.get("management_listen", ""))
        found = [str(each["containerPort"]) for each in container.get("ports", [])]
        if wanted != found:
            lines.append(f"{owner}: ports {found}, not {wanted}")
        if bool(found) != ("livenessProbe" in container):
            lines.append(f"{owner}: a probe without a port, or the reverse")
        if pod["spec"]["terminationGracePeriodSeconds"] < given.get("stop_wait_s", 10) + _STOP_S:
            lines.append(f"{owner}: too little time to end")
    return lines
