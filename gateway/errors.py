"""
Every error that gateway code raises on purpose.

GatewayError
├─ SettingsError            a setting is missing or out of range (name, value, allowed range)
│  └─ SettingRefused        a setting is unknown, or cannot stand beside another one
├─ StartError               a part could not start (port taken, nothing at an address)
├─ InvalidRequest           the caller's fault; token as nsqd spells it (MISSING_ARG_TOPIC, …)
├─ RowRefused               a row of Spark's cannot be published, whatever is tried
├─ Forbidden                the caller may not do this, whatever the request says
├─ AuthRequired             a secret is asked for, and none was brought
├─ RequestTimeout           the rest of a request did not come in time
├─ HeadTooBig               a head, or a trailer, goes on after what is read of it
├─ RateLimited              the caller has published more than it may; not published
├─ NoKnownNsqd              there is no nsqd whose HTTP could be asked; nothing was done
├─ PartlyDone               some nodes did what was asked, others failed
├─ Full                     no further socket or secret is taken here
├─ AlreadyAnswered          a message was finished or requeued before
├─ PublishError             a publish was not answered with OK
│  ├─ Overloaded            a bounded queue is full; not published
│  ├─ NoBroker              no broker connection is usable; not published
│  ├─ BrokerRefused         an E_… frame answered it; not published
│  └─ OutcomeUnknown        written, and no answer came; published or not, nobody knows
├─ BrokerUnreachable        a TCP connection to a broker could not be made or kept
├─ LookupFailed             an nsqlookupd gave no answer that can be used
└─ ProtocolError
   ├─ LocalProtocolError    our side asked for something V2 forbids now: a bug here
   └─ RemoteProtocolError   the peer broke V2 (code and description as they go on the wire)

Pure code raises only these, and gives expected outcomes as values. HTTP statuses and WebSocket
close codes are chosen in one place, web/faults.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

ErrorT = TypeVar("ErrorT", bound=Exception)

_ACCESS_CODES = frozenset({"E_AUTH_FIRST", "E_AUTH_FAILED", "E_UNAUTHORIZED"})


class GatewayError(Exception):
    """Root of the tree."""


class SettingsError(GatewayError):
    """A setting has a value that cannot be used."""

    def __init__(self, name: str, value: object, *, allowed: str) -> None:
        super().__init__(f"{name} is {value!r}; allowed: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


class SettingRefused(SettingsError):
    """
    A setting is unknown, or does not go together with another one, whatever its value.

    *name* may say where it was found; *reason* names the other setting, and what to do.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, None, allowed=reason)
        self.args = (f"{name}: {reason}",)


class StartError(GatewayError):
    """A part could not start; the text is one sentence that says what to do."""


class InvalidRequest(GatewayError):
    """
    A request cannot be carried out as it stands.

    *token* is nsqd's own word for it (``MSG_TOO_BIG``); the text explains it to a person, with
    the value, the limit and its unit.
    """

    def __init__(self, token: str, detail: str) -> None:
        super().__init__(detail)
        self.token = token
        self.detail = detail


class RowRefused(GatewayError):
    """A row cannot be published as it is: *key* names it; *reason* has value, limit and unit."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"row {key} cannot be published: {reason}")
        self.key = key
        self.reason = reason


class Forbidden(GatewayError):
    """The caller may not do this, however the request is spelled; the text says why."""


class AuthRequired(GatewayError):
    """A secret is asked for, and the caller brought none; nothing was done."""


class RequestTimeout(GatewayError):
    """The rest of a request did not come in time; nothing was done with what had come."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"the request was not whole after {timeout_s:g} s, which is the limit; nothing was done"
        )
        self.timeout_s = timeout_s


