"""
Programs that read a table and write its rows as JSON: topic, id, body.

They run in separate environments, without the packages of this repository.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_COLUMNS = "topic, id, cast(body AS string) AS body"


def _spark(package: str, extra: dict[str, str] | None = None) -> Any:  # noqa: ANN401 - another Spark
    from pyspark.sql import SparkSession  # noqa: PLC0415 - DuckDB's reader has none

    builder = SparkSession.builder.master("local[2]").config("spark.jars.packages", package)
    settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"} | (extra or {})
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def delta_by_spark(table: str, where: str) -> list[Any]:
    extra = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    spark = _spark("io.delta:delta-spark_4.2_2.13:4.4.0", extra)
    rows = spark.read.format("delta").load(table).where(where)
    return [list(row) for row in rows.selectExpr(*_COLUMNS.split(", ")).collect()]


def delta_by_duckdb(table: str, where: str) -> list[Any]:
    """Return the rows that DuckDB reads in the files that delta-rs lists."""
    import duckdb  # noqa: PLC0415 - Spark's reader has none
    from deltalake import DeltaTable  # noqa: PLC0415

    rows = DeltaTable(table).to_pyarrow_dataset()
    query = f"SELECT {_COLUMNS.replace('string', 'varchar')} FROM rows WHERE {where}"  # noqa: S608
    found = duckdb.connect().register("rows", rows).execute(query)
    return [list(row) for row in found.fetchall()]


def iceberg_by_spark(metadata: str, where: str) -> list[Any]:
    """Return the rows that Spark reads by the table's metadata."""
    spark = _spark("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0")
    rows = spark.read.format("iceberg").load(metadata).where(where)
    return [list(row) for row in rows.selectExpr(*_COLUMNS.split(", ")).collect()]


if __name__ == "__main__":
    reader, *arguments = sys.argv[1:]
    sys.stdout.write(json.dumps(globals()[reader](*arguments)))
