"""
The AUTH of one socket: whether a secret is wanted, what the client gave, and until when it may.

A broker tells whether it wants AUTH, so a socket is asked only then; what a client gives before
anybody asks is answered OK and kept for a broker that comes later.
"""

from __future__ import annotations

import enum
import math

from gateway.errors import InvalidRequest
from gateway.protocol.authorization import Authorization
from gateway.secret import Secret
from gateway.session.commands import Auth, Ref, Spoken
from gateway.session.messages import ErrorOut, ResponseOut

AUTH_TIMEOUT_S = 10.0
"""What a client gets for its AUTH, from when it is wanted."""
MAX_SECRET_BYTES = 4_096
"""Longer than any token that is in use; what waits to be asked about is bounded by it."""


class _State(enum.Enum):
    OPEN = "nobody wants a secret, and there is none"
    FIRST = "one is wanted, and nothing else is taken before it"
    LATE = "one is wanted by a broker that came later; commands are taken meanwhile"
    TRIED = "the client gave one, and brokers are asked"
    SET = "there is one, or the client gave one that nobody wanted"


_GIVEN = {
    _State.OPEN: _State.SET,
    _State.FIRST: _State.TRIED,
    _State.LATE: _State.TRIED,
}
"""The state after the client's AUTH; in another one AUTH is refused."""


class Authentication:
    """Where a socket stands with its secret."""

    __slots__ = ("_is_answer_due", "_ref", "_state", "due", "holds_up", "kept")

    def __init__(self, *, has_secret: bool) -> None:
        self._state = _State.SET if has_secret else _State.OPEN
        self.kept: Secret | None = None
        """What the client gave and no broker was asked to subscribe with."""
        self._ref: Ref = None
        self._is_answer_due = False
        self.due = math.inf
        """Until when the client may say AUTH, monotonic seconds; never, while nobody waits."""
        self.holds_up = False
        """Whether commands wait: for AUTH, or for what the brokers say to it."""

    def _enter(self, state: _State) -> None:
        self._state = state
        self.holds_up = state is _State.FIRST or state is _State.TRIED

    @property
    def is_first(self) -> bool:
        """Whether the next command has to be AUTH."""
        return self._state is _State.FIRST

    @property
    def is_missing(self) -> bool:
        """Whether a secret is wanted, and the client has not said AUTH."""
        return self._state is _State.FIRST or self._state is _State.LATE

    def want(self, now: float, *, is_subscribed: bool) -> Secret | None:
        """
        Learn that a broker wants AUTH.

        Returns the secret to try when the client gave one before; else the client has
        `AUTH_TIMEOUT_S` for it. One that has been told that it is subscribed may say other
        commands meanwhile: it could not know.
        """
        if self._state is _State.OPEN:
            self._enter(_State.LATE if is_subscribed else _State.FIRST)
            self.due = now + AUTH_TIMEOUT_S
        elif self.kept is not None:
            self._enter(_State.TRIED)
            secret, self.kept = self.kept, None
            return secret
        return None

    def give(self, command: Auth) -> Secret | None:
        """
        Take the client's AUTH; return the secret to try, None where nobody wants one.

        Raises:
            InvalidRequest: There is a secret already, or none in *command* that can be used.
        """
        if self._state not in _GIVEN:
            raise InvalidRequest("E_INVALID", "AUTH already set: one secret holds for one socket")
        secret = _secret_of(command)
        self._enter(_GIVEN[self._state])
        self._ref, self._is_answer_due = command.ref, True
        self.due = math.inf
        if self._state is _State.TRIED:
            return secret
        self.kept = secret
        return None

    def settle(self, authorization: Authorization | None) -> ResponseOut | None:
        """Return the answer that is due to AUTH: what a broker said to it, or OK."""
        if self._state is _State.TRIED:
            self._enter(_State.SET)
        if not self._is_answer_due:
            return None
        self._is_answer_due = False
        data = "OK" if authorization is None else authorization
        return ResponseOut("AUTH", self._ref, data)

    def fail(self, code: str, message: str, *, retryable: bool) -> ErrorOut:
        """Return the error in place of the answer to AUTH, or unasked."""
        ref = self._ref if self._is_answer_due else None
        self._is_answer_due = False
        return ErrorOut("AUTH", ref, code, message, retryable)


def auth_first(command: Spoken | None) -> ErrorOut:
    """Return the error for *command* before AUTH; None: for no command in time."""
    if command is None:
        text = f"a secret is wanted here, and no AUTH came within {AUTH_TIMEOUT_S:g} s"
        return ErrorOut(None, None, "E_AUTH_FIRST", text, retryable=False)
    text = "a secret is wanted here: AUTH comes before every other command"
    return ErrorOut(command.cmd, command.ref, "E_AUTH_FIRST", text, retryable=False)


def _secret_of(command: Auth) -> Secret:
    if not command.secret:
        raise InvalidRequest("E_INVALID", 'AUTH needs a "secret" of at least one byte')
    secret = command.secret.encode()
    if len(secret) > MAX_SECRET_BYTES:
        text = f"the secret has {len(secret)} bytes; allowed: 1 to {MAX_SECRET_BYTES}"
        raise InvalidRequest("E_INVALID", text)
    return Secret(secret)
