"""python -m benchmarks [NAME …] [--quick]: measure in turn in one run, and print ratios."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time

from benchmarks import broker, delivery, memory, publish
from benchmarks.harness import ROOT, WITNESSES

BENCHMARKS = {
    "publish": publish.run,
    "delivery": delivery.run,
    "memory": memory.run,
    "broker": broker.run,
}
RESULTS = ROOT / "benchmarks" / "results"


def main() -> None:
    """Run what was asked for, print a row as soon as it is there, save them all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="short runs: to see that all works")
    asked = parser.parse_args()
    names = asked.names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"{unknown[0]} is none of {', '.join(BENCHMARKS)}")
    if not (WITNESSES / "nsqd").exists():
        raise SystemExit("tools/bin/nsqd is missing; make witnesses builds it (needs Go)")
    print(f"ratios, ours ÷ the peer's, in one run; {os.cpu_count()} cores, {platform.machine()}, ")
    print(f"Python {platform.python_version()}, loopback, real nsqd 1.3.0")
    print(f"{'ratio':>7}  what (and the figures behind it)")
    rows = []
    for name in names:
        for row in BENCHMARKS[name](quick=asked.quick):
            print(f"{row.ratio:7.2f}  {row.name} ({row.note})", flush=True)
            rows.append({"name": row.name, "ratio": row.ratio, "note": row.note})
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%dT%H%M%S')}.json"
    path.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    print(f"saved in {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
