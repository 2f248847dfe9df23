"""
Share a channel among several drivers: NSQ delivers each message to one of them.

Start it on several machines, each time with another name:

    python examples/spark_drivers.py one &
    python examples/spark_drivers.py two &

NSQ distributes the messages of a channel among its consumers, so no partitioning is needed. Each
driver needs its own checkpoint and output, and with `ackMode=spool` its own spool. At the end, the
script reads the output of all drivers. See docs/pipeline-drivers.md.
"""

import os
import sys
import tempfile
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

NAME = sys.argv[1]
NSQD = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
FOLDER = os.environ.get("FOLDER", f"{tempfile.gettempdir()}/sales-of-all")  # shared by all drivers

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

spark = (
    SparkSession.builder.master("local[*,4]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)

sales = (
    spark.readStream.format("nsq")
    .options(nsqdTcpAddress=NSQD, topic="sales", channel="drivers")  # the same for all drivers
    .option("idleS", "2")
    .load()
)
query = (
    sales.writeStream.format("parquet")
    .option("checkpointLocation", f"{FOLDER}/checkpoints/{NAME}")  # this driver's own
    .trigger(availableNow=True)
    .start(f"{FOLDER}/rows/driver={NAME}")  # this driver's own
)
query.awaitTermination()

# Read each folder by its own path: Spark then uses its commit log and ignores uncommitted files.
# The schema is given because the folder of a driver without messages has none.
parts = [
    spark.read.schema(sales.schema)
    .parquet(str(folder))
    .selectExpr(f"'{folder.name}' AS driver", "*")
    for folder in sorted(Path(f"{FOLDER}/rows").iterdir())
]
rows = reduce(DataFrame.unionByName, parts)
rows.groupBy("driver").count().orderBy("driver").show()

spark.stop()
