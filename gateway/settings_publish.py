"""The settings of publishing: how it reaches nsqd, what may wait, what one caller may do."""

from __future__ import annotations

from pydantic import model_validator

from gateway.errors import SettingRefused
from gateway.settings_common import MIB, LimitSettings, flag_of, number

_BUFFERS = ("publish_buffer_bytes", "publish_buffer_per_nsqd_bytes")


class PublishSettings(LimitSettings):
    """How messages are published, and how many by whom."""

    nsqd_connections: int = number(4, "TCP connections to each nsqd for publishing.", (1, 64))
    publish_timeout_ms: int = number(
        5_000, "Time from a publish to its answer; then 504.", (1, 600_000), "ms"
    )
    publish_buffer_bytes: int = number(
        64 * MIB,
        "What may wait to be published; more is answered 503.",
        (1_024, 65_536 * MIB),
        "bytes",
    )
    publish_buffer_per_nsqd_bytes: int = number(
        32 * MIB,
        "What of that may wait for one nsqd, so that a slow one leaves room for the others.",
        (1_024, 65_536 * MIB),
        "bytes",
    )
    publish_rate_limit: float | None = number(
        None,
        "What one caller may publish, in each process; more is answered 429. A caller is who "
        "brings the same secret, where nsqd asks for one, else who comes from the same address. "
        "None: any rate.",
        (0.001, 10_000_000),
        "messages a second",
    )
    publish_rate_burst: float | None = number(
        None,
        "What one caller may publish at once after a pause; none: one second's worth.",
        (1, 100_000_000),
        "messages",
    )
    publish_body_limit_bytes: int | None = number(
        None,
        "Longest body of a publish, where that is to be less than nsqd takes; then 413.",
        (1, 1024 * MIB),
        "bytes",
    )

    @model_validator(mode="after")
    def _publish_settings_fit_together(self) -> PublishSettings:
        if self.publish_rate_burst is not None and self.publish_rate_limit is None:
            raise SettingRefused(
                "--publish-rate-burst", "it does nothing without --publish-rate-limit"
            )
        longest, name = self.max_body_size, "max_body_size"
        if self.publish_body_limit_bytes is not None and self.publish_body_limit_bytes < longest:
            longest, name = self.publish_body_limit_bytes, "publish_body_limit_bytes"
        for buffer in _BUFFERS:
            size_bytes = getattr(self, buffer)
            if size_bytes < longest:
                raise SettingRefused(
                    flag_of(buffer),
                    f"{size_bytes} bytes hold no body of {longest} bytes, which "
                    f"{flag_of(name)} allows: such a publish would be answered 503 for ever",
                )
        return self
