"""
Read sales from NSQ into Parquet, query them with SQL, and publish the result to NSQ.

This is a notebook in plain Python: VS Code, PyCharm and Jupytext run its cells one by one, and
`python examples/notebook.py` runs all of them. It needs Java 17, `pip install '.[spark]'`, and NSQ:
`nsq-gateway serve` has an embedded broker. Publish some sales first, to a topic without channels (a
new channel of a topic that already has one receives only later messages):

    for n in 1 2 3; do
      curl -d '{"item": "book", "count": '$n'}' 'http://127.0.0.1:8080/pub?topic=sales'
    done
"""

# %%
import os
import sys
import tempfile

from pyspark.sql import SparkSession

NSQD = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
FOLDER = os.environ.get("FOLDER") or tempfile.mkdtemp(prefix="sales-")

# The Python of Spark's workers; by default it is the first python3 in PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

spark = (
    SparkSession.builder.master("local[*,4]")  # up to four attempts for each task
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)

# %% [markdown]
# ## Read the available messages
#
# Reading removes messages from a channel, so there is no batch read. Instead, a stream with
# `availableNow` ends when the channel is empty. Other channels receive their own copies.

# %%
sales = (
    spark.readStream.format("nsq")
    .options(nsqdTcpAddress=NSQD, topic="sales", channel="notebook")
    .option("idleS", "2")
    .load()
)
query = (
    sales.writeStream.format("parquet")
    .option("checkpointLocation", f"{FOLDER}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{FOLDER}/sales")
)
query.awaitTermination()

# %% [markdown]
# ## Query with SQL
#
# The files contain the bodies as published; the query parses them.

# %%
spark.read.parquet(f"{FOLDER}/sales").createOrReplaceTempView("sales")
totals = spark.sql("""
    SELECT message.item, count(*) AS sales, sum(message.count) AS pieces
    FROM (SELECT from_json(cast(body AS string), 'item string, count int') AS message FROM sales)
    GROUP BY message.item
    ORDER BY message.item
""")
totals.show()

# %% [markdown]
# ## Publish the result to NSQ
#
# Each row becomes a message. The console page can show the topic `totals`.

# %%
answer = totals.selectExpr("to_json(struct(*)) AS body")
answer.write.format("nsq").options(nsqdTcpAddress=NSQD, topic="totals").mode("append").save()

# %%
spark.stop()
