"""What one process may take, as its settings and the nsqds say: files, and sizes of messages."""

from __future__ import annotations

from dataclasses import replace

from gateway.client.batch import SIZE_BYTES
from gateway.nsqd_access import Nsqds
from gateway.protocol.wire import Limits
from gateway.settings import ServeSettings


def files_needed(settings: ServeSettings, nsqds: Nsqds) -> dict[str, int]:
    """
    Return how many files one process may have open here, by the setting that asks for them.

    A socket is one, and one for every nsqd that it consumes from; of those that nsqlookupd names
    at least one is counted. A broker in this process has the other ends. Connections to publish
    on are counted for every secret where the settings speak of AUTH, and else once: whether an
    nsqd asks for it is not known here, and most do not.
    """
    connections = max(1, len(nsqds.tcp))
    ends = 2 if settings.uses_embedded_broker and settings.workers == 1 else 1
    tells_callers_apart = settings.require_auth or bool(
        settings.auth_secret or settings.auth_secret_file
    )
    secrets = settings.max_secrets if tells_callers_apart else 1
    return {
        "--max-sockets": settings.max_sockets * (1 + connections * ends),
        "--max-http-connections": settings.max_http_connections,
        "--nsqd-connections": settings.nsqd_connections * connections * secrets * ends,
    }


def limits_of_room(limits: Limits, settings: ServeSettings) -> Limits:
    """Return *limits*, or less where nsqd takes more than may wait here."""
    most_bytes = min(settings.publish_buffer_bytes, settings.publish_buffer_per_nsqd_bytes)
    return replace(
        limits,
        max_msg_size_bytes=min(limits.max_msg_size_bytes, most_bytes - SIZE_BYTES),
        max_body_size_bytes=min(limits.max_body_size_bytes, most_bytes),
    )


def limits_of_callers(limits: Limits, settings: ServeSettings) -> Limits:
    """Return *limits*, or less where callers are to have less."""
    most_bytes = settings.publish_body_limit_bytes or limits.max_body_size_bytes
    return replace(
        limits,
        max_msg_size_bytes=min(limits.max_msg_size_bytes, most_bytes),
        max_body_size_bytes=min(limits.max_body_size_bytes, most_bytes),
    )
