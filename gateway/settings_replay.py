"""The settings of `nsq-gateway pipeline metrics` and `nsq-gateway pipeline replay`."""

from __future__ import annotations

from gateway.settings_common import ADDRESSES, RemoteAddresses, number, setting, switch
from gateway.settings_jobs import QueryJobSettings, SourceJobSettings
from gateway.settings_pipeline import NAMES, Names
from gateway.settings_sink import SinkSettings

REPLAY_SUFFIX = ".replay"
"""Behind the name of a topic: where its messages are replayed to, unless something else is said."""

_FOLDER = "a path, or a URL that Spark can read"


class MetricsSettings(SourceJobSettings):
    """The settings of `nsq-gateway pipeline metrics`."""

    channel: str = setting("metrics", "The channel of every topic, this job's own.", NAMES)
    to_topic: str = setting("metrics", "The topic that the metrics are published to.", NAMES)
    window_s: float = number(
        60,
        "Length of a window; one message is published for each topic and window.",
        (1, 86_400),
        "s",
    )
    watermark_s: float = number(
        60,
        "How far behind the newest message a window may end and still be counted; what comes later "
        "is left out, and a redelivered message keeps its first time.",
        (0, 604_800),
        "s",
    )
    trigger_s: float = number(
        10,
        "Time from one batch to the next, and so from one look of a window to the next; 0: the "
        "next one begins when one is done.",
        (0, 86_400),
        "s",
    )


class ReplaySettings(SinkSettings, QueryJobSettings):
    """The settings of `nsq-gateway pipeline replay`."""

    input: str = setting(
        "", "Required: what is replayed, the output of an archive or of its compaction.", _FOLDER
    )
    topic: Names = setting((), "A topic to replay, several are allowed; none: all of them.", NAMES)
    where: str = setting(
        "",
        "Which rows are replayed, as a condition of Spark's SQL over the columns of the archive.",
        "as in: ts >= '2026-11-01' and attempts = 1",
    )
    to_topic: str = setting(
        "",
        f"The topic that all is published to; empty: each topic's own, with {REPLAY_SUFFIX} behind "
        "its name.",
        NAMES,
    )
    distinct: bool = switch(
        "Replay a row once that the archive has twice, by (topic, nsqd, id); Spark keeps each of "
        "them in the checkpoint."
    )
    max_files_per_batch: int = number(
        8,
        "Files of one batch at most; a replay that is killed publishes its last batch again.",
        (1, 100_000),
    )
    nsqd_http_address: RemoteAddresses = setting(
        (),
        "The HTTP port of an nsqd, which is asked whether anybody consumes the topic; those of an "
        "nsqlookupd are found.",
        ADDRESSES,
    )
