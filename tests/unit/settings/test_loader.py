"""Loading settings: sources, their precedence, and unknown names."""

import asyncio
import re
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

from gateway.errors import SettingRefused, SettingsError
from gateway.settings.broker import BrokerSettings
from gateway.settings.loader import (
    load,
)
from gateway.settings.serve import ServeSettings
from tests.support.brokers.nsqd import nsqd_binary


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a TOML file with one setting of `serve`."""
    path = tmp_path / "gateway.toml"
    path.write_text("max_sockets = 3\n")
    return path


@pytest.mark.parametrize(
    "layers,expected",
    [
        ((), (1_000, "default")),
        (("file",), (3, "file")),
        (("file", "environment"), (2, "environment")),
        (("file", "environment", "flag"), (1, "flag")),
        (("environment", "flag"), (1, "flag")),
        (("file", "flag"), (1, "flag")),
    ],
)
def test_flag_beats_environment_beats_file_beats_default(
    layers: tuple[str, ...],
    expected: tuple[int, str],
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source with the highest precedence decides, and is the origin."""
    if "environment" in layers:
        monkeypatch.setenv("NSQ_GATEWAY_MAX_SOCKETS", "2")
    flags = {"max_sockets": "1"} if "flag" in layers else {}

    loaded = load(ServeSettings, flags, config if "file" in layers else None)

    assert expected == (loaded.settings.max_sockets, loaded.origins["max_sockets"])


def test_a_list_can_stand_in_every_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TOML has lists, the environment has commas."""
    path = tmp_path / "gateway.toml"
    path.write_text('nsqd_tcp_address = ["a:1", "b:2"]\n')
    monkeypatch.setenv("NSQ_GATEWAY_NSQD_HTTP_ADDRESS", "a:3,b:4")

    settings = load(ServeSettings, {}, path).settings

    assert (("a:1", "b:2"), ("a:3", "b:4")) == (
        settings.nsqd_tcp_address,
        settings.nsqd_http_address,
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "max_socket = 3",
            r"^max_socket in .*: there is no such setting; did you mean max_sockets",
        ),
        ("[serve]\nmax_sockets = 3", r"^\[serve\] in .*: tables are not supported"),
        # pydantic would read true as 1.
        ("max_sockets = true", r"--max-sockets \(file\) is True; allowed: 1 to"),
    ],
    ids=["an unknown key", "a table", "true for a number"],
)
def test_what_is_no_setting_in_the_file_is_refused(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(text + "\n")

    with pytest.raises(SettingsError, match=expected):
        load(ServeSettings, {}, path)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("NSQ_GATEWAY_NSQD_TCP_ADRESS", "did you mean nsqd_tcp_address"),
        ("NSQ_GATEWAY_VERSION", "in the environment: there is no such setting"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    monkeypatch.setenv(name, "a:1")

    with pytest.raises(SettingsError, match=expected):
        load(ServeSettings, {})


def test_a_variable_of_kubernetes_names_what_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes creates such variables in each pod next to a Service of this name."""
    monkeypatch.setenv("NSQ_GATEWAY_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(SettingRefused, match="enableServiceLinks: false"):
        load(ServeSettings, {})


def test_settings_of_the_other_command_may_stand_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSQ_GATEWAY_MEM_QUEUE_SIZE", "5")
    monkeypatch.setenv("NSQ_GATEWAY_URL", "http://a:1")

    assert (5, 1_000) == (
        load(BrokerSettings, {}).settings.mem_queue_size,
        load(ServeSettings, {}).settings.max_sockets,
    )


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates leave empty variables behind."""
    monkeypatch.setenv("NSQ_GATEWAY_MAX_SOCKETS", "")

    assert "default" == load(ServeSettings, {}).origins["max_sockets"]


@pytest.mark.parametrize(
    "text,expected", [(None, "the path of a TOML file"), ("max_sockets = \n", "TOML")]
)
def test_a_file_that_cannot_be_read_is_named(
    text: str | None, expected: str, tmp_path: Path
) -> None:
    """A missing file and invalid TOML are one sentence each."""
    path = tmp_path / "gateway.toml"
    if text is not None:
        path.write_text(text)

    with pytest.raises(SettingsError, match=expected):
        load(ServeSettings, {}, path)


def test_a_path_that_the_system_refuses_is_named_with_its_reason(tmp_path: Path) -> None:
    """The file is not readable, or its name is invalid."""
    with pytest.raises(SettingsError, match="the path of a TOML file; File name too long"):
        load(ServeSettings, {}, tmp_path / ("x" * 300))


@pytest.mark.nsqd
async def test_every_option_of_nsqd_is_a_setting() -> None:
    """nsqd's own --help lists the options."""
    nsqd = await asyncio.create_subprocess_exec(
        str(nsqd_binary()), "--help", stdout=DEVNULL, stderr=PIPE
    )
    text = (await nsqd.communicate())[1].decode()
    options = [
        name.replace("-", "_") for name in re.findall(r"^  -([a-z0-9-]+)", text, re.MULTILINE)
    ]
    ours = {*BrokerSettings.model_fields, "config", "version"}

    assert "mem_queue_size" in options
    assert [] == [name for name in options if name not in ours]


def test_a_file_may_have_nsqds_keys(tmp_path: Path) -> None:
    """Four of them differ from the name of the flag."""
    path = tmp_path / "nsqd.toml"
    path.write_text(
        'id = 5\nnsqlookupd_tcp_addresses = ["a:1", "b:2"]\nauth_http_addresses = ["c:3"]\n'
        "e2e_processing_latency_percentiles = [1.0, 0.99]\n"
    )

    settings = load(BrokerSettings, {}, path).settings

    assert (5, ("a:1", "b:2"), ("c:3",), (1.0, 0.99)) == (
        settings.node_id,
        settings.lookupd_tcp_address,
        settings.auth_http_address,
        settings.e2e_processing_latency_percentile,
    )


def test_a_file_has_a_setting_under_one_key_only(tmp_path: Path) -> None:
    """Which of the two would count is not obvious."""
    path = tmp_path / "nsqd.toml"
    path.write_text("id = 5\nnode_id = 6\n")

    with pytest.raises(SettingRefused, match=r"id in .*same setting as node_id"):
        load(BrokerSettings, {}, path)
