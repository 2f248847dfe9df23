"""Identities of callers: kept in bounds, ended in time, and new when the file changes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import gateway.access.control
from gateway.access.control import MAX_IDENTITIES, AccessControl
from gateway.access.policy import AccessFileRefused
from gateway.access.rights import Identity, Permission
from gateway.credentials import Secret
from gateway.errors import CredentialRefused, SettingsError
from gateway.telemetry import REGISTRY
from tests.support.manual_clock import ManualClock, turn, until
from tests.support.tokens import NOW, Signer, access_file, key_set

ED, NEXT = Signer("EdDSA", kid="a"), Signer("EdDSA", kid="b", name="next")
KEY = Secret(b"nsq_billing")
FILE = f"""
[[issuer]]
issuer = "https://id.example.com"
audience = "nsq"
jwks_file = "keys.json"
grants_claim = "nsq"
[[key]]
name = "billing"
sha256 = "{hashlib.sha256(KEY.reveal()).hexdigest()}"
grants = [{{ topic = "^orders$", permissions = ["publish"] }}]
"""
OTHER = FILE.replace("^orders$", "^bills$")


class Time:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Time:
    return Time()


@pytest.fixture
def control(tmp_path: Path, wall: Time) -> AccessControl:
    path = access_file(tmp_path, FILE, keys_json=key_set(ED.jwk()))
    made = AccessControl(path, clock=wall)
    made.load()
    return made


def reason(control: AccessControl, secret: Secret) -> str:
    with pytest.raises(CredentialRefused) as caught:
        control.identify(secret)
    return caught.value.reason


def gauge(name: str) -> float | None:
    return REGISTRY.get_sample_value(f"nsq_gateway_access_{name}")


def reloads(result: str) -> float:
    value = REGISTRY.get_sample_value("nsq_gateway_access_reloads_total", {"result": result})
    assert value is not None
    return value


def test_a_key_and_a_token_are_identified(control: AccessControl) -> None:
    key, token = control.identify(KEY), control.identify(Secret(ED.token()))

    assert ("key", "billing") == key.subject
    assert key.rights.allows(Permission.PUBLISH, "orders")
    assert ("https://id.example.com", "alice") == token.subject
    assert NOW + 60 == token.expires_at


def test_one_token_is_verified_once(
    control: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = Secret(ED.token())
    first = control.identify(token)
    monkeypatch.delattr(gateway.access.control, "verify_token")

    assert first is control.identify(Secret(token.reveal()))


def test_a_token_ends_at_exp_and_lives_again_when_the_clock_is_set_back(
    control: AccessControl, wall: Time
) -> None:
    token = Secret(ED.token(nbf=NOW))
    control.identify(token)

    wall.now = NOW + 59.9
    control.identify(token)
    wall.now = NOW + 60
    assert "it has expired" == reason(control, token)
    wall.now = NOW - 29
    assert "alice" == control.identify(token).name
    wall.now = NOW - 31
    assert "the token is not valid yet (nbf, iat)" == reason(control, token)
    wall.now = NOW
    assert "alice" == control.identify(token).name


def test_an_api_key_ends(tmp_path: Path, wall: Time) -> None:
    text = FILE.replace("grants = [", "expires_at = 2027-01-15T08:00:10Z\ngrants = [")
    control = AccessControl(access_file(tmp_path, text, keys_json=key_set(ED.jwk())), clock=wall)
    control.load()

    assert NOW + 10 == control.identify(KEY).expires_at
    wall.now = NOW + 10
    assert "it has expired" == reason(control, KEY)


def test_ten_thousand_tokens_stay_in_their_bound(control: AccessControl) -> None:
    """About 1 KiB each; the oldest go first."""
    tokens = [Secret(ED.token(sub=f"user-{number}")) for number in range(MAX_IDENTITIES + 500)]
    control.identify(tokens[0])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for token in tokens:
            control.identify(token)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert MAX_IDENTITIES == len(control._identities)
    assert after - before < 16 * 1_048_576


def test_refused_credentials_leave_nothing(control: AccessControl) -> None:
    for number in range(1_000):
        reason(control, Secret(b"nsq_%d" % number))
        reason(control, Secret(NEXT.token(sub=f"user-{number}")))

    assert {} == control._identities


def test_refusals_are_logged_once_a_second_for_each_reason(
    control: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("gateway.access.control.time.monotonic", lambda: now[0])
    secret, token = Secret(b"nsq_x"), Secret(ED.token(exp=NOW))

    with capture_logs() as lines:
        for _ in range(5):
            reason(control, secret)
            reason(control, token)
        now[0] += 1
        reason(control, secret)

    assert [
        ("no API key has this SHA-256, and it is no token", "key", secret.fingerprint, 0),
        ("it has expired", "https://id.example.com", token.fingerprint, 0),
        ("no API key has this SHA-256, and it is no token", "key", secret.fingerprint, 4),
    ] == [
        tuple(line[name] for name in ("reason", "issuer", "secret", "suppressed")) for line in lines
    ]


def test_checks_are_counted_by_issuer_and_result(control: AccessControl) -> None:
    def count(issuer: str, result: str) -> float:
        labels = {"issuer": issuer, "result": result}
        return REGISTRY.get_sample_value("nsq_gateway_access_checks_total", labels) or 0

    expected = [("key", "ok"), ("https://id.example.com", "ok"), ("unknown", "unknown_issuer")]
    before = [count(*labels) for labels in expected]
    for _ in range(3):
        control.identify(KEY)
        control.identify(Secret(ED.token()))
        reason(control, Secret(ED.token(iss="https://made-up")))

    assert [each + 3 for each in before] == [count(*labels) for labels in expected]


def test_an_explanation_names_the_source_of_each_grant(control: AccessControl) -> None:
    claim = [{"topic": "^a$", "permissions": ["publish"]}]
    token = control.explain(Secret(ED.token(nsq=claim)))

    assert ["the claim nsq of the token"] == [each.source for each in token.sources]
    assert ["the key billing (line 7)"] == [each.source for each in control.explain(KEY).sources]
    for secret in (Secret(b"nsq_x"), Secret(b"a.b.c")):
        with pytest.raises(CredentialRefused):
            control.explain(secret)


# The files.


@pytest.mark.parametrize(
    "change,problem",
    [
        (lambda folder: (folder / "access.toml").unlink(), "No such file or directory"),
        (lambda folder: (folder / "access.toml").write_bytes(b"#" * 1_048_577), "limit 1048576 b"),
        (lambda folder: (folder / "keys.json").unlink(), "keys.json of the issuer https://id.exa"),
        (lambda folder: (folder / "keys.json").write_text("{}"), "is not usable: it is no JSON"),
        (lambda folder: (folder / "access.toml").write_text("x"), "line 1: it is not valid TOML"),
    ],
)
def test_an_invalid_file_stops_the_start(
    tmp_path: Path, change: Callable[[Path], object], problem: str
) -> None:
    path = access_file(tmp_path, FILE, keys_json=key_set(ED.jwk()))
    change(tmp_path)

    with pytest.raises(SettingsError) as caught:
        AccessControl(path).load()

    assert problem in str(caught.value)


def test_a_fifo_is_refused(tmp_path: Path) -> None:
    """To open it would block."""
    os.mkfifo(tmp_path / "access.toml")

    with pytest.raises(SettingsError, match="it is not a regular file"):
        AccessControl(str(tmp_path / "access.toml")).load()


class Watched:
    """An `AccessControl` that watches its files, and the changes that it reported."""

    def __init__(self, control: AccessControl, clock: ManualClock) -> None:
        self.control = control
        self.clock = clock
        self.changes = 0
        control.on_change(self._count)

    def _count(self) -> None:
        self.changes += 1

    async def check(self, is_done: Callable[[], bool]) -> None:
        """Let the next check of the files run, and wait until *is_done*."""
        await self.clock.advance(1)
        await until(is_done)


@asynccontextmanager
async def watching(control: AccessControl) -> AsyncIterator[Watched]:
    clock = ManualClock()
    await control.start()
    await turn()  # the watch begins
    try:
        yield Watched(control, clock)
    finally:
        await control.stop()
        await control.stop()  # idempotent


def publishes_to(identity: Identity) -> list[str]:
    return [grant.topic for grant in identity.rights.grants]


async def test_a_changed_file_is_used_within_a_second(
    control: AccessControl, tmp_path: Path
) -> None:
    async with watching(control) as watched:
        assert ["^orders$"] == publishes_to(control.identify(KEY))
        with capture_logs() as lines:
            access_file(tmp_path, OTHER)
            await watched.check(lambda: watched.changes == 1)

    assert ["^bills$"] == publishes_to(control.identify(KEY))
    (line,) = lines
    assert ("access file reloaded", 1, 1, 0) == (
        *(line[name] for name in ("event", "issuers", "keys", "rules")),
    )


async def test_a_file_that_does_not_change_is_not_read_again(control: AccessControl) -> None:
    async with watching(control) as watched:
        before = reloads("ok")
        for _ in range(10):
            await watched.clock.advance(1)

        assert (0, before) == (watched.changes, reloads("ok"))


async def test_a_symlink_swap_of_kubernetes_is_a_change(tmp_path: Path) -> None:
    """``..data`` leads to another folder; the path of the file and its size stay."""
    for name, text, signer in (("one", FILE, ED), ("two", OTHER.replace("bills", "billz"), NEXT)):
        (tmp_path / name).mkdir()
        access_file(tmp_path / name, text, keys_json=key_set(signer.jwk()))
    (tmp_path / "..data").symlink_to("one")
    for file in ("access.toml", "keys.json"):
        (tmp_path / file).symlink_to(f"..data/{file}")
    control = AccessControl(str(tmp_path / "access.toml"), clock=lambda: NOW)
    control.load()
    async with watching(control) as watched:
        control.identify(Secret(ED.token()))
        (tmp_path / "..data_tmp").symlink_to("two")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        await watched.check(lambda: watched.changes == 1)

        assert ["^billz$"] == publishes_to(control.identify(KEY))
        assert "alice" == control.identify(Secret(NEXT.token())).name
        reason(control, Secret(ED.token()))


async def test_a_changed_key_file_changes_who_is_let_in(
    control: AccessControl, tmp_path: Path
) -> None:
    async with watching(control) as watched:
        token = Secret(ED.token())
        control.identify(token)
        (tmp_path / "keys.json").write_bytes(key_set(NEXT.jwk()))
        await watched.check(lambda: watched.changes == 1)

        control.identify(Secret(NEXT.token()))
        assert "no key with the token's kid" in reason(control, token)


@pytest.mark.parametrize(
    "file,content,problem",
    [
        ("access.toml", b"[[key]]\nname = 1", "line 2: name is 1; allowed: a text in quotes"),
        ("access.toml", b"\xff", "byte 0 is not UTF-8"),
        ("access.toml", b"[", "it is not valid TOML"),
        (
            "access.toml",
            b"[[rule]]\ngrants = []\nwhen." + b"a." * 3_000 + b'a = "x"',
            "nested too deeply",
        ),
        (
            "access.toml",
            b'[[key]]\nname = "a"\nsha256 = "' + hashlib.sha256().hexdigest().encode() + b'"',
            "that of an empty text",
        ),
        ("access.toml", b"# 1\na = " + b"1" * 5_000, "line 2: a number has too many digits"),
        ("keys.json", b"", "keys.json of the issuer https://id.example.com is not usable"),
    ],
)
async def test_a_broken_version_leaves_the_one_before_it(
    control: AccessControl, tmp_path: Path, file: str, content: bytes, problem: str
) -> None:
    """The log says why, once; the metric until a version is valid."""
    before = (tmp_path / file).read_bytes()
    refused = reloads("refused")
    async with watching(control) as watched:
        with capture_logs() as lines:
            (tmp_path / file).write_bytes(content)
            await watched.check(lambda: gauge("reload_last_successful") == 0)
            for _ in range(15):
                await watched.clock.advance(1)

        assert ["^orders$"] == publishes_to(control.identify(KEY))
        control.identify(Secret(ED.token()))
        assert 0 == watched.changes
        (line,) = lines
        assert "access file refused, keeping the previous version" == line["event"]
        assert problem in line["reason"]
        assert line["line"] >= 1
        assert refused + 1 == reloads("refused")

        (tmp_path / file).write_bytes(before)
        await watched.check(lambda: gauge("reload_last_successful") == 1)


async def test_a_defect_does_not_end_the_watch(
    control: AccessControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(control) as watched:
        with monkeypatch.context() as defect:
            defect.setattr(gateway.access.control, "read_policy", lambda *_: 1 / 0)
            access_file(tmp_path, OTHER)
            await watched.check(lambda: gauge("reload_last_successful") == 0)
        assert ["^orders$"] == publishes_to(control.identify(KEY))
        access_file(tmp_path, f"{OTHER}\n")
        await watched.check(lambda: watched.changes == 1)

    assert ["^bills$"] == publishes_to(control.identify(KEY))
    assert 1 == gauge("reload_last_successful")


async def test_a_missing_file_leaves_the_version_before_it(
    control: AccessControl, tmp_path: Path
) -> None:
    path = tmp_path / "access.toml"
    async with watching(control) as watched:
        path.rename(tmp_path / "away")
        await watched.check(lambda: gauge("reload_last_successful") == 0)
        control.identify(KEY)

        (tmp_path / "away").rename(path)  # the same file as before
        await watched.check(lambda: gauge("reload_last_successful") == 1)


async def test_a_refused_version_may_name_a_file_that_comes_later(
    control: AccessControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the version that was refused names it, so it is tried again after a while."""
    monkeypatch.setattr(gateway.access.control, "RETRY_INTERVAL_S", 0)
    async with watching(control) as watched:
        access_file(tmp_path, FILE.replace("keys.json", "new.json"))
        await watched.check(lambda: gauge("reload_last_successful") == 0)
        shutil.copy(tmp_path / "keys.json", tmp_path / "new.json")
        await watched.check(lambda: watched.changes == 1)

        assert 1 == gauge("reload_last_successful")


