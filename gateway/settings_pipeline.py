"""The settings of the streaming source of the Spark format `nsq`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator
from pydantic_settings import NoDecode

from gateway.settings_common import (
    ADDRESSES,
    MIB,
    RemoteAddresses,
    number,
    setting,
    split_commas,
)
from gateway.settings_nsqd import NsqdSettings

AckMode: TypeAlias = Literal["commit", "spool"]

_SPOOL_WINDOW = 10_000
"""Enough for what comes while the disk takes what came before."""

NAMES = "1 to 64 of a-z A-Z 0-9 . _ -, then #ephemeral or nothing"
"""What NSQ takes as the name of a topic or a channel."""

Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(split_commas), NoDecode]


class SourceSettings(NsqdSettings):
    """What a stream reads, how much of it at a time, and when it is finished."""

    topic: Names = setting((), "A topic to read; several are read by one stream.", NAMES)
    channel: str = setting("spark", "The channel of every topic, this stream's own.", NAMES)
    nsqd_http_address: RemoteAddresses = setting(
        (),
        "The HTTP port of each nsqd of --nsqd-tcp-address, asked for /stats: how much waits. One "
        "that an nsqlookupd names tells its own.",
        ADDRESSES,
    )
    ack_mode: AckMode = setting(
        "commit",
        "When a message is finished: once Spark's log of commits holds it, or once it is durable "
        "in a file of --spool-dir.",
        "commit, spool",
    )
    spool_dir: Path | None = setting(
        None,
        "The folder of a stream with --ack-mode spool, its own, on a disk of the driver that "
        "lasts: what is lost with it, nsqd does not send again.",
        "the path of a folder",
    )
    max_spool_bytes: int = number(
        8_192 * MIB,
        "What the spool has at most of messages that Spark has not finished; at that, nothing more "
        "is asked of nsqd. Those in flight then still go in.",
        (MIB, 1_048_576 * MIB),
        "bytes",
    )
    spool_retention_s: float = number(
        0,
        "How long a file of the spool stays when Spark has finished all of it, to be read again "
        "with a new checkpoint; removed earlier where --max-spool-bytes is reached.",
        (0, 31_536_000),
        "s",
    )
    max_rows_per_batch: int = number(20_000, "Rows of one batch at most.", (1, 1_000_000))
    max_in_flight: int = number(
        0,
        "Messages that are not finished, at most, over all topics and nsqd, and one for each topic "
        "at least; 0: twice the rows of a batch, so that the next one comes while one is "
        "processed, and 10 000 with a spool.",
        (0, 5_000_000),
    )
    max_buffer_bytes: int = number(
        256 * MIB,
        "What is held of messages, at most; above it nothing more is read from nsqd.",
        (MIB, 1_048_576 * MIB),
        "bytes",
    )
    msg_timeout_ms: int = number(
        60_000,
        "Asked of nsqd as the time to finish a message; touched at a third of it.",
        (1_000, 3_600_000),
        "ms",
    )
    partitions: int = number(
        0, "Tasks of one batch; 0: one for 8 MiB and at least two.", (0, 4_096)
    )
    poll_ms: int = number(
        200, "How long Spark waits for a first message before it asks again.", (1, 60_000), "ms"
    )
    batch_s: float = number(
        0,
        "Least time from one batch to the next, unless as many messages wait as fit, or one for "
        "half of the longest time that nsqd lets it; Spark may ask more often, and so messages are "
        "finished soon after their batch is done.",
        (0, 86_400),
        "s",
    )
    idle_s: float = number(
        10,
        "With availableNow, for how long nothing has come when a run ends that nsqd does not tell "
        "the end of.",
        (0.1, 3_600),
        "s",
    )

    @property
    def window(self) -> int:
        """Messages that may be in flight."""
        of_mode = _SPOOL_WINDOW if self.ack_mode == "spool" else 2 * self.max_rows_per_batch
        return self.max_in_flight or of_mode
