"""The command line: its output and exit status."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

import gateway
from gateway.cli.main import main
from gateway.cli.operate import OPERATE_COMMANDS
from gateway.credentials import Secret
from gateway.settings.serve import ServeSettings
from tools.document_settings import PAGE, SECTIONS, names_of, page


def run(*args: str) -> int:
    """Run the command line in this process; return its exit status and restore logging."""
    thresholds = gc.get_threshold()
    try:
        with pytest.raises(SystemExit) as caught:
            main(args)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    return caught.value.code if isinstance(caught.value.code, int) else 0


@pytest.mark.parametrize(
    "args,status,words",
    [
        (["serve", "--max-sockets", "0"], 2, ["--max-sockets (flag)", "1 to 1 000 000"]),
        (["serve", "--workers", "0"], 2, ["--workers (flag)", "1 to 64"]),
        (
            ["serve", "--workers=2", "--listen=127.0.0.1:0", "--management-listen=192.0.2.1:1"],
            1,
            ["192.0.2.1:1", "--management-listen"],
        ),
        (["serve", "--max-socket", "1"], 2, ["--max-socket", "--max-sockets"]),
        (["serve", "--data-path", "messages"], 2, ["--data-path", "--broker-data-path"]),
        (["serve", "--auth-secret-file", "/nowhere"], 2, ["--auth-secret-file", "/nowhere"]),
        (["serve", "--static-dir", "/nowhere"], 2, ["--static-dir is '/nowhere'", "a folder"]),
        (["serve", "--static-dir", ""], 2, ["--static-dir is ''", "the path is empty"]),
        (["serve", "--workers=2", "--static-dir", "/nowhere"], 2, ["--static-dir is '/nowhere'"]),
        (
            ["serve", "--nsqd-tcp-address=a:1", "--nsqd-tls-v1", "--nsqd-tls-root-ca-file=/no"],
            2,
            ["nsqd_tls_root_ca_file", "/no", "PEM"],
        ),
        (["pub", "no topic"], 2, ["TOPIC", "'no topic'", "1 to 64"]),
        (["sub", "t", ""], 2, ["CHANNEL", "''", "1 to 64"]),
        (["sub", "t"], 2, ["CHANNEL"]),
        (
            ["sub", "t", "c", "--url=http://a:1", "--nsqd-tcp-address=b:1"],
            2,
            ["--nsqd-tcp-address", "http://a:1", "--url, flag"],
        ),
        (["sub", "t", "c", "--low-rdy-timeout-s=3"], 2, ["--low-rdy-timeout-s", "--url, default"]),
        (
            ["pub", "t", "--url=http://a:1", "--max-req-timeout=1s"],
            2,
            ["--max-req-timeout", "http://a:1"],
        ),
        (["sub", "t", "c", "-n", "0"], 2, ["--count", "0"]),
        (["pub", "t", "--auth-secret", "x y"], 2, ["--auth-secret", "visible ASCII"]),
        (["serve", "--listen", "0.0.0.0:8080"], 2, ["not loopback", "--embedded-broker"]),
        (["serve", "--config", "/nowhere.toml"], 2, ["/nowhere.toml", "TOML file"]),
        (["broker", "-data-path="], 2, ["--data-path", "name the folder"]),
        (["broker", "--tcp-address", "here"], 2, ["--tcp-address", "'here'", "host:port"]),
        (["broker", "-tcp-address=192.0.2.1:1"], 1, ["192.0.2.1:1", "cannot listen"]),
        (["broker", "-max-rdy-count", "-50"], 2, ["--max-rdy-count (flag)", "'-50'"]),
        (["fly"], 2, ["fly"]),
    ],
)
def test_what_is_wrong_is_one_sentence_and_a_status(
    args: list[str], status: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2 is a usage error, 1 any other failure; there is no traceback."""
    code = run(*args)

    errors = capsys.readouterr().err
    assert status == code
    assert [] == [word for word in [*words] if word not in errors]
    assert "Traceback" not in errors


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` prints the version of the package."""
    assert 0 == run("--version")
    assert f"nsq-gateway, version {gateway.__version__}\n" == capsys.readouterr().out


def test_broker_tells_its_version_as_nsqd_does(capsys: pytest.CaptureFixture[str]) -> None:
    """`broker -version` works like `nsqd -version`, and names this program."""
    assert 0 == run("broker", "-version")
    expected = f"nsqd v1.3.0 (embedded in nsq-gateway {gateway.__version__})\n"
    assert expected == capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        [],
        *(["serve"], ["broker"], ["pub"], ["sub"], ["tail"]),
        *([command.name] for command in OPERATE_COMMANDS),
    ],
)
def test_help_has_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every command's --help has lines to copy."""
    assert 0 == run(*command, "--help")
    assert "Examples:\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "broker", "settings", "pub"])
def test_help_shows_default_range_and_variable(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == run(command, "--help")

    text = " ".join(capsys.readouterr().out.split())
    expected = "[default: 1048576; allowed: 1 to 1 073 741 824 bytes; NSQ_GATEWAY_MAX_MSG_SIZE]"
    assert expected in text


def test_settings_tell_each_value_and_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`settings` lists all settings, as a table and as JSON."""
    config = tmp_path / "gateway.toml"
    config.write_text("max_sockets = 7\n")
    monkeypatch.setenv("NSQ_GATEWAY_SLOW_CONSUMER_S", "2.5")

    run("settings", "--json", "--config", str(config), "--nsqd-tcp-address", "a:1")

    rows = json.loads(capsys.readouterr().out)
    assert set(ServeSettings.model_fields) == set(rows)
    assert [(7, "file"), (2.5, "environment"), (["a:1"], "flag"), ("info", "default")] == [
        (rows[name]["value"], rows[name]["origin"])
        for name in ("max_sockets", "slow_consumer_s", "nsqd_tcp_address", "log_level")
    ]


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("secret", ["hunter2", "-hunter2", "--listen=hunter2"])
def test_settings_hide_the_secret(
    form: list[str],
    secret: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The output has the secret's fingerprint; a leading dash is part of the secret."""
    run("settings", *form, "--auth-secret", secret)
    from_flag = capsys.readouterr().out
    monkeypatch.setenv("NSQ_GATEWAY_AUTH_SECRET", secret)
    run("settings", *form)
    from_environment = capsys.readouterr().out

    assert "hunter2" not in from_flag + from_environment
    assert [True, True] == [
        f"hidden ({Secret(secret.encode()).fingerprint})" in text
        for text in (from_flag, from_environment)
    ]


def test_help_lists_what_is_a_commands_own_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Settings shared by several commands, such as those of nsqd, come last."""
    run("sub", "--help")

    text = capsys.readouterr().out
    order = ["Options:", "--count", "--url", "Reaching nsqd:", "--nsqd-tls-v1", "Logs", "--config"]
    assert sorted(map(text.index, order)) == list(map(text.index, order))


def test_settings_are_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """The columns are name, value and origin."""
    run("settings", "--insecure")

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["insecure", "true", "flag"] in rows
    assert ["nsqd_tcp_address", "none", "default"] in rows


def test_the_page_of_settings_is_current() -> None:
    """docs/configuration.md equals the output of tools/document_settings.py."""
    assert page() == PAGE.read_text()


@pytest.mark.parametrize("kind", dict.fromkeys(section.kind for section in SECTIONS))
def test_the_page_of_settings_has_each_of_a_command_once(kind: type[BaseSettings]) -> None:
    """A new setting of `serve` needs a subject in tools/document_settings.py."""
    listed = [name for section in SECTIONS if section.kind is kind for name in names_of(section)]
    elsewhere = {
        name
        for section in SECTIONS
        if section.kind is not kind and issubclass(kind, section.kind)
        for name in names_of(section)
    }

    assert set() == set(kind.model_fields) - set(listed) - elsewhere
    assert len(listed) == len(set(listed))


def test_the_broker_starts_without_the_web() -> None:
    """`broker` imports no web framework; it ends because it cannot listen on the address."""
    command = [sys.executable, "-X", "importtime", "-m", "gateway", "broker"]
    done = subprocess.run(
        [*command, "-tcp-address=192.0.2.1:1"],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )

    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    unused = ("fastapi", "starlette", "websockets", "httpx", "gateway.web", "gateway.client")
    assert (1, True) == (done.returncode, "gateway.broker.broker" in loaded)
    assert [] == sorted(loaded & {*unused, "pyspark", "gateway.server.gateway"})
