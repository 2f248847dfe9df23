"""The jobs on Spark: the three forms that `pipeline.mode` gives them, and what they are told."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from gateway.settings_common import Settings
from gateway.settings_nsqd import NsqdSettings
from tests.support.chart import HELM, LEAST, ROOT, Json, Refused, at, merged, render, scenario
from tests.support.chart_jobs import settings_of_job
from tools.document_chart import JOBS, jobs_schema

PREFIX = "t-nsq-gateway-job-"
S3 = {"output": "s3a://b/a", "checkpoint": "s3a://b/c"}


def job(command: str = "archive", **parts: Any) -> Json:  # noqa: ANN401 - any value of the chart
    """Return values with one job, which has all that it needs."""
    settings = {"topic": ["a"], **S3} if command == "archive" else {}
    settings |= parts.pop("settings", {})
    return at("pipeline.jobs.it", {"command": command, "settings": settings, **parts})


def container(pod: Json) -> Json:
    """Return the only container of *pod*."""
    (found,) = pod["spec"]["containers"]
    whole: Json = found
    return whole


# What is rendered


def test_nothing_is_made_while_there_is_no_job() -> None:
    """The pipeline is off by default."""
    kinds = {each["kind"] for each in render(LEAST).objects}

    assert {} == render(LEAST).jobs("Deployment")
    assert kinds.isdisjoint({"Role", "CronJob", "SparkApplication", "PersistentVolumeClaim"})


def test_a_stream_is_one_pod_that_is_recreated_and_keeps_its_volume() -> None:
    """Two drivers on one checkpoint would spoil it; the volume outlives the release."""
    found = render(scenario("pipeline"))
    deployment = found.jobs("Deployment")[f"{PREFIX}archive"]["spec"]
    claim = found.jobs("PersistentVolumeClaim")[f"{PREFIX}archive"]

    assert (1, {"type": "Recreate"}) == (deployment["replicas"], deployment["strategy"])
    assert ["pipeline", "archive"] == container(deployment["template"])["args"]
    assert "keep" == claim["metadata"]["annotations"]["helm.sh/resource-policy"]
    assert "50Gi" == claim["spec"]["resources"]["requests"]["storage"]


def test_a_job_reads_the_settings_that_the_values_say() -> None:
    """Its own, those of NSQ from the gateway, and where its secret is mounted."""
    settings = settings_of_job(render(scenario("pipeline")), "archive", "archive").model_dump()

    said = {
        "topic": ("orders", "clicks"),
        "output": "/data/archive",
        "trigger_s": 300,
        "nsqd_tcp_address": ("nsqd.nsq:4150",),
        "auth_secret_file": "/etc/nsq-gateway/secrets/auth/secret",
        "management_listen": "0.0.0.0:8081",
    }
    assert said == {name: settings[name] for name in said}


def test_what_ends_by_itself_runs_by_its_schedule_or_by_hand() -> None:
    """A CronJob, one run at a time; without a schedule it waits for somebody to start it."""
    jobs = render(scenario("pipeline")).jobs("CronJob")
    compact, replay = (jobs[f"{PREFIX}{name}"]["spec"] for name in ("compact", "replay"))

    assert ("17 * * * *", "Forbid") == (compact["schedule"], compact["concurrencyPolicy"])
    assert (None, True) == (compact.get("suspend"), replay["suspend"])
    pod = replay["jobTemplate"]["spec"]["template"]
    assert ["pipeline", "replay", "--yes"] == container(pod)["args"]


def test_the_volume_of_a_job_is_the_claim_that_it_names() -> None:
    """Compaction reads what the archive wrote, and no volume is made for it."""
    found = render(scenario("pipeline"))
    pod = found.jobs("CronJob")[f"{PREFIX}compact"]["spec"]["jobTemplate"]["spec"]["template"]
    (data,) = [each for each in pod["spec"]["volumes"] if each["name"] == "data"]

    assert {"claimName": f"{PREFIX}archive"} == data["persistentVolumeClaim"]
    assert f"{PREFIX}compact" not in found.jobs("PersistentVolumeClaim")


def test_with_spark_submit_the_pod_is_the_driver_and_its_executors_find_it() -> None:
    """It asks the API of the cluster, tells its own address, and gives executors a template."""
    found = render(scenario("executors"))
    pod = found.jobs("Deployment")[f"{PREFIX}archive"]["spec"]["template"]
    arguments = container(pod)["args"]

    assert ["spark-submit", "--master=k8s://https://kubernetes.default.svc:443"] == arguments[:2]
    assert ["/opt/pyspark_nsq/__main__.py", "archive"] == arguments[-2:]
    assert {
        "--conf=spark.driver.host=$(POD_IP)",
        "--conf=spark.kubernetes.driver.pod.name=$(POD_NAME)",
        "--conf=spark.executor.instances=2",
        "--conf=spark.dynamicAllocation.enabled=false",
        "--conf=spark.kubernetes.executor.podTemplateFile=/etc/nsq-gateway/executor.yaml",
    } <= {*arguments}
    assert pod["spec"]["automountServiceAccountToken"] is True


def test_an_executor_has_no_token_and_nobody_adopts_it() -> None:
    """The Deployment of the driver selects drivers; an executor is Spark's."""
    found = render(scenario("executors"))
    text = found.jobs("ConfigMap")[f"{PREFIX}archive"]["data"]["executor.yaml"]
    executor = yaml.safe_load(text)
    selector = found.jobs("Deployment")[f"{PREFIX}archive"]["spec"]["selector"]["matchLabels"]

    assert executor["spec"]["automountServiceAccountToken"] is False
    assert not selector.items() <= executor["metadata"]["labels"].items()
    assert {288} == {
        each["secret"]["defaultMode"] for each in executor["spec"]["volumes"] if "secret" in each
    }


