"""The access file in a process, and the auth server, which the process may have."""

from __future__ import annotations

from gateway.access.auth_server import AuthServer
from gateway.access.control import AccessControl
from gateway.access.jwks import JwksOptions
from gateway.addresses import has_loopback_host
from gateway.server.gateway import listener_certificate
from gateway.settings.serve import ServeSettings
from gateway.telemetry import get_logger

logger = get_logger()


def new_access_control(settings: ServeSettings) -> AccessControl | None:
    """Return the control of --access-file, not loaded yet; None without a file."""
    if settings.access_file is None:
        return None
    jwks = JwksOptions(refresh_s=settings.jwks_refresh_s, max_stale_s=settings.jwks_max_stale_s)
    return AccessControl(settings.access_file, jwks=jwks)


def new_auth_server(settings: ServeSettings, access: AccessControl | None) -> AuthServer | None:
    """Return the auth server of --auth-listen, not bound yet; None without this setting."""
    if settings.auth_listen is None or access is None:
        return None
    return AuthServer(settings.auth_listen, access, listener_certificate(settings))


async def start_access(access: AccessControl | None, auth_server: AuthServer | None) -> list[str]:
    """Start both, as far as they exist; return warnings for the startup banner."""
    warnings = [] if access is None else await access.start()
    if auth_server is not None:
        await auth_server.start()
        if not (auth_server.has_tls or has_loopback_host(auth_server.address)):
            logger.warning(
                "auth server without TLS",
                address=auth_server.address,
                advice="nsqds send tokens and keys in clear text; set --tls-cert and --tls-key, "
                "or let only nsqds reach this port",
            )
    return warnings


def auth_server_banner(auth_server: AuthServer | None) -> list[str]:
    """Return the line of the startup banner about the auth server, if there is one."""
    return [] if auth_server is None else [f"auth server: nsqd {auth_server.nsqd_flag}"]
