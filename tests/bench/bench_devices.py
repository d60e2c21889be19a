"""Planning with devices alongside planning with counts: ``python -m tests.bench.bench_devices``.

The same cluster and the same gangs three times: GPUs as a resource of the device plugin; GPUs that a driver publishes, requested by
claims; and the latter with a tenth of the pending gangs asking for pairs of GPUs of one PCIe root. A node has 8 GPUs on 4 roots. Each GPU
has a counter set that its two halves also consume. The time is the CPU time of the device rows and the plan together; the kinds take
turns. All plans are verified outside the clock, devices included. The memory is that of a process for each kind.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec

from queuectl.devices.lower import DeviceCache, with_devices
from queuectl.devices.pools import DevicePools
from queuectl.domain.devices import (
    ClaimSpec,
    DeviceClass,
    DeviceConstraint,
    DeviceInventory,
    DeviceOption,
    DeviceRequest,
    PodDevices,
)
from queuectl.domain.fleet import Fleet
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.records import SliceRecord
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import PodSet, Workload
from queuectl.objects.kubernetes.resource_slices import read_resource_slice
from queuectl.objects.kubernetes.resource_wire import WireResourceSlice
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.verify import verify
from tests.bench.bench_planner import SEED, Cluster
from tests.bench.clusters import THREE, Size, chain_gang, mixed_gang

DRIVER = "gpu.example.com"
ROOT = "resource.example.com/pcieRoot"
SIZE = Size(5, 20, 50)
_SLICES = msgspec.json.Decoder(WireResourceSlice)
KINDS = ("counts", "claims", "pairs")
TARGET = 2.0  # times as long as counts
CLASSES = {
    name: DeviceClass(name, (f'device.attributes["{DRIVER}"].type == "{kind}"',), extended)
    for name, kind, extended in (("gpu", "gpu", GPU), ("half", "half", None))
}


def published(node: str) -> Iterator[SliceRecord]:
    """8 GPUs on 4 PCIe roots, each also as two halves, as the API server sends them."""
    sizes = {f"gpu-{number}{part}": number for number in range(8) for part in ("", "-0", "-1")}
    gpus = [name for name in sizes if name.count("-") == 1]
    memory = {name: {"memory": {"value": "80" if name in gpus else "40"}} for name in sizes}
    devices = [
        {
            "name": name,
            "attributes": {
                "type": {"string": "gpu" if name in gpus else "half"},
                "uuid": {"string": f"{node}-{name}"},
                ROOT: {"string": f"pci0000:{number // 2}"},
            },
            "consumesCounters": [{"counterSet": f"gpu-{number}", "counters": memory[name]}],
        }
        for name, number in sizes.items()
    ]
    sets = [{"name": name, "counters": memory[name]} for name in gpus]
    for part, own in (("devices", {"devices": devices}), ("counters", {"sharedCounters": sets})):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
        content = {
            "metadata": {"name": f"{node}-{part}", "uid": f"{node}-{part}", "resourceVersion": "1"},
            "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **own},
        }
        yield read_resource_slice(_SLICES.decode(msgspec.json.encode(content)))


def claimed(podset: PodSet, pairs: bool) -> PodSet:
    """The podset with a claim instead of its GPUs."""
    amounts = dict(podset.shape.requests)
    gpus = amounts.pop(GPU, 0)
    constraints = (DeviceConstraint((), ROOT),) if pairs and gpus == 2 else ()
    spec = ClaimSpec((DeviceRequest("gpus", (DeviceOption("gpu", count=gpus),)),), constraints)
    shape = replace(podset.shape, requests=Resources(amounts), devices=PodDevices((spec,)))
    return replace(podset, shape=shape)


def with_claims(workload: Workload, pairs: bool) -> Workload:
    return replace(workload, podsets=tuple(claimed(p, pairs) for p in workload.podsets))


def as_devices(snapshots: Sequence[Snapshot], pairs: bool) -> Iterator[Snapshot]:
    """The snapshots with devices instead of the GPUs of the device plugin."""
    first = snapshots[0]
    slices = [one.content for node in first.fleet.nodes for one in published(node.name)]
    inventory = DeviceInventory(DevicePools().nodes(slices, first.fleet), CLASSES)
    nodes = Fleet(
        tuple(
            replace(n, allocatable=Resources({r: v for r, v in n.allocatable.items() if r != GPU}))
            for n in first.fleet.nodes
        )
    )
    running = tuple(replace(a, workload=with_claims(a.workload, False)) for a in first.admitted)
    for taken in snapshots:
        waiting = (
            replace(p, workload=with_claims(p.workload, pairs and i % 10 == 0))
            for i, p in enumerate(taken.pending)
        )
        yield replace(
            taken, fleet=nodes, admitted=running, pending=tuple(waiting), devices=inventory
        )


def of_kind(kind: str, snapshots: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """The snapshots as a kind of :data:`KINDS`."""
    return snapshots if kind == "counts" else list(as_devices(snapshots, kind == "pairs"))


class Kind:
    """Snapshots with their own caches. Nodes and requests are known from a cycle before, as in the running loop."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self.snapshots = snapshots
        self.cache, self.devices = PlannerCache(), DeviceCache()
        self.times: list[float] = []
        gc.collect()
        gc.freeze()
        began = time.process_time()
        with_devices(self.snapshots[0], self.devices)
        self.first = (time.process_time() - began) * 1e3
        lowered = [with_devices(taken, self.devices) for taken in self.snapshots]
        for taken in {id(one.fleet): one for one in lowered}.values():
            plan(taken, cache=self.cache)

    def measure(self, number: int) -> None:
        """Plan one snapshot."""
        began = time.process_time()
        lowered = with_devices(self.snapshots[number], self.devices)
        made = plan(lowered, cache=self.cache)
        self.times.append((time.process_time() - began) * 1e3)
        found = verify(lowered, made, self.devices.selects)
        assert not found, found[:3]


