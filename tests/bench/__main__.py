"""Most figures of the pages of benchmarks in docs/explanation, one table after the other: `make bench`, or `python -m tests.bench NAME…`.

With ``--record`` in front, the recorded measurements are appended to ``history.jsonl``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tests.bench.history import HISTORY, VARIABLE

BENCHES = (
    "planner",
    "devices",
    "numa",
    "queues",
    "configuration",
    "explain",
    "estimates",
    "consolidation",
    "stop",
    "preempt",
    "repair",
    "defrag",
    "backfill",
    "store",
    "database_day",
    "api",
    "attack",
    "flood",
    "neighbor",
    "web",
    "webhook",
    "cli",
    "usage",
    "utilization",
    "reflector",
    "objects",
    "system",
    "autoscaling",
    "replay",
    "sizing",
    "thrash",
    "kueue",
)


def main(names: list[str]) -> int:
    environment = dict(os.environ)
    if names[:1] == ["--record"]:
        names = names[1:]
        environment[VARIABLE] = str(HISTORY)
    unknown = sorted(set(names) - set(BENCHES))
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHES)}")
        return 2
    for name in names or BENCHES:
        began = time.monotonic()
        print(f"== {name}", flush=True)
        # A process each: what one leaves in memory or in caches must not help or hurt the next.
        code = subprocess.run(
            [sys.executable, "-m", f"tests.bench.bench_{name}"], check=False, env=environment
        ).returncode
        print(f"== {name}: {time.monotonic() - began:.0f} s\n", flush=True)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
