"""A gang of 128 whole nodes loses some at once: the time of the plan that replaces the lost pods, with victims.

Run with ``python -m tests.bench.bench_repair``. The gang requires one block. Where a fifth of the nodes is idle the lost pods
move at once; where hardly any is, lower gangs have to leave. Kueue replaces one node and restarts the gang when two fail.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace

import numpy as np

from queuectl.domain.fleet import Fleet
from queuectl.domain.plan import Plan, Proof
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.bench.tenants import MANY, MIXED, NOW, Line, admitted, config, fleet_of, gang, tenants

TRIES = 8  # snapshots per line
LOST = (1, 8, 64)
NODES = 128  # of the gang that is hit
CLUSTERS = (
    Line(1, 10, 64, MIXED, NODES, "block", "-", large=0.27),
    Line(5, 20, 50, MIXED, NODES, "block", "-", large=0.18),
    Line(10, 20, 50, MANY, NODES, "block", "-", large=0.09),
)


@dataclass(frozen=True)
class Hit:
    """One line of the table."""

    cluster: Line
    lost: int
    idle: float


def accident(hit: Hit, seed: int) -> Snapshot:
    """The gang on every other node of one block; the first ``hit.lost`` of its nodes are out."""
    rng = random.Random(seed)
    line = replace(hit.cluster, idle=hit.idle)
    fleet = fleet_of(line)
    block = [n.name for n in fleet.nodes if n.labels["block"] == "b0"]
    own = rng.sample(block, NODES)
    out = frozenset(own[: hit.lost])
    there = admitted("hit", own, 8, 100, rng)
    workload = gang("hit", NODES, 8, 100, "block")
    lost = tuple(("w", name, 1) for name in own[: hit.lost])
    others = Fleet(tuple(n for n in fleet.nodes if n.name not in set(own)))
    nodes = tuple(replace(n, ready=n.name not in out) for n in fleet.nodes)
    running = (replace(there, workload=workload, lost=lost), *tenants(line, others, rng))
    return Snapshot(NOW, Fleet(nodes), config(), (), running, {}, {"team": {}})


@dataclass
class Measured:
    """The times of the snapshots of one line."""

    millis: list[float]
    cpu: list[float]
    victims: list[int]
    moved: int = 0
    waits: int = 0
    proved: int = 0
    running: int = 0


def measure(hit: Hit) -> Measured:
    """Plan each snapshot once, with the first evaluation of its nodes."""
    done = Measured([], [], [])
    for seed in range(TRIES):
        snapshot = accident(hit, seed)
        began, busy = time.perf_counter(), time.process_time()
        made = plan(snapshot)
        done.cpu.append((time.process_time() - busy) * 1e3)
        done.millis.append((time.perf_counter() - began) * 1e3)
        assert not verify(snapshot, made)
        _count(done, made)
        done.running = len(snapshot.admitted)
    return done


def _count(done: Measured, made: Plan) -> None:
    done.moved += bool(made.admitted)
    done.waits += bool(made.pending)
    done.proved += made.proof is Proof.OPTIMAL
    done.victims.append(len(made.preempted))


def main() -> None:
    """Print the table."""
    print(
        "ms for the whole plan over",
        TRIES,
        "snapshots; none of the peers repairs more than one node",
    )
    head = ("nodes", "running", "idle", "lost nodes", "p50", "p95", "max", "cpu p50", "cpu p95")
    more = ("moved at once", "waits for victims", "victims (mean)", "proved")
    print("| " + " | ".join((*head, *more)) + " |")
    print("|" + " --- |" * (len(head) + len(more)))
    for hit in (Hit(c, lost, idle) for c in CLUSTERS for idle in (0.2, 0.0) for lost in LOST):
        done = measure(hit)
        cells = (
            hit.cluster.size,
            done.running,
            f"{hit.idle:.0%}",
            hit.lost,
            *(f"{ms:.0f}" for ms in np.percentile(done.millis, [50, 95])),
            f"{max(done.millis):.0f}",
            *(f"{ms:.0f}" for ms in np.percentile(done.cpu, [50, 95])),
            f"{done.moved}/{TRIES}",
            f"{done.waits}/{TRIES}",
            f"{np.mean(done.victims):.0f}",
            f"{done.proved}/{TRIES}",
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
