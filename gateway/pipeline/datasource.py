"""
The Spark data source `nsq`: create its reader and writers, and check their options.

Spark imports this module in many processes, one for each task, and most of them need little of it.
Functions therefore import their dependencies themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from gateway.errors import SettingsError
from gateway.pipeline import FORMAT
from gateway.pipeline.jobs.failures import without_traceback

if TYPE_CHECKING:
    from gateway.pipeline.reader import NsqStreamReader
    from gateway.pipeline.sink import NsqBatchWriter, NsqStreamWriter
    from gateway.settings.pipeline import SourceSettings

# ruff: noqa: PLC0415 - see the module


def read_settings(options: Mapping[str, str]) -> SourceSettings:
    """
    Return the source's settings for *options*; the environment may set the others.

    Raises:
        SettingsError: As raised by `read_options` and `check_source_settings`.
    """
    from gateway.pipeline.options import option_of, read_options
    from gateway.settings.pipeline import SourceSettings

    settings = read_options(SourceSettings, options, "source")
    check_source_settings(settings, option_of)
    return settings


def check_source_settings(settings: SourceSettings, spell: Callable[[str], str]) -> None:
    """
    Check that the source's settings are complete, and that they fit each other.

    *spell* returns a setting's name as the user knows it: an option, or a flag.

    Raises:
        SettingsError: A topic or the channel is missing or invalid, the window is smaller than the
            number of topics, only one of spool and spool_dir is set, or nsqd's address is missing
            or given in two ways.
    """
    from gateway.errors import SettingRefused
    from gateway.pipeline.options import check_name, require_nsqd
    from gateway.protocol.wire import is_ephemeral

    if not settings.topic:
        raise SettingRefused(spell("topic"), "name at least one topic")
    require_nsqd(settings, spell)
    if settings.window < len(settings.topic):
        reason = f"{settings.window} for {len(settings.topic)} topics: each needs at least 1"
        raise SettingRefused(spell("max_in_flight"), reason)
    for name in settings.topic:
        check_name(spell("topic"), name)
    check_name(spell("channel"), settings.channel)
    if is_ephemeral(settings.channel):
        reason = "an ephemeral channel and its messages are deleted with its last consumer"
        raise SettingRefused(spell("channel"), reason)
    if settings.ack_mode == "spool" and settings.spool_dir is None:
        reason = "required with spool: a folder on a persistent disk of the driver"
        raise SettingRefused(spell("spool_dir"), reason)
    if settings.ack_mode != "spool" and settings.spool_dir is not None:
        ack_mode, spool_dir = spell("ack_mode"), spell("spool_dir")
        reason = f"only used with {ack_mode}=spool; set that, or omit {spool_dir}"
        raise SettingRefused(spool_dir, reason)


def check_credential_files(settings: SourceSettings) -> None:
    """
    Check that the secret and certificate files named in *settings* can be read.

    Raises:
        SettingsError: A file is missing or unusable.
    """
    if settings.auth_secret_file is not None or settings.nsqd_tls_v1:
        # Takes 0.5 s of CPU to import, and most streams need neither.
        from gateway.client.from_settings import read_access

        read_access(settings)


def check_schema(schema: StructType | None) -> None:
    """
    Raise SettingRefused if the user's *schema* differs from the source's.

    None, or a schema without columns, means that the user gave none.
    """
    from gateway.pipeline.schema import ROW_SCHEMA

    if not schema:
        return
    columns = ",".join(":".join(column.split()) for column in ROW_SCHEMA.split(","))
    if schema.simpleString() != f"struct<{columns}>":
        from gateway.errors import SettingRefused

        reason = (
            f"rows of the format {FORMAT} have the columns {ROW_SCHEMA}; omit the schema, and "
            "select from what load() returns"
        )
        raise SettingRefused(f"schema({schema.simpleString()})", reason)


class NsqDataSource(DataSource):
    """The format `nsq`: `spark.readStream.format("nsq").option("topic", …)`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return FORMAT

    def schema(self) -> str:
        """
        Return the columns of every row.

        Spark calls this in `load()`, before it starts the query. Invalid options and unusable files
        are therefore refused here.

        Raises:
            SettingsError: As raised by `read_settings` and `check_credential_files`.
        """
        from gateway.pipeline.options import as_options
        from gateway.pipeline.schema import ROW_SCHEMA
        from gateway.settings.pipeline import SourceSettings

        # Errors of the files name flags of the command line, and the user here gave options.
        with without_traceback(), as_options(SourceSettings):
            check_credential_files(read_settings(dict(self.options)))
        return ROW_SCHEMA

    def streamReader(self, schema: StructType) -> NsqStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream; a `RefusedReader` if the options are invalid."""
        try:
            check_schema(schema)
            settings = read_settings(dict(self.options))
        except SettingsError as error:
            # Usually `schema` has refused invalid options before, but Spark does not call it if the
            # user gave a schema. If this method raised the error, PySpark would try to stop the
            # reader that it did not get, and its UnboundLocalError would hide the cause. The reader
            # therefore raises the error at its first call.
            from gateway.pipeline.reader import RefusedReader

            return RefusedReader(error)
        if settings.ack_mode == "spool":
            from gateway.pipeline.spool.reader import SpoolReader

            return SpoolReader(settings)
        from gateway.pipeline.reader import CommitReader

        return CommitReader(settings)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raise SettingsError: the format supports streaming reads only."""
        from gateway.pipeline.sink import refuse_batch_read

        del schema
        with without_traceback():
            refuse_batch_read()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:  # noqa: N802, FBT001
        """Return the writer of a stream; raises SettingsError for invalid options or columns."""
        from gateway.pipeline.sink import stream_writer

        with without_traceback():
            return stream_writer(dict(self.options), schema, overwrite=overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> NsqBatchWriter:  # noqa: FBT001
        """Return the writer of a batch; raises SettingsError for invalid options or columns."""
        from gateway.pipeline.sink import batch_writer

        with without_traceback():
            return batch_writer(dict(self.options), schema, overwrite=overwrite)
