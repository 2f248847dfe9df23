"""The jobs for spark-submit, and for `python -m pyspark_nsq`: as `nsq-gateway pipeline`."""

import sys

from gateway.cli import main

if __name__ == "__main__":
    main(["pipeline", *sys.argv[1:]])
