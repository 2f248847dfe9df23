"""Whether a gateway that cannot be reached is one whose certificate nobody here knows."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from gateway.errors import StartError


def untrusted(url: str, error: BaseException) -> StartError | None:
    """Return what to say where *error* is about the certificate of *url*; None: it is not."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return StartError(
                f"the certificate of {url} is not to be trusted: {cause.verify_message}; let the "
                "variable SSL_CERT_FILE name a file with its authority, or correct the name"
            )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Give *error* and what led to it: libraries put their own around the one of ssl."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