def test_the_spark_operator_gets_an_application_that_it_starts_again() -> None:
    """A stream always; what has a schedule by that, and never again after a failure."""
    found = render(scenario("operator"))
    stream = found.jobs("SparkApplication")[f"{PREFIX}archive"]["spec"]
    batch = found.jobs("ScheduledSparkApplication")[f"{PREFIX}compact"]["spec"]

    assert ("Always", "Never") == (
        stream["restartPolicy"]["type"],
        batch["template"]["restartPolicy"]["type"],
    )
    assert (["archive"], ["compact"]) == (stream["arguments"], batch["template"]["arguments"])
    assert stream["mainApplicationFile"] == batch["template"]["mainApplicationFile"]


def test_the_role_is_for_what_a_driver_makes_and_for_nothing_else() -> None:
    """No secrets, no verbs by a star, and in its own namespace only."""
    found = render(scenario("executors"))
    (rule,) = found.jobs("Role")["t-nsq-gateway-pipeline"]["rules"]

    assert {"pods", "services", "configmaps", "persistentvolumeclaims"} == {*rule["resources"]}
    assert "*" not in rule["verbs"]
    assert {} == render(scenario("pipeline")).jobs("Role")


def test_the_main_file_is_where_the_image_has_it() -> None:
    """The Dockerfile makes the link that both forms name."""
    dockerfile = (ROOT / "Dockerfile").read_text()

    assert '"/opt/pyspark_nsq"]' in dockerfile
    assert (ROOT / "pyspark_nsq").is_dir()


def test_the_version_of_spark_is_the_one_that_the_image_pins() -> None:
    """The Spark operator is told what runs."""
    (pinned,) = re.findall(
        r"^pyspark==(\S+)", (ROOT / "requirements" / "image-spark.txt").read_text(), re.MULTILINE
    )
    values = yaml.safe_load((HELM / "values.yaml").read_text())

    assert pinned == values["pipeline"]["sparkVersion"]


# What jobs take


def test_what_the_gateway_says_of_nsq_is_all_that_a_job_takes_over() -> None:
    """Every setting of NSQ but names of this client, logs, and the secret itself."""
    text = (HELM / "templates" / "_pipeline.tpl").read_text()
    listed = text.partition('define "nsq-gateway.nsqSettings" -}}')[2].partition("toJson")[0]
    own = {"client_id", "hostname", "user_agent", "topology_region", "topology_zone", "auth_secret"}

    assert NsqdSettings.model_fields.keys() - Settings.model_fields.keys() - own == (
        set(re.findall(r'"([a-z0-9_]+)"', listed)) - {"nsqd_http_address"}
    )


