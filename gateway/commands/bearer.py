"""A secret on its way to a gateway."""

from __future__ import annotations

import re

from gateway.errors import SettingRefused
from gateway.secret import Secret

_SENDABLE = re.compile(rb"[!-~]+")


def bearer_headers(secret: Secret | None) -> dict[str, str]:
    """
    Return the header that brings *secret*; none where there is none.

    Raises:
        SettingsError: A header cannot hold it. Said here, for HTTP libraries show what they refuse.
    """
    if secret is None:
        return {}
    if not _SENDABLE.fullmatch(secret.reveal()):
        reason = "a gateway takes it in a header: visible ASCII, without spaces"
        raise SettingRefused("--auth-secret", reason)
    return {"Authorization": f"Bearer {secret.reveal().decode('ascii')}"}
