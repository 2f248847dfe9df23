"""What Spark does once so that the classes of it are known: streams, Parquet, Python's part."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tests.support.spark_probe import ProbeDataSource


def train(spark: SparkSession, folder: str) -> int:
    """Use what tests use; everything that it writes is in *folder*. Returns a number of rows."""
    spark.dataSource.register(ProbeDataSource)
    stream = spark.readStream.format("probe").options(folder=folder, rows="3").load()
    query = (
        stream.selectExpr("value", "value % 2 half")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .partitionBy("half")
        .trigger(availableNow=True)
        .start(f"{folder}/rows")
    )
    query.awaitTermination()
    rows = spark.read.parquet(f"{folder}/rows").where("value > 0")
    rows.groupBy("half").count().collect()
    spark.sql("select current_timestamp()").collect()
    return rows.count()
