"""Publish what clients send by PUB, DPUB and MPUB commands on their sockets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from gateway.client.metrics import count_auth
from gateway.client.producer import Producer
from gateway.credentials import Secret
from gateway.errors import AuthRequired, BrokerRefused, GatewayError, PermissionDenied
from gateway.session.types import PublishBodies, Refusal
from gateway.telemetry import fast_counter, get_logger
from gateway.web.auth import AccessPolicy, Principal
from gateway.web.errors import error_response, with_names
from gateway.web.http.publish import WATCHED_RESULTS
from gateway.web.rate_limit import PublishRateLimiter

logger = get_logger()

_BODY_OBJECT_BYTES = 48
"""CPython's memory for each body besides its bytes: an object header, and a list's reference."""

_PUBLISHES = fast_counter(
    "socket_publishes_total",
    "Responses to PUB, DPUB and MPUB commands of sockets, by OK or the error's token.",
    ("cmd", "result"),
    zeros=product(("PUB", "DPUB", "MPUB"), WATCHED_RESULTS),
)


class SocketPublishing:
    """
    Publish what clients send by PUB, DPUB and MPUB commands on their sockets.

    Args:
        publisher: Publishes to nsqd; the caller starts and stops it.
        rate_limiter: The rate limit per client; publishes over HTTP count towards the same limit.
        access: Says which secret connections to nsqd have; None for the defaults.
    """

    def __init__(
        self,
        publisher: Producer,
        rate_limiter: PublishRateLimiter,
        access: AccessPolicy | None = None,
    ) -> None:
        self._publisher = publisher
        self._access = access or AccessPolicy()
        self._rate_limiter = rate_limiter

    def begin(
        self,
        publish: PublishBodies,
        principal: Principal,
        peer: str,
        on_done: Callable[[PublishBodies, Refusal | None], None],
    ) -> None:
        """
        Start to publish, and call *on_done* once with the outcome: the error, or None for OK.

        *on_done* may be called before this returns. *peer* is the client's host, by which the rate
        limit identifies a client without a secret. The messages are published even if the socket
        closes meanwhile.
        """
        bodies = publish.bodies
        overhead_bytes = _BODY_OBJECT_BYTES * len(bodies) if len(bodies) > 1 else 0
        held_bytes = 0
        is_answered = False

        # The producer may call this before `begin` returns, so the state is kept out here.
        def finish(error: BaseException | None) -> None:
            nonlocal held_bytes, is_answered
            released_bytes, held_bytes = held_bytes, 0
            self._publisher.unreserve(released_bytes)
            is_answered = True
            on_done(publish, _outcome(publish, error))

        try:
            principal.check_publish(publish.topic)
            if overhead_bytes:
                # The producer counts the bytes of bodies; small bodies take several times as much.
                self._publisher.reserve(overhead_bytes)
                held_bytes = overhead_bytes
            self._rate_limiter.charge(principal, peer, messages=len(bodies))
            secret = self.secret_for_nsqd(principal)
            self._publisher.begin(
                publish.topic, bodies, finish, defer_ms=publish.defer_ms, secret=secret
            )
        except Exception as error:
            if is_answered:
                raise  # *on_done* failed, and must not be called again
            finish(error)

    def secret_for_nsqd(self, principal: Principal) -> Secret | None:
        """Return the secret for connections to nsqd that serve *principal*; None for none."""
        return self._access.secret_for_nsqd(principal, requires_auth=self._publisher.requires_auth)


def _outcome(publish: PublishBodies, error: BaseException | None) -> Refusal | None:
    """Count the outcome of *publish*, and return the client's error; None for OK."""
    if error is None:
        _PUBLISHES.counts[publish.cmd, "OK"] += 1
        return None
    if not isinstance(error, GatewayError):
        logger.error("publish failed", cmd=publish.cmd, topic=publish.topic, exc_info=error)
    fault = error_response(error)
    _PUBLISHES.counts[publish.cmd, fault.token] += 1
    if isinstance(error, BrokerRefused):
        named = with_names(error, publish.topic)
        return Refusal(named.code, named.description, fault.retryable)
    if isinstance(error, AuthRequired):
        count_auth("missing")
        text = "nsqd requires AUTH, and this socket has no secret; nothing was published"
        return Refusal("E_AUTH_FIRST", text, retryable=False)
    code = f"E_{fault.token}" if isinstance(error, PermissionDenied) else fault.token
    return Refusal(code, fault.detail or str(error), fault.retryable)
