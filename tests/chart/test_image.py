"""
The Dockerfile: what its lines say, and what becomes of a clean folder when they are carried out.

No image is built here, for that needs a container engine. The RUN and COPY lines of the build stage
are carried out as they stand, with the paths of the image in a folder; what comes out is run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import gateway
from gateway.server.gateway import max_answer_s, max_drain_s
from gateway.settings.serve import ServeSettings
from tests.support.chart import tools as chart_tools
from tests.support.project import ROOT

PAGE = (ROOT / "docs" / "docker.md").read_text()
_TIMEOUT_S = 240.0
_LISTENING = re.compile(rb"management: http://(\S+)/readyz")


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile in order: their word, and the rest."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line)
    ]


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, its FROM first; ARG before the first is left out."""
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


BUILD, BUILD_PIPELINE, PIPELINE, FINAL = stages()


def of(stage: list[tuple[str, str]], word: str) -> list[str]:
    return [rest for each, rest in stage if each == word]


# What its lines say


def test_every_stage_stands_on_one_base_that_a_digest_pins() -> None:
    """The environment of the first runs in the others; a tag alone would move."""
    (base,) = of(FINAL, "FROM")

    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", base)
    assert [f"{base} AS build", "build AS build-pipeline", f"{base} AS pipeline"] == [
        rest for stage in (BUILD, BUILD_PIPELINE, PIPELINE) for rest in of(stage, "FROM")
    ]


def test_without_a_target_it_is_the_gateway_that_is_built() -> None:
    """The last stage is what `docker build .` makes."""
    assert FINAL is not PIPELINE
    assert ["nsq-gateway"] == json.loads(of(FINAL, "ENTRYPOINT")[0])


def test_it_runs_without_root_and_without_a_shell() -> None:
    """Numbers that Kubernetes can check, and SIGTERM reaches the gateway itself."""
    assert ["10001:10001"] == of(FINAL, "USER")
    assert [["nsq-gateway"], ["serve"]] == [
        json.loads(rest) for word in ("ENTRYPOINT", "CMD") for rest in of(FINAL, word)
    ]
    (check,) = of(FINAL, "HEALTHCHECK")
    assert ["nsq-gateway", "health"] == json.loads(check.partition("CMD ")[2])


def test_a_new_volume_for_data_can_be_written() -> None:
    """It takes its owner from the folder of the image that it is mounted over."""
    for stage in (FINAL, PIPELINE):
        user, _, group = of(stage, "USER")[0].partition(":")
        made = [json.loads(rest) for rest in of(stage, "RUN") if '"install", "--directory"' in rest]

        assert [["install", "--directory", f"--owner={user}", f"--group={group}", "/data"]] == made


def test_nothing_is_compiled_and_everything_has_its_hash() -> None:
    """Wheels only, from requirements/image.txt; the package itself asks nobody."""
    installs = [json.loads(rest) for rest in of(BUILD, "RUN") if '"install"' in rest]

    pinned, own = installs
    assert {"--require-hashes", "--only-binary", "requirements/image.txt"} <= {*pinned}
    assert {"--no-index", "--no-deps", "--no-build-isolation", "."} <= {*own}


def test_spark_alone_is_built_and_by_what_is_pinned() -> None:
    """It comes as source only; its build asks for nothing that has no hash."""
    installs = [json.loads(rest) for rest in of(BUILD_PIPELINE, "RUN") if '"install"' in rest]

    again, spark = installs
    assert {"--require-hashes", "--only-binary", "requirements/image.txt"} <= {*again}
    assert {"--require-hashes", "--no-build-isolation", "requirements/image-spark.txt"} <= {*spark}
    assert "pyspark" == spark[spark.index("--no-binary") + 1]
    assert ":all:" == spark[spark.index("--only-binary") + 1]


