"""Capacity of one process: open files, and message sizes that fit its buffers."""

from __future__ import annotations

from dataclasses import replace

from gateway.client.batch import SIZE_BYTES
from gateway.client.from_settings import NsqdAddresses
from gateway.open_files import MAX_AUTH_CONNECTIONS, OpenFilesBudget, auth_connections_limit
from gateway.protocol.wire import Limits
from gateway.settings.serve import ServeSettings

_PUBLISHING_SHARE = 8
"""At most one in this many files is for publishing connections."""


def files_needed(settings: ServeSettings, nsqds: NsqdAddresses) -> dict[str, int]:
    """
    Return the number of files that the settings allow one process to open, by setting.

    A WebSocket uses one file, and one more for every nsqd. If only nsqlookupds are configured, the
    number of nsqds is unknown, and one is assumed. An embedded broker in this process has the other
    end of each connection to nsqd, which doubles their files. Publishing connections are counted
    for every secret if the settings mention AUTH, otherwise once. With workers, the auth server is
    in another process, the supervisor.
    """
    connections = max(1, len(nsqds.tcp))
    files = files_per_nsqd_connection(settings)
    has_auth = settings.require_auth or bool(settings.auth_secret or settings.auth_secret_file)
    if settings.access_file is not None:
        has_auth = settings.nsqd_auth == "caller" and not settings.uses_embedded_broker
    secrets = settings.max_secrets if has_auth else 1
    return {
        "--max-sockets": settings.max_sockets * (1 + connections * files),
        "--max-http-connections": settings.max_http_connections,
        "--nsqd-connections": settings.nsqd_connections * connections * secrets * files,
        **(auth_files_needed(settings) if settings.workers == 1 else {}),
    }


def auth_files_needed(settings: ServeSettings) -> dict[str, int]:
    """Return the number of files of the auth server, by setting; empty if there is none."""
    return {} if settings.auth_listen is None else {"--auth-listen": MAX_AUTH_CONNECTIONS}


def files_per_nsqd_connection(settings: ServeSettings) -> int:
    """Return 2 if the broker is in this process, which then has both ends; otherwise 1."""
    return 2 if settings.uses_embedded_broker and settings.workers == 1 else 1


def open_files_budget(
    limit: float, settings: ServeSettings, nsqds: NsqdAddresses
) -> OpenFilesBudget:
    """Return the budget of clients, if this process may open *limit* files (infinity: any)."""
    publishing = min(_files_per_secret(settings, nsqds), limit / _PUBLISHING_SHARE)
    has_auth_server = settings.auth_listen is not None and settings.workers == 1
    reserved = int(publishing) + (auth_connections_limit() if has_auth_server else 0)
    return OpenFilesBudget(limit, reserved=reserved)


def max_secrets(limit: float, settings: ServeSettings, nsqds: NsqdAddresses) -> int:
    """Return how many secrets may have publishing connections, if *limit* files may be open."""
    fitting = limit / _PUBLISHING_SHARE / _files_per_secret(settings, nsqds)
    return int(max(1, min(settings.max_secrets, fitting)))


def _files_per_secret(settings: ServeSettings, nsqds: NsqdAddresses) -> int:
    """Return the number of files for the publishing connections of one secret."""
    per_nsqd = settings.nsqd_connections * files_per_nsqd_connection(settings)
    return per_nsqd * max(1, len(nsqds.tcp))


def limits_within_buffers(limits: Limits, settings: ServeSettings) -> Limits:
    """Return *limits*, reduced to what the publish buffers hold: more would always get 503."""
    max_bytes = min(settings.publish_buffer_bytes, settings.publish_buffer_per_nsqd_bytes)
    # The buffers count a message together with its length prefix.
    return replace(
        limits,
        max_msg_size_bytes=min(limits.max_msg_size_bytes, max_bytes - SIZE_BYTES),
        max_body_size_bytes=min(limits.max_body_size_bytes, max_bytes),
    )


def limits_of_callers(limits: Limits, settings: ServeSettings) -> Limits:
    """Return *limits* for callers: sizes are at most --publish-body-limit-bytes."""
    max_bytes = settings.publish_body_limit_bytes or limits.max_body_size_bytes
    return replace(
        limits,
        max_msg_size_bytes=min(limits.max_msg_size_bytes, max_bytes),
        max_body_size_bytes=min(limits.max_body_size_bytes, max_bytes),
    )
