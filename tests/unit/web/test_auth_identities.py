"""Who a caller is by the access file, and what each door asks of its rights."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.access.control import AccessControl
from gateway.access.rights import KEY_ISSUER, Grant, Identity, Permission, Rights
from gateway.credentials import Secret
from gateway.errors import AuthRequired, CredentialRefused, InvalidRequest, PermissionDenied
from gateway.web.auth import ANONYMOUS, AccessPolicy, AdminAccess, Principal
from tests.support.gateways.access_file import access_file, api_key, grant

TOKEN, OURS = Secret(b"alice's token"), Secret(b"ours")
ADMINISTRATOR = Secret(b"of-the-administrator")


def caller(*grants: Grant) -> Principal:
    """Return alice, who has *grants*."""
    return Principal(TOKEN, Identity("https://id", "alice", Rights(grants)))


def may(permission: Permission, topic: str = "^t$", *channels: str) -> Grant:
    return Grant(topic, (permission,), channels)


@pytest.fixture
def control(tmp_path: Path) -> AccessControl:
    """Know alice, by an API key."""
    key = api_key("alice", TOKEN.reveal().decode(), grant("^t$", "publish", "admin"))
    control = AccessControl(access_file(tmp_path, key))
    control.load()
    return control


# What the doors ask

NOTHING = caller()
PUBLISHER = caller(may(Permission.PUBLISH))
SUBSCRIBER = caller(may(Permission.SUBSCRIBE, "^t$", "^c"))
WATCHER = caller(may(Permission.WATCH))
OPERATOR = caller(may(Permission.ADMIN, "^t$", ".*"))
CHANNEL_OPERATOR = caller(may(Permission.ADMIN, "^t$", "^c$"))
ASKED: dict[str, Callable[[Principal], object]] = {
    "publish": lambda who: who.check_publish("t"),
    "publish elsewhere": lambda who: who.check_publish("t2"),
    "subscribe": lambda who: who.check_subscribe("t", "c"),
    "subscribe elsewhere": lambda who: who.check_subscribe("t", "d"),
    "watch": lambda who: who.check_watch("t"),
    "watch elsewhere": lambda who: who.check_watch("t2"),
    "admin": lambda who: who.check_admin("t"),
    "admin of a channel": lambda who: who.check_admin("t", "c"),
    "admin elsewhere": lambda who: who.check_admin("t2"),
    "stats": lambda who: who.check_stats("t"),
    "stats elsewhere": lambda who: who.check_stats("t2"),
    "stats of any": lambda who: who.check_stats(None),
}


@pytest.mark.parametrize(
    "who,allowed",
    [
        (ANONYMOUS, set(ASKED)),
        (Principal(TOKEN), set(ASKED)),
        (NOTHING, set()),
        (PUBLISHER, {"publish"}),
        (SUBSCRIBER, {"subscribe"}),
        (WATCHER, {"watch", "stats", "stats of any"}),
        (OPERATOR, {"admin", "admin of a channel", "stats", "stats of any"}),
        (CHANNEL_OPERATOR, {"admin of a channel", "stats", "stats of any"}),
    ],
    ids=[
        *("no secret", "a secret for nsqd", "nothing", "publisher", "subscriber"),
        *("watcher", "operator", "operator of a channel"),
    ],
)
def test_a_door_opens_for_its_own_right_alone(who: Principal, allowed: set[str]) -> None:
    """Without an identity, nsqd decides: nothing is checked."""
    opened = set()
    for name, check in ASKED.items():
        try:
            check(who)
        except PermissionDenied:
            continue
        opened.add(name)

    assert allowed == opened


@pytest.mark.parametrize(
    "check,words",
    [
        ("publish", '"alice" may not publish to topic "t": it needs the permission publish'),
        ("subscribe", '"alice" may not subscribe to topic "t", channel "c": '),
        ("watch", 'may not watch topic "t": it needs the permission watch'),
        ("admin", 'may not administer topic "t": it needs the permission admin'),
        ("admin of a channel", 'may not administer topic "t", channel "c": '),
        ("stats", 'may not read the statistics of topic "t": it needs the permission watch'),
        ("stats of any", "may not read statistics: "),
    ],
)
def test_a_refusal_names_caller_right_and_place(check: str, words: str) -> None:
    with pytest.raises(PermissionDenied) as caught:
        ASKED[check](NOTHING)

    assert words in str(caught.value)
    assert "token" not in str(caught.value)


@pytest.mark.parametrize(
    "grants,shown",
    [
        ([], []),
        ([may(Permission.WATCH)], ["t"]),
        ([may(Permission.ADMIN, "^u$")], ["u"]),
        ([may(Permission.WATCH), may(Permission.ADMIN, "^u$", "^c$")], ["t", "u"]),
        ([may(Permission.PUBLISH, ".*"), may(Permission.SUBSCRIBE, ".*", ".*")], []),
    ],
)
def test_statistics_are_those_of_ones_own_topics(grants: list[Grant], shown: list[str]) -> None:
    is_shown = caller(*grants).sees_stats_of()

    assert is_shown is not None
    assert shown == [topic for topic in ("t", "u", "tt") if is_shown(topic)]


@pytest.mark.parametrize(
    "who",
    [
        ANONYMOUS,
        caller(may(Permission.WATCH, ".*")),
        caller(may(Permission.ADMIN, "", "^c$")),
    ],
)
def test_the_statistics_of_all_topics_need_no_filter(who: Principal) -> None:
    assert who.sees_stats_of() is None


# Who is counted, and told of


@pytest.mark.parametrize(
    "who,key",
    [
        (ANONYMOUS, None),
        (Principal(TOKEN), TOKEN),
        (NOTHING, ("https://id", "alice")),
        (Principal(OURS, NOTHING.identity), ("https://id", "alice")),
    ],
    ids=["no secret", "secret", "identity", "another token"],
)
def test_limits_count_an_identity_whatever_token_it_brings(who: Principal, key: object) -> None:
    assert key == who.quota_key


def test_the_log_has_the_name_and_no_secret() -> None:
    assert {} == ANONYMOUS.log_fields
    assert {"secret": TOKEN.fingerprint} == Principal(TOKEN).log_fields
    assert {"secret": TOKEN.fingerprint, "identity": "alice"} == NOTHING.log_fields


def test_the_repr_of_a_caller_has_no_secret() -> None:
    assert "token" not in repr(NOTHING)


# The policy


def test_a_caller_is_identified_by_the_file(control: AccessControl) -> None:
    found = AccessPolicy(control=control).identify(TOKEN)

    assert found.identity is not None
    assert (TOKEN, KEY_ISSUER, "alice") == (
        found.secret,
        found.identity.issuer,
        found.identity.name,
    )
    assert math.isinf(found.identity.expires_at)


@pytest.mark.parametrize("is_lent", [False, True])
def test_a_caller_without_a_secret_is_refused(control: AccessControl, *, is_lent: bool) -> None:
    """Also where the gateway's secret would be lent: the file is the stricter word."""
    policy = AccessPolicy(control=control, anonymous_secret=OURS if is_lent else None)

    with pytest.raises(AuthRequired, match="a token or an API key is required"):
        policy.identify(None)


