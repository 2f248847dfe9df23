"""The entry point of the image of the pipeline: what it starts, for whom, and with what."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.support.project import ROOT

SCRIPT = ROOT / "tools" / "image" / "entrypoint.sh"
_TIMEOUT_S = 180.0

# Says as JSON how it was started, in place of Java, Spark and the gateway.
_TELLS = f"""#!{sys.executable} -I
import json, sys
print(json.dumps(sys.argv))
"""

EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "192.0.2.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "archive-exec-3",
}
"""What Spark on Kubernetes tells an executor."""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Return a folder with the three programs, each of which tells how it was started."""
    for name in ("java", "spark-submit", "nsq-gateway"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(_TELLS)
        program.chmod(0o755)
    return tmp_path


def start(image: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the entry point in *image*, and return how it ended."""
    return subprocess.run(
        ["/bin/bash", str(SCRIPT), *arguments],
        env={
            "PATH": f"{image / 'bin'}:/usr/bin:/bin",
            "JAVA_HOME": str(image),
            "SPARK_HOME": str(image),
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )


def started(image: Path, *arguments: str, **variables: str) -> list[str]:
    """Return the command that became of the entry point, its program by its name alone."""
    ended = start(image, *arguments, **variables)
    assert 0 == ended.returncode, ended.stderr
    program, *rest = json.loads(ended.stdout)
    return [Path(program).name, *rest]


def test_a_command_is_one_of_nsq_gateway(image: Path) -> None:
    """`docker run IMAGE pipeline archive …` reaches it as it was written."""
    said = ["pipeline", "archive", "--output", "/a b", "--topic", ""]

    assert ["nsq-gateway", *said] == started(image, *said)


def test_a_driver_submits_itself_in_its_own_pod(image: Path) -> None:
    """It listens where Kubernetes says, and passes on all that Spark wrote."""
    said = ["--properties-file", "/opt/spark/conf/spark.properties", "local:///x.py", "archive"]

    assert [
        "spark-submit",
        *("--deploy-mode", "client", "--conf", "spark.driver.bindAddress=192.0.2.1"),
        *said,
    ] == started(image, "driver", *said, SPARK_DRIVER_BIND_ADDRESS="192.0.2.1")


def test_spark_submit_is_there_under_its_name(image: Path) -> None:
    """For the pod of the chart that is the driver itself."""
    assert ["spark-submit", "--version"] == started(image, "spark-submit", "--version")


def test_an_executor_is_told_its_driver_and_its_size(image: Path) -> None:
    """All that Spark says in variables; the JVM's options in their order, 10 behind 9."""
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dat={number} $HOME" for number in (10, 0, 9, 2)}

    command = started(image, "executor", **EXECUTOR, **options)

    at = command.index("-cp")
    assert ["java", *(f"-Dat={number} $HOME" for number in (0, 2, 9, 10))] == command[:5]
    assert ["-Xms1024m", "-Xmx1024m"] == command[5:at]
    assert f"{image}/conf:{image}/jars/*" == command[at + 1]
    assert "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend" == command[at + 2]
    assert {
        "--driver-url": "spark://CoarseGrainedScheduler@driver:7078",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "192.0.2.7",
        "--resourceProfileId": "0",
        "--podName": "archive-exec-3",
    } == dict(zip(command[at + 3 :: 2], command[at + 4 :: 2], strict=True))


def test_an_executor_without_options_of_the_jvm_starts_too(image: Path) -> None:
    """And it looks for classes where it is told, behind Spark's own."""
    command = started(
        image, "executor", **EXECUTOR, SPARK_CONF_DIR="/c", SPARK_EXTRA_CLASSPATH="/e/*"
    )

    assert ["java", "-Xms1024m", "-Xmx1024m", "-cp"] == command[:4]
    assert f"/c:{image}/jars/*:/e/*" == command[4]


def test_an_executor_that_is_not_told_enough_says_what_is_missing(image: Path) -> None:
    """It ends at once, and starts nothing with half a command."""
    known = {name: value for name, value in EXECUTOR.items() if name != "SPARK_DRIVER_URL"}

    ended = start(image, "executor", **known)

    assert (1, "") == (ended.returncode, ended.stdout)
    assert "SPARK_DRIVER_URL" in ended.stderr


@pytest.mark.java
def test_the_options_of_an_executor_are_those_that_this_spark_takes(image: Path) -> None:
    """Spark itself reads the command: it gets as far as looking for its driver."""
    home = Path(pyspark.__file__).parent
    ended = subprocess.run(
        ["/bin/bash", str(SCRIPT), "executor"],
        env={
            "PATH": os.environ["PATH"],
            "JAVA_HOME": _java_home(),
            "SPARK_HOME": str(home),
            **EXECUTOR,
            "SPARK_EXECUTOR_MEMORY": "64m",
            "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
            "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1",
            "SPARK_JAVA_OPT_0": "-XX:TieredStopAtLevel=1",
        },
        cwd=image,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )

    assert 0 != ended.returncode
    assert "Failed to connect to /127.0.0.1:1" in ended.stdout + ended.stderr


# Stands in for the main file: it runs until it is asked to end, and says so.
_JOB = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("stopped cleanly") or 7))
print("job runs", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.java
def test_sigterm_reaches_the_job_and_not_the_jvm_above_it(image: Path) -> None:
    """In a driver's pod the job is a child of the JVM; it ends in its own time, and tells how."""
    job = image / "pyspark_nsq" / "job.py"
    job.parent.mkdir()
    job.write_text(_JOB)
    entrypoint = subprocess.Popen(
        [
            *("/bin/bash", str(SCRIPT), "driver", "--master", "local[1]"),
            *("--class", "org.apache.spark.deploy.PythonRunner", f"local://{job}"),
        ],
        env={
            "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1",
            "PATH": os.environ["PATH"],
            "JAVA_HOME": _java_home(),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "PYSPARK_PYTHON": sys.executable,
        },
        cwd=image,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert entrypoint.stdout is not None
        lines = iter(entrypoint.stdout.readline, "")
        assert "job runs\n" in lines
        entrypoint.send_signal(signal.SIGTERM)
        said, _ = entrypoint.communicate(timeout=_TIMEOUT_S)
    finally:
        entrypoint.kill()
        entrypoint.wait()

    assert "stopped cleanly" in said
    # Spark ends with the status of the job.
    assert 7 == entrypoint.returncode


def _java_home() -> str:
    said = subprocess.run(
        [shutil.which("java") or "java", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    return said.partition("java.home = ")[2].splitlines()[0]
