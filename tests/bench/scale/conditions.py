"""The conditions of a run: machine, versions, flags, limits and durability. They are printed and recorded with each row."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from queuectl.localcluster import ClusterSpec
from queuectl.localcluster.components import BURST, QPS
from tests.bench.scale.fleet import Fleet
from tests.bench.scale.systems import System
from tests.bench.scale.times import POLICY


def conditions(system: System, fleet: Fleet, spec: ClusterSpec) -> dict[str, str]:
    """By name."""
    lease = spec.effective_lease_seconds
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "machine": f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {pages / 2**30:.0f} GiB",
        "Python": platform.python_version(),
        "nodes": f"{fleet.nodes:,} with {fleet.gpus:,} GPUs; {fleet.racks} racks of {fleet.hosts_per_rack}",
        "Kubernetes": spec.kubernetes,
        "etcd": "fsync on" if spec.fsync else "fsync off",
        "node leases": f"{lease} s, renewed every {lease / 4:g} s (Kubernetes: 40 s, every 10 s)",
        "API server": "at most 2,000 reading and 1,000 writing requests at a time; GOGC=400, GOMEMLIMIT=half of the memory",
        "controllers, scheduler": f"client limits {QPS} requests per second, bursts of {BURST}; 10 Jobs at a time",
        "audit log": f"one line for each write ({POLICY.name}), the same for each system",
        "version of the system": system.version(),
        **{f"system: {name}": text for name, text in system.settings().items()},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def show(lines: Mapping[str, str]) -> None:
    """Print conditions."""
    for name, text in lines.items():
        print(f"  {name}: {text}", flush=True)