def loads(few: float) -> dict[str, Callable[[], list[Snapshot]]]:
    cluster = Cluster(SIZE)
    rng = random.Random(SEED)
    return {
        "one gang of the mix": lambda: cluster.singles(
            lambda uid, at: mixed_gang(uid, rng, THREE, at), int(80 * few)
        ),
        "50 gangs of 1, 2, 4, 8 GPUs": lambda: cluster.batches(
            lambda uid, at: chain_gang(uid, rng, at), max(4, int(120 * few))
        ),
    }


def memory(kind: str, few: float) -> None:
    """Print the peak memory of a process that plans one kind."""
    for make in loads(few).values():
        one = Kind(of_kind(kind, make()[:4]))
        for number in range(4):
            one.measure(number)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def quantiles(samples: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(samples)
    p50, p95 = (ordered[min(len(ordered) - 1, int(len(ordered) * q))] for q in (0.5, 0.95))
    return p50, p95


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the samples")
    parser.add_argument("--memory", choices=KINDS, help="the peak memory of this kind alone")
    given = parser.parse_args()
    few = 0.25 if given.quick else 1.0
    if given.memory:
        memory(given.memory, few)
        return 0
    peaks = []  # before this process grows: a child starts with its peak
    for name in KINDS:
        command = [sys.executable, "-m", "tests.bench.bench_devices", "--memory", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        peaks.append(done.stdout.strip())
    gc.set_threshold(50_000, 20, 20)  # as the controller does
    print(f"| {SIZE.nodes} nodes | counts p50 / p95 | claims | ratio | pairs | ratio | target |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for load, make in loads(few).items():
        snapshots = make()
        kinds = [Kind(of_kind(kind, snapshots)) for kind in KINDS]
        for number in range(len(snapshots)):
            for kind in kinds:
                kind.measure(number)
        plain, *others = (quantiles(kind.times) for kind in kinds)
        cells = [f"{plain[0]:.1f} / {plain[1]:.1f}"]
        for p50, p95 in others:
            cells += [f"{p50:.1f} / {p95:.1f}", f"{p50 / plain[0]:.2f} / {p95 / plain[1]:.2f}"]
        print(f"| {load}, ms | {' | '.join(cells)} | {TARGET:.0f} |", flush=True)
        first = [f"{kind.first:.0f}" for kind in kinds]
        print(f"| first device rows, ms | {first[0]} | {first[1]} | - | {first[2]} | - | 1000 |")
    print(f"| peak memory, MiB | {peaks[0]} | {peaks[1]} | - | {peaks[2]} | - | - |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
