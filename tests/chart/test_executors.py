"""What Spark makes of the chart's template for executors; the cluster's API is a stand-in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.support.chart.checks import VERSIONS
from tests.support.chart.cluster_api import cluster_api
from tests.support.chart.kubernetes_schemas import findings
from tests.support.chart.pod_security import violations
from tests.support.chart.render import NAMESPACE, Json, render, scenario
from tests.support.project import ROOT

pytestmark = pytest.mark.java

_WAIT_S = 120.0
# A driver that has nothing to do but to ask for its executors.
_JOB = """
import signal, sys
from pyspark import SparkContext
SparkContext()
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Return the first executor that Spark asks for, started by the arguments of the chart."""
    folder = tmp_path_factory.mktemp("driver")
    name = "t-nsq-gateway-job-archive"
    found = render(scenario("executors"))
    (container,) = found.jobs("Deployment")[name]["spec"]["template"]["spec"]["containers"]
    template = folder / "executor.yaml"
    template.write_text(found.jobs("ConfigMap")[name]["data"]["executor.yaml"])
    job = folder / "pyspark_nsq" / "job.py"
    job.parent.mkdir()
    job.write_text(_JOB)
    with cluster_api() as (address, made), (folder / "log").open("wb") as log:
        arguments = [
            re.sub("^--master=.*", f"--master=k8s://{address}", word)
            .replace("$(POD_IP)", "127.0.0.1")
            .replace("$(POD_NAME)", "driver-1")
            .replace("/etc/nsq-gateway/executor.yaml", str(template))
            # The ports of the chart may be taken here.
            .replace(".port=7078", ".port=0")
            .replace(".port=7079", ".port=0")
            for word in container["args"][:-2]
        ]
        driver = subprocess.Popen(
            [
                *("/bin/bash", str(ROOT / "tools" / "image" / "entrypoint.sh"), *arguments),
                *("--conf", "spark.ui.enabled=false", str(job)),
            ],
            env={
                "PATH": os.environ["PATH"],
                "SPARK_HOME": str(Path(pyspark.__file__).parent),
                "PYSPARK_PYTHON": sys.executable,
            },
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while (each := made.get(timeout=_WAIT_S))["kind"] != "Pod":
                pass
        finally:
            driver.send_signal(signal.SIGTERM)
            driver.wait(_WAIT_S)
    return each


def test_spark_asks_for_a_pod_that_kubernetes_takes(executor: Json) -> None:
    """The oldest and the newest version that the chart is for."""
    pod = {**executor, "metadata": {**executor["metadata"], "namespace": NAMESPACE}}
    del pod["metadata"]["uid"]

    assert [] == findings(pod, VERSIONS[0])
    assert [] == findings(pod, VERSIONS[-1])


def test_an_executor_satisfies_the_standard_restricted(executor: Json) -> None:
    """Spark adds to the template, and takes nothing away."""
    assert [] == violations(executor["metadata"], executor["spec"])
    assert executor["spec"]["automountServiceAccountToken"] is False
    (container,) = executor["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_an_executor_is_told_what_the_entry_point_wants(executor: Json) -> None:
    """`executor`, and every variable that entrypoint.sh reads."""
    (container,) = executor["spec"]["containers"]
    script = (ROOT / "tools" / "image" / "entrypoint.sh").read_text()
    read = set(re.findall(r"\$(SPARK_[A-Z_]+)", script)) - {
        "SPARK_HOME",
        "SPARK_DRIVER_BIND_ADDRESS",
        "SPARK_EXTRA_CLASSPATH",  # it may be there, and need not
    }

    assert ["executor"] == container["args"]
    assert read <= {each["name"] for each in container["env"]}


def test_an_executor_has_the_sizes_and_the_labels_of_the_values(executor: Json) -> None:
    """2 cores; 1 GiB of the JVM and as much beside it; found by the NetworkPolicy."""
    (container,) = executor["spec"]["containers"]
    labels = executor["metadata"]["labels"]

    assert ("2", "2048Mi") == (
        container["resources"]["requests"]["cpu"],
        container["resources"]["limits"]["memory"],
    )
    assert ("pipeline", "executor") == (
        labels["app.kubernetes.io/component"],
        labels["nsq-gateway/role"],
    )
    assert "/etc/nsq-gateway/secrets/auth" in {
        each["mountPath"] for each in container["volumeMounts"]
    }
