"""What brokers accept: as the settings name it, and as each nsqd tells it over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import httpx

from gateway.protocol.wire import Limits
from gateway.settings import BrokerSettings
from gateway.settings_common import LimitSettings

_CONFIG_TIMEOUT_S = 2.0
_NS_PER_MS = 1_000_000


def broker_limits(settings: BrokerSettings) -> Limits:
    """Return the limits that the broker's settings name."""
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
    )


def settings_limits(settings: LimitSettings) -> Limits:
    """Return the limits that the settings name."""
    return Limits(
        max_msg_size_bytes=settings.max_msg_size,
        max_body_size_bytes=settings.max_body_size,
        max_req_timeout_ms=settings.max_req_timeout,
    )


async def learn_limits(
    limits: Limits, nsqd_http_addresses: Sequence[str]
) -> tuple[Limits, list[str]]:
    """
    Ask each nsqd for its limits over HTTP; the smallest of all hold, IDENTIFY does not tell them.

    An nsqd that discovery finds is not asked: where nsqds differ, an operator names the smallest
    one here, or its limits in the settings.

    Returns the limits, and a line for each nsqd that did not answer: *limits* stand for it.
    """
    learned: list[Limits] = []
    lines = []
    # A proxy in the environment is for the world outside; nsqd is not there.
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
                lines.append(
                    f"nsqd at {address} does not tell its limits over HTTP ({error}); those of "
                    "--max-msg-size, --max-body-size and --max-req-timeout hold for it"
                )
                learned.append(limits)
                continue
            learned.append(
                replace(
                    limits,
                    max_msg_size_bytes=msg,
                    max_body_size_bytes=body,
                    max_req_timeout_ms=req // _NS_PER_MS,
                )
            )
    if not learned:
        return limits, lines
    smallest = replace(
        limits,
        max_msg_size_bytes=min(each.max_msg_size_bytes for each in learned),
        max_body_size_bytes=min(each.max_body_size_bytes for each in learned),
        max_req_timeout_ms=min(each.max_req_timeout_ms for each in learned),
    )
    return smallest, lines
