"""`nsq-gateway access`: what it prints, and its exit status."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.access.control import AccessControl
from gateway.access.rights import Permission
from gateway.cli.main import commands
from gateway.credentials import Secret
from tests.support.logging_state import restored_logging
from tests.support.tokens import Signer, access_file

ES = Signer("ES256")
FILE = """
[[issuer]]
issuer = "https://id.example.com"
audience = "nsq"
key_file = "key.pem"
grants_claim = "nsq"
[[rule]]
when = { groups = "ops" }
grants = [{ topic = "^orders$", channels = ["^billing$"], permissions = ["subscribe", "admin"] }]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    return access_file(tmp_path, FILE, key_pem=ES.pem)


def token(**claims: object) -> str:
    now = time.time()
    return ES.token(**{"exp": now + 600, "iat": now, "groups": ["ops"], **claims}).decode()  # type: ignore[arg-type]


def run(*args: str, stdin: str | None = None) -> Result:
    with restored_logging():
        return CliRunner().invoke(commands, ["access", *args], input=stdin)


def test_a_valid_file_is_counted(file: str) -> None:
    found = run("check", file)

    assert f"{file} is valid: issuers: 1, API keys: 0, rules: 1\n" == found.output
    assert 0 == found.exit_code


def test_an_invalid_file_has_its_line(tmp_path: Path) -> None:
    path = access_file(tmp_path, "[[key]]\nname = 1")
    found = run("check", path)

    assert found.output.startswith(f"not valid: {path}, line 2: name is 1; allowed: ")
    assert 1 == found.exit_code


def test_a_missing_file_is_not_valid(tmp_path: Path) -> None:
    found = run("check", str(tmp_path / "none"))

    assert "No such file or directory" in found.output
    assert 1 == found.exit_code


def test_warnings_do_not_make_a_file_invalid(tmp_path: Path) -> None:
    path = access_file(tmp_path, FILE.replace("^orders$", "orders"), key_pem=ES.pem)
    found = run("check", path)

    assert "warning: " in found.output
    assert 0 == found.exit_code


def test_a_token_is_explained(file: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token() + "\n")
    found = run("check", file, "--token-file", str(tmp_path / "token"))

    lines = found.output.splitlines()
    assert ["caller: alice", "issuer: https://id.example.com"] == lines[1:3]
    assert re.fullmatch(r"until: \S+\+00:00 \(in (9:59|10:00)\)", lines[3])
    assert (
        'grant by rule 1 (line 7): { topic = "^orders$", channels = ["^billing$"], '
        'permissions = ["subscribe", "admin"] }'
    ) == lines[4]
    assert 0 == found.exit_code


@pytest.mark.parametrize(
    "permission,channel,status,verdict",
    [
        ("subscribe", "billing", 0, "allowed: subscribe on topic orders, channel billing; by rule"),
        ("subscribe", "other", 1, "refused: subscribe on topic orders, channel other; no grant"),
        ("publish", None, 1, "refused: publish on topic orders; no grant allows it"),
        ("admin", None, 1, "refused: admin on topic orders; no grant allows it"),
        ("admin", "billing", 0, "allowed: admin on topic orders, channel billing; by rule 1"),
    ],
)
def test_a_verdict_has_its_reason_and_status(
    file: str, permission: str, channel: str | None, status: int, verdict: str
) -> None:
    args = ["--token-file", "-", "--topic", "orders", "--permission", permission]
    if channel is not None:
        args += ["--channel", channel]

    found = run("check", file, *args, stdin=token())

    assert verdict in found.output
    assert status == found.exit_code


def test_without_a_permission_all_verdicts_are_shown(file: str) -> None:
    found = run("check", file, "--token", token(), "--topic", "orders", "--channel", "billing")

    verdicts = re.findall(r"^(\w+): (\w+) on topic", found.output, re.MULTILINE)
    assert [
        ("refused", "publish"),
        ("allowed", "subscribe"),
        ("refused", "watch"),
        ("allowed", "admin"),
    ] == verdicts
    assert 0 == found.exit_code


@pytest.mark.parametrize(
    "claims,reason",
    [
        ({"exp": 1}, "it has expired"),
        ({"aud": "x"}, "the token is not for this audience (aud)"),
        ({"nsq": [{"topic": "("}]}, "the grants in the token are not valid: "),
    ],
)
def test_a_refused_token_has_its_reason(file: str, claims: dict[str, object], reason: str) -> None:
    found = run("check", file, "--token", token(**claims))

    assert f"refused: {reason}" in found.output
    assert 1 == found.exit_code


def test_a_token_without_rights_has_none(file: str) -> None:
    found = run("check", file, "--token", token(groups=[]))

    assert "grants: none; no rule matches its claims" in found.output
    assert 0 == found.exit_code


@pytest.mark.parametrize(
    "args,advice",
    [
        (["--topic", "a"], "say whose permission: add --token-file or --token"),
        (["--token", "a", "--token-file", "b"], "--token and --token-file exclude each other"),
        (["--token", " "], "the token is empty"),
        (["--token", "a", "--channel", "c"], "say on which topic: add --topic"),
        (["--token", "a", "--permission", "publish"], "say on which topic: add --topic"),
        (
            ["--token", "a", "--topic", "t", "--permission", "subscribe"],
            "say on which channel: add --channel",
        ),
        (["--permission", "root"], "'root' is not one of 'publish', 'subscribe', 'watch', 'admin'"),
    ],
)
def test_wrong_use_has_status_2(file: str, args: list[str], advice: str) -> None:
    found = run("check", file, *args)

    assert advice in found.output
    assert 2 == found.exit_code


def test_keys_that_cannot_be_fetched_are_a_warning(tmp_path: Path) -> None:
    text = FILE.replace('key_file = "key.pem"', 'jwks_url = "http://127.0.0.1:1/keys"')
    path = access_file(tmp_path, text)

    assert "warning" not in run("check", path).output
    found = run("check", path, "--token", token())
    assert "warning: the keys of https://id.example.com are not available" in found.output
    assert "refused: the issuer has no key with the token's kid" in found.output


def test_a_made_key_works_with_its_entry(tmp_path: Path) -> None:
    """The entry alone is on standard output, so that >> adds it to the file."""
    args = ["--topic", "^orders$", "--channel", "^b$", "--permission", "subscribe"]
    made = run("key", 'bil"ling', *args)
    key = made.stderr.splitlines()[-1]
    assert re.fullmatch(r"nsq_[\w-]{43}", key)
    assert key not in made.stdout
    control = AccessControl(access_file(tmp_path, made.stdout + run("key", "other").stdout))
    control.load()

    identity = control.identify(Secret(key.encode()))

    assert 'bil"ling' == identity.name
    assert identity.rights.allows(Permission.SUBSCRIBE, "orders", "b")
    assert 2 == len(control.policy.keys)
    assert key != run("key", "again", *args).stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "args,advice",
    [
        (["a", "--permission", "publish"], "say on which topics: add --topic"),
        (["a", "--topic", "a"], "say what the key allows: add --permission"),
        (["a", "--topic", "(", "--permission", "publish"], "the pattern '(' is not valid"),
        (["a", "--topic", "^a$", "--permission", "admin"], 'add channels = [".*"] for all'),
        (["", "--topic", "^a$", "--permission", "publish"], "name is ''; allowed: a text"),
    ],
)
def test_a_key_that_would_not_be_valid_is_not_made(args: list[str], advice: str) -> None:
    found = run("key", *args)

    assert advice in found.output
    assert (2, "") == (found.exit_code, found.stdout)
