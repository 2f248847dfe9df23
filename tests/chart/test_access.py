"""The access file and the auth server in the chart: volumes, Services, policy, notes."""

from __future__ import annotations

import base64

import pytest

from tests.support.chart.checks import all_findings, settings_of
from tests.support.chart.render import MINIMAL_VALUES, Json, at, merged, render, scenario

CONTENT = scenario("access")["access"]["content"]


def volume(values: Json) -> Json:
    """Return the volume of the access file."""
    (found,) = [each for each in render(values).pod["volumes"] if each["name"] == "access"]
    return dict(found)


@pytest.mark.parametrize(
    "access,source",
    [
        (
            {"secret": {"name": "policy", "key": "who.toml"}},
            {"secret": {"secretName": "policy", "defaultMode": 0o440}},
        ),
        ({"configMap": {"name": "policy", "key": "who.toml"}}, {"configMap": {"name": "policy"}}),
        (
            {"content": CONTENT},
            {"secret": {"secretName": "t-nsq-gateway-access", "defaultMode": 0o440}},
        ),
    ],
    ids=["secret", "configMap", "content"],
)
def test_the_file_is_mounted_from_where_the_values_say(access: Json, source: Json) -> None:
    values = merged(MINIMAL_VALUES, {"access": access})
    name = "access.toml" if "content" in access else "who.toml"

    assert {"name": "access", **source} == volume(values)
    assert f"/etc/nsq-gateway/access/{name}" == settings_of(render(values)).access_file
    assert [] == list(all_findings(render(values)))


@pytest.mark.parametrize("access", [{"secret": {"name": "a"}}, {"content": CONTENT}])
def test_the_mounted_file_follows_changes(access: Json) -> None:
    """Kubernetes never updates a subPath; other mounts it updates behind a symbolic link."""
    values = merged(MINIMAL_VALUES, {"access": access})
    (mount,) = [each for each in render(values).gateway["volumeMounts"] if each["name"] == "access"]

    assert {"name": "access", "mountPath": "/etc/nsq-gateway/access", "readOnly": True} == mount


def test_another_content_restarts_no_pod() -> None:
    """The gateway reads the file again; a restart would close every socket."""
    values = scenario("access")
    pods = [
        render(merged(values, at("access.content", content))).workload["spec"]["template"]
        for content in (CONTENT, CONTENT + "# changed")
    ]

    assert pods[0] == pods[1]


def test_the_content_arrives_unchanged() -> None:
    content = CONTENT + '# {{ .Values.image.tag }} and ünïcode: "\t"\n'

    secret = render(merged(scenario("access"), at("access.content", content))).one("Secret")

    assert content == base64.b64decode(secret["data"]["access.toml"]).decode()


def test_without_content_there_is_no_secret() -> None:
    values = merged(MINIMAL_VALUES, at("access.secret.name", "policy"))

    assert [] == render(values).of("Secret")


@pytest.mark.parametrize(
    "listen,expected", [("0.0.0.0:8080", "0.0.0.0:4181"), ("[::]:80", "[::]:4181")]
)
def test_the_auth_server_has_a_service_and_a_port(listen: str, expected: str) -> None:
    """It listens on the same addresses as the public port."""
    layers = {"settings": {"listen": listen}, "authServer": {"port": 4181}}
    found = render(merged(scenario("access"), layers))
    (service,) = found.of("Service", lambda each: each["metadata"]["name"].endswith("-auth"))

    assert expected == settings_of(found).auth_listen
    assert "ClusterIP" == service["spec"]["type"]
    assert [
        {
            "name": "auth",
            "port": 4181,
            "targetPort": "auth",
            "protocol": "TCP",
            "appProtocol": "https",
        }
    ] == service["spec"]["ports"]
    assert [] == list(all_findings(found))


def test_without_an_auth_server_nothing_has_its_port() -> None:
    found = render(merged(scenario("access"), at("authServer.enabled", False)))

    assert settings_of(found).auth_listen is None
    assert 1 == len(found.of("Service"))
    assert ["http", "management"] == [each["name"] for each in found.gateway["ports"]]


def test_only_nsqds_reach_the_auth_server_and_only_issuers_are_reached() -> None:
    values = scenario("access")
    policy = render(values).one("NetworkPolicy")["spec"]
    to_auth = [
        rule["from"]
        for rule in policy["ingress"]
        if {"port": "auth", "protocol": "TCP"} in rule["ports"]
    ]
    to_443 = [
        rule["to"] for rule in policy["egress"] if {"port": 443, "protocol": "TCP"} in rule["ports"]
    ]

    assert [values["networkPolicy"]["authFrom"]] == to_auth
    assert [values["networkPolicy"]["jwksTo"]] == to_443


@pytest.mark.parametrize(
    "tls,flag",
    [
        ("nsq-gateway-tls", "--auth-http-address=https://t-nsq-gateway-auth.gw:4180/auth"),
        ("", "--auth-http-address=t-nsq-gateway-auth.gw:4180"),
    ],
)
def test_the_notes_have_the_flag_for_nsqd(tls: str, flag: str) -> None:
    values = merged(scenario("access"), at("secrets.tls.name", tls))

    assert f"  {flag}\n" in render(values).texts["templates/NOTES.txt"]


def test_the_notes_call_no_gateway_open_that_has_an_access_file() -> None:
    open_to_all = render(MINIMAL_VALUES).texts["templates/NOTES.txt"]
    closed = render(merged(MINIMAL_VALUES, at("access.secret.name", "a"))).texts[
        "templates/NOTES.txt"
    ]

    assert "WARNING: settings.insecure is set" in open_to_all
    assert "WARNING: settings.insecure is set" not in closed
    assert "Callers need a token or an API key" in closed


@pytest.mark.parametrize("key,count", [("", 0), ("helm-test-key", 1)])
def test_helm_test_needs_a_key_of_the_access_file(key: str, count: int) -> None:
    """The gateway's own secret for nsqd is not one."""
    layers = [
        at("access.secret.name", "a"),
        at("secrets.auth.name", "own"),
        at("tests.authSecret.name", key),
    ]

    assert count == len(render(merged(MINIMAL_VALUES, *layers)).of("Pod"))
