"""Thousands of queues, and long ones: ``python -m tests.bench.bench_queues``.

Two tables. The first is a plan of 1,000 ClusterQueues in 10 cohorts with 50,000 gangs waiting, by quota alone and on 640
nodes, with nothing, half or all of the quota in use: ``plan()`` from snapshot to plan, the peak memory of the process, and
how many gangs it starts. The second is the cycle of the control loop on the queues of Kueue's own baseline (30 ClusterQueues
in 5 cohorts), where a few gangs end and as many arrive between two cycles: freeze, plan, verify and the changes of the
ledger, step by step. Times are CPU milliseconds of the process, what an idle machine would show. Every plan is verified.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

from queuectl.control.leader.decisions import Decider
from queuectl.domain.events import Drained, Ended, Event, PodsReady
from queuectl.domain.fleet import HOSTNAME, Fleet, Node
from queuectl.domain.jobs import JobOutcome, JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.plan import Plan
from queuectl.domain.quantity import CPU, PODS, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    ReclaimWithinCohort,
    ResourceFlavor,
    ResourceGroup,
    Topology,
    WithinClusterQueue,
)
from queuectl.domain.records import NamespaceRecord, NodeRecord
from queuectl.domain.rules import FairStrategy, Rules
from queuectl.domain.snapshot import Admitted, Pending, Snapshot, SolverLimits
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodSetPlacement,
    PodShape,
    TopologyMode,
    TopologyRequest,
    Workload,
)
from queuectl.lifecycle.machine import handle
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.verify import verify
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage

NAMESPACE = "team"
FLAVOR = "on-demand"
BLOCK, RACK = "example.com/block", "example.com/rack"
NOW = 1_000_000.0
NOMINAL = 20_000  # millicores of each ClusterQueue, as in Kueue's baseline
BORROWING = 100_000
# Cores, priority, gangs of 500: small, medium and large of Kueue's baseline.
CLASSES = ((1, 50, 350), (5, 100, 100), (20, 200, 50))
SCALE = 1_000, 10, 50_000  # ClusterQueues, cohorts, gangs that wait
CYCLE = 30, 5, 5_000
ENDING = 200  # gangs that end between two cycles
T = TypeVar("T")


def config(queues: int, cohorts: int, *, preempt: bool, nodes: bool, fair: bool) -> QueueConfig:
    """``queues`` alike, dealt out to ``cohorts``, each with a LocalQueue of its name."""
    names = [f"cq{number}" for number in range(queues)]
    quotas = FlavorQuotas(FLAVOR, {CPU: NOMINAL}, {CPU: BORROWING})
    within, reclaim = WithinClusterQueue.NEVER, ReclaimWithinCohort.NEVER
    if preempt:
        within, reclaim = WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.ANY
    made = ClusterQueue(
        "",
        (ResourceGroup((CPU,), (quotas,)),),
        within_cluster_queue=within,
        reclaim_within_cohort=reclaim,
        namespace_selector=LabelSelector(),
    )
    return QueueConfig(
        1,
        {n: replace(made, name=n, cohort=f"cohort{i % cohorts}") for i, n in enumerate(names)},
        {(NAMESPACE, name): LocalQueue(NAMESPACE, name, name) for name in names},
        {FLAVOR: ResourceFlavor(FLAVOR, topology="default" if nodes else None)},
        {"default": Topology("default", (BLOCK, RACK, HOSTNAME))},
        rules=Rules(fair_sharing=tuple(FairStrategy) if fair else ()),
    )


def fleet(racks: int) -> Fleet:
    """Racks of 64 nodes with 96 cores, as in Kueue's test with topology."""
    amounts = Resources({CPU: 96_000, PODS: 110})
    names = [(f"r{rack}", f"r{rack}-n{number}") for rack in range(racks) for number in range(64)]
    nodes = [Node(n, {BLOCK: "b", RACK: rack, HOSTNAME: n}, amounts) for rack, n in names]
    return Fleet(tuple(sorted(nodes, key=lambda node: node.name)))


SHAPES = {cores: PodShape(Resources({CPU: cores * 1000, PODS: 1})) for cores, _, _ in CLASSES}
PODSETS = {
    (cores, mode): (
        PodSet("main", 1, shape, TopologyRequest(mode, RACK) if mode is not None else None),
    )
    for cores, shape in SHAPES.items()
    for mode in (None, TopologyMode.REQUIRED)
}


def asked(
    rng: random.Random, *, nodes: bool, small: bool = False
) -> tuple[tuple[PodSet, ...], int]:
    """Podsets and priority of one gang of the mix, or of its small ones."""
    classes = CLASSES[:1] if small else CLASSES
    cores, priority, _ = rng.choices(classes, [share for _, _, share in classes])[0]
    return PODSETS[cores, TopologyMode.REQUIRED if nodes else None], priority


