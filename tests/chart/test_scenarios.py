"""The sets of values in helm/ci: what each renders is what Kubernetes takes, and what we want."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.settings.serve import ServeSettings
from tests.support.chart.checks import CHECKS, VERSIONS, Check, all_findings, settings_of
from tests.support.chart.kubernetes_schemas import findings
from tests.support.chart.render import (
    MINIMAL_VALUES,
    SCENARIOS,
    Json,
    Render,
    at,
    merged,
    render,
    scenario,
)
from tests.support.project import ROOT

every_scenario = pytest.mark.parametrize("name", sorted(SCENARIOS))


@every_scenario
@pytest.mark.parametrize("version", VERSIONS)
def test_every_supported_kubernetes_takes_what_is_rendered(name: str, version: str) -> None:
    """No object has a field that its version does not know, or a wrong value in one."""
    found = render(scenario(name)).objects

    assert [] == [line for each in found for line in findings(each, version)]


@every_scenario
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_what_has_to_hold_for_every_render_does(name: str, check: Check) -> None:
    """Restricted pods, selectors that agree, times that suffice, and the rest of the CHECKS."""
    assert [] == check(render(scenario(name)))


@every_scenario
def test_the_gateway_reads_the_settings_that_the_chart_writes(name: str) -> None:
    """The TOML in the ConfigMap loads, and holds what the values say."""
    settings = settings_of(render(scenario(name)))
    said = {key: value for key, value in scenario(name)["settings"].items() if value is not None}

    assert said == {key: _plain(getattr(settings, key)) for key in said}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@every_scenario
def test_two_renders_are_equal(name: str) -> None:
    """Nothing in the templates is drawn at random or taken from the clock."""
    assert render(scenario(name)).texts == render(scenario(name)).texts


def test_null_gives_the_default_of_the_gateway_back() -> None:
    """`socket_max_age_s: null` in extras undoes what the chart sets."""
    settings = settings_of(render(scenario("extras")))

    assert ServeSettings.model_fields["socket_max_age_s"].default == settings.socket_max_age_s


def test_the_pods_start_anew_when_a_setting_changes() -> None:
    values = scenario("insecure")
    before = render(values)
    values["settings"]["max_sockets"] = 5

    def checksum(found: object) -> object:
        return found["spec"]["template"]["metadata"]["annotations"]["checksum/config"]  # type: ignore[index]

    assert checksum(before.one("Deployment")) != checksum(render(values).one("Deployment"))


def test_secrets_are_files_and_never_environment() -> None:
    """Each Secret is mounted where the settings say, for user and group only."""
    found = render(scenario("auth"))
    secrets = {each["name"]: each["secret"] for each in found.pod["volumes"] if "secret" in each}

    named = {"NSQ_GATEWAY_CONFIG", "NSQ_GATEWAY_LISTEN", "NSQ_GATEWAY_MANAGEMENT_LISTEN"}
    assert named == {each["name"] for each in found.gateway["env"]}
    assert {
        "secret-auth": {"secretName": "nsq-gateway-auth", "defaultMode": 0o440},
        "secret-admin": {"secretName": "nsq-gateway-admin", "defaultMode": 0o440},
        "secret-nsqd-tls": {"secretName": "nsqd-tls", "defaultMode": 0o440},
    } == secrets
    assert "/etc/nsq-gateway/secrets/admin/token" == settings_of(found).admin_secret_file


def test_probes_ask_the_management_port() -> None:
    """Startup and readiness ask /readyz, liveness /livez, none names a host."""
    gateway = render(scenario("full")).gateway
    asked = {
        name: gateway[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")
    }

    ready, alive = [{"path": path, "port": "management"} for path in ("/readyz", "/livez")]
    assert {"startup": ready, "readiness": ready, "liveness": alive} == asked


@pytest.mark.parametrize(
    "name,count", [("trial", 1), ("insecure", 2), ("full", None), ("keda", None)]
)
def test_replicas_are_left_to_who_scales(name: str, count: int | None) -> None:
    """An upgrade does not set back what an autoscaler decided."""
    assert count == render(scenario(name)).one("Deployment")["spec"].get("replicas")


@every_scenario
def test_the_gateway_listens_where_the_values_say(name: str, tmp_path: Path) -> None:
    """The image has variables that beat a file; so does the pod, and its own beat the image's."""
    found = render(scenario(name))
    file = tmp_path / "gateway.toml"
    file.write_text(found.toml)
    image = dict(re.findall(r"(NSQ_GATEWAY_\w+)=(\S+)", (ROOT / "Dockerfile").read_text()))
    pod = {
        # As the kubelet does.
        each["name"]: each.get("value", "").replace("$(POD_IP)", "10.0.0.7")
        for each in found.gateway["env"]
    }
    assert "/etc/nsq-gateway/gateway.toml" == pod.pop("NSQ_GATEWAY_CONFIG")

    ended = subprocess.run(
        [sys.executable, "-m", "gateway", "settings", "--json"],
        env={"PATH": "/usr/bin:/bin", **image, **pod, "NSQ_GATEWAY_CONFIG": str(file)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert 0 == ended.returncode, ended.stderr
    shown = {
        each: json.loads(ended.stdout)[each]["value"] for each in ("listen", "management_listen")
    }
    said = {each: scenario(name)["settings"].get(each) for each in shown}
    assert {"listen", "management_listen"} <= {each.lower()[12:] for each in image}
    assert {
        "listen": said["listen"] or "0.0.0.0:8080",
        "management_listen": said["management_listen"] or "0.0.0.0:8081",
    } == shown


def test_a_rollout_has_time_for_one_step_of_it() -> None:
    """Kubernetes counts anew after each: 56 s to end, 30 s to prove itself, 60 s to start."""
    spec = render(scenario("insecure")).one("Deployment")["spec"]
    slow = merged(scenario("insecure"), at("minReadySeconds", 600))

    assert 600 == spec["progressDeadlineSeconds"]
    assert 716 == render(slow).one("Deployment")["spec"]["progressDeadlineSeconds"]


@pytest.mark.parametrize(
    "values", [scenario("trial"), merged(MINIMAL_VALUES, at("strategy.type", "Recreate"))]
)
def test_who_cannot_roll_is_recreated(values: Json) -> None:
    """Two brokers would share out callers and no messages; and no pace is left beside the word."""
    assert {"type": "Recreate"} == render(values).one("Deployment")["spec"]["strategy"]


def kept(*layers: Json) -> Render:
    """Return the chart with the messages of the embedded broker on a volume."""
    return render(merged(scenario("broker"), *layers))


def test_messages_on_a_volume_are_in_one_pod_of_a_stateful_set() -> None:
    """In place of the Deployment; the settings name the folder that the volume is mounted at."""
    found = kept()
    spec = found.one("StatefulSet")["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    mount = {each["name"]: each["mountPath"] for each in found.gateway["volumeMounts"]}

    assert ([], 1) == (found.of("Deployment"), spec["replicas"])
    assert mount[claim["metadata"]["name"]] == str(settings_of(found).broker_data_path) == "/data"
    assert {
        "accessModes": ["ReadWriteOncePod"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "20Gi"}},
    } == claim["spec"]
    assert {"example.org/backup": "daily"} == claim["metadata"]["annotations"]


def test_the_volume_is_all_that_a_stateful_pod_has_more() -> None:
    """Both kinds have the pod from one template."""
    stateful = kept().pod
    stateful["containers"][0]["volumeMounts"].pop()

    assert kept(at("broker.persistence.enabled", False)).pod == stateful


def test_the_user_of_the_pod_may_write_to_the_volume() -> None:
    """A new volume belongs to root: Kubernetes gives it to the group of the pod."""
    security = kept().pod["securityContext"]

    assert security["runAsGroup"] == security["fsGroup"] != 0


def test_a_claim_that_is_there_is_used_and_no_other_made() -> None:
    found = kept(at("broker.persistence.existingClaim", "orders"))
    volumes = {each["name"]: each for each in found.pod["volumes"]}

    assert {"claimName": "orders"} == volumes["messages"]["persistentVolumeClaim"]
    assert "volumeClaimTemplates" not in found.one("StatefulSet")["spec"]
    assert "delete persistentvolumeclaim orders" in found.texts["templates/NOTES.txt"]


@pytest.mark.parametrize("retain,policy", [(True, "Retain"), (False, "Delete")])
def test_an_uninstall_keeps_the_volume_unless_told(policy: str, *, retain: bool) -> None:
    """A scale to nothing is a pause, and keeps it in any case."""
    found = kept(at("broker.persistence.retain", retain))
    policies = found.one("StatefulSet")["spec"]["persistentVolumeClaimRetentionPolicy"]

    assert {"whenDeleted": policy, "whenScaled": "Retain"} == policies
    warning = "WARNING: broker.persistence.retain is off"
    assert retain == (warning not in found.texts["templates/NOTES.txt"])


def test_a_long_name_leaves_room_for_what_kubernetes_appends() -> None:
    """A hash in a label of the pods; the notes name the claim that Kubernetes makes of it."""
    found = render(scenario("broker"), release="n" * 53)
    name = found.one("StatefulSet")["metadata"]["name"]

    assert [] == list(all_findings(found))
    assert f"the claim messages-{name}-0." in found.texts["templates/NOTES.txt"]


def test_messages_in_memory_leave_less_for_sockets() -> None:
    """512 MiB less, of which each counted byte of a socket takes 1.25."""
    without, beside = (
        settings_of(kept(at("broker.persistence.enabled", on))).sockets_buffer_bytes
        for on in (False, True)
    )

    assert 512 * 2**20 == pytest.approx(1.25 * (without - beside), abs=2)


@pytest.mark.parametrize(
    "layer,words",
    [
        ({}, "There is one pod and no copy of its messages"),
        ({}, "publishes fail and sockets are closed: callers must try again"),
        ({}, "kubectl taint nodes NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"),
        ({}, """-- python -m sqlite3 /data/nsq-gateway.db "VACUUM INTO '/data/copy.db'\""""),
        ({}, "rollout status statefulset/t-nsq-gateway"),
        (at("broker.persistence.enabled", False), "in memory only: they are lost with the pod"),
        (at("broker.persistence.enabled", False), "rollout status deployment/t-nsq-gateway"),
    ],
)
def test_the_notes_tell_what_one_broker_means(layer: Json, words: str) -> None:
    assert words in kept(layer).texts["templates/NOTES.txt"]


def test_the_notes_call_no_messages_lost_that_have_a_folder_of_ones_own() -> None:
    layer = merged(
        at("broker.persistence.enabled", False), at("settings.broker_data_path", "/srv/messages")
    )

    assert "in memory only" not in kept(layer).texts["templates/NOTES.txt"]


OURS = {
    "app.kubernetes.io/name": "nsq-gateway",
    "app.kubernetes.io/instance": "t",
    "app.kubernetes.io/component": "gateway",
}


def test_the_pods_are_spread_over_nodes_and_zones() -> None:
    """Where there is room; each rollout by itself."""
    constraints = render(MINIMAL_VALUES).pod["topologySpreadConstraints"]

    assert ["kubernetes.io/hostname", "topology.kubernetes.io/zone"] == [
        each["topologyKey"] for each in constraints
    ]
    for each in constraints:
        assert (1, "ScheduleAnyway") == (each["maxSkew"], each["whenUnsatisfiable"])
        assert ["pod-template-hash"] == each["matchLabelKeys"]
        assert {"matchLabels": OURS} == each["labelSelector"]


def test_a_constraint_of_ones_own_stands_as_it_was_said() -> None:
    """In place of ours; who it is about is filled in where nothing is said of it."""
    zones: Json = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    all_of_team = {"matchLabels": {"team": "messaging"}}
    said = [{**zones, "minDomains": 3}, {**zones, "labelSelector": all_of_team}]

    found = render(merged(MINIMAL_VALUES, at("topologySpreadConstraints", said))).pod

    assert [{**said[0], "labelSelector": {"matchLabels": OURS}}, said[1]] == (
        found["topologySpreadConstraints"]
    )


def test_pods_may_be_left_where_they_come() -> None:
    """An empty list is no constraint."""
    found = render(merged(MINIMAL_VALUES, at("topologySpreadConstraints", [])))

    assert "topologySpreadConstraints" not in found.pod


def test_the_pods_stay_when_only_the_chart_is_newer() -> None:
    """Labels with a version would start every pod anew, and close every socket."""
    found = render(scenario("full"))
    labels = found.one("Deployment")["spec"]["template"]["metadata"]["labels"]

    assert {"team": "messaging", **found.service["spec"]["selector"]} == labels


TLS_BY_PATH = {"settings": {"tls_cert": "/srv/tls/cert.pem", "tls_key": "/srv/tls/key.pem"}}
TLS_BY_SECRET = at("secrets.tls.name", "nsq-gateway-tls")


@pytest.mark.parametrize("tls", [TLS_BY_PATH, TLS_BY_SECRET], ids=["path", "secret"])
@pytest.mark.parametrize(
    "plain,secured", [("http", "https"), ("kubernetes.io/ws", "kubernetes.io/wss"), ("tcp", "tcp")]
)
def test_tls_is_known_wherever_it_comes_from(tls: Json, plain: str, secured: str) -> None:
    """The Service tells it, and neither a test pod nor the notes speak of plain HTTP."""
    without = merged(MINIMAL_VALUES, at("service.appProtocol", plain))
    before, after = render(without), render(merged(without, tls))

    assert plain == before.service["spec"]["ports"][0]["appProtocol"]
    assert secured == after.service["spec"]["ports"][0]["appProtocol"]
    assert (1, 0) == (len(before.of("Pod")), len(after.of("Pod")))


@pytest.mark.parametrize("release", ["name", "n" * 53])
def test_keda_counts_the_sockets_of_its_own_pods(release: str) -> None:
    """A release called like ours and a bit more is another one; a long name is cut in its pods."""
    found = render(scenario("keda"), release=release)
    fullname = found.one("Deployment")["metadata"]["name"]
    trigger = found.one("ScaledObject")["spec"]["triggers"][0]["metadata"]
    pattern = re.search(r'pod=~"([^"]+)"', trigger["query"])
    assert pattern is not None

    def pod_of(deployment: str) -> str:
        return f"{deployment}-5c689d88bb-"[:58] + "x7k2p"

    assert re.fullmatch(pattern[1], pod_of(fullname))
    if release == "name":
        assert not re.fullmatch(pattern[1], pod_of(f"{fullname}-blue"))
        assert not re.fullmatch(pattern[1], f"{fullname}-test")
    assert "false" == trigger["ignoreNullValues"]


def test_a_budget_is_there_where_there_may_be_two() -> None:
    """An autoscaler that begins with one pod may have ten later."""
    scaled = {"autoscaling": {"enabled": True, "minReplicas": 1}}

    assert 1 == len(render(merged(MINIMAL_VALUES, scaled)).of("PodDisruptionBudget"))


@pytest.mark.parametrize("name,count", [("trial", 0), ("insecure", 1), ("full", 1)])
def test_one_pod_alone_holds_up_no_node(name: str, count: int) -> None:
    """A budget over one pod would stop every drain of its node."""
    assert count == len(render(scenario(name)).of("PodDisruptionBudget"))


def test_the_least_time_to_end_is_what_the_readme_says() -> None:
    """5 + 10 + 20 + 5 + 1 + 15 with the defaults."""
    delayed = merged(scenario("insecure"), {"settings": {"drain_delay_s": 4}})

    assert 56 == render(scenario("insecure")).pod["terminationGracePeriodSeconds"]
    assert 60 == render(delayed).pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(
    "memory,expected",
    [("1Gi", 650_594_222), ("1073741824", 650_594_222), ("2000M", 1_391_600_762), (None, None)],
)
def test_what_may_wait_for_sockets_is_what_the_memory_leaves(
    memory: str | None, expected: int | None
) -> None:
    """In each form of a quantity; without a limit the gateway's own default holds."""
    values = merged(scenario("insecure"), at("resources.limits.memory", memory))
    settings = settings_of(render(values))

    default = ServeSettings.model_fields["sockets_buffer_bytes"].default
    assert (expected or default) == settings.sockets_buffer_bytes


def test_what_may_wait_for_sockets_may_be_said() -> None:
    values = merged(scenario("insecure"), at("settings.sockets_buffer_bytes", 300_000_000))

    assert 300_000_000 == settings_of(render(values)).sockets_buffer_bytes


@pytest.mark.parametrize("name,count", [("trial", 1), ("auth", 1), ("full", 0), ("extras", 0)])
def test_helm_test_is_there_where_it_can_pass(name: str, count: int) -> None:
    """It needs a secret where one is asked for, and speaks no TLS."""
    assert count == len(render(scenario(name)).of("Pod"))


_COLLECTOR = {"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "ports": [{"port": 4318}]}


@pytest.mark.parametrize("egress,is_told", [([], True), ([_COLLECTOR], False)])
def test_the_notes_tell_of_spans_that_nothing_lets_out(
    egress: list[Json], *, is_told: bool
) -> None:
    """A policy drops them without a word; a rule of one's own is taken for theirs."""
    values = merged(
        scenario("full"),
        at("settings.tracing", True),
        at("networkPolicy.extraEgress", egress),
    )

    notes = render(values).texts["templates/NOTES.txt"]

    assert is_told == ("add the collector to networkPolicy.extraEgress" in notes)


_NGINX = {"ingress.annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS"}}
_TRAEFIK = {"service.annotations": {"traefik.ingress.kubernetes.io/service.serversscheme": "https"}}
_IDLE = {"ingress.annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "60"}}


@pytest.mark.parametrize("tls", [TLS_BY_PATH, TLS_BY_SECRET], ids=["path", "secret"])
@pytest.mark.parametrize(
    "annotations,is_told",
    [({}, True), (_IDLE, True), (_NGINX, False), (_TRAEFIK, False)],
    ids=["none", "another", "nginx", "traefik"],
)
def test_the_notes_tell_of_an_ingress_that_speaks_plain_http(
    tls: Json, annotations: dict[str, Json], *, is_told: bool
) -> None:
    """Its controller gets 400 from each pod; the annotation against it is the controller's own."""
    ingress = at("ingress", {"enabled": True, "hosts": ["nsq.example.org"]})
    values = merged(
        MINIMAL_VALUES, ingress, *(at(path, each) for path, each in annotations.items())
    )
    warning = "WARNING: the pods use TLS, but an Ingress controller connects to them with plain"

    assert is_told == (warning in render(merged(values, tls)).texts["templates/NOTES.txt"])
    assert warning not in render(values).texts["templates/NOTES.txt"]


@pytest.mark.parametrize("name,is_told", [("auth", True), ("insecure", False)])
def test_the_notes_tell_who_checks_a_secret(name: str, *, is_told: bool) -> None:
    """The gateway wants one; whether it is right only nsqd can say."""
    notes = render(scenario(name)).texts["templates/NOTES.txt"]

    assert is_told == ("An nsqd without AUTH accepts any secret" in notes)
