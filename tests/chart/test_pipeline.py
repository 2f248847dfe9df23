"""The jobs on Spark: the three forms that `pipeline.mode` gives them, and what they are told."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from gateway.settings.fields import Settings
from gateway.settings.nsqd import NsqdSettings
from tests.support.chart.jobs import pods, settings_of_job
from tests.support.chart.render import (
    HELM,
    MINIMAL_VALUES,
    Json,
    Render,
    RenderError,
    at,
    merged,
    render,
    scenario,
)
from tests.support.project import ROOT
from tools.document_chart import JOBS, jobs_schema

PREFIX = "t-nsq-gateway-job-"
S3 = {"output": "s3a://b/a", "checkpoint": "s3a://b/c"}
LOCAL = {"output": "/data/a", "checkpoint": "/data/c"}


def job(command: str = "archive", **parts: Any) -> Json:  # noqa: ANN401 - any value of the chart
    settings = {"topic": ["a"], **S3} if command == "archive" else {}
    settings |= parts.pop("settings", {})
    return at("pipeline.jobs.it", {"command": command, "settings": settings, **parts})


def container(pod: Json) -> Json:
    (found,) = pod["spec"]["containers"]
    whole: Json = found
    return whole


# What is rendered


def test_nothing_is_made_while_there_is_no_job() -> None:
    """The pipeline is off by default."""
    kinds = {each["kind"] for each in render(MINIMAL_VALUES).objects}

    assert {} == render(MINIMAL_VALUES).jobs("Deployment")
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


def terms_of(found: Render, name: str) -> list[Json]:
    """Return where the pods of job *name* have to run: beside those that the terms select."""
    (pod,) = [
        pod
        for pod, _ in pods(found)
        if pod["metadata"]["labels"].get("nsq-gateway/job") == name
        and pod["metadata"]["labels"]["nsq-gateway/role"] == "driver"
    ]
    affinity = pod["spec"].get("affinity", {}).get("podAffinity", {})
    terms: list[Json] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return terms


def selects(term: Json, labels: Json) -> bool:
    """Return whether *term* selects a pod with *labels*, as Kubernetes would."""
    selector = term["labelSelector"]
    return selector["matchLabels"].items() <= labels.items() and all(
        each["operator"] == "In" and labels.get(each["key"]) in each["values"]
        for each in selector["matchExpressions"]
    )


def test_jobs_that_share_a_claim_run_on_one_node() -> None:
    """One node mounts it at a time; the first pod selects itself, so that it may go anywhere."""
    found = render(scenario("pipeline"))
    labels = {
        pod["metadata"]["labels"]["nsq-gateway/job"]: pod["metadata"]["labels"]
        for pod, _ in pods(found)
        if "nsq-gateway/job" in pod["metadata"]["labels"]
    }

    for name in ("archive", "compact", "replay"):
        (term,) = terms_of(found, name)
        assert "kubernetes.io/hostname" == term["topologyKey"]
        assert {"archive", "compact", "replay"} == {
            other for other in labels if selects(term, labels[other])
        }
    assert [] == terms_of(found, "metrics")


def test_a_claim_that_all_nodes_mount_binds_nobody() -> None:
    """ReadWriteMany lets pods of all nodes in."""
    shared = at("pipeline.storage.accessModes", ["ReadWriteMany"])

    assert [] == terms_of(render(merged(scenario("pipeline"), shared)), "compact")


@pytest.mark.parametrize("mode", ["spark-submit", "spark-operator"])
def test_an_executor_goes_where_there_is_room(mode: str) -> None:
    """It does not mount the claim of its driver."""
    values = merged(
        MINIMAL_VALUES,
        job(settings={"spool_dir": "/data/spool", "ack_mode": "spool"}, claim="c"),
        at("pipeline.jobs.other", {"command": "replay", "settings": {"input": "s3a://b/a"}}),
        at("pipeline.jobs.other", {"claim": "c", "schedule": "0 * * * *"}),
        at("pipeline.mode", mode),
    )
    affinities = {
        pod["metadata"]["labels"]["nsq-gateway/role"]: "affinity" in pod["spec"]
        for pod, _ in pods(render(values))
        if "nsq-gateway/role" in pod["metadata"]["labels"]
    }

    assert {"driver": True, "executor": False} == affinities


DEADLINE = at("pipeline.jobs.it", {"activeDeadlineSeconds": 600})
COMPACT = job("compact", settings={"input": "s3a://b/a", "output": "s3a://b/c"})
REPLAY = job("replay", settings={"input": "s3a://b/a"})
PUSH = at("pipeline.metricsPushUrl", "http://pushgateway:9091")
LOCAL_COMPACT = job("compact", settings={"input": "/data/a", "output": "/data/c"}, claim="c")


@pytest.mark.parametrize(
    "layers,deadline_s",
    [
        ([COMPACT], 21_600),
        ([COMPACT, at("pipeline.activeDeadlineSeconds", 3_600)], 3_600),
        ([COMPACT, at("pipeline.activeDeadlineSeconds", 0)], None),
        ([COMPACT, DEADLINE], 600),
        ([REPLAY], None),
        ([REPLAY, DEADLINE], 600),
        ([REPLAY, at("pipeline.jobs.it", {"schedule": "0 * * * *"})], 21_600),
    ],
)
def test_a_run_that_cannot_go_on_ends(layers: list[Json], deadline_s: int | None) -> None:
    """A pod that waits for a node would wait for ever, and hold up every run after it."""
    found = render(merged(MINIMAL_VALUES, *layers)).jobs("CronJob")[f"{PREFIX}it"]["spec"]

    assert deadline_s == found["jobTemplate"]["spec"].get("activeDeadlineSeconds")


def test_what_ends_by_itself_pushes_its_metrics() -> None:
    """Under the name of its CronJob; a stream is scraped."""
    found = render(merged(scenario("pipeline"), PUSH))
    compact = settings_of_job(found, "compact", "compact").model_dump()

    assert ("http://pushgateway:9091", f"gw/{PREFIX}compact") == (
        compact["metrics_push_url"],
        compact["job_name"],
    )
    assert "metrics_push_url" not in tomllib.loads(found.job_toml("archive"))


def test_a_job_has_a_volume_of_its_own_size() -> None:
    """An archive needs more than the checkpoint of the metrics."""
    large = at("pipeline.jobs.archive.storage.size", "2Ti")
    found = render(merged(scenario("pipeline"), large)).jobs("PersistentVolumeClaim")

    assert {f"{PREFIX}archive": "2Ti", f"{PREFIX}metrics": "50Gi"} == {
        name: each["spec"]["resources"]["requests"]["storage"] for name, each in found.items()
    }


def test_one_job_alone_may_have_a_volume() -> None:
    """Without pipeline.storage.size."""
    own = at("pipeline.jobs.it.storage.size", "1Gi")
    found = render(merged(MINIMAL_VALUES, job(settings=LOCAL), own))

    assert [f"{PREFIX}it"] == [*found.jobs("PersistentVolumeClaim")]


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


@pytest.mark.parametrize("mode", ["deployment", "spark-submit", "spark-operator"])
def test_the_annotations_of_the_account_reach_every_pod_of_a_job(mode: str) -> None:
    """A cloud gives its role to the account of a pod: drivers write, and executors do."""
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/archive"}
    account = at("pipeline.serviceAccount.annotations", role)
    found = render(merged(MINIMAL_VALUES, job(), account, at("pipeline.mode", mode)))
    accounts = {
        name: each["metadata"].get("annotations")
        for name, each in found.jobs("ServiceAccount").items()
    }
    used = {
        pod["spec"]["serviceAccountName"]
        for pod, _ in pods(found)
        if pod["metadata"]["labels"].get("nsq-gateway/role")
    }

    assert {"t-nsq-gateway-pipeline": role} == accounts
    assert {"t-nsq-gateway-pipeline"} == used


def test_an_account_that_is_not_made_is_the_one_that_is_named() -> None:
    account = at("pipeline.serviceAccount", {"create": False, "name": "etl"})
    found = render(merged(MINIMAL_VALUES, job(), account))
    pod = found.jobs("Deployment")[f"{PREFIX}it"]["spec"]["template"]["spec"]

    assert {} == found.jobs("ServiceAccount")
    assert ("etl", "t-nsq-gateway") == (pod["serviceAccountName"], found.pod["serviceAccountName"])


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
    with pytest.raises(RenderError, match="invalid propertyName 'where'"):
        render(merged(MINIMAL_VALUES, job(settings={"where": "true"})))


def test_null_gives_the_default_of_the_command_back() -> None:
    """`management_listen: null` turns probes off."""
    found = render(merged(MINIMAL_VALUES, job(settings={"management_listen": None})))
    pod = found.jobs("Deployment")[f"{PREFIX}it"]["spec"]["template"]

    assert "management_listen" not in tomllib.loads(found.job_toml("it"))
    assert "livenessProbe" not in container(pod)


def test_a_vacuum_runs_by_its_schedule_and_needs_no_nsq() -> None:
    """It says what is cleaned, and what for; a path has to be on the volume."""
    settings = {"input": "s3a://b/a", "compacted": "s3a://b/c", "retain_days": 90}
    found = render(merged(MINIMAL_VALUES, job("vacuum", schedule="7 3 * * *", settings=settings)))

    assert "7 3 * * *" == found.jobs("CronJob")[f"{PREFIX}it"]["spec"]["schedule"]
    own = {"log_format": "json", "job_name": f"gw/{PREFIX}it"}
    assert settings | own == tomllib.loads(found.job_toml("it"))
    with pytest.raises(RenderError, match=r"pipeline\.jobs\.it\.settings\.input: it is missing"):
        render(merged(MINIMAL_VALUES, job("vacuum")))
    with pytest.raises(
        RenderError, match=r"settings\.compacted is /c, which is deleted with the pod"
    ):
        render(merged(MINIMAL_VALUES, job("vacuum", settings=settings | {"compacted": "/c"})))


def test_a_file_of_the_gateways_own_volumes_is_not_the_jobs() -> None:
    """A path in settings is one of the gateway's pod; only Secrets of the values are mounted."""
    found = render(
        merged(MINIMAL_VALUES, job(), at("settings.nsqd_tls_root_ca_file", "/own/ca.pem"))
    )

    assert "nsqd_tls_root_ca_file" not in tomllib.loads(found.job_toml("it"))