def large_snapshot(occupied: float, *, nodes: bool, fair: bool = False) -> Snapshot:
    """The scene of the first table."""
    queues, cohorts, pending = SCALE
    rng = random.Random(5)
    queues_of = config(queues, cohorts, preempt=False, nodes=nodes, fair=fair)
    machines = fleet(10) if nodes else Fleet(())
    waiting = []
    for number in range(pending):
        podsets, priority = asked(rng, nodes=nodes)
        queue = f"cq{rng.randrange(queues)}"
        waiting.append(
            Pending(
                Workload(
                    f"u{number:06}",
                    "Job",
                    NAMESPACE,
                    f"g{number}",
                    podsets,
                    queue,
                    priority,
                    number,
                )
            )
        )
    cores = round(NOMINAL * occupied / 1000)
    names = [node.name for node in machines.nodes]
    running = []
    for number in range(queues):
        for each in range(cores // 5):
            uid = f"r{number:04}-{each}"
            at = ((names[(number * 4 + each) % len(names)], 1),) if nodes else ()
            placed = Placement((PodSetPlacement("main", at, {CPU: FLAVOR}),))
            gang = Workload(uid, "Job", NAMESPACE, uid, PODSETS[5, None], f"cq{number}", 100, 0.0)
            running.append(Admitted(gang, placed, started_at=NOW))
    return Snapshot(
        NOW, machines, queues_of, tuple(waiting), tuple(running), namespaces={NAMESPACE: {}}
    )


@dataclass
class World:
    """The mirror, the ledger and what reads them, in a loop without a cluster and a database."""

    config: QueueConfig
    rng: random.Random
    nodes: bool
    small: bool = False  # only small gangs arrive: many end at once
    mirror: Mirror = field(default_factory=lambda: Mirror({"jobs": "Job"}))
    ledger: Ledger = field(default_factory=Ledger)
    now: float = NOW
    numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.mirror.namespaces[NAMESPACE] = NamespaceRecord(NAMESPACE, 1, ())
        if self.nodes:
            for node in fleet(10).nodes:
                self.mirror.nodes.put(NodeRecord(node, 1))
        self.usage = OtherPodUsage(self.mirror, self.ledger)
        self.snapshot_builder = SnapshotBuilder(self.mirror, self.ledger, self.usage)
        self.decider = Decider(self.mirror, self.ledger)
        self.cache = PlannerCache()
        self.spent: dict[str, list[float]] = {}

    def arrive(self, gangs: int) -> None:
        changes = []
        for _ in range(gangs):
            number = next(self.numbers)
            uid = f"u{number:07}"
            podsets, priority = asked(self.rng, nodes=self.nodes, small=self.small)
            queue = self.rng.choice(list(self.config.cluster_queues))
            self.mirror.jobs[uid] = JobRecord(
                "Job", NAMESPACE, uid, uid, number + 1, self.now, queue, podsets
            )
            entry = Entry(
                uid,
                "Job",
                NAMESPACE,
                uid,
                State.PENDING,
                queue,
                queue,
                priority,
                pods=1,
                queued_at=self.now + number / 1e6,
                since=self.now,
            )
            changes.append(EntryChange(None, entry, self.now))
        self.ledger.apply(changes)

    def pass_time(self, gangs: int) -> None:
        """Evicted gangs have stopped, starting gangs are ready, so many gangs finish and as many arrive."""
        self.now += 0.2
        events: list[tuple[Entry, Event]] = []
        events += [(e, Drained()) for e in self.ledger.entries(State.EVICTING)]
        events += [(e, PodsReady()) for e in self.ledger.entries(State.STARTING)]
        self.ledger.apply([c for e, event in events if (c := handle(e, event, self.now))])
        running = self.ledger.entries(State.RUNNING)
        ending = self.rng.sample(running, min(gangs, len(running)))
        ended = [handle(e, Ended(JobOutcome.SUCCEEDED), self.now) for e in ending]
        self.ledger.apply([c for c in ended if c is not None])
        for entry in ending:
            del self.mirror.jobs[entry.uid]
            self.snapshot_builder.forget(entry.uid)
            self.decider.forget(entry.uid)
        self.arrive(len(ending))

    def cycle(self) -> tuple[Plan, int]:
        """One cycle of the control loop; how many rows of the ledger it changed."""
        snapshot = self._timed(
            "freeze", lambda: self.snapshot_builder.freeze(self.config, self.now, SolverLimits())
        )
        made = self._timed("plan", lambda: plan(snapshot, cache=self.cache))
        wrong = self._timed("verify", lambda: verify(snapshot, made))
        assert not wrong, wrong[:3]
        changes = self._timed("changes", lambda: self.decider.changes(snapshot, made, self.now))
        self.ledger.apply(changes)
        return made, len(changes)

    def _timed(self, stage: str, work: Callable[[], T]) -> T:
        took, result = timed(work)
        self.spent.setdefault(stage, []).append(took)
        return result


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """CPU milliseconds, and what came of it."""
    began = time.process_time()
    result = work()
    return (time.process_time() - began) * 1000, result


def peak() -> float:
    """Most memory this process ever held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def scale_line(occupied: float, nodes: bool, fair: bool, repeats: int) -> str:
    snapshot = large_snapshot(occupied, nodes=nodes, fair=fair)
    before = peak()
    cache = PlannerCache()
    samples = [timed(lambda: plan(snapshot, cache=cache)) for _ in range(repeats)]
    took = [ms for ms, _ in samples]
    made = samples[0][1]
    wrong = verify(snapshot, made)
    assert not wrong, wrong[:3]
    looked = sum(r.reasons[0].code != "PendingEvaluation" for r in made.pending)
    return (
        f"| {'640 nodes' if nodes else 'quota only'}{', fair sharing' if fair else ''} | {occupied:.0%} |"
        f" {took[0]:.0f} | {statistics.median(took[1:]):.0f} / {max(took[1:]):.0f} | {len(made.admitted)} |"
        f" {looked} | {before:.0f} | {peak():.0f} |"
    )


def cycle_lines(nodes: bool, fair: bool, repeats: int, ending: int, pending: int) -> Iterator[str]:
    queues, cohorts, _ = CYCLE
    queues_of = config(queues, cohorts, preempt=True, nodes=nodes, fair=fair)
    world = World(queues_of, random.Random(7), nodes, small=ending == ENDING)
    world.arrive(pending)
    for _ in range(5):  # to a steady state
        world.cycle()
        world.pass_time(ending)
    world.spent.clear()
    admitted, preempted, rows = [], [], []
    for _ in range(repeats):
        made, changed = world.cycle()
        admitted.append(len(made.admitted))
        preempted.append(len(made.preempted))
        rows.append(changed)
        world.pass_time(ending)
    sums = [sum(steps) for steps in zip(*world.spent.values(), strict=True)]
    load = f"{'640 nodes' if nodes else 'quota only'}{', fair sharing' if fair else ''}, {ending} end{' (small)' if ending == ENDING else ''}"
    steps = " | ".join(f"{statistics.median(world.spent[s]):.1f}" for s in world.spent)
    yield (
        f"| {load} | {steps} | {statistics.median(sums):.1f} / {max(sums):.1f} |"
        f" {statistics.mean(admitted):.0f} | {statistics.mean(preempted):.0f} | {statistics.mean(rows):.0f} | {peak():.0f} |"
    )


SCALE_HEAD = (
    "1,000 ClusterQueues, 10 cohorts, 50,000 waiting\n\n"
    "| load | quota in use | first plan | later plans p50 / max | admitted | evaluated | MB before | MB peak |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)
CYCLE_HEAD = (
    "\nKueue's baseline queues (30 in 5 cohorts), 5,000 waiting, per cycle\n\n"
    "| load | freeze | plan | verify | changes | all p50 / max | admitted | victims | rows written | MB peak |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)
SCALES = [
    (share, nodes, fair)
    for nodes, fair in ((False, False), (False, True), (True, False))
    for share in (0.0, 0.5, 1.0)
]
CYCLES = [
    (nodes, fair, ending)
    for nodes, fair in ((False, False), (False, True), (True, False))
    for ending in (0, 10, ENDING)
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--scale", type=int, help="one line of the first table")
    parser.add_argument("--cycle", type=int, help="one line of the second table")
    parser.add_argument("--pending", type=int, default=CYCLE[2], help="gangs of a cycle that wait")
    options = parser.parse_args()
    gc.set_threshold(50_000, 20, 20)  # as the controller does
    if options.scale is not None:
        share, nodes, fair = SCALES[options.scale]
        print(scale_line(share, nodes, fair, options.repeats), flush=True)
        return
    if options.cycle is not None:
        nodes, fair, ending = CYCLES[options.cycle]
        for line in cycle_lines(nodes, fair, options.repeats, ending, options.pending):
            print(line, flush=True)
        return
    for head, name, lines in ((SCALE_HEAD, "scale", SCALES), (CYCLE_HEAD, "cycle", CYCLES)):
        print(head, flush=True)
        for number in range(len(lines)):  # a process each: its peak memory is that of the load
            asked_for = [f"--{name}", str(number), "--repeats", str(options.repeats)]
            subprocess.run(
                [sys.executable, "-m", "tests.bench.bench_queues", *asked_for], check=True
            )


if __name__ == "__main__":
    main()
