"""
Who may change topics and look at /stats.

nsqd's own HTTP asks for no secret, so where nsqd's TCP port does, these routes would be a way
around it: they are closed then, but for whoever knows the secret of the administrator.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable

from gateway.errors import AuthRequired, Forbidden
from gateway.secret import Secret
from gateway.web.credentials import authorization_headers, bearer_secret


class AdminAccess:
    """
    Lets a request pass, or not.

    Args:
        secret: The administrator's; where there is one, nothing is open without it.
        is_closed: Whether a connection has heard an nsqd ask for AUTH, or --require-auth is set.
        finds_auth: Whether an nsqd says by HTTP that it asks for AUTH; asked where the other one
            says no.
    """

    def __init__(
        self,
        secret: Secret | None,
        *,
        is_closed: Callable[[], bool],
        finds_auth: Callable[[], Awaitable[bool]],
    ) -> None:
        self._secret = secret
        self._is_closed = is_closed
        self._finds_auth = finds_auth

    async def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """
        Let a request with *headers* pass: everybody's where it is open, else the administrator's.

        Raises:
            AuthRequired: There is a secret, and none was brought.
            Forbidden: Another one was brought, or there is none that would do.
            InvalidRequest: What was brought is none (INVALID_AUTHORIZATION).
            Full: Too many ask at a time.
        """
        if self._secret is None:
            if self._is_closed() or await self._finds_auth():
                raise Forbidden(
                    "an nsqd asks for AUTH, or --require-auth is set, and nsqd's HTTP checks no "
                    "secret; --admin-secret-file names the secret that opens this"
                )
            return
        brought = bearer_secret(authorization_headers(headers))
        if brought is None:
            raise AuthRequired("the secret in --admin-secret-file is asked for here")
        if not hmac.compare_digest(brought.reveal(), self._secret.reveal()):
            raise Forbidden("this takes the secret in --admin-secret-file, and another was brought")