def test_every_setting_of_every_command_can_be_said() -> None:
    """The schema is made of the settings themselves."""
    job_schema = jobs_schema()["additionalProperties"]
    names = {name for kind in JOBS.values() for name in kind.model_fields}

    assert names == job_schema["properties"]["settings"]["properties"].keys()


def test_a_setting_of_another_command_is_refused() -> None:
    """`where` is for a replay; the schema says so before anything is installed."""
    with pytest.raises(Refused, match="invalid propertyName 'where'"):
        render(merged(LEAST, job(settings={"where": "true"})))


def test_null_gives_the_default_of_the_command_back() -> None:
    """`management_listen: null` turns probes off."""
    found = render(merged(LEAST, job(settings={"management_listen": None})))
    pod = found.jobs("Deployment")[f"{PREFIX}it"]["spec"]["template"]

    assert "management_listen" not in tomllib.loads(found.job_toml("it"))
    assert "livenessProbe" not in container(pod)


def test_a_file_of_the_gateways_own_volumes_is_not_the_jobs() -> None:
    """A path in settings is one of the gateway's pod; only Secrets of the values are mounted."""
    found = render(merged(LEAST, job(), at("settings.nsqd_tls_root_ca_file", "/own/ca.pem")))

    assert "nsqd_tls_root_ca_file" not in tomllib.loads(found.job_toml("it"))


LOCAL = {"output": "/data/a", "checkpoint": "/data/c"}
PEER = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
POLICY = {"networkPolicy": {"enabled": True, "publicFrom": PEER, "nsqTo": PEER}}


@pytest.mark.parametrize(
    "layers,said",
    [
        ([job(settings={"auth_secret": "s"})], "it.settings.auth_secret: a secret stands in no"),
        ([job(settings={"master": "local[2]"})], "it.settings.master: pipeline.mode says where"),
        ([job(settings={"output": None})], "it.settings.output: say where the files go"),
        ([job(settings={"topic": []})], "it.settings.topic: name at least one topic"),
        ([job(settings={"checkpoint": ""})], "it.settings.checkpoint: say where Spark keeps"),
        ([job(arguments=["--yes"])], "it.arguments: those are for replay"),
        ([job("replay")], "it.settings.input: say what is read"),
        (
            [
                *(job(), at("settings.nsqd_tcp_address", None)),
                *(at("broker.embedded", True), at("replicaCount", 1)),
            ],
            "it.settings: say where NSQ is",
        ),
        ([job(schedule="0 * * * *")], "set settings.available_now: true"),
        ([job(settings={"available_now": True})], "would be started again at once"),
        ([job(settings=LOCAL)], "there is no volume: set pipeline.storage.size"),
        ([job(settings={"output": "/srv/a"})], "nothing outlives the pod"),
        (
            [job(settings=LOCAL, claim="c"), at("pipeline.mode", "spark-submit")],
            "which executors do not see",
        ),
        (
            [job("replay", settings={"input": "s3a://b"}), at("pipeline.mode", "spark-operator")],
            "the Spark operator starts nothing by hand",
        ),
        ([job(settings={"stop_wait_s": 41})], "terminationGracePeriodSeconds is 60, and"),
        ([job(settings={"management_listen": "127.0.0.1:81"})], "nobody outside of the pod"),
        ([job(settings={"management_listen": "0.0.0.0:7078"})], "which are Spark's"),
        (
            [job(), POLICY, at("pipeline.mode", "spark-submit")],
            "pipeline.networkPolicy.extraEgress: a driver has to reach the API",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_to_set(
    layers: list[Json], said: str
) -> None:
    """Before anything is installed, in one sentence."""
    with pytest.raises(Refused, match=re.escape(said)):
        render(merged(LEAST, *layers))


def test_a_volume_that_all_may_mount_is_the_executors_too() -> None:
    """With ReadWriteMany a path in /data is what driver and executors share."""
    found = render(
        merged(
            LEAST,
            job(settings=LOCAL, claim="shared"),
            at("pipeline", {"mode": "spark-submit", "storage": {"accessModes": ["ReadWriteMany"]}}),
        )
    )
    executor = yaml.safe_load(found.jobs("ConfigMap")[f"{PREFIX}it"]["data"]["executor.yaml"])

    assert "/data" in {each["mountPath"] for each in container(executor)["volumeMounts"]}
