"""``policy.timeSliceSeconds``: gangs of a ClusterQueue take turns, and a gang that ran for its time slice queues again behind the others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.diagnosis import Remedy
from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.plan import PreemptionReason
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    QueueingStrategy,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.explain.diagnosis import diagnose
from queuectl.planner.preempt.protections import next_plan_due
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, gang, holding, node, podset, queue, world
from tests.support.examples import examples

SLICE = 600.0
NODES = [node("n0", gpu=8)]


def of(name: str, gpus: int = 8, at: float = 0.0, **options: Any) -> Workload:
    return gang(name, podset(gpu=gpus), queued_at=at, **options)


def sliced(within: WithinClusterQueue = WithinClusterQueue.NEVER, **options: Any) -> ClusterQueue:
    return replace(queue(within=within, **options), time_slice=SLICE)


def ran(seconds: float, name: str = "r", gpus: int = 8, **options: Any) -> Admitted:
    return holding(of(name, gpus, **options), {"n0": 1}, started_at=NOW - seconds)


def victims(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return [(p.victim, p.preemptor, p.reason) for p in made.preempted]


IN_TURN = [("r", "p", PreemptionReason.TIME_SLICE)]


@pytest.mark.parametrize("strategy", list(QueueingStrategy))
@pytest.mark.parametrize(
    ("rule", "running", "waiting", "evicted"),
    [
        pytest.param(sliced(), ran(SLICE), of("p"), IN_TURN, id="at the end of its time slice"),
        pytest.param(sliced(), ran(SLICE - 1), of("p"), [], id="never before"),
        pytest.param(sliced(), ran(SLICE), of("p", priority=1), IN_TURN, id="for a higher priority"),
        pytest.param(sliced(), ran(SLICE), of("p", priority=-1), [], id="not for a lower one"),
        pytest.param(sliced(), ran(SLICE, preemptible=False), of("p"), [], id="not if its job opts out"),
        pytest.param(queue(within=WithinClusterQueue.NEVER), ran(SLICE), of("p"), [], id="not without the policy"),
        pytest.param(sliced(), ran(SLICE, gpus=4), of("p", 4), [], id="not if both have room"),
        pytest.param(
            sliced(WithinClusterQueue.LOWER_PRIORITY), ran(0, priority=-1), of("p"),
            [("r", "p", PreemptionReason.IN_CLUSTER_QUEUE)], id="a lower priority is evicted by the other rule",
        ),
        pytest.param(
            replace(sliced(), protection=replace(queue().protection, min_runtime=SLICE + 1)), ran(SLICE), of("p"), [],
            id="protections count",
        ),
    ],
)  # fmt: skip
def test_a_gang_is_evicted_in_turn_after_its_time_slice(
    strategy: QueueingStrategy,
    rule: ClusterQueue,
    running: Admitted,
    waiting: Workload,
    evicted: list[tuple[str, str, str]],
) -> None:
    rule = replace(rule, strategy=strategy)
    assert victims(world(NODES, [waiting], [running], rule)) == evicted


def test_no_gang_of_another_cluster_queue_is_evicted_in_turn() -> None:
    other = replace(sliced(), name="other", cohort="c")
    main = replace(sliced(), cohort="c")
    snapshot = world(NODES, [of("p", queue="other")], [ran(SLICE)], main, other)
    assert victims(snapshot) == []


def test_only_the_first_gang_that_waits_gets_a_time_slice() -> None:
    """The small gang would take the room for which the large one waits."""
    running = [ran(SLICE, "r", 4), ran(SLICE - 100, "s", 4)]
    pending = [of("large", 8, 1.0), of("small", 4, 2.0)]
    assert victims(world(NODES, pending, running, sliced())) == []
    assert victims(world(NODES, pending[1:], running, sliced())) == [
        ("r", "small", PreemptionReason.TIME_SLICE)
    ]
    never = of("never", 16, 0.0)
    assert [v[1] for v in victims(world(NODES, [never, *pending[1:]], running, sliced()))] == [
        "small"
    ]


def test_an_explanation_states_that_the_time_slice_is_for_an_earlier_gang() -> None:
    running = [ran(SLICE, "r", 4, priority=-1), ran(SLICE - 100, "s", 4)]
    pending = [of("large", 8, 1.0), of("small", 4, 2.0)]
    rule = replace(sliced(), strategy=QueueingStrategy.BEST_EFFORT_FIFO)
    fixes = diagnose(world(NODES, pending, running, rule), "small").suggested_fixes
    [end] = [fix.message for fix in fixes if fix.remedy is Remedy.END_OTHERS]
    assert end == (
        "end 1 gang: team/r (an earlier gang of ClusterQueue main waits for its time slice)"
    )


@pytest.mark.parametrize("first", [{"preempts": False}, {"claims": ("data",)}])
def test_a_gang_that_no_eviction_can_start_leaves_the_time_slice_to_the_next_one(
    first: dict[str, Any],
) -> None:
    """It evicts no gang, or it uses a ResourceClaim of a gang that keeps running."""
    keeps = replace(of("keeps", 0), claims=("data",))
    running = [ran(SLICE), holding(keeps, {"n0": 1}, started_at=NOW)]
    waiting = [replace(of("first", 8, 0.0), **first), of("second", 8, 1.0)]
    assert victims(world(NODES, waiting, running, sliced())) == [
        ("r", "second", PreemptionReason.TIME_SLICE)
    ]


def pinned(name: str, to: str, at: float = 0.0, **options: Any) -> Workload:
    return gang(name, podset(gpu=8, select={HOSTNAME: to}), queued_at=at, **options)


def behind_a_pinned_gang(ran: float, rule: ClusterQueue, **holder: Any) -> Snapshot:
    """The gang ``first`` needs the node of ``holder``. The one behind it needs the node of a gang that had its time slice."""
    nodes = [node(name, gpu=8) for name in ("n0", "n1")]
    running = [
        holding(of("holder", **holder), {"n1": 1}, started_at=NOW - ran),
        holding(of("r"), {"n0": 1}, started_at=NOW - SLICE),
    ]
    waiting = [pinned("first", "n1", 0.0, priority=1), pinned("second", "n0", 1.0)]
    return world(nodes, waiting, running, rule, queue("other"))


@pytest.mark.parametrize(
    "holder",
    [
        pytest.param({"priority": 5}, id="of a higher priority"),
        pytest.param({"preemptible": False}, id="not preemptible"),
        pytest.param({"queue": "other"}, id="of another ClusterQueue"),
    ],
)
def test_a_gang_that_needs_the_place_of_a_gang_that_it_never_evicts_leaves_the_time_slice(
    holder: dict[str, Any],
) -> None:
    assert victims(behind_a_pinned_gang(SLICE, sliced(), **holder)) == [
        ("r", "second", PreemptionReason.TIME_SLICE)
    ]


def test_a_gang_keeps_the_time_slice_while_it_needs_a_gang_that_it_can_evict_later() -> None:
    """At the end of its time slice, or of its protection."""
    protection = replace(queue().protection, min_runtime=SLICE + 1)
    assert victims(behind_a_pinned_gang(SLICE - 1, sliced())) == []
    assert victims(behind_a_pinned_gang(SLICE, replace(sliced(), protection=protection))) == []


def test_a_cohort_without_clusterqueues_changes_no_time_slice() -> None:
    rule = replace(sliced(), cohort="top", reclaim_within_cohort=ReclaimWithinCohort.ANY)
    snapshot = behind_a_pinned_gang(SLICE, rule, priority=5)
    cohorts = {name: Cohort(name, parent) for name, parent in (("top", None), ("empty", "top"))}
    snapshot = replace(snapshot, config=replace(snapshot.config, cohorts=cohorts))
    assert victims(snapshot) == [("r", "second", PreemptionReason.TIME_SLICE)]


def test_a_gang_keeps_the_time_slice_while_it_needs_a_gang_that_starts_now() -> None:
    """That one can be evicted in turn later."""
    waiting = [of("starts", 4, 0.0), of("large", 8, 1.0), of("small", 4, 2.0)]
    assert victims(world(NODES, waiting, [ran(SLICE, "r", 4)], sliced())) == []


def test_a_plan_is_due_at_the_end_of_the_next_time_slice() -> None:
    snapshot = world(NODES, [of("p")], [ran(100)], sliced())
    assert next_plan_due(snapshot, plan(snapshot)) == NOW + SLICE - 100


def test_the_verifier_names_an_eviction_before_the_end_of_the_time_slice() -> None:
    snapshot = world(NODES, [of("p")], [ran(SLICE)], sliced())
    made = plan(snapshot)
    early = replace(snapshot, admitted=(replace(snapshot.admitted[0], started_at=NOW - 1),))
    assert PlanRule.VICTIM in {v.rule for v in verify(early, made)}


def test_a_gang_that_its_checks_hold_has_used_nothing_of_its_time_slice() -> None:
    """It runs from its approval on, however long it was held."""
    ran_before = world(NODES, [of("p")], [ran(SLICE)], sliced())
    made = plan(ran_before)
    held = replace(ran_before, admitted=(replace(ran(SLICE), held=True),))
    assert victims(held) == []
    assert next_plan_due(held, plan(held)) is None
    assert PlanRule.VICTIM in {v.rule for v in verify(held, made)}
    texts = [fix.message for fix in diagnose(held, "p").suggested_fixes]
    assert "end 1 gang: team/r (its time slice begins after its admission checks)" in texts


@dataclass
class Cluster:
    """Gangs that never end, in simulated time: victims leave at once, and queue again at that time."""

    waiting: dict[str, Workload]
    rule: ClusterQueue
    nodes: int
    now: float = NOW
    running: dict[str, Admitted] = field(default_factory=dict)
    starts: dict[str, list[float]] = field(default_factory=dict)
    runs: list[float] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        nodes = [node(f"n{i}", gpu=8) for i in range(self.nodes)]
        pending = [Pending(w) for w in self.waiting.values()]
        made = world(nodes, pending, list(self.running.values()), self.rule)
        return replace(made, now=self.now)

    def step(self) -> bool:
        """One plan; whether it changed anything."""
        snapshot = self.snapshot()
        made = plan(snapshot)
        assert verify(snapshot, made) == ()
        for preemption in made.preempted:
            gone = self.running.pop(preemption.victim)
            self.runs.append(self.now - gone.started_at)
            self.waiting[preemption.victim] = replace(gone.workload, queued_at=self.now)
        for admission in made.admitted:
            workload = self.waiting.pop(admission.uid)
            self.running[admission.uid] = Admitted(
                workload, admission.placement, started_at=self.now
            )
            self.starts.setdefault(admission.uid, []).append(self.now)
        return bool(made.preempted or made.admitted)


@settings(max_examples=examples(25), deadline=None)
@given(
    sizes=st.lists(st.sampled_from([2, 4, 8]), min_size=2, max_size=4),
    strategy=st.sampled_from([QueueingStrategy.STRICT_FIFO, QueueingStrategy.BEST_EFFORT_FIFO]),
    within=st.sampled_from(
        [WithinClusterQueue.NEVER, WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY]
    ),
)
def test_each_gang_gets_its_time_slice_and_no_gang_waits_indefinitely(
    sizes: list[int], strategy: QueueingStrategy, within: WithinClusterQueue
) -> None:
    gangs = {f"g{i}": of(f"g{i}", size, float(i)) for i, size in enumerate(sizes)}
    cluster = Cluster(dict(gangs), sliced(within, strategy=strategy), nodes=1)
    rounds = 2 * len(sizes) + 4
    for _ in range(rounds):
        for _ in range(4 * len(sizes)):  # plans at one instant; they come to an end
            if not cluster.step():
                break
        else:
            raise AssertionError("gangs evict each other without an end")
        cluster.now += SLICE / 2
    assert all(run >= SLICE for run in cluster.runs)
    assert set(cluster.starts) == set(gangs)  # each one starts
    for starts in cluster.starts.values():
        moments = [NOW, *starts, cluster.now]
        longest = max(b - a for a, b in pairwise(moments))
        if cluster.runs:
            assert longest <= (len(sizes) + 2) * SLICE
