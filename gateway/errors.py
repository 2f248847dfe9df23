"""
The exceptions of the gateway.

GatewayError
├─ SettingsError          a setting is missing or out of range (name, value, allowed range)
│  └─ SettingRefused      a setting is unknown, or conflicts with another one
├─ StartError             a service could not start (port in use, no such address)
├─ StoreDamaged           the broker's store has content that was not written so
├─ StoreFailed            the broker's store could not be read or written
├─ InvalidRequest         the request is invalid; token as in nsqd (MISSING_ARG_TOPIC, …)
├─ RowRefused             a row of a DataFrame cannot be published
├─ Forbidden              the caller is not allowed to do this
├─ AuthRequired           a secret is required, and the caller sent none
├─ CredentialRefused      the caller's token or API key is not valid, for whatever reason
├─ PermissionDenied       the access file does not grant this to the caller
├─ RequestTimeout         a request was not received completely in time
├─ HeadersTooLarge        the headers, or the trailers, exceed their size limit
│  └─ TooManyHeaders      there are too many headers, or items in one of them
├─ RateLimited            the caller exceeded its publish rate; not published
├─ NoNsqdHttpAddress      no HTTP address of an nsqd is known; nothing was done
├─ NodeUnknown            no nsqd with this HTTP address is known
├─ PeekTakes              an nsqd cannot show messages without delivering them
├─ DrainRefused           an nsqd cannot be drained; nothing was changed
├─ PartialFailure         a request failed on some nodes and succeeded on others
├─ LimitReached           a limit of connections, sockets or secrets is reached
├─ AlreadyResponded       a message was already finished or requeued
├─ PublishError           a publish failed, or its outcome is unknown
│  ├─ Overloaded          a bounded queue is full; not published
│  ├─ NoBroker            no broker connection is usable; not published
│  ├─ BrokerRefused       nsqd responded with an E_… error; not published
│  └─ OutcomeUnknown      written without a response; maybe published
├─ BrokerUnreachable      a connection to nsqd failed or was closed
├─ LookupFailed           an nsqlookupd gave no usable response
└─ ProtocolError
   ├─ LocalProtocolError  the gateway violated the V2 protocol: a bug
   └─ RemoteProtocolError the peer violated it (code and description as on the wire)

`web.errors` maps them to HTTP statuses and WebSocket close codes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

ErrorT = TypeVar("ErrorT", bound=Exception)

NOT_STORED_CODES = frozenset({"E_PUB_FAILED", "E_DPUB_FAILED", "E_MPUB_FAILED"})
"""nsqd cannot store messages: it is exiting, or its disk is full or broken."""

_MAX_NODE_LENGTH = 100
"""Length of an unknown address in an error text."""
_MAX_NODES_SHOWN = 5

_ACCESS_CODES = frozenset({"E_AUTH_FIRST", "E_AUTH_FAILED", "E_UNAUTHORIZED"})


class GatewayError(Exception):
    """Base class of the gateway's exceptions."""


