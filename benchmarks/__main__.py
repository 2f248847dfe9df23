"""python -m benchmarks [NAME …] [--quick]: compare the gateway with its peers, as ratios."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time

from benchmarks import (
    access,
    broker,
    client,
    cluster,
    console,
    delivery,
    latency,
    many,
    memory,
    observed,
    operation,
    overload,
    pipeline,
    publish,
    pull,
    stores,
    stuck,
    tail,
    viewers,
    workers,
)
from benchmarks.harness import RESULTS, ROOT, WITNESSES
from benchmarks.table import HEAD

BENCHMARKS = {
    "publish": publish.plan,
    "tail": tail.plan,
    "workers": workers.plan,
    "overload": overload.plan,
    "delivery": delivery.plan,
    "many": many.plan,
    "viewers": viewers.plan,
    "latency": latency.plan,
    "stuck": stuck.plan,
    "memory": memory.plan,
    "pull": pull.plan,
    "operation": operation.plan,
    "cluster": cluster.plan,
    "observed": observed.plan,
    "access": access.plan,
    "broker": broker.plan,
    "stores": stores.plan,
    "client": client.plan,
    "console": console.plan,
    "pipeline": pipeline.plan,
}


def main() -> None:
    """Run the selected benchmarks, print each row when it is measured, and save all rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--quick", action="store_true", help="short runs, to check that the benchmarks work"
    )
    asked = parser.parse_args()
    names = asked.names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"{unknown[0]} is none of {', '.join(BENCHMARKS)}")
    for witness in ("nsqd", "go-nsq-consumer", "go-nsq-publisher"):
        if not (WITNESSES / witness).exists():
            raise SystemExit(
                f"tools/bin/{witness} is missing; build it with make witnesses (needs Go)"
            )
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"{machine}, loopback, real nsqd 1.3.0; load average {os.getloadavg()[0]:.1f} at start")
    print("each figure is the median of all rounds; rounds: lowest and highest ratio of one round")
    rows = []
    for name in names:
        benchmark = BENCHMARKS[name](quick=asked.quick)
        print(f"\n{name}: {benchmark.about}\n{HEAD}", flush=True)
        for row in benchmark.rows:
            print(row, flush=True)
            rows.append({"benchmark": name, **row.to_json()})
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%dT%H%M%S')}.json"
    saved = {"machine": machine, "quick": asked.quick, "rows": rows}
    path.write_text(json.dumps(saved, indent=2, ensure_ascii=False) + "\n")
    print(f"\nsaved in {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
