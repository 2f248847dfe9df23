"""What the chart refuses, and the sentence that says what to set."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.chart.render import HELM, MINIMAL_VALUES, RenderError, at, merged, render

AUTOSCALED = {"autoscaling": {"enabled": True}}
KEDA = {"keda": {"enabled": True, "prometheusAddress": "http://prometheus:9090"}}
EMBEDDED = {
    "settings": {"insecure": True, "nsqd_tcp_address": None},
    "broker": {"embedded": True},
    "replicaCount": 1,
}
KEPT = merged(EMBEDDED, at("broker.persistence.enabled", True))
PEER = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
POLICY = {"networkPolicy": {"enabled": True, "publicFrom": PEER, "nsqTo": PEER}}
ACCESS = at("access.secret.name", "access")
ASKED = merged(ACCESS, at("authServer.enabled", True))

CONTRADICTIONS: list[tuple[list[dict[str, Any]], str]] = [
    ([at("settings.auth_secret", "s")], "secrets.auth.name"),
    (
        [at("settings.admin_secret_file", "/a"), at("secrets.admin.name", "a")],
        "settings.admin_secret_file: it conflicts with secrets.admin.name",
    ),
    (
        [at("settings.lease_key_file", "/k"), at("leases.secret", "l")],
        "settings.lease_key_file: it conflicts with leases.secret",
    ),
    (
        [at("settings.advertise_address", "n:8081"), at("leases.secret", "l")],
        "settings.advertise_address: it conflicts with leases.secret",
    ),
    ([at("secrets.nsqdTls", {"name": "a", "keyKey": "k"})], "set secrets.nsqdTls.certKey"),
    (
        [at("settings.tls_cert", "/c")],
        "settings.tls_cert: it has no effect without settings.tls_key",
    ),
    (
        [at("settings.tls_key", "/k")],
        "settings.tls_key: it has no effect without settings.tls_cert",
    ),
    ([at("settings.auth_anonymous", True)], "settings.auth_anonymous: there is no secret for"),
    ([at("settings.publish_rate_burst", 9)], "without settings.publish_rate_limit; set both"),
    (
        [at("settings", {"nsqd_snappy": True, "nsqd_deflate": True})],
        "settings.nsqd_snappy: it conflicts with settings.nsqd_deflate",
    ),
    ([at("settings.listen", "127.0.0.1:8080")], 'settings.listen is "127.0.0.1:8080"'),
    ([at("settings.management_listen", "[::1]:8081")], "not reachable from outside the pod"),
    ([at("settings.listen", None)], "set 0.0.0.0:PORT"),
    ([at("settings.listen", "0.0.0.0:0")], "port 0 is a random port"),
    ([at("settings.management_listen", "0.0.0.0:8080")], "settings.listen uses port 8080 too"),
    ([at("settings.workers", 4)], "settings.workers is 4"),
    (
        [at("extraEnv", [{"name": "NSQ_GATEWAY_LISTEN", "value": "[::]:1"}])],
        "extraEnv: the chart sets NSQ_GATEWAY_LISTEN",
    ),
    ([EMBEDDED, at("settings.nsqd_tcp_address", ["a:1"])], "settings has an address of NSQ"),
    ([EMBEDDED, AUTOSCALED], "turn autoscaling.enabled and keda.enabled off"),
    ([EMBEDDED, at("replicaCount", 2)], "set replicaCount: 1 (it is 2)"),
    ([EMBEDDED, at("settings.insecure", False)], "or settings.insecure: true"),
    ([at("broker.persistence.enabled", True)], "it keeps the messages of the embedded broker, and"),
    (
        [KEPT, at("settings.broker_data_path", "/srv")],
        "settings.broker_data_path: it conflicts with broker.persistence.enabled",
    ),
    (
        [at("settings.nsqd_tcp_address", [])],
        "the address of NSQ is missing; set lookupd_http_address",
    ),
    ([at("settings.insecure", False)], "the access rule is missing; set access to say"),
    (
        [ACCESS, at("access.content", "[[key]]")],
        "access.content: it conflicts with access.secret.name, because there is one access file",
    ),
    (
        [ASKED, at("settings.auth_listen", "0.0.0.0:4180")],
        "settings.auth_listen: it conflicts with authServer.enabled",
    ),
    ([ASKED, at("authServer.port", 8081)], "settings.management_listen uses port 8081 too"),
    ([at("authServer.enabled", True)], "it answers by the access file, and there is none"),
    ([at("settings.nsqd_auth", "own")], "settings.nsqd_auth: it has no effect without an access"),
    (
        [ACCESS, at("settings.jwks_refresh_s", 7_200)],
        "settings.jwks_max_stale_s: keys would end before they are requested again",
    ),
    ([at("terminationGracePeriodSeconds", 55)], "is 55, but a drain takes 56 s"),
    ([at("probes.liveness", None)], "probes.liveness is null: every probe is required"),
    (
        [AUTOSCALED, at("autoscaling.socketsPerPod", 1000)],
        "autoscaling.socketsPerPod is 1000, but a pod accepts at most settings.max_sockets",
    ),
    (
        [KEDA, at("settings.max_sockets", 500)],
        "autoscaling.socketsPerPod is 500, but a pod accepts at most settings.max_sockets (500)",
    ),
    ([at("settings.max_sockets", 10_000)], "is 1Gi and leaves 114 MiB for the unsent bytes of"),
    ([at("resources.limits.memory", "128Mi")], "is 128Mi and leaves 0 MiB for the unsent bytes of"),
    (
        [at("settings.sockets_buffer_bytes", 900_000_000)],
        "settings.sockets_buffer_bytes is 900000000, but resources.limits.memory (1Gi) leaves",
    ),
    ([at("progressDeadlineSeconds", 145)], "is 145, but a step of a rollout may take 146 s"),
    ([AUTOSCALED, KEDA], "keda.enabled: it conflicts with autoscaling.enabled"),
    ([AUTOSCALED, at("autoscaling.minReplicas", 11)], "is 11, above"),
    (
        [AUTOSCALED, at("autoscaling.socketsPerPod", 0), at("autoscaling.cpuPercent", 0)],
        "set socketsPerPod or cpuPercent above 0",
    ),
    ([AUTOSCALED, at("resources.requests", {"cpu": None})], "resources.requests.cpu"),
    ([KEDA, at("keda.prometheusAddress", "")], "keda.prometheusAddress: it is missing"),
    (
        [at("podMonitor.enabled", True), at("serviceMonitor.enabled", True)],
        "serviceMonitor.enabled: it conflicts with podMonitor.enabled",
    ),
    ([at("service.nodePort", 30_900)], "service.nodePort: a Service of type ClusterIP does not"),
    ([at("service.loadBalancerClass", "a/b")], "set service.type: LoadBalancer"),
    (
        [at("service", {"type": "NodePort", "loadBalancerSourceRanges": ["192.0.2.0/24"]})],
        "service.loadBalancerSourceRanges: a Service of type NodePort does not",
    ),
    ([at("service.externalTrafficPolicy", "Local")], "service.externalTrafficPolicy: a Service"),
    ([at("httpRoute.enabled", True)], "httpRoute.parentRefs: it is missing"),
    ([at("ingress.enabled", True)], "ingress.hosts: it is missing; set the hosts"),
    (
        [POLICY, at("networkPolicy.publicFrom", [])],
        "networkPolicy.publicFrom: an empty list allows no",
    ),
    ([POLICY, at("networkPolicy.dnsTo", [])], "networkPolicy.dnsTo: an empty list allows no DNS"),
    (
        [POLICY, at("podMonitor.enabled", True)],
        "networkPolicy.managementFrom: a monitor is enabled",
    ),
    ([POLICY, at("networkPolicy.nsqTo", [])], "networkPolicy.nsqTo: an empty list allows no"),
    (
        [POLICY, at("settings.nsqd_tcp_address", ["nsqd:4250"])],
        "networkPolicy.nsqPorts: settings.nsqd_tcp_address uses port 4250",
    ),
    ([POLICY, ASKED], "networkPolicy.authFrom: authServer is enabled, but an empty list allows"),
    (
        [POLICY, at("access.content", 'jwks_url = "https://id.example.org/jwks.json"')],
        "networkPolicy.jwksTo: access.content has a jwks_url",
    ),
    ([at("podMonitor", {"scrapeTimeout": "1m"})], "podMonitor.scrapeTimeout is 1m, longer"),
]


# One place in the template says each of them, whatever makes them true.
ALSO_WITH_A_VOLUME: list[tuple[list[dict[str, Any]], str]] = [
    ([KEPT, AUTOSCALED], "turn autoscaling.enabled and keda.enabled off"),
    ([KEPT, KEDA], "turn autoscaling.enabled and keda.enabled off"),
    ([KEPT, at("replicaCount", 2)], "set replicaCount: 1 (it is 2)"),
    ([KEPT, at("settings.max_sockets", 4_000)], "is 1Gi and leaves 42 MiB for the unsent bytes of"),
]


@pytest.mark.parametrize("layers,words", ALSO_WITH_A_VOLUME, ids=lambda value: str(value)[:60])
def test_a_volume_allows_no_second_broker(layers: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(RenderError, match=re.escape(words)):
        render(merged(MINIMAL_VALUES, *layers))


@pytest.mark.parametrize("layers,words", CONTRADICTIONS, ids=lambda value: str(value)[:60])
def test_values_that_do_not_go_together_are_one_sentence(
    layers: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(RenderError, match=re.escape(words)):
        render(merged(MINIMAL_VALUES, *layers))


def test_every_sentence_of_the_chart_is_heard_here() -> None:
    """A `fail` that no test makes say its words could say anything."""
    sentences = re.findall(r"\{\{- fail ", (HELM / "templates" / "validate.yaml").read_text())

    assert len(sentences) <= len(CONTRADICTIONS)
    heard = {_said(merged(MINIMAL_VALUES, *layers)) for layers, _ in CONTRADICTIONS}
    assert len(sentences) == len(heard)


def _said(values: dict[str, Any]) -> str:
    """Return the place in the template that refuses *values*."""
    with pytest.raises(RenderError) as caught:
        render(values)
    found = re.search(r"validate\.yaml:(\d+)", str(caught.value))
    assert found is not None
    return found[1]


def test_what_each_contradiction_is_made_of_is_taken_without_it() -> None:
    """The sentences above are about what they name, and nothing else is wrong there."""
    for layers in ([], [EMBEDDED], [KEPT], [AUTOSCALED], [KEDA], [POLICY], [ACCESS], [ASKED]):
        assert render(merged(MINIMAL_VALUES, *layers)).objects


@pytest.mark.parametrize(
    "layer",
    [
        {"settings": {"auth_anonymous": True}, "secrets": {"auth": {"name": "a"}}},
        {
            "settings": {"tls_cert": "/c"},
            "extraEnv": [{"name": "NSQ_GATEWAY_TLS_KEY", "value": "/k"}],
        },
        {
            "settings": {"publish_rate_burst": 9},
            "extraEnvFrom": [{"configMapRef": {"name": "rates"}}],
        },
        merged(ACCESS, at("settings.insecure", None)),
        merged(EMBEDDED, ACCESS, at("settings.insecure", None)),
        merged(POLICY, ASKED, at("networkPolicy.authFrom", PEER)),
        {
            "settings": {"nsqd_auth": "own"},
            "authServer": {"enabled": True},
            "extraEnv": [{"name": "NSQ_GATEWAY_ACCESS_FILE", "value": "/a"}],
        },
        at("settings.nsqd_http_address", ["[2001:db8::1]:65535", "nsqd:1"]),
        at("settings.lookupd_http_address", ["nsqlookupd:4161", "https://lookup.example/a"]),
        merged(
            POLICY, at("settings.nsqd_tcp_address", ["nsqd:1"]), at("networkPolicy.nsqPorts", [1])
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_goes_together_is_taken(layer: dict[str, Any]) -> None:
    """The other half is in a Secret, in a variable, or somewhere that the chart does not see."""
    assert render(merged(MINIMAL_VALUES, layer)).objects


@pytest.mark.parametrize(
    "path,value",
    [
        ("replicaCount", -1),
        ("replicaCount", "two"),
        ("replicas", 2),
        ("image.digest", "sha256:abc"),
        ("image.tag", "a b"),
        ("image.pullPolicy", "Sometimes"),
        ("settings.max_sokets", 5),
        ("settings.max_sockets", 0),
        ("settings.drain_window_s", 4000),
        ("settings.log_level", "loud"),
        ("settings.listen", "here"),
        ("settings.require_auth", "yes"),
        ("settings.nsqd_tcp_address", "nsqd:4150"),
        ("settings.nsqd_tcp_address", ["nsqd"]),
        ("settings.nsqd_tcp_address", ["nsqd:0"]),
        ("settings.nsqd_http_address", ["http://nsqd:4151"]),
        ("settings.nsqd_http_address", ["nsqd:65536"]),
        ("settings.lookupd_http_address", ["nsqlookupd:70000"]),
        ("access.secret.name", "My Secret"),
        ("access.configMap.key", "a/b"),
        ("authServer.port", 80),
        ("networkPolicy.jwksTo", [{}]),
        ("networkPolicy.jwksPorts", []),
        ("broker.persistence.size", "8"),
        ("broker.persistence.accessModes", ["ReadWriteMany"]),
        ("broker.persistence.accessModes", []),
        ("broker.persistence.existingClaim", "My Claim"),
        ("service.port", 70000),
        ("service.type", "External"),
        ("httpRoute.timeouts", {"request": "never"}),
        ("httpRoute.hostnames", ["https://nsq.example.org"]),
        ("ingress.hosts", ["a/b"]),
        ("commonLabels", {"a": 1}),
        ("secrets.auth.secret", "s"),
        ("podMonitor.interval", "often"),
        ("networkPolicy.publicFrom", [{}]),
        ("networkPolicy.extraEgress", [{"to": PEER}]),
        ("lifecycle.preStopSleepSeconds", -1),
        ("probes.readiness.host", "bad.host"),
        ("pdb.maxUnavailable", 0),
        ("topologySpreadConstraints", [{"topologyKey": "zone"}]),
        ("keda.prometheusAddress", "prometheus:9090"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(path: str, value: object) -> None:
    """The schema tells where, and what is allowed."""
    place = path.rpartition(".")[0].replace(".", "/") if "." in path else ""

    with pytest.raises(RenderError, match=f"at '/?{place}"):
        render(merged(MINIMAL_VALUES, at(path, value)))
