"""
Ways to publish from Spark; each runs in a `SparkProgram` and returns its error.

The format is not registered: Spark finds it by the name of its module.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

_COLUMNS = "id BIGINT, body STRING"
_FIVE_ROWS = "SELECT id, cast(id AS STRING) body FROM range(5)"


def _error_of(way: Callable[[], object]) -> str:
    try:
        way()
    except PySparkException as error:
        return str(error)
    return ""


def publish_batch(
    spark: SparkSession, tcp_address: str, topic: str, *, mode: str = "append", bad_id: int = -1
) -> str:
    """Publish 1 000 rows in four tasks; the row *bad_id* has no body."""
    rows = spark.range(0, 1_000, 1, 4).selectExpr(
        "id", f"if(id = {bad_id}, null, cast(id as string)) body"
    )
    return _error_of(lambda: _publish(rows, tcp_address, topic, mode))


def _publish(rows: DataFrame, tcp_address: str, topic: str, mode: str) -> None:
    options = {"nsqdTcpAddress": tcp_address, "topic": topic}
    rows.write.format("nsq").options(**options).mode(mode).save()


def publish_stream(spark: SparkSession, tcp_address: str, folder: str) -> str:
    """Publish the messages of topic "source", channel "spark", to topic "stream"."""

    def way() -> None:
        source = spark.readStream.format("nsq").options(
            topic="source", nsqdTcpAddress=tcp_address, idleS="1", maxRowsPerBatch="400"
        )
        (
            source.load()
            .writeStream.format("nsq")
            .queryName("stream")
            .options(nsqdTcpAddress=tcp_address, topic="stream")
            .option("checkpointLocation", f"{folder}/stream")
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    return _error_of(way)


def publish_updates(spark: SparkSession, tcp_address: str, folder: str) -> str:
    """Publish changes of an aggregate to topic "update", which no sink accepts directly."""

    def way() -> None:
        source = spark.readStream.schema("id long").json(f"{folder}/ids")
        (
            source.groupBy()
            .count()
            .selectExpr("cast(count as string) body")
            .writeStream.outputMode("update")
            .foreachBatch(lambda rows, _number: _publish(rows, tcp_address, "update", "append"))
            .option("checkpointLocation", f"{folder}/update")
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    return _error_of(way)


def insert_into_view(spark: SparkSession, tcp_address: str) -> str:
    """Publish five rows to topic "view" by SQL, with the view's options."""

    def way() -> None:
        options = f"nsqdTcpAddress '{tcp_address}', topic 'view'"
        spark.sql(f"CREATE TEMPORARY VIEW nsq_view ({_COLUMNS}) USING nsq OPTIONS ({options})")
        spark.sql(f"INSERT INTO nsq_view {_FIVE_ROWS}")

    return _error_of(way)


def insert_into_table(spark: SparkSession, tcp_address: str) -> str:
    """Publish five rows to topic "table" by SQL, with options at the INSERT."""

    def way() -> None:
        options = f"`nsqdTcpAddress` = '{tcp_address}', `topic` = 'table'"
        spark.sql(f"CREATE TABLE nsq_table ({_COLUMNS}) USING nsq")
        spark.sql(f"INSERT INTO nsq_table WITH ({options}) {_FIVE_ROWS}")

    return _error_of(way)


def create_table_as(spark: SparkSession, tcp_address: str) -> str:
    """Fail: Spark does not pass on a table's options."""
    options = f"nsqdTcpAddress '{tcp_address}', topic 'never'"
    sql = f"CREATE TABLE nsq_other USING nsq OPTIONS ({options}) AS {_FIVE_ROWS}"
    return _error_of(lambda: spark.sql(sql))


def select(spark: SparkSession, table: str) -> str:
    """Fail: a queue can be read by streams only."""
    return _error_of(lambda: spark.table(table).collect())
