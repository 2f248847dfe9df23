"""
Read a topic into a Delta table, and publish new rows of the table to NSQ.

Each Delta release supports one Spark release: Delta 4.4 is for Spark 4.2; there is none for Spark
4.3 yet. Create an environment for it, with Java 17:

    python3 -m venv delta && delta/bin/pip install 'pyspark==4.2.0' 'delta-spark==4.4.0' '.[spark]'
    delta/bin/python examples/spark_delta.py

Publish some sales first, as in notebook.py. See docs/pipeline-delta.md.
"""

import os
import sys
import tempfile

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

NSQD = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
FOLDER = os.environ.get("FOLDER") or tempfile.mkdtemp(prefix="sales-")

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

builder = (
    SparkSession.builder.master("local[*,4]")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
)
# Spark downloads Delta's jars from Maven once, unless spark.jars names local copies.
if jars := os.environ.get("DELTA_JARS"):
    spark = builder.config("spark.jars", jars).getOrCreate()
else:
    spark = configure_spark_with_delta_pip(builder).getOrCreate()

# From NSQ into the table: one commit per batch. A batch that Spark repeats is not written twice.
sales = (
    spark.readStream.format("nsq")
    .options(nsqdTcpAddress=NSQD, topic="sales", channel="delta", idleS="2")
    .load()
)
query = (
    sales.writeStream.format("delta")
    .option("checkpointLocation", f"{FOLDER}/checkpoints/sales")
    .trigger(availableNow=True)
    .start(f"{FOLDER}/sales")
)
query.awaitTermination()

# Read the table like any Delta table.
spark.read.format("delta").load(f"{FOLDER}/sales").selectExpr("count(*) AS messages").show()

# From the table to NSQ: rows added since the last run.
new = spark.readStream.format("delta").load(f"{FOLDER}/sales")
query = (
    new.selectExpr("body")
    .writeStream.format("nsq")
    .options(nsqdTcpAddress=NSQD, topic="sales.copy")
    .option("checkpointLocation", f"{FOLDER}/checkpoints/copy")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

spark.stop()
