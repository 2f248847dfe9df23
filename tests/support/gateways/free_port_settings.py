"""Settings of a gateway on free ports."""

from __future__ import annotations

from gateway.settings.serve import ServeSettings

FREE = "127.0.0.1:0"


def serve_settings(**values: object) -> ServeSettings:
    """Return settings on free ports, with an embedded broker unless *values* differ."""
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