@pytest.mark.parametrize(
    "own, expected",
    [
        ({}, {"lookupd_http_address": ["l:4161"]}),
        ({"nsqd_tcp_address": ["own:4150"]}, {"nsqd_tcp_address": ["own:4150"]}),
        ({"lookupd_http_address": ["own:4161"]}, {"lookupd_http_address": ["own:4161"]}),
    ],
)
def test_a_job_is_told_in_one_way_where_nsq_is(own: Json, expected: Json) -> None:
    """It refuses both; a gateway may have both."""
    gateway = {"nsqd_tcp_address": ["n:4150"], "lookupd_http_address": ["l:4161"]}
    found = render(merged(MINIMAL_VALUES, at("settings", gateway), job(settings=own)))

    told = tomllib.loads(found.job_toml("it"))
    names = ("nsqd_tcp_address", "lookupd_http_address")
    assert expected == {name: told[name] for name in names if name in told}


METRICS = {"command": "metrics", "settings": {"topic": ["a"], "checkpoint": "s3a://b/m"}}
BOTH = {"nsqd_tcp_address": ["n:4150"], "lookupd_http_address": ["l:4161"]}
PEER = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
POLICY = {"networkPolicy": {"enabled": True, "publicFrom": PEER, "nsqTo": PEER}}


