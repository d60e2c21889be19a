"""Victims for one blocked gang: time, what was proved, and what a removal in queue order would have cost.

Run with ``python -m tests.bench.bench_preempt``. For comparison the same snapshots are given to a removal in Kueue's order,
written here after its documentation: lowest priority first, newest first, until the gang fits; then put back in reverse
gangs that are not needed. It is not Kueue itself. The first lines have targets, the others are hard cases.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from queuectl.domain.plan import Proof
from queuectl.domain.snapshot import Admitted
from queuectl.planner.capacity.state import open_state
from queuectl.planner.preempt.candidates import CandidateTable
from queuectl.planner.preempt.find import Victims, find_victims
from queuectl.planner.preempt.model import parts_of, sums
from queuectl.planner.preempt.rules import candidate_sets
from queuectl.planner.problem.problem import Problem, caps, survey
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.solver import Solver
from tests.bench.tenants import BLEND, FLAT, FLAVORS, MANY, MIXED, SMALL, Line, snapshot

TRIES = 8  # snapshots per line

LINES = (
    *(
        Line(1, 10, 64, MIXED, pods, level, "4-9", large=0.27, target="150")
        for pods, level in ((32, "rack"), (64, "block"), (64, None))
    ),
    *(
        Line(5, 20, 50, MIXED, pods, level, "14-55", large=0.18, target="150")
        for pods, level in ((16, "rack"), (128, "block"), (256, None))
    ),
    *(
        Line(10, 20, 50, MANY, pods, level, "251-423", large=0.09, target="500")
        for pods, level in ((16, "rack"), (128, "block"), (512, None))
    ),
    *(
        Line(5, 20, 50, MIXED, pods, level, "-", large=0.18, lenders=10, target="150")
        for pods, level in ((16, "rack"), (128, "block"), (256, None))
    ),
    Line(5, 20, 50, MIXED, 16, "rack", "-", large=0.18, lenders=10, fair=True, target="150"),
    Line(10, 20, 50, MANY, 128, "block", "-", large=0.09, lenders=40, target="500"),
    Line(2, 5, 10, MIXED, 16, "block", "1-4"),
    Line(1, 10, 64, MIXED, 32, "rack", "4-7"),
    Line(1, 10, 64, MIXED, 128, "block", "3-9"),
    Line(1, 10, 64, MIXED, 64, None, "6-8"),
    Line(1, 10, 64, SMALL, 16, "rack", "44-76"),
    Line(1, 10, 64, SMALL, 32, "rack", "55-108"),
    Line(1, 10, 64, SMALL, 64, None, "115-244"),
    Line(1, 10, 64, FLAT, 32, "rack", "-"),
    Line(1, 10, 64, FLAT, 64, None, "-"),
    Line(4, 8, 38, SMALL, 16, "rack", "64-74"),
    Line(5, 20, 50, MIXED, 128, "block", "34-37"),
    Line(5, 20, 50, MIXED, 256, None, "14-55"),
    Line(5, 20, 50, SMALL, 16, "rack", "251-423"),
    Line(5, 20, 50, SMALL, 256, None, "-"),
    Line(1, 10, 64, BLEND, 32, "rack", "-"),
    Line(5, 20, 50, FLAT, 16, "rack", "-"),
    Line(5, 20, 50, BLEND, 16, "rack", "-"),
    Line(5, 20, 50, BLEND, 256, None, "-"),
    Line(5, 20, 50, FLAT, 256, None, "-"),
    Line(1, 10, 64, SMALL, 16, "rack", "-", several=True),
    Line(1, 10, 64, FLAT, 16, "rack", "-", several=True),
    Line(5, 20, 50, MIXED, 128, "block", "-", several=True),
    Line(5, 20, 50, SMALL, 16, "rack", "-", several=True),
    Line(5, 20, 50, SMALL, 200, None, "-", several=True),
    Line(5, 20, 50, BLEND, 16, "rack", "-", several=True),
    Line(5, 20, 50, BLEND, 200, None, "-", several=True),
)


# -- the order to compare with


def in_queue_order(
    problem: Problem, request: GangRequest, table: CandidateTable
) -> list[int] | None:
    """Lowest priority first, newest first, until it fits; then, in reverse order, without gangs that are not needed."""
    fits = _fits(problem, request)
    order = sorted(
        range(table.size), key=lambda i: (int(table.rank[i]), -table.gangs[i].started_at)
    )
    free = problem.later.copy()
    taken: list[int] = []
    for gang_at in order:
        if fits(free):
            break
        _move(free, problem, table.gangs[gang_at], 1)
        taken.append(gang_at)
    if not fits(free):
        return None
    for gang_at in list(reversed(taken)):
        _move(free, problem, table.gangs[gang_at], -1)
        if fits(free):
            taken.remove(gang_at)
        else:
            _move(free, problem, table.gangs[gang_at], 1)
    return taken


def _fits(problem: Problem, request: GangRequest) -> Callable[[np.ndarray], bool]:
    (part,) = parts_of(request)
    ((pod, count),) = part.counts
    domain, domains = part.domains
    return lambda free: bool((sums(domain, domains, caps(free, pod)) >= count).any())


def _move(free: np.ndarray, problem: Problem, gang_there: Admitted, sign: int) -> None:
    nodes, amounts = problem.use_of(gang_there)
    for row, amount in zip(free, amounts, strict=True):
        np.add.at(row, nodes, sign * amount)


# -- the table


@dataclass
class Measured:
    """The times and costs of the snapshots of one line."""

    millis: list[float]
    cpu: list[float]
    solver_calls: list[int]
    ours: list[tuple[int, int, int]]
    theirs: list[tuple[int, int, int]]
    running: int
    proved: int


def measure(line: Line, *, compare: bool) -> Measured:
    done = Measured([], [], [], [], [], 0, 0)
    for seed in range(TRIES):
        snap = snapshot(line, seed)
        entry = snap.pending[0]
        queue = snap.config.cluster_queues["main"]
        problem = survey(snap)
        flavors = tuple(
            {r: f for r, f in FLAVORS.items() if p.shape.requests[r]}
            for p in entry.workload.podsets
        )
        request = request_of(problem, entry, queue, flavors)
        solver = Solver(snap.limits)
        began, busy = time.perf_counter(), time.process_time()
        answer = find_victims(open_state(problem), request, queue, solver)
        done.cpu.append((time.process_time() - busy) * 1e3)
        done.millis.append((time.perf_counter() - began) * 1e3)
        done.solver_calls.append(solver.calls)
        done.running = len(snap.admitted)
        assert answer is not None
        done.proved += answer.proof is Proof.OPTIMAL
        done.ours.append(_layers(answer))
        if compare and not line.several and not line.lenders:
            table = candidate_sets(open_state(problem), request, queue)[0][0].table
            taken = in_queue_order(problem, request, table) or []
            costs = [table.cost(i) for i in taken]
            worst = max((c.priority for c in costs), default=0)
            done.theirs.append((worst, sum(c.lost_work for c in costs), len(costs)))
    return done


def _layers(answer: Victims) -> tuple[int, int, int]:
    costs = [p.cost for p in answer.victims]
    worst = max((c.priority for c in costs), default=0)
    return worst, sum(c.lost_work for c in costs), len(costs)


def _mean(rows: list[tuple[int, int, int]]) -> str:
    if not rows:
        return "-"
    priority, lost, count = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return f"({priority:.0f}, {lost / 1000:.0f}k, {count:.0f})"


def _from(line: Line) -> str:
    """Whose gangs may leave, where they are not of the gang's own queue."""
    if not line.lenders:
        return ""
    return f", of {line.lenders} queues{' by shares' if line.fair else ''}"


def main() -> None:
    compare = "--alone" not in sys.argv
    print(
        "ms; victims as mean (highest priority, lost GPU-seconds, number) over", TRIES, "snapshots"
    )
    head = (
        *("nodes", "running", "load", "gang", "level", "p50", "p95", "max"),
        *("cpu p50", "cpu p95", "target p95", "prototype", "solver calls", "proved"),
    )
    print("| " + " | ".join((*head, "queue order", "ours")) + " |")
    print("|" + " --- |" * (len(head) + 2))
    for line in LINES:
        done = measure(line, compare=compare)
        p50, p95 = np.percentile(done.millis, [50, 95])
        cells = (
            line.size,
            done.running,
            line.load,
            f"{line.nodes}x8{' +1 +6x2' if line.several else ''}{_from(line)}",
            line.level or "anywhere",
            f"{p50:.0f}",
            f"{p95:.0f}",
            f"{max(done.millis):.0f}",
            *(f"{ms:.0f}" for ms in np.percentile(done.cpu, [50, 95])),
            line.target,
            line.prototype,
            f"{min(done.solver_calls)}-{max(done.solver_calls)}",
            f"{done.proved}/{TRIES}",
            _mean(done.theirs),
            _mean(done.ours),
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
