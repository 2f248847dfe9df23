"""
The AUTH of one socket: whether it is required, its secret, and its deadline.

nsqds announce in their IDENTIFY response that they require AUTH, so the gateway requires it of the
client only then, or always with --require-auth. A client's AUTH that no nsqd requires gets OK, and
its secret is kept for an nsqd that the gateway connects to later. "Broker" means nsqd.

With an access file, the gateway itself requires AUTH of every client, and a client may send AUTH
again with a fresher token (`take_renewal`), which changes no state.

| event | NOT_REQUIRED | REQUIRED | REQUIRED_LATER | VERIFYING | SET |
| --- | --- | --- | --- | --- | --- |
| `require`, SUB not sent | REQUIRED | | | | VERIFYING with an unused secret |
| `require`, SUB sent | REQUIRED_LATER | | | | VERIFYING with an unused secret |
| `take`: the client's AUTH | SET | VERIFYING | VERIFYING | refused | refused |
| `take_response`: subscribed | | | | SET | |
"""

from __future__ import annotations

import enum
import math

from gateway.credentials import Secret
from gateway.errors import InvalidRequest
from gateway.protocol.identify import AuthResponse
from gateway.session.json_frames import AuthCommand, ErrorOut, ParsedCommand, Ref, ResponseOut

AUTH_TIMEOUT_S = 10.0
"""Time for a client to send AUTH once it is required."""
MAX_SECRET_BYTES = 4_096
"""Far more than usual tokens have; bounds the memory of sockets that wait for verification."""


class AuthState(enum.Enum):
    """The state of one socket's authentication; the module's docstring has the transitions."""

    NOT_REQUIRED = "no broker requires AUTH, and there is no secret"
    REQUIRED = "AUTH must be the next command"
    REQUIRED_LATER = "a broker that connected later requires AUTH; other commands run meanwhile"
    VERIFYING = "brokers are verifying the secret"
    SET = "there is a secret, used or unused"


_AFTER_AUTH = {
    AuthState.NOT_REQUIRED: AuthState.SET,
    AuthState.REQUIRED: AuthState.VERIFYING,
    AuthState.REQUIRED_LATER: AuthState.VERIFYING,
}
"""The state after the client's AUTH; in other states AUTH is refused."""