@pytest.mark.parametrize(
    "layers,said",
    [
        ([job(settings={"auth_secret": "s"})], "it.settings.auth_secret: a ConfigMap must not"),
        ([job(settings={"master": "local[2]"})], "it.settings.master: pipeline.mode determines"),
        ([job(settings={"output": None})], "it.settings.output: it is missing; set the target"),
        ([job(settings={"topic": []})], "it.settings.topic: it is missing; set at least one"),
        ([job(settings={"checkpoint": ""})], "it.settings.checkpoint: it is missing; set a"),
        ([job(arguments=["--yes"])], "it.arguments: only replay has arguments"),
        ([job("replay")], "it.settings.input: it is missing; set the directory"),
        (
            [
                *(job(), at("settings.nsqd_tcp_address", None)),
                *(at("broker.embedded", True), at("replicaCount", 1)),
            ],
            "it.settings: the address of NSQ is missing",
        ),
        (
            [job(settings=BOTH)],
            "it.settings: nsqd_tcp_address and lookupd_http_address are both set",
        ),
        ([job(schedule="0 * * * *")], "set settings.available_now: true"),
        ([job(settings={"available_now": True})], "would be restarted at once"),
        ([job(settings=LOCAL)], "there is no volume; set pipeline.storage.size"),
        ([job(settings={"output": "/srv/a"})], "is deleted with the pod"),
        (
            [job(settings=LOCAL, claim="c"), at("pipeline.mode", "spark-submit")],
            "which executors cannot access",
        ),
        (
            [job("replay", settings={"input": "s3a://b"}), at("pipeline.mode", "spark-operator")],
            "the Spark operator cannot start a job by hand",
        ),
        ([job(settings={"stop_wait_s": 41})], "terminationGracePeriodSeconds is 60, but"),
        (
            [job(settings={"management_listen": "127.0.0.1:81"})],
            "not reachable from outside the pod",
        ),
        ([job(settings={"management_listen": "0.0.0.0:7078"})], "which Spark uses"),
        (
            [job(), POLICY, at("pipeline.mode", "spark-submit")],
            "pipeline.networkPolicy.extraEgress: the driver needs the cluster's API",
        ),
        (
            [job(settings={"metrics_textfile": "/data/a.prom"})],
            "it.settings.metrics_textfile: node_exporter cannot read a file in a pod",
        ),
        (
            [LOCAL_COMPACT, PUSH, POLICY],
            "extraEgress: pipeline.jobs.it.settings.metrics_push_url is http://pushgateway:9091",
        ),
        (
            [job(claim="c", storage={"size": "1Gi"})],
            "it.storage.size: it conflicts with pipeline.jobs.it.claim",
        ),
        (
            [
                *(job(claim="c"), at("pipeline.jobs.other", {"claim": "c", **METRICS})),
                at("pipeline.storage.accessModes", ["ReadWriteOncePod"]),
            ],
            "the jobs it, other share the claim c, but with ReadWriteOncePod only one pod",
        ),
        (
            [job(activeDeadlineSeconds=60)],
            "it.activeDeadlineSeconds: a stream does not end by itself; remove it",
        ),
        (
            [
                *(COMPACT, DEADLINE, at("pipeline.jobs.it.schedule", "0 * * * *")),
                at("pipeline.mode", "spark-operator"),
            ],
            "it.activeDeadlineSeconds: the Spark operator does not support it",
        ),
        (
            [job(), POLICY],
            "pipeline.networkPolicy.extraEgress: pipeline.jobs.it.settings.checkpoint is s3a://b/c",
        ),
        (
            [job("replay", settings={"input": "gs://b/a"}), POLICY],
            "pipeline.jobs.it.settings.input is gs://b/a, which the NetworkPolicy does not allow",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_to_set(
    layers: list[Json], said: str
) -> None:
    """Before anything is installed, in one sentence."""
    with pytest.raises(RenderError, match=re.escape(said)):
        render(merged(MINIMAL_VALUES, *layers))


STORE = [{"to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}], "ports": [{"port": 443}]}]


@pytest.mark.parametrize(
    "layers",
    [
        [job(), POLICY, at("pipeline.networkPolicy.extraEgress", STORE)],
        [job(settings=LOCAL, claim="c"), POLICY],
        [job(settings={"output": "file:///data/a", "checkpoint": "/data/c"}, claim="c"), POLICY],
    ],
    ids=["a way out", "a volume", "a volume by URL"],
)
def test_a_policy_goes_with_jobs_that_have_a_way_to_their_files(layers: list[Json]) -> None:
    """A rule of one's own is taken for theirs, and a volume needs none."""
    assert render(merged(MINIMAL_VALUES, *layers)).jobs("NetworkPolicy")


def test_a_volume_that_all_may_mount_is_the_executors_too() -> None:
    """With ReadWriteMany a path in /data is what driver and executors share."""
    found = render(
        merged(
            MINIMAL_VALUES,
            job(settings=LOCAL, claim="shared"),
            at("pipeline", {"mode": "spark-submit", "storage": {"accessModes": ["ReadWriteMany"]}}),
        )
    )
    executor = yaml.safe_load(found.jobs("ConfigMap")[f"{PREFIX}it"]["data"]["executor.yaml"])

    assert "/data" in {each["mountPath"] for each in container(executor)["volumeMounts"]}
