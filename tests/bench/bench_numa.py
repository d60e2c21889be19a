"""Planning with NUMA nodes alongside planning with counts: ``python -m tests.bench.bench_numa``.

The cluster and the gangs of :mod:`tests.bench.bench_devices`, twice: plain, and with a NodeResourceTopology object for each node. The kubelet
of each node gives each pod one of two NUMA nodes, with half of the CPUs, the memory and the GPUs. A tenth of the pending gangs request one
NUMA node for each pod. The time is measured as there.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from queuectl.domain.devices import POD, SINGLE_NUMA_NODE, DeviceInventory, NodeZones
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.request_rules import ContainerNeeds, PodNeeds, limited
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import PodSet, Workload
from tests.bench.bench_devices import SIZE, TARGET, Kind, loads, quantiles

_ZONES: Final = 2
_LARGEST: Final = 4  # GPUs of one NUMA node


def aligned(podset: PodSet) -> PodSet:
    """The podset with a Guaranteed container, whose pods request one NUMA node."""
    amounts = tuple((name, n) for name, n in podset.shape.requests.items() if name != PODS)
    needs = PodNeeds((ContainerNeeds(amounts, amounts),))
    return replace(podset, limits=limited(needs), needs=needs, one_numa_node=True)


def on_numa_nodes(workload: Workload) -> Workload:
    """The gang with each podset that a NUMA node can serve."""
    small = (p.shape.requests[GPU] <= _LARGEST for p in workload.podsets)
    podsets = (aligned(p) if fits else p for p, fits in zip(workload.podsets, small, strict=True))
    return replace(workload, podsets=tuple(podsets))


def with_topologies(snapshots: Sequence[Snapshot]) -> Iterator[Snapshot]:
    """The snapshots with the NUMA nodes of all nodes."""
    nodes = snapshots[0].fleet.nodes
    halves = {
        node.name: Resources({r: n // _ZONES for r, n in node.allocatable.items() if r != PODS})
        for node in nodes
    }
    zones = {
        name: NodeZones((half,) * _ZONES, SINGLE_NUMA_NODE, POD) for name, half in halves.items()
    }
    inventory = DeviceInventory({}, {}, zones)
    for taken in snapshots:
        pending = (
            replace(p, workload=on_numa_nodes(p.workload)) if i % 10 == 0 else p
            for i, p in enumerate(taken.pending)
        )
        yield replace(taken, pending=tuple(pending), devices=inventory)


def main() -> int:
    gc.set_threshold(50_000, 20, 20)  # as the controller does
    print(f"| {SIZE.nodes} nodes | counts p50 / p95 | NUMA nodes | ratio | first rows | target |")
    print("| --- | --- | --- | --- | --- | --- |")
    for load, make in loads(1.0).items():
        snapshots = make()
        plain, numa = Kind(snapshots), Kind(list(with_topologies(snapshots)))
        for number in range(len(snapshots)):
            plain.measure(number)
            numa.measure(number)
        (a50, a95), (b50, b95) = quantiles(plain.times), quantiles(numa.times)
        cells = f"{a50:.1f} / {a95:.1f} | {b50:.1f} / {b95:.1f} | {b50 / a50:.2f} / {b95 / a95:.2f}"
        print(f"| {load}, ms | {cells} | {numa.first:.0f} | {TARGET:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
