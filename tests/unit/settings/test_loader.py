"""Loading settings: sources, their precedence, and unknown names."""

import asyncio
import re
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

from gateway.errors import SettingRefused, SettingsError
from gateway.settings.loader import (
    UNSUPPORTED_NSQD_OPTIONS,
    all_settings,
    load,
    unsupported_reason,
)
from gateway.settings.serve import BrokerSettings, ServeSettings
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


def test_an_unknown_key_of_the_file_names_the_nearest_setting(tmp_path: Path) -> None:
    """A typo is an error; it does not leave the default in effect."""
    path = tmp_path / "gateway.toml"
    path.write_text("max_socket = 3\n")

    with pytest.raises(
        SettingsError,
        match=r"^max_socket in .*: there is no such setting; did you mean max_sockets",
    ):
        load(ServeSettings, {}, path)


def test_a_table_in_the_file_is_refused_as_such(tmp_path: Path) -> None:
    """The error says that tables are not supported, and suggests no setting."""
    path = tmp_path / "gateway.toml"
    path.write_text("[serve]\nmax_sockets = 3\n")

    with pytest.raises(SettingsError, match=r"^\[serve\] in .*: tables are not supported"):
        load(ServeSettings, {}, path)


def test_true_in_the_file_is_no_number(tmp_path: Path) -> None:
    """pydantic would read true as 1."""
    path = tmp_path / "gateway.toml"
    path.write_text("max_sockets = true\n")

    with pytest.raises(SettingsError, match=r"--max-sockets \(file\) is True; allowed: 1 to"):
        load(ServeSettings, {}, path)


def test_an_unknown_variable_names_the_nearest_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every variable with the prefix must be a setting."""
    monkeypatch.setenv("NSQ_GATEWAY_NSQD_TCP_ADRESS", "a:1")

    with pytest.raises(SettingsError, match="did you mean nsqd_tcp_address"):
        load(ServeSettings, {})


def test_a_variable_of_kubernetes_names_what_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes creates such variables in each pod next to a Service of this name."""
    monkeypatch.setenv("NSQ_GATEWAY_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(SettingRefused, match="enableServiceLinks: false"):
        load(ServeSettings, {})


def test_an_unsupported_option_of_nsqd_is_refused_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise an operator might believe that AUTH is checked."""
    monkeypatch.setenv("NSQ_GATEWAY_AUTH_HTTP_ADDRESS", "a:1")

    with pytest.raises(
        SettingsError, match=r"in the environment: this option of nsqd is not supported: .*AUTH"
    ):
        load(ServeSettings, {})


def test_settings_of_the_other_command_may_stand_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands may share one environment."""
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
async def test_every_option_of_nsqd_is_a_setting_or_refused_with_a_reason() -> None:
    """nsqd's own --help lists the options; none is just "no such option"."""
    nsqd = await asyncio.create_subprocess_exec(
        str(nsqd_binary()), "--help", stdout=DEVNULL, stderr=PIPE
    )
    text = (await nsqd.communicate())[1].decode()
    options = [
        name.replace("-", "_") for name in re.findall(r"^  -([a-z0-9-]+)", text, re.MULTILINE)
    ]
    ours = {*BrokerSettings.model_fields, "config", "version"}

    unknown = [name for name in options if name not in ours and unsupported_reason(name) is None]

    assert "mem_queue_size" in options

    assert [] == unknown


def test_what_is_refused_is_no_setting() -> None:
    """No setting of `broker` is refused; `serve` has some of the names."""
    settings = {name for kind in all_settings() for name in kind.model_fields}

    assert not BrokerSettings.model_fields.keys() & UNSUPPORTED_NSQD_OPTIONS.keys()
    # Only serve has these: the gateway shows its port in /info, and supports TLS.
    of_serve = {"broadcast_http_port", "tls_cert", "tls_key", "tls_min_version"}
    assert of_serve == settings & UNSUPPORTED_NSQD_OPTIONS.keys()
