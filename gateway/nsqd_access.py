"""How the programs reach nsqd: connections, lookups and the secret, made from the settings."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import NamedTuple

import gateway
from gateway.bearer import is_bearer
from gateway.certificate import show_expiry
from gateway.client.connection import ConnectionOptions
from gateway.client.lookup import LookupOptions
from gateway.client.tls import TlsOptions
from gateway.errors import SettingsError
from gateway.protocol.identify import Offer
from gateway.secret import Secret
from gateway.secret_file import read_secret_file
from gateway.session.auth import MAX_SECRET_BYTES
from gateway.settings import ServeSettings
from gateway.settings_nsqd import NsqdSettings
from gateway.telemetry import get_logger

logger = get_logger()

_ADMIN_SECRET_FILE = "--admin-secret-file"


@dataclass(frozen=True, kw_only=True)
class NsqdAccess:
    """What the settings say about nsqd, with the files that they name read and found usable."""

    secret: Secret | None
    """For our own work; what callers bring is no concern of this."""
    connection: ConnectionOptions
    """Without a secret: whoever connects says whose it is."""
    lookup: LookupOptions
    """Whom to ask where nsqd is, with our own secret."""


def read_access(settings: NsqdSettings) -> NsqdAccess:
    """
    Read the files that *settings* name; warns in the log about a secret that everybody can read.

    Raises:
        SettingsError: A file is missing or cannot be used.
    """
    secret = settings.auth_secret
    if settings.auth_secret_file is not None:
        secret, warning = read_secret_file(settings.auth_secret_file)
        if warning is not None:
            logger.warning("everybody may read a secret", advice=warning)
    tls = _tls_options(settings)
    if tls is not None:
        tls.context()  # said now, and not as an nsqd that cannot be reached
        if tls.cert_file is not None:
            show_expiry("nsqd", tls.cert_file)
    return NsqdAccess(
        secret=secret,
        connection=ConnectionOptions(
            offer=_offer(settings), connect_timeout_ms=settings.dial_timeout_ms, tls=tls
        ),
        lookup=LookupOptions(
            lookupd_http_addresses=settings.lookupd_http_address,
            poll_interval_s=settings.lookupd_poll_interval_s,
            poll_jitter=settings.lookupd_poll_jitter,
            secret=secret,
        ),
    )


class Nsqds(NamedTuple):
    """The nsqds that are named, or the embedded broker; each address is host:port."""

    tcp: tuple[str, ...]
    http: tuple[str, ...]
    """Where those among them answer HTTP that are named there too."""


def read_admin_secret(settings: ServeSettings) -> Secret | None:
    """
    Read the secret that opens administration, where *settings* name its file.

    Warns in the log about one that everybody can read.

    Raises:
        SettingsError: There is no such file, or no header carries its secret.
    """
    path = settings.admin_secret_file
    if path is None:
        return None
    secret, warning = read_secret_file(path, _ADMIN_SECRET_FILE)
    if warning is not None:
        logger.warning("everybody may read a secret", advice=warning)
    if not is_bearer(secret) or len(secret.reveal()) > MAX_SECRET_BYTES:
        allowed = (
            f"the path of a file with 1 to {MAX_SECRET_BYTES} bytes of visible ASCII without "
            "spaces, for a header carries them"
        )
        raise SettingsError(_ADMIN_SECRET_FILE, path, allowed=allowed)
    return secret


def _offer(settings: NsqdSettings) -> Offer:
    return Offer(
        client_id=settings.client_id,
        hostname=settings.hostname or socket.gethostname(),
        user_agent=settings.user_agent or f"nsq-gateway/{gateway.__version__}",
        feature_negotiation=True,
        heartbeat_interval=settings.heartbeat_interval_ms,
        snappy=settings.nsqd_snappy,
        deflate=settings.nsqd_deflate,
        deflate_level=settings.nsqd_deflate_level if settings.nsqd_deflate else 0,
        topology_region=settings.topology_region,
        topology_zone=settings.topology_zone,
    )


def _tls_options(settings: NsqdSettings) -> TlsOptions | None:
    if not settings.nsqd_tls_v1:
        return None
    return TlsOptions(
        root_ca_file=settings.nsqd_tls_root_ca_file,
        cert_file=settings.nsqd_tls_cert,
        key_file=settings.nsqd_tls_key,
        min_version=settings.nsqd_tls_min_version,
        insecure_skip_verify=settings.nsqd_tls_insecure_skip_verify,
    )
