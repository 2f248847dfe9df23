"""Run `nsq-gateway pipeline …` by spark-submit, or by `python -m pyspark_nsq`."""

import sys

from gateway.cli.main import main

if __name__ == "__main__":
    main(["pipeline", *sys.argv[1:]])
