"""
The format `nsq`: what Spark asks for it, and the options it understands.

Spark imports this in many processes, one of them for each task, and most of them need little of
it: what a method needs is imported there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from gateway.pipeline import FORMAT

if TYPE_CHECKING:
    from gateway.pipeline.reader import NsqStreamReader
    from gateway.pipeline.sink import NsqBatchWriter, NsqStreamWriter
    from gateway.settings_pipeline import SourceSettings

# ruff: noqa: PLC0415 - see the module


def read_settings(options: Mapping[str, str]) -> SourceSettings:
    """
    Return the settings that *options* make, with those of the environment below them.

    Raises:
        SettingsError: As `read_options` and `check_source` do.
    """
    from gateway.pipeline.options import option_of, read_options
    from gateway.settings_pipeline import SourceSettings

    settings = read_options(SourceSettings, options)
    check_source(settings, option_of)
    return settings


def check_source(settings: SourceSettings, spell: Callable[[str], str]) -> None:
    """
    Look at what no single setting says; *spell* tells how their names are written.

    Raises:
        SettingsError: No topic is named, or one cannot be used, nor the channel; the window has
            nothing for a topic; a spool has no folder; it is not said where NSQ is.
    """
    from gateway.errors import SettingRefused
    from gateway.pipeline.options import check_name, require_nsqd
    from gateway.protocol.wire import is_ephemeral

    if not settings.topic:
        raise SettingRefused(spell("topic"), "name at least one topic")
    require_nsqd(settings, spell)
    if settings.window < len(settings.topic):
        reason = f"{settings.window} for {len(settings.topic)} topics: each needs 1 at least"
        raise SettingRefused(spell("max_in_flight"), reason)
    for name in settings.topic:
        check_name(spell("topic"), name)
    check_name(spell("channel"), settings.channel)
    if is_ephemeral(settings.channel):
        reason = "an ephemeral channel goes with its last consumer, and what it holds goes too"
        raise SettingRefused(spell("channel"), reason)
    if settings.ack_mode == "spool" and settings.spool_dir is None:
        reason = "spool needs it: a folder on a disk of the driver that lasts"
        raise SettingRefused(spell("spool_dir"), reason)


class NsqDataSource(DataSource):
    """The format `nsq`: `spark.readStream.format("nsq").option("topic", …)`."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(…)`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of every row."""
        from gateway.pipeline.schema import ROW_SCHEMA

        return ROW_SCHEMA

    def streamReader(self, schema: StructType) -> NsqStreamReader:  # noqa: N802 - Spark's
        """Return what reads a stream; raises SettingsError for what the options cannot mean."""
        del schema
        settings = read_settings(dict(self.options))
        if settings.ack_mode == "spool":
            from gateway.pipeline.spool_reader import SpoolReader

            return SpoolReader(settings)
        from gateway.pipeline.reader import CommitReader

        return CommitReader(settings)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raise SettingsError: a queue is read by streams only."""
        from gateway.pipeline.sink import refuse_batch_read

        del schema
        refuse_batch_read()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:  # noqa: N802, FBT001
        """Return what publishes a stream; raises SettingsError as `reader` does."""
        from gateway.pipeline.sink import stream_writer

        return stream_writer(dict(self.options), schema, overwrite=overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> NsqBatchWriter:  # noqa: FBT001
        """Return what publishes a batch; raises SettingsError as `reader` does."""
        from gateway.pipeline.sink import batch_writer

        return batch_writer(dict(self.options), schema, overwrite=overwrite)
