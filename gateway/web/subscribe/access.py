"""
The access file's part in subscriptions: who may subscribe, fresher tokens, and when access ends.

Times are compared with the wall clock every second, so that steps of the clock count, too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from gateway.access.control import AccessControl
from gateway.errors import BrokerRefused, CredentialRefused, InvalidRequest, PermissionDenied
from gateway.session.auth import AccessResponse
from gateway.session.types import CloseReason, SessionOptions
from gateway.web.auth import AccessPolicy, Principal
from gateway.web.errors import CloseCode, error_response


def check_subscription(principal: Principal, options: SessionOptions) -> None:
    """Check that *principal* may have the subscription of *options*; raises PermissionDenied."""
    if options.channel:
        principal.check_subscribe(options.topic, options.channel)
    else:
        principal.check_watch(options.topic)


_SUBSCRIBE_ERROR_REASONS = {
    CloseCode.FORBIDDEN: CloseReason.FORBIDDEN,
    CloseCode.SECRET_REFUSED: CloseReason.SECRET_REFUSED,
    CloseCode.NO_BROKER: CloseReason.NO_BROKER,
    CloseCode.FULL: CloseReason.FULL,
}


class SubscribeError(NamedTuple):
    """The error for a client when subscribing with the secret of its AUTH has failed."""

    code: str
    message: str
    reason: CloseReason
    is_retryable: bool


def explain_subscribe_error(error: Exception) -> SubscribeError:
    """Return what to tell the client of *error*, without details that only operators may see."""
    fault = error_response(error)
    reason = _SUBSCRIBE_ERROR_REASONS.get(fault.close, CloseReason.FAILED)
    if isinstance(error, BrokerRefused):
        return SubscribeError(error.code, error.description, reason, fault.retryable)
    if isinstance(error, CredentialRefused | PermissionDenied):
        # As nsqd's AUTH and SUB are refused.
        return SubscribeError(f"E_{fault.token}", str(error), reason, fault.retryable)
    return SubscribeError(fault.token, fault.detail or str(error), reason, fault.retryable)


def check_renewal(before: Principal, after: Principal) -> None:
    """
    Check that *after* is the same client as *before*, with a token that ends no earlier.

    Raises:
        InvalidRequest: It is not.
    """
    old, new = before.identity, after.identity
    if old is None or new is None or old.subject != new.subject:
        text = "this token is of another subject; a socket has one, open another socket"
        raise InvalidRequest("E_INVALID", text)
    if new.expires_at < old.expires_at:
        raise InvalidRequest("E_INVALID", "this token expires before the current one")


def access_response(principal: Principal, policy: AccessPolicy) -> AccessResponse | None:
    """Return the response to the AUTH of *principal*; None without an access file."""
    identity, control = principal.identity, policy.control
    if identity is None or control is None:
        return None
    left_s = identity.expires_at - control.clock()
    return AccessResponse(
        identity=identity.name,
        permission_count=len(identity.rights.grants),
        expires_in_ms=None if math.isinf(left_s) else max(0, int(left_s * 1000)),
    )


_INTERVAL_S = 1.0
_SOCKETS_PER_TURN = 50
"""Sockets checked in one turn of the event loop."""
_MAX_STALE_ENTRIES = 64
"""The heap of `AccessExpiry` may have twice as many entries as there are sockets, and these."""


class AccessSocket(Hashable, Protocol):
    """
    A socket whose client was identified by the access file.

    A protocol, because its one implementation, `SubscriberSocket`, imports this module.
    """

    @property
    def expires_at(self) -> float | None:
        """When the client's token ends, in seconds since 1970; None without an access file."""

    def recheck_access(self) -> None:
        """Identify the client again, and end the socket if it may no longer subscribe."""

    def end_access(self, message: str) -> None:
        """Send the client an error, because its secret no longer counts, and close."""


class AccessExpiry:
    """
    Watch the sockets whose callers were identified by the access file.

    One timer serves all sockets.

    Args:
        control: Has the clock, and announces changes of the file and of issuers' keys.
    """

    def __init__(self, control: AccessControl) -> None:
        self._control = control
        self._sockets: dict[AccessSocket, None] = {}
        self._expiring: list[tuple[float, int, AccessSocket]] = []
        """
        A heap by the time of expiry; each socket that expires has an entry that is not later.

        Entries of sockets that are closed, or were renewed, are stale.
        """
        self._numbers = count()
        self._unchecked: list[AccessSocket] = []
        """Sockets to check again after a change."""
        self._timer: asyncio.TimerHandle | None = None
        control.on_change(self._on_change)

    def watch(self, socket: AccessSocket) -> None:
        """End *socket* when its token has expired; `forget` ends that. Idempotent."""
        if socket in self._sockets or socket.expires_at is None:
            return
        self._sockets[socket] = None
        # Its client was identified before nsqd was asked: a change since then has not checked it.
        self._unchecked.append(socket)
        self._push(socket)
        self._schedule(_INTERVAL_S)

    def forget(self, socket: AccessSocket) -> None:
        """Stop watching *socket*; idempotent."""
        self._sockets.pop(socket, None)
        # Otherwise a closed socket would take memory until its token expires.
        if len(self._expiring) > 2 * len(self._sockets) + _MAX_STALE_ENTRIES:
            self._expiring.clear()
            for each in self._sockets:
                if (expires_at := _expiry_of(each)) < math.inf:
                    self._expiring.append((expires_at, next(self._numbers), each))
            heapify(self._expiring)

    def _push(self, socket: AccessSocket) -> None:
        if (expires_at := _expiry_of(socket)) < math.inf:
            heappush(self._expiring, (expires_at, next(self._numbers), socket))

    def _schedule(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _on_change(self) -> None:
        self._unchecked = list(self._sockets)
        if self._unchecked:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._schedule(0)

    def _tick(self) -> None:
        """End the sockets that are due, at most `_SOCKETS_PER_TURN` in one turn of the loop."""
        self._timer = None
        now = self._control.clock()
        left = _SOCKETS_PER_TURN
        # Before the checks, which would not tell the client that it is for the time.
        while left and self._expiring and self._expiring[0][0] <= now:
            _, _, socket = heappop(self._expiring)
            if socket not in self._sockets:
                continue
            left -= 1
            if _expiry_of(socket) > now:
                self._push(socket)  # renewed meanwhile
            else:
                del self._sockets[socket]
                socket.end_access("the token has expired")
        while left and self._unchecked:
            socket = self._unchecked.pop()
            if socket in self._sockets:
                left -= 1
                before = _expiry_of(socket)
                socket.recheck_access()
                if _expiry_of(socket) < before:
                    self._push(socket)  # the file has an earlier end for its key
        if self._sockets:
            self._schedule(_INTERVAL_S if left else 0)
        else:
            self._expiring.clear()
            self._unchecked.clear()


def _expiry_of(socket: AccessSocket) -> float:
    return math.inf if socket.expires_at is None else socket.expires_at
