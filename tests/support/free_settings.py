"""Settings of a gateway that takes whatever ports are free."""

from __future__ import annotations

from gateway.settings import ServeSettings

FREE = "127.0.0.1:0"


def serve_settings(**values: object) -> ServeSettings:
    """Return settings on free ports, with an embedded broker unless *values* say otherwise."""
    return ServeSettings.model_validate(
        {
            "listen": FREE,
            "management_listen": FREE,
            "broker_tcp_address": FREE,
            "broker_http_address": FREE,
            "drain_window_s": 0,
            **values,
        }
    )