class SettingsError(GatewayError):
    """A setting has an invalid value."""

    def __init__(self, name: str, value: object, *, allowed: str) -> None:
        super().__init__(f"{name} is {value!r}; allowed: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


class SettingRefused(SettingsError):
    """
    A setting is unknown, or conflicts with another one.

    *name* may also say where the setting was found; *reason* says what to do.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, None, allowed=reason)
        self.args = (f"{name}: {reason}",)


class StartError(GatewayError):
    """A service could not start; the text says why, and what to do."""


class StoreDamaged(GatewayError):
    """The broker's store has content that was not written so; the text says what is lost."""


class StoreFailed(GatewayError):
    """The broker's store could not be read or written; the text is the system's reason."""


class InvalidRequest(GatewayError):
    """
    A request is invalid.

    *token* is nsqd's code for the error (``MSG_TOO_BIG``). *detail* has the value, the limit and
    its unit.
    """

    def __init__(self, token: str, detail: str) -> None:
        super().__init__(detail)
        self.token = token
        self.detail = detail


class RowRefused(GatewayError):
    """The row *key* cannot be published; *reason* has the value, the limit and its unit."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"row {key} cannot be published: {reason}")
        self.key = key
        self.reason = reason


class Forbidden(GatewayError):
    """The caller is not allowed to do this; the text says why."""


class AuthRequired(GatewayError):
    """A secret is required, and the caller sent none; nothing was done."""


class CredentialRefused(GatewayError):
    """
    The caller's token or API key is not valid.

    The text is the same for every reason, since callers may see it. *reason* is for the log: it has
    no part of the token.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("the token or key is not valid here, or no longer; nothing was done")
        self.reason = reason


class PermissionDenied(GatewayError):
    """The access file does not grant this to the caller; the text says what is missing."""


class RequestTimeout(GatewayError):
    """A request was not received completely in time; nothing was done."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"the request did not arrive completely within {timeout_s:g} s; nothing was done"
        )
        self.timeout_s = timeout_s


class HeadersTooLarge(GatewayError):
    """The headers of a request, or its trailers, exceed their size limit."""

    def __init__(self, size_bytes: int, *, limit_bytes: int) -> None:
        super().__init__(
            f"the headers, or the trailers, have {size_bytes} or more bytes; "
            f"limit {limit_bytes} bytes"
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class TooManyHeaders(HeadersTooLarge):
    """A request has too many headers, or too many list items in one of them."""

    def __init__(self, count: int, *, limit: int, what: str) -> None:
        GatewayError.__init__(self, f"the request has {count} or more {what}; limit {limit}")
        self.count = count
        self.limit = limit


class NoNsqdHttpAddress(GatewayError):
    """No HTTP address of an nsqd is known; nothing was done."""

    def __init__(self) -> None:
        super().__init__(
            "no HTTP address of an nsqd is known; nothing was done; configure "
            "--nsqd-http-address or --lookupd-http-address"
        )


class PartialFailure(GatewayError):
    """A request failed on some nsqds or nsqlookupds; *lines* has a line for each of them."""

    def __init__(self, lines: Sequence[str]) -> None:
        head = "the request failed on these nodes, and may be repeated:"
        super().__init__("\n".join((head, *lines)))
        self.lines = tuple(lines)


class NodeUnknown(GatewayError):
    """No nsqd with the HTTP address *node* is known; *known* are those that are."""

    def __init__(self, node: str, known: Sequence[str]) -> None:
        shown = ", ".join(known[:_MAX_NODES_SHOWN])
        more = len(known) - _MAX_NODES_SHOWN
        super().__init__(
            f"no nsqd with the HTTP address {node[:_MAX_NODE_LENGTH]!r} is known; known are: "
            + (f"{shown} and {more} more" if more > 0 else shown or "none")
        )


class DrainRefused(GatewayError):
    """An nsqd cannot be drained; the text says why. Nothing was changed."""


class PeekTakes(GatewayError):
    """An nsqd cannot show messages without delivering them; nothing was done."""

    def __init__(self) -> None:
        super().__init__(
            "nsqd cannot show messages without delivering them: they would be taken and given back "
            "at once, which adds 1 to their attempts and puts them behind the others; send the "
            "request as a POST to do so"
        )


class RateLimited(GatewayError):
    """A caller exceeded its publish rate; nothing of this request was published."""

    def __init__(self, *, limit_per_s: float, retry_after_s: float) -> None:
        super().__init__(
            f"this caller exceeded its limit of {limit_per_s:g} messages a second; nothing was "
            f"published, try again in {math.ceil(retry_after_s)} s"
        )
        self.limit_per_s = limit_per_s
        self.retry_after_s = retry_after_s


class LimitReached(GatewayError):
    """
    A limit of connections, sockets or secrets is reached; the text says which.

    *reason* is a fixed word for that limit, used as a label value of metrics.
    """

    def __init__(self, text: str, reason: str = "full") -> None:
        super().__init__(text)
        self.reason = reason


class AlreadyResponded(GatewayError):
    """A message cannot be finished, requeued or touched: it was already finished or requeued."""

    def __init__(self, message_id: bytes) -> None:
        text = message_id.decode("latin-1")
        super().__init__(f"message {text} was already finished or requeued")
        self.message_id = message_id


class PublishError(GatewayError):
    """A publish failed, or its outcome is unknown."""


class Overloaded(PublishError):
    """
    A publish buffer is full; nothing was written.

    The buffer holds *waiting_bytes* of earlier publishes; this publish has *size_bytes* more.
    *where* describes the buffer in the error text.
    """

    def __init__(
        self,
        *,
        waiting_bytes: int,
        size_bytes: int,
        limit_bytes: int,
        where: str = "queued for publishing",
    ) -> None:
        super().__init__(
            f"{waiting_bytes} bytes are {where}, and this publish has {size_bytes} bytes; "
            f"the limit is {limit_bytes} bytes; nothing was published, try again later"
        )
        self.waiting_bytes = waiting_bytes
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class NoBroker(PublishError):
    """No nsqd is connected; nothing was written."""


class OutcomeUnknown(PublishError):
    """A publish was sent, and no response came: its messages may or may not be published."""


class BrokerRefused(PublishError):
    """nsqd responded with an error frame: *code* (``E_BAD_TOPIC``) and *description*."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(f"{code} {description}".rstrip())
        self.code = code
        self.description = description

    @property
    def is_auth_error(self) -> bool:
        """True if nsqd refused the secret, or the secret does not permit the command."""
        return self.code in _ACCESS_CODES

    @property
    def is_storage_error(self) -> bool:
        """True if nsqd cannot store any message at present."""
        return self.code in NOT_STORED_CODES


class BrokerUnreachable(GatewayError):
    """
    A connection to nsqd failed or was closed; *address* is host:port.

    *is_local* is True if the gateway itself closed the connection, without an error.
    """

    def __init__(self, address: str, reason: str, *, is_local: bool = False) -> None:
        super().__init__(f"nsqd at {address}: {reason}")
        self.address = address
        self.reason = reason
        self.is_local = is_local


class LookupFailed(GatewayError):
    """
    An nsqlookupd gave no usable response.

    *address* is the host:port of the nsqlookupd. *reason* is a fixed word for metrics, such as
    ``malformed``; *detail* is the text for people.
    """

    def __init__(self, address: str, reason: str, detail: str) -> None:
        super().__init__(f"nsqlookupd at {address}: {detail}")
        self.address = address
        self.reason = reason
        self.detail = detail


class ProtocolError(GatewayError):
    """One side of a connection violated nsqd's V2 protocol."""


class LocalProtocolError(ProtocolError):
    """The gateway violated the protocol: a bug."""


class RemoteProtocolError(ProtocolError):
    """
    The peer violated the protocol.

    *code* and *description* are those of the broker's error frame, as in nsqd. If *code* is empty,
    the connection is closed without an error frame.
    """

    def __init__(self, code: str, description: str) -> None:
        super().__init__(f"{code} {description}".strip())
        self.code = code
        self.description = description


def copy_error(error: ErrorT) -> ErrorT:
    """
    Copy an error without its traceback and cause.

    For an error that is stored or raised more than once: its traceback would grow each time, and
    keep the frames of earlier callers alive.
    """
    # Not copy.copy(): it calls the constructor with `args`, which has other parameters here.
    copied = type(error).__new__(type(error))
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    return copied
