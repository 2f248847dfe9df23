"""Who may administer, and what the others are told."""

from __future__ import annotations

import pytest

from gateway.credentials import Secret
from gateway.errors import AuthRequired, Forbidden, GatewayError, InvalidRequest
from gateway.web.auth import AdminAccess

SECRET = Secret(b"of-the-administrator")


def access(
    secret: Secret | None = None, *, is_closed: bool = False, probe_auth: bool = False
) -> AdminAccess:
    """Return access of a gateway that knows this of nsqd."""

    async def found() -> bool:
        return probe_auth

    return AdminAccess(secret, is_closed=lambda: is_closed, probe_auth=found)


def bearer(value: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request that brings *value*."""
    return [(b"host", b"gateway"), (b"authorization", value)]


@pytest.mark.parametrize("headers", [[], bearer(b"Bearer anything"), bearer(b"Basic eDp5")])
async def test_without_auth_and_without_a_secret_it_is_open(
    headers: list[tuple[bytes, bytes]],
) -> None:
    """As nsqd's own HTTP; what is brought is not looked at."""
    await access().check(headers)


@pytest.mark.parametrize("is_closed,probe_auth", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("headers", [[], bearer(b"Bearer good-for-nsqd")])
async def test_auth_closes_what_no_secret_opens(
    headers: list[tuple[bytes, bytes]], *, is_closed: bool, probe_auth: bool
) -> None:
    """A secret that nsqd takes is none here: nsqd's HTTP could not judge it."""
    with pytest.raises(Forbidden, match="set --admin-secret-file to allow it"):
        await access(is_closed=is_closed, probe_auth=probe_auth).check(headers)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(
    "value", [b"Bearer of-the-administrator", b"bearer  of-the-administrator "]
)
async def test_the_secret_opens(value: bytes, *, is_closed: bool) -> None:
    """Whatever nsqd asks for."""
    await access(SECRET, is_closed=is_closed).check(bearer(value))


@pytest.mark.parametrize(
    "headers,error",
    [
        ([], AuthRequired),
        (bearer(b"Basic eDp5"), AuthRequired),
        (bearer(b"Bearer of-the-administrato"), Forbidden),
        (bearer(b"Bearer of-the-administrator2"), Forbidden),
        (bearer(b"Bearer Of-The-Administrator"), Forbidden),
        (bearer(b"Bearer "), InvalidRequest),
        (bearer(b"Bearer a b"), InvalidRequest),
        (bearer(b"Bearer of-the-administrator") * 2, InvalidRequest),
    ],
)
async def test_a_secret_closes_for_all_who_do_not_bring_it(
    headers: list[tuple[bytes, bytes]], error: type[GatewayError]
) -> None:
    """Also where nsqd asks for none; and no secret is shown."""
    with pytest.raises(error) as caught:
        await access(SECRET).check(headers)

    assert "of-the-administrator" not in str(caught.value)
