"""PUB, DPUB and MPUB of sockets: the same publisher, bounds and rates as those of POST /pub."""

from __future__ import annotations

from collections.abc import Callable

from gateway.errors import AuthRequired, BrokerRefused, GatewayError
from gateway.secret import Secret
from gateway.session.actions import Publish, Refusal
from gateway.telemetry import get_logger, tally
from gateway.web.caller_quota import CallerQuota
from gateway.web.faults import fault_of, naming
from gateway.web.publish import APART_BYTES, Publishes

logger = get_logger()

_PUBLISHES = tally(
    "socket_publishes_total", "Answers to PUB, DPUB and MPUB of sockets.", ("cmd", "result")
)
"""*result* is OK or the token of the error, as for POST."""


class SocketPublishing:
    """Publishes what a session has found right."""

    def __init__(self, publisher: Publishes, callers: CallerQuota) -> None:
        self._publisher = publisher
        self._callers = callers

    def begin(
        self,
        publish: Publish,
        secret: Secret | None,
        peer: str,
        told: Callable[[Publish, Refusal | None], None],
    ) -> None:
        """
        Publish; *told* is called once with the outcome, None is OK, perhaps before this returns.

        *peer* is the host that asks, for callers without a secret. A socket that ends meanwhile
        changes nothing: what has been begun is published.
        """
        bodies = publish.bodies
        apart_bytes = APART_BYTES * len(bodies) if len(bodies) > 1 else 0
        is_held = False

        def done(error: BaseException | None) -> None:
            if is_held:
                self._publisher.release(apart_bytes)
            told(publish, _outcome(publish, error))

        try:
            if apart_bytes:
                self._publisher.hold(apart_bytes)
                is_held = True
            self._callers.charge(secret, peer, messages=len(bodies))
            self._publisher.begin(
                publish.topic, bodies, done, defer_ms=publish.defer_ms, secret=secret
            )
        except Exception as error:  # noqa: BLE001 - the client is told of every one
            done(error)


def _outcome(publish: Publish, error: BaseException | None) -> Refusal | None:
    """Count how *publish* ended, and return what its client is told of *error*."""
    if error is None:
        _PUBLISHES.counts[publish.cmd, "OK"] += 1
        return None
    if not isinstance(error, GatewayError):
        logger.error("publish failed", cmd=publish.cmd, topic=publish.topic, exc_info=error)
    fault = fault_of(error)
    _PUBLISHES.counts[publish.cmd, fault.token] += 1
    if isinstance(error, BrokerRefused):
        named = naming(error, publish.topic)
        return Refusal(named.code, named.description, fault.retryable)
    if isinstance(error, AuthRequired):
        text = "a secret is asked for, and this socket has none; nothing was published"
        return Refusal("E_AUTH_FIRST", text, retryable=False)
    return Refusal(fault.token, fault.detail or str(error), fault.retryable)
