"""
Read a topic with Spark Connect: the stream runs in the server.

The client needs neither Java nor a connection to NSQ: `pip install 'pyspark[connect]'` is enough.
The server needs the package of the format `nsq`. To start a local server for a trial:

    export PYSPARK_PYTHON="$PWD/.venv/bin/python" SPARK_NO_DAEMONIZE=1
    cd "$(.venv/bin/python -c 'import pyspark; print(pyspark.__path__[0])')"
    bash sbin/start-connect-server.sh --conf spark.connect.grpc.binding.address=127.0.0.1

Publish some sales as in notebook.py, then run `python examples/spark_connect.py`. See
docs/pipeline-connect.md.
"""

import os
import tempfile

from pyspark.sql import SparkSession

SERVER = os.environ.get("SPARK_REMOTE", "sc://127.0.0.1:15002")
NSQD = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")  # as seen from the server
FOLDER = os.environ.get("FOLDER") or tempfile.mkdtemp(prefix="sales-")  # on the server

spark = SparkSession.builder.remote(SERVER).getOrCreate()

# Read the available messages. The query and its sockets are in the server; the client waits.
sales = (
    spark.readStream.format("nsq")
    .options(nsqdTcpAddress=NSQD, topic="sales", channel="connect", idleS="2")
    .load()
)
query = (
    sales.writeStream.format("parquet")
    .option("checkpointLocation", f"{FOLDER}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{FOLDER}/sales")
)
query.awaitTermination()

# A query: the server runs it, the client prints the result.
totals = spark.read.parquet(f"{FOLDER}/sales").selectExpr(
    "from_json(cast(body AS string), 'item string, count int') AS message"
)
totals = totals.groupBy("message.item").agg({"message.count": "sum"})
totals = totals.withColumnRenamed("sum(message.count)", "pieces").orderBy("item")
totals.show()

# Publish the result to NSQ, from the server's executors.
answer = totals.selectExpr("to_json(struct(*)) AS body")
answer.write.format("nsq").options(nsqdTcpAddress=NSQD, topic="totals").mode("append").save()

spark.stop()
