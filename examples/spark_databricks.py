# Databricks notebook source
"""
Read a topic into a catalog table, in a Databricks notebook.

The cluster needs the package and a runtime with Spark 4.2 or later; docs/pipeline-databricks.md
lists what is tested. Elsewhere, `python examples/spark_databricks.py` writes a local table.
Publish some sales first, as in notebook.py.
"""

# COMMAND ----------
import os
import sys
import tempfile

from pyspark.sql import SparkSession

from pyspark_nsq import DefaultSource

NSQD = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
TABLE = os.environ.get("TABLE", "sales")  # on Databricks: catalog.schema.sales
FOLDER = os.environ.get("FOLDER") or tempfile.mkdtemp(prefix="sales-")  # on Databricks: a volume

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.getOrCreate()  # on Databricks: the one of the notebook

# COMMAND ----------
# Not needed if Spark has discovered the format by itself, but harmless.
spark.dataSource.register(DefaultSource)

# COMMAND ----------
sales = (
    spark.readStream.format("nsq")
    .options(nsqdTcpAddress=NSQD, topic="sales", channel="databricks", idleS="2")
    .load()
)
query = (
    sales.writeStream.option("checkpointLocation", f"{FOLDER}/checkpoint")
    .trigger(availableNow=True)
    .toTable(TABLE)
)
query.awaitTermination()

# COMMAND ----------
spark.table(TABLE).selectExpr("count(*) AS messages").show()