def pins(name: str) -> dict[str, str]:
    """Return the versions that one of the lists of requirements pins, those for all Pythons."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([a-z][a-z0-9-]*)(?:\[.*\])?==(\S+) \\$", text, re.MULTILINE))


def test_both_images_and_the_tests_have_the_same_versions() -> None:
    """What runs in the pipeline's image is what is tested here, and what the gateway's has."""
    tested, gateways, pipelines = pins("dev"), pins("image"), pins("image-spark")

    assert {} == {name: tested[name] for name in pipelines if tested[name] != pipelines[name]}
    assert gateways.items() <= pipelines.items()
    assert {"pyspark", "pyarrow", "pandas"} == {
        name for name in ("pyspark", "pyarrow", "pandas") if name in pipelines
    }


def test_the_pipeline_runs_without_root_behind_a_first_process() -> None:
    """A user with a name, as Hadoop wants, and a first process that takes leave of the others."""
    (user,) = [json.loads(rest) for rest in of(PIPELINE, "RUN") if '"useradd"' in rest]

    assert ["10001:10001"] == of(PIPELINE, "USER")
    assert "10001" == user[user.index("--uid") + 1]
    (entrypoint,) = of(PIPELINE, "ENTRYPOINT")
    assert ["tini", "--", "bash", "/opt/nsq-gateway/entrypoint.sh"] == json.loads(entrypoint)


def test_the_paths_of_spark_are_those_of_the_python_of_the_image() -> None:
    """A new minor version of Python has to be written in all of them."""
    minor = re.match(r"python:(3\.\d+)", of(FINAL, "FROM")[0])
    assert minor is not None
    told = re.findall(r"/lib/python(3\.\d+)/", json.dumps(PIPELINE))

    assert [minor[1], minor[1]] == told


def test_no_pip_is_left() -> None:
    """Neither in the environment, which is made without one, nor beside it."""
    assert any("--without-pip" in rest for rest in of(BUILD, "RUN"))
    for stage in (FINAL, PIPELINE):
        assert any("uninstall" in rest and '"pip"]' in rest for rest in of(stage, "RUN"))


def test_the_label_tells_this_version() -> None:
    """A release that forgets it is found here."""
    for stage in (FINAL, PIPELINE):
        assert f"VERSION={gateway.__version__}" in of(stage, "ARG")


def test_only_what_is_copied_is_sent_to_the_engine() -> None:
    """.dockerignore leaves out all but what the COPY lines name."""
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = {
        path
        for rest in [line for stage in stages() for line in of(stage, "COPY")]
        for path in shlex.split(rest)[:-1]
        if path != "requirements" and not rest.startswith("--from=")
    }

    assert copied | {"Dockerfile"} == kept


# What docs/docker.md says


def test_the_time_that_compose_gives_is_enough_to_drain() -> None:
    """The page adds it up, and its file has some seconds more."""
    drain_s = max_drain_s(ServeSettings()) + max_answer_s(ServeSettings())
    gateway = _compose()["services"]["gateway"]
    delay_s = int(gateway["environment"]["NSQ_GATEWAY_DRAIN_DELAY_S"])

    assert f"| **{drain_s:.0f}** |" in PAGE
    assert delay_s + drain_s < int(gateway["stop_grace_period"].removesuffix("s"))


def test_only_the_service_that_has_a_management_port_is_asked() -> None:
    """The image's health check would call a broker unhealthy."""
    asked = {
        service["command"][0]: not service.get("healthcheck", {}).get("disable")
        for service in _compose()["services"].values()
    }

    assert {"serve": True, "broker": False} == asked


def test_the_folder_of_the_messages_is_a_volume_that_stays() -> None:
    """Compose names each volume a second time, and deletes none of these with its containers."""
    compose = _compose()
    broker = compose["services"]["broker"]
    name, _, place = broker["volumes"][0].partition(":")

    assert place == broker["command"][broker["command"].index("--data-path") + 1] == "/data"
    assert name in compose["volumes"]


