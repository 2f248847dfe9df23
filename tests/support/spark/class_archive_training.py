"""Use Spark once, so that its classes are loaded and archived: streams, Parquet, Python."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tests.support.spark.probe import ProbeDataSource


def train(spark: SparkSession, folder: str) -> int:
    """Use the Spark features of the tests, with all files in *folder*; return a number of rows."""
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
