"""Gangs on a cluster without nodes: the time until they run, and the nodes that are made: docs/explanation/benchmarks.md.

    python -m tests.bench.bench_autoscaling

A real control plane with KWOK nodes. The autoscaler is simulated (tests/support/autoscaler.py) and reads its requests five times a
second. Its nodes are ready at once, so that the time is that of queuectl, the API server and the Job controller.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import NodeSpec
from tests.bench.bench_system import print_table
from tests.support.autoscaler import SimulatedAutoscaler
from tests.system.autoscaled import OnServer, autoscaled, make_nodes, without_nodes
from tests.system.installation import RACK, Installation, Workspace

GPUS: Final = 512
LOOK_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Load:
    """Gangs that are submitted together, and the fewest nodes of 8 GPUs that hold them."""

    name: str
    gangs: int
    pods: PodSetManifest
    needed: int


LOADS: Final = (
    Load("1 gang of 4 pods of 8 GPUs in one rack", 1, PodSetManifest(4, gpus=8, required=RACK), 4),
    Load("1 gang of 32 pods of 8 GPUs", 1, PodSetManifest(32, gpus=8), 32),
    Load(
        "8 gangs of 4 pods of 8 GPUs, each in one rack",
        8,
        PodSetManifest(4, gpus=8, required=RACK),
        32,
    ),
    Load("16 gangs of 2 pods of 4 GPUs", 16, PodSetManifest(2, gpus=4), 16),
    Load("32 gangs of 1 pod of 2 GPUs", 32, PodSetManifest(1, gpus=2), 8),
)


def main() -> None:
    """Run all loads, each on a cluster without nodes."""
    rows: list[tuple[str, ...]] = [
        ("", "median, s", "slowest, s", "requests", "nodes made", "nodes needed")
    ]
    with autoscaled() as installation:
        for load in LOADS:
            with empty(installation) as workspace:
                rows.append(measured(workspace, load))
    print_table(*rows)


@contextmanager
def empty(installation: Installation) -> Iterator[Workspace]:
    """A queue on a cluster without nodes."""
    with installation.workspace(GPUS) as workspace:
        make_nodes(workspace, GPUS)
        yield workspace
    without_nodes(installation.cluster.client)


def measured(workspace: Workspace, load: Load) -> tuple[str, ...]:
    """The row of one load."""
    made = list(NodeSpec(racks_per_block=16, hosts_per_rack=4, prefix="made-").documents())
    autoscaler = SimulatedAutoscaler(OnServer(workspace.client), lambda number: made[number])
    began: dict[str, float] = {}
    for number in range(load.gangs):
        name = f"gang-{number}"
        began[name] = time.monotonic()
        workspace.job(name, load.pods)
    took: dict[str, float] = {}
    while len(took) < load.gangs:
        autoscaler.step()
        states = {name: one["state"] for name, one in workspace.workloads().items()}
        now = time.monotonic()
        took |= {
            name: now - at
            for name, at in began.items()
            if name not in took and states.get(name) == "Running"
        }
        if now - min(began.values()) > LONGEST_SECONDS:
            raise AssertionError(f"{load.name}: {states}")
        time.sleep(LOOK_SECONDS)
    times = took.values()
    return (
        load.name,
        f"{median(times):.1f}",
        f"{max(times):.1f}",
        str(len(autoscaler.asked)),
        str(len(autoscaler.added)),
        str(load.needed),
    )


if __name__ == "__main__":
    main()
