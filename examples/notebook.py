"""
Sales: from NSQ into files, a question in SQL, the answer back to NSQ.

A notebook as plain Python: VS Code, PyCharm and Jupytext run its cells one by one, and
`python examples/notebook.py` runs all of them. It needs Java 17, `pip install '.[spark]'`, and an
NSQ: `nsq-gateway serve` brings one with it. Some sales to begin with (a topic of its own: where it
has a channel already, a new channel gets only what is published from then on):

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

# Spark's own Python processes: without it they are the first python3 of PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

spark = (
    SparkSession.builder.master("local[*,4]")  # a task that fails is tried four times
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)

# %% [markdown]
# ## What is there now
#
# Reading takes messages out of a channel, so there is no batch read: a stream that ends when
# nothing is left does that. The channel is this notebook's own; others get their copies.

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
# ## A question in SQL
#
# The body is kept as it came; what it means is said here.

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
# ## The answer, back to NSQ
#
# Each row is a message; whoever looks at the topic `totals` on the console page sees it.

# %%
answer = totals.selectExpr("to_json(struct(*)) AS body")
answer.write.format("nsq").options(nsqdTcpAddress=NSQD, topic="totals").mode("append").save()

# %%
spark.stop()