@pytest.mark.parametrize("secret", [b"alice's toke", b"alice's token ", b"Alice's token", b"x.y.z"])
def test_every_other_secret_is_refused_in_one_way(control: AccessControl, secret: bytes) -> None:
    with pytest.raises(CredentialRefused) as caught:
        AccessPolicy(control=control).identify(Secret(secret))

    assert str(CredentialRefused("any reason")) == str(caught.value)


@pytest.mark.parametrize(
    "own,requires_auth,sent",
    [(None, True, TOKEN), (None, False, None), (OURS, True, OURS), (OURS, False, None)],
    ids=["caller", "caller, no AUTH", "own", "own, no AUTH"],
)
def test_nsqd_gets_the_token_or_our_secret_and_only_if_it_asks(
    own: Secret | None, sent: Secret | None, *, requires_auth: bool
) -> None:
    """Connections without AUTH are shared by all callers."""
    policy = AccessPolicy(nsqd_secret=own)

    assert sent == policy.secret_for_nsqd(NOTHING, requires_auth=requires_auth)


@pytest.mark.parametrize("requires_auth", [True, False])
def test_without_the_file_nsqd_gets_the_callers_secret(*, requires_auth: bool) -> None:
    policy = AccessPolicy(nsqd_secret=OURS)

    assert TOKEN == policy.secret_for_nsqd(Principal(TOKEN), requires_auth=requires_auth)
    assert policy.secret_for_nsqd(ANONYMOUS, requires_auth=requires_auth) is None


# Administration


def admin_access(control: AccessControl, secret: Secret | None = None) -> AdminAccess:
    """Return access with the file; nobody may ask nsqds whether they require AUTH."""

    async def probe() -> bool:
        raise AssertionError("nsqd was asked")

    return AdminAccess(
        secret, is_closed=lambda: True, probe_auth=probe, policy=AccessPolicy(control=control)
    )


def bearer(value: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + value)]


@pytest.mark.parametrize("secret", [None, ADMINISTRATOR])
async def test_the_file_says_who_may_administer(tmp_path: Path, secret: Secret | None) -> None:
    key = api_key("alice", "alice", grant("^t$", "admin"))
    control = AccessControl(access_file(tmp_path, key))
    control.load()

    found = await admin_access(control, secret).check(bearer(b"alice"))

    assert "alice" == (found.identity and found.identity.name)
    found.check_admin("t")
    with pytest.raises(PermissionDenied):
        found.check_admin("u")


async def test_the_administrators_secret_goes_on_opening_everything(
    control: AccessControl,
) -> None:
    found = await admin_access(control, ADMINISTRATOR).check(bearer(ADMINISTRATOR.reveal()))

    assert ANONYMOUS == found
    found.check_admin("any")
    assert found.sees_stats_of() is None


@pytest.mark.parametrize(
    "headers,error",
    [
        ([], AuthRequired),
        ([(b"authorization", b"Basic eDp5")], AuthRequired),
        (bearer(b"wrong"), CredentialRefused),
        (bearer(b"of-the-administrato"), CredentialRefused),
        (bearer(b"a b"), InvalidRequest),
    ],
)
async def test_administration_needs_a_credential_of_the_file(
    headers: list[tuple[bytes, bytes]], error: type[Exception], control: AccessControl
) -> None:
    """Also if no nsqd requires AUTH, and without --admin-secret-file."""
    for secret in (None, ADMINISTRATOR):
        with pytest.raises(error):
            await admin_access(control, secret).check(headers)
