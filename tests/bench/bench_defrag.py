"""Moves for one blocked gang on fragmented clusters: time, what is proved, and how much moves.

Run with ``python -m tests.bench.bench_defrag``. Synthetic clusters of 8-GPU nodes: every node is shared by small gangs,
a tenth to a third of the GPUs is free, spread over all nodes; gangs of several pods keep to one rack.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from queuectl.domain.queues import Defragment
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import TopologyMode, TopologyRequest
from queuectl.planner.capacity.state import open_state
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import request_of
from queuectl.planner.relocate import MoveSolution, find_moves, move_candidates
from queuectl.planner.solver import Solver
from tests.bench.tenants import FLAVORS, MIXED, NOW, Line, admitted, config, fleet_of, gang

TRIES = 6  # snapshots per line


@dataclass(frozen=True)
class Case:
    """A cluster, the share of GPUs in use, and the blocked gang: whole nodes, and what must hold them."""

    blocks: int
    racks: int
    hosts: int
    used: float
    nodes: int
    level: str | None


CASES = (
    Case(1, 10, 64, 0.85, 8, "rack"),
    Case(1, 10, 64, 0.85, 16, "rack"),
    Case(1, 10, 64, 0.95, 8, "rack"),
    Case(1, 10, 64, 0.85, 32, None),
    Case(5, 20, 50, 0.85, 8, "rack"),
    Case(5, 20, 50, 0.85, 16, "rack"),
    Case(5, 20, 50, 0.95, 8, "rack"),
    Case(5, 20, 50, 0.85, 64, "block"),
    Case(5, 20, 50, 0.85, 64, None),
)


def tenants(case: Case, names: list[str], rng: random.Random) -> Iterator[Admitted]:
    """Rack by rack, so that a gang of several pods is in one rack."""
    number = 0
    for first in range(0, len(names), case.hosts):
        left = dict.fromkeys(names[first : first + case.hosts], 8)
        target = int(8 * len(left) * (1 - case.used))
        while sum(left.values()) > target:
            gpus = rng.choice((1, 1, 2, 2, 4, 4))
            fitting = [name for name, free in left.items() if free >= gpus]
            pods = rng.sample(fitting, min(len(fitting), rng.choice((1, 1, 1, 2, 4))))
            if not pods:
                continue
            for name in pods:
                left[name] -= gpus
            yield _in_one_rack(admitted(f"g{number}", pods, gpus, 0, rng))
            number += 1


def _in_one_rack(tenant: Admitted) -> Admitted:
    (podset,) = tenant.workload.podsets
    if podset.count == 1:
        return tenant
    topology = TopologyRequest(TopologyMode.REQUIRED, "rack")
    workload = replace(tenant.workload, podsets=(replace(podset, topology=topology),))
    return replace(tenant, workload=workload)


def snapshot(case: Case, seed: int) -> Snapshot:
    rng = random.Random(seed)
    fleet = fleet_of(Line(case.blocks, case.racks, case.hosts, MIXED, 0, None, ""))
    running = tuple(tenants(case, [n.name for n in fleet.nodes], rng))
    blocked = gang("blocked", case.nodes, 8, 100, case.level)
    known = config()
    (main,) = known.cluster_queues.values()
    main = replace(main, defragment=Defragment.EXECUTE, defragment_budget=1 << 50)
    known = replace(known, cluster_queues={"main": main})
    return Snapshot(NOW, fleet, known, (Pending(blocked),), running, {}, {"team": {}})


def search(snap: Snapshot) -> tuple[MoveSolution | None, Solver, float]:
    """The moves for the gang that waits, and the milliseconds it took to find them."""
    problem = survey(snap)
    state, solver = open_state(problem), Solver(snap.limits)
    (entry,) = snap.pending
    flavors = tuple(
        {r: f for r, f in FLAVORS.items() if p.shape.requests[r]} for p in entry.workload.podsets
    )
    request = request_of(problem, entry, snap.config.cluster_queues["main"], flavors)
    began = time.perf_counter()
    solution = find_moves(state, request, move_candidates(state, lambda _: True, {}), solver)
    return solution, solver, (time.perf_counter() - began) * 1e3


def main() -> None:
    print(f"ms over {TRIES} snapshots; moved as mean (lost GPU-seconds, gangs, pods)")
    head = ("nodes", "running", "used", "gang", "level", "p50", "max", "solver calls", "proof")
    print("| " + " | ".join((*head, "moved")) + " |")
    print("|" + " --- |" * (len(head) + 1))
    for case in CASES:
        millis, calls, proofs, costs, running = [], [], [], [], 0
        for seed in range(TRIES):
            snap = snapshot(case, seed)
            running = len(snap.admitted)
            solution, solver, took = search(snap)
            millis.append(took)
            calls.append(solver.calls)
            proofs.append("none" if solution is None else solution.proof.value)
            if solution is not None and solution.moved:
                costs.append(solution.cost)
        counted = ", ".join(f"{proofs.count(p)} {p}" for p in sorted(set(proofs)))
        mean = np.mean(costs, axis=0) if costs else None
        moved = "-" if mean is None else f"({mean[0] / 1000:.0f}k, {mean[1]:.0f}, {mean[2]:.0f})"
        cells = (
            case.blocks * case.racks * case.hosts,
            running,
            f"{case.used:.0%}",
            f"{case.nodes}x8",
            case.level or "anywhere",
            f"{np.median(millis):.0f}",
            f"{max(millis):.0f}",
            f"{min(calls)}-{max(calls)}",
            counted,
            moved,
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