class Authentication:
    """Whether one socket's client must send AUTH, its deadline, and its unused secret."""

    __slots__ = (
        "_is_response_due",
        "_ref",
        "_state",
        "due",
        "is_blocking",
        "own_response",
        "unused_secret",
    )

    def __init__(self, *, has_secret: bool) -> None:
        self._state = AuthState.SET if has_secret else AuthState.NOT_REQUIRED
        self.own_response: AuthResponse | None = None
        """The response to the client's AUTH by the access file; None: the broker's."""
        self.unused_secret: Secret | None = None
        """The secret of an AUTH that no broker has required yet."""
        self._ref: Ref = None
        self._is_response_due = False
        self.due = math.inf
        """The deadline for AUTH, monotonic seconds; `math.inf` while it is not required."""
        self.is_blocking = False
        """True while other commands wait for AUTH or for its verification."""

    def _enter(self, state: AuthState) -> None:
        self._state = state
        # An attribute, not a property: every command reads it.
        self.is_blocking = state is AuthState.REQUIRED or state is AuthState.VERIFYING

    @property
    def is_required_first(self) -> bool:
        """True if the next command must be AUTH."""
        return self._state is AuthState.REQUIRED

    @property
    def is_missing(self) -> bool:
        """True if AUTH is required, and the client has not sent it."""
        return self._state is AuthState.REQUIRED or self._state is AuthState.REQUIRED_LATER

    def require(self, now: float, *, is_subscribed: bool) -> Secret | None:
        """
        Require AUTH of the client, because a broker requires it of the gateway.

        Returns the secret of the client's earlier AUTH, if no broker has verified it yet: the
        caller must now verify it. Otherwise returns None, and if the client has sent no secret at
        all, it has `AUTH_TIMEOUT_S` to send AUTH. *is_subscribed* is True once the client was sent
        SUB: its other commands then run meanwhile, since it could not know that AUTH would be
        required.
        """
        if self._state is AuthState.NOT_REQUIRED:
            self._enter(AuthState.REQUIRED_LATER if is_subscribed else AuthState.REQUIRED)
            self.due = now + AUTH_TIMEOUT_S
        elif self.unused_secret is not None:
            # No deadline: the client has done its part, and brokers have timeouts of their own.
            self._enter(AuthState.VERIFYING)
            secret, self.unused_secret = self.unused_secret, None
            return secret
        return None

    def take(self, command: AuthCommand) -> Secret | None:
        """
        Accept the client's AUTH; return its secret if brokers must verify it, else None.

        Raises:
            InvalidRequest: There is a secret already, or the secret of *command* is missing, empty
                or longer than `MAX_SECRET_BYTES`.
        """
        if self._state not in _AFTER_AUTH:
            raise InvalidRequest("E_INVALID", "AUTH was sent already; a socket has one secret")
        # Before the state changes, so that a client may correct an invalid AUTH.
        secret = _secret_of(command)
        self._enter(_AFTER_AUTH[self._state])
        self._ref, self._is_response_due = command.ref, True
        self.due = math.inf
        if self._state is AuthState.VERIFYING:
            return secret
        self.unused_secret = secret
        return None

    @property
    def is_set(self) -> bool:
        """True if there is a secret, and no broker is verifying it."""
        return self._state is AuthState.SET

    @staticmethod
    def take_renewal(command: AuthCommand) -> Secret:
        """
        Return the secret of an AUTH that the client sent although there is a secret.

        Raises:
            InvalidRequest: The secret is missing, empty or longer than `MAX_SECRET_BYTES`.
        """
        return _secret_of(command)

    def take_response(self, authorization: AuthResponse | None) -> ResponseOut | None:
        """
        Return the response that the client's AUTH still lacks; None if it lacks none.

        *authorization* is the broker's response to AUTH, which the client gets as it is; None means
        that no broker required AUTH, and the client gets OK. `own_response` replaces both.
        """
        if self._state is AuthState.VERIFYING:
            self._enter(AuthState.SET)
        if not self._is_response_due:
            return None
        self._is_response_due = False
        data = self.own_response or authorization or "OK"
        return ResponseOut("AUTH", self._ref, data)

    def take_error(self, code: str, message: str, *, retryable: bool) -> ErrorOut:
        """Return the error for the client; if AUTH is not answered yet, it carries AUTH's ref."""
        ref = self._ref if self._is_response_due else None
        self._is_response_due = False
        return ErrorOut("AUTH", ref, code, message, retryable)


class AccessResponse(AuthResponse, frozen=True, kw_only=True):
    """The response to AUTH if the gateway has an access file; `permission_count` counts grants."""

    expires_in_ms: int | None
    """Time until the token expires; None: the credential has no end."""


def auth_first(command: ParsedCommand | None) -> ErrorOut:
    """
    Return the error for a client that must send AUTH first.

    *command* is what it sent instead; None if it sent nothing before the deadline.
    """
    if command is None:
        text = f"AUTH is required and was not received within {AUTH_TIMEOUT_S:g} s"
        return ErrorOut(None, None, "E_AUTH_FIRST", text, retryable=False)
    text = "AUTH is required before any other command"
    return ErrorOut(command.cmd, command.ref, "E_AUTH_FIRST", text, retryable=False)


def _secret_of(command: AuthCommand) -> Secret:
    if not command.secret:
        raise InvalidRequest("E_INVALID", 'AUTH needs a "secret" of at least one byte')
    secret = command.secret.encode()
    if len(secret) > MAX_SECRET_BYTES:
        text = f"the secret has {len(secret)} bytes; allowed: 1 to {MAX_SECRET_BYTES}"
        raise InvalidRequest("E_INVALID", text)
    return Secret(secret)