class HeadTooBig(GatewayError):
    """The head of a request, or the trailer behind its body, is longer than what is read of it."""

    def __init__(self, size_bytes: int, *, limit_bytes: int) -> None:
        super().__init__(
            f"the head, or the trailer, has {size_bytes} bytes and more; limit {limit_bytes} bytes"
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class NoKnownNsqd(GatewayError):
    """There is no nsqd whose HTTP could be asked; nothing was done."""

    def __init__(self) -> None:
        super().__init__(
            "the HTTP address of no nsqd is known, nothing was done; --nsqd-http-address names "
            "one, and --lookupd-http-address an nsqlookupd that knows them"
        )


class PartlyDone(GatewayError):
    """Not every nsqd and nsqlookupd did what was asked; *lines* tell of each that did not."""

    def __init__(self, lines: Sequence[str]) -> None:
        head = "not every node did it, and the same request may be sent again:"
        super().__init__("\n".join((head, *lines)))
        self.lines = tuple(lines)


class RateLimited(GatewayError):
    """A caller has published faster than it may; nothing of this request was published."""

    def __init__(self, *, limit_per_s: float, retry_after_s: float) -> None:
        super().__init__(
            f"one caller may publish {limit_per_s:g} messages a second, and this one has used that "
            f"up; nothing was published, try again in {math.ceil(retry_after_s)} s"
        )
        self.limit_per_s = limit_per_s
        self.retry_after_s = retry_after_s


class Full(GatewayError):
    """
    No further socket or secret is taken here now; the text says why.

    *reason* is a word for it, of which there are few: they are counted by it.
    """

    def __init__(self, text: str, reason: str = "full") -> None:
        super().__init__(text)
        self.reason = reason


class AlreadyAnswered(GatewayError):
    """A message is to be finished, requeued or touched that was finished or requeued before."""

    def __init__(self, message_id: bytes) -> None:
        text = message_id.decode("latin-1")
        super().__init__(f"message {text} is answered: it was finished or requeued before")
        self.message_id = message_id


class PublishError(GatewayError):
    """A publish was not answered with OK."""


class Overloaded(PublishError):
    """
    What waits to be published has reached a bound; nothing was written.

    *where* says which bound: ``in all``, or ``for each nsqd that is there``. *waiting_bytes* wait
    without this publish, which has *size_bytes*.
    """

    def __init__(
        self, *, waiting_bytes: int, size_bytes: int, limit_bytes: int, where: str = "in all"
    ) -> None:
        super().__init__(
            f"{waiting_bytes} bytes wait to be published {where}, this publish has {size_bytes} "
            f"bytes, the limit is {limit_bytes} bytes; nothing was published, try again later"
        )
        self.waiting_bytes = waiting_bytes
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class NoBroker(PublishError):
    """No connection to any nsqd could take the publish; nothing was written."""


class OutcomeUnknown(PublishError):
    """The publish was written and no answer came: it may or may not be published."""


class BrokerRefused(PublishError):
    """
    The broker answered a command with an error frame.

    *code* is NSQ's (``E_BAD_TOPIC``), *description* what the broker said after it.
    """

    def __init__(self, code: str, description: str) -> None:
        super().__init__(f"{code} {description}".rstrip())
        self.code = code
        self.description = description

    @property
    def is_about_access(self) -> bool:
        """Whether a secret was refused, or its owner may not do this."""
        return self.code in _ACCESS_CODES


class BrokerUnreachable(GatewayError):
    """
    A connection to a broker could not be made, or has ended; *address* is host:port.

    *is_own*: this side has ended it, and not because anything was wrong.
    """

    def __init__(self, address: str, reason: str, *, is_own: bool = False) -> None:
        super().__init__(f"nsqd at {address}: {reason}")
        self.address = address
        self.reason = reason
        self.is_own = is_own


class LookupFailed(GatewayError):
    """
    An nsqlookupd gave no answer that can be used.

    *address* is its host:port; *reason* one of a few words, for a metric (``malformed``); *detail*
    tells a person.
    """

    def __init__(self, address: str, reason: str, detail: str) -> None:
        super().__init__(f"nsqlookupd at {address}: {detail}")
        self.address = address
        self.reason = reason
        self.detail = detail


class ProtocolError(GatewayError):
    """One side of a V2 connection left the protocol."""


class LocalProtocolError(ProtocolError):
    """Our side asked for something that V2 does not allow in this state: a bug here."""


class RemoteProtocolError(ProtocolError):
    """
    The peer broke V2.

    *code* and *description* are what a broker writes into its error frame, spelled as nsqd
    spells them. A code that is empty means: close without a frame.
    """

    def __init__(self, code: str, description: str) -> None:
        super().__init__(f"{code} {description}".strip())
        self.code = code
        self.description = description


def alike(error: ErrorT) -> ErrorT:
    """
    Return an error that says the same, without traceback and cause.

    For one that is kept, or raised for several: a traceback leads to whoever was there, who may
    lead to the error again, and grows each time.
    """
    again = type(error).__new__(type(error))
    again.args = error.args
    again.__dict__.update(error.__dict__)
    return again
