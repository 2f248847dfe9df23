"""
Limits of messages and commands, from the settings and from each nsqd over HTTP.

Apart from `capacity`, which imports the client: `nsq-gateway broker` must start without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.protocol.wire import Limits
from gateway.settings.broker import BrokerSettings
from gateway.settings.fields import LimitSettings

_CONFIG_TIMEOUT_S = 2.0
_NS_PER_MS = 1_000_000


def broker_limits(settings: BrokerSettings) -> Limits:
    """Return the limits that the settings of `nsq-gateway broker` give the embedded broker."""
    return Limits(
        max_msg_size_bytes=settings.max_msg_size,
        max_body_size_bytes=settings.max_body_size,
        max_req_timeout_ms=settings.max_req_timeout,
        max_rdy_count=settings.max_rdy_count,
        msg_timeout_ms=settings.msg_timeout,
        max_msg_timeout_ms=settings.max_msg_timeout,
        max_heartbeat_interval_ms=settings.max_heartbeat_interval,
        max_output_buffer_size_bytes=settings.max_output_buffer_size,
        max_output_buffer_timeout_ms=settings.max_output_buffer_timeout,
        min_output_buffer_timeout_ms=settings.min_output_buffer_timeout,
        output_buffer_timeout_ms=settings.output_buffer_timeout,
    )


def settings_limits(settings: LimitSettings) -> Limits:
    """Return the limits in *settings*; those without a setting keep nsqd's defaults."""
    return Limits(
        max_msg_size_bytes=settings.max_msg_size,
        max_body_size_bytes=settings.max_body_size,
        max_req_timeout_ms=settings.max_req_timeout,
    )


async def fetch_limits(
    limits: Limits, nsqd_http_addresses: Sequence[str]
) -> tuple[Limits, list[str]]:
    """
    Fetch the limits of each nsqd over HTTP, and return the smallest of all.

    The response to IDENTIFY does not contain them. nsqds found by discovery are not queried: where
    limits differ, the operator configures the nsqd with the smallest ones, or the limits.

    Return also a warning for each nsqd that did not answer; *limits* are assumed for that nsqd.
    """
    import httpx  # noqa: PLC0415 - the broker does not need it

    found: list[Limits] = []
    warnings = []
    # Proxies in the environment are for other destinations than nsqd.
    async with httpx.AsyncClient(timeout=_CONFIG_TIMEOUT_S, trust_env=False) as client:
        for address in nsqd_http_addresses:
            try:
                msg, body, req = [
                    int(
                        (await client.get(f"http://{address}/config/{option}"))
                        .raise_for_status()
                        .text
                    )
                    for option in ("max_msg_size", "max_body_size", "max_req_timeout")
                ]
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                warnings.append(
                    f"nsqd at {address} does not return its limits over HTTP ({error}); using "
                    "--max-msg-size, --max-body-size and --max-req-timeout"
                )
                found.append(limits)
                continue
            found.append(
                replace(
                    limits,
                    max_msg_size_bytes=msg,
                    max_body_size_bytes=body,
                    # nsqd encodes a Go duration as nanoseconds.
                    max_req_timeout_ms=req // _NS_PER_MS,
                )
            )
    if not found:
        return limits, warnings
    smallest = replace(
        limits,
        max_msg_size_bytes=min(each.max_msg_size_bytes for each in found),
        max_body_size_bytes=min(each.max_body_size_bytes for each in found),
        max_req_timeout_ms=min(each.max_req_timeout_ms for each in found),
    )
    return smallest, warnings