async def test_a_callback_that_fails_does_not_end_the_watch(
    control: AccessControl, tmp_path: Path
) -> None:
    def fail() -> None:
        raise RuntimeError("oops")

    control.on_change(fail)
    async with watching(control) as watched:
        with capture_logs() as lines:
            for number, text in enumerate((OTHER, FILE), 1):
                access_file(tmp_path, text)
                await watched.check(lambda: watched.changes == number)  # noqa: B023

    assert "access change not passed on" in [line["event"] for line in lines]


async def test_warnings_are_told_at_the_start_and_logged_after_a_change(
    control: AccessControl, tmp_path: Path
) -> None:
    text = FILE.replace("^orders$", "orders")
    async with watching(control) as watched:
        with capture_logs() as lines:
            access_file(tmp_path, text)
            await watched.check(lambda: watched.changes == 1)
    assert "access file warning" in [line["event"] for line in lines]
    assert "'orders' of the key 'billing'" in "".join(await control.start())
    await control.stop()


def test_an_error_of_a_key_file_has_the_line_of_its_issuer(tmp_path: Path) -> None:
    with pytest.raises(AccessFileRefused) as caught:
        AccessControl(access_file(tmp_path, FILE)).load()

    assert 2 == caught.value.line


async def test_a_start_without_addresses_takes_no_time(control: AccessControl) -> None:
    async with asyncio.timeout(1):
        await control.start()
        await control.stop()