def test_the_flags_and_variables_of_the_page_are_there() -> None:
    """The gateway's own; the engine's stand in lines that begin with docker."""
    known = (ROOT / "docs" / "configuration.md").read_text()
    commands = [service["command"] for service in _compose()["services"].values()]
    flags = {word for command in commands for word in command if word.startswith("--")}
    variables = set(re.findall(r"NSQ_GATEWAY_[A-Z_]+", PAGE)) - {"NSQ_GATEWAY_CONFIG"}

    assert flags
    assert [] == sorted(name for name in flags | variables if f"`{name}`" not in known)


def _compose() -> dict[str, Any]:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    whole: dict[str, Any] = yaml.safe_load(text)
    return whole


@pytest.mark.checkov
def test_checkov_finds_nothing_in_the_dockerfile() -> None:
    assert [] == chart_tools.failed_policies("dockerfile", ROOT / "Dockerfile")


# What becomes of a clean folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the build stage leaves at /opt/nsq-gateway."""
    root = tmp_path_factory.mktemp("image")
    build = root / "build"
    build.mkdir()
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(root),
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
    }
    for word, rest in BUILD:
        if word == "COPY":
            *sources, target = shlex.split(rest)
            for source in sources:
                _copy(ROOT / source, build / target, is_folder=target.endswith("/"))
        elif word == "RUN":
            command = [part.replace("/opt/", f"{root}/opt/") for part in json.loads(rest)]
            ended = subprocess.run(
                command,
                cwd=build,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
            assert 0 == ended.returncode, f"{command}\n{ended.stdout}{ended.stderr}"
    return root / "opt" / "nsq-gateway"


def _copy(source: Path, target: Path, *, is_folder: bool) -> None:
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(source, target, symlinks=True, ignore=ignored)
        return
    if is_folder:
        target.mkdir(parents=True, exist_ok=True)
        target = target / source.name
    shutil.copyfile(source, target)


def test_what_is_installed_tells_its_version(installed: Path) -> None:
    said = subprocess.run(
        [installed / "bin" / "nsq-gateway", "--version"], capture_output=True, text=True, check=True
    ).stdout

    assert f"nsq-gateway, version {gateway.__version__}\n" == said


def test_neither_pip_nor_setuptools_is_installed(installed: Path) -> None:
    packages = {path.name for path in (installed / "lib").glob("python3*/site-packages/*")}

    assert "gateway" in packages
    assert set() == packages & {"pip", "setuptools", "wheel"}


async def test_what_is_installed_serves_and_says_that_it_is_well(installed: Path) -> None:
    """It writes to no folder, has all its files, and its own health check says yes."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "NSQ_GATEWAY_LISTEN": "127.0.0.1:0",
        "NSQ_GATEWAY_MANAGEMENT_LISTEN": "127.0.0.1:0",
        "NSQ_GATEWAY_BROKER_TCP_ADDRESS": "127.0.0.1:0",
        "NSQ_GATEWAY_BROKER_HTTP_ADDRESS": "127.0.0.1:0",
    }
    before = _files(installed)
    serve = await asyncio.create_subprocess_exec(
        installed / "bin" / "nsq-gateway",
        "serve",
        env=environment,
        cwd="/",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert serve.stdout is not None
        async with asyncio.timeout(30):
            while (found := _LISTENING.search(await serve.stdout.readline())) is None:
                pass
            environment["NSQ_GATEWAY_MANAGEMENT_LISTEN"] = found[1].decode()
            health = await asyncio.create_subprocess_exec(
                installed / "bin" / "nsq-gateway",
                "health",
                env=environment,
                stdout=asyncio.subprocess.PIPE,
            )
            said, _ = await health.communicate()
    finally:
        serve.terminate()
        status = await asyncio.wait_for(serve.wait(), 30)

    assert (b"ready\n", 0, 0) == (said, health.returncode, status)
    assert before == _files(installed)


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}
