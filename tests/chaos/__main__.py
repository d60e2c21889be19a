"""`make chaos`: an hour of faults, or $DURATION seconds of them, by $SEED."""

from __future__ import annotations

import os
import signal
import sys
import time

from queuectl.demo.controller import install
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.progress import LineProgress
from tests.chaos.suite import FAILURES, chaos
from tests.support.controlplane import NODES

HOUR = 3600.0


def main() -> int:
    # Shut down in order on each signal, even if a shell in the background ignores interrupts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    seconds = float(os.environ.get("DURATION") or HOUR)
    seed = int(os.environ.get("SEED") or time.time())
    print(f"chaos: seed {seed}, {seconds:.0f} s", flush=True)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {line}", flush=True)

    nodes: NodeSpec = NODES
    spec = ClusterSpec(nodes=(nodes,), fsync=False)
    with LocalCluster.start(spec, progress=LineProgress()) as cluster:
        install(cluster)
        result = chaos(cluster, seed, seconds=seconds, save=FAILURES, say=say)
    print(result.table())
    for problem in [*result.violations, *result.losses, *result.contained]:
        print(problem)
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
