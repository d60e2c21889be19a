"""The victims found are the least legal ones, and the gang fits its placement once they left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.plan import Cost, Plan, Proof, Refusal
from queuectl.domain.queues import ClusterQueue, ResourceFlavor, WithinClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot, SolverLimits
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.planner.capacity.state import HeldCapacity, open_state
from queuectl.planner.preempt import cost as preempt_goal
from queuectl.planner.preempt import find as preempt
from queuectl.planner.preempt import search as preempt_search
from queuectl.planner.preempt.cost import RESTART_COST, costs, sizes_of
from queuectl.planner.preempt.find import Victims, find_victims
from queuectl.planner.preempt.search import BestVictims
from queuectl.planner.problem.flavors import options_of
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.solver import Model, Solution, Solver, Status
from queuectl.planner.verify import verify
from tests.planner import cases, generate
from tests.planner.build import (
    FLAVOR,
    NOW,
    gang,
    holding,
    node,
    podset,
    queue,
    resources,
    world,
)
from tests.planner.oracle import fits_without, layers, least_victims, legal_victims
from tests.support.examples import examples

WAITS = (Reason(Code.WAITING_FOR_PREEMPTED, "victims are leaving"),)
SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
MANY = settings(max_examples=examples(400), deadline=None, suppress_health_check=SLOW)
SOME = settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)
SEEDS = st.integers(0, 2**32)
CLUSTERS = st.one_of(
    generate.snapshots(),
    generate.contested(),
    SEEDS.map(generate.crowded),
    SEEDS.map(generate.crowded),
    SEEDS.map(lambda seed: generate.crowded(seed, mixed=True)),
)


def answers(
    snapshot: Snapshot, solver: Solver | None = None
) -> Iterator[tuple[GangRequest, ClusterQueue, Victims | None]]:
    """Victims for the first pending gang under each of its choices of flavors."""
    entry = snapshot.pending[0]
    workload = entry.workload
    main = snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
    assert main is not None
    problem = survey(snapshot)
    options = options_of(workload, main, problem)
    for choice in () if options.impossible else options.choices():
        flavors = options.flavors_by_podset(choice, main, workload)
        request = request_of(problem, entry, main, flavors)
        asked = solver or Solver(snapshot.limits)
        yield request, main, find_victims(open_state(problem), request, main, asked)
        assert not asked.alarms


def only_answer(snapshot: Snapshot) -> Victims | None:
    ((_, _, answer),) = answers(snapshot)
    return answer


def evicted(answer: Victims | None) -> set[str] | None:
    return None if answer is None else {p.victim for p in answer.victims}


def plan_of(snapshot: Snapshot, request: GangRequest, answer: Victims) -> Plan:
    """The plan that evicts them and leases the placement to the gang."""
    per_podset: dict[int, tuple[tuple[str, int], ...]] = {}
    names = [n.name for n in snapshot.fleet.nodes]
    for pods, (nodes, counts) in zip(request.pods, answer.node_counts, strict=True):
        per_podset[pods.podset] = tuple(
            (names[n], int(c)) for n, c in zip(nodes, counts, strict=True)
        )
    placement = Placement(
        tuple(
            PodSetPlacement(p.name, per_podset.get(i, ()), request.flavors[i])
            for i, p in enumerate(request.pending.workload.podsets)
        )
    )
    victims = tuple(p.victim for p in answer.victims)
    lease = CapacityLease(placement, victims, NOW, NOW + 600)
    refusal = Refusal(request.pending.workload.uid, WAITS, lease)
    return Plan(preempted=answer.victims, pending=(refusal,))


# -- known cases


@pytest.mark.parametrize("order", [cases.DEFAULT, cases.COUNT_FIRST], ids=["lost", "count"])
@pytest.mark.parametrize("case", cases.PREEMPT, ids=lambda c: c.name)
def test_the_known_optimum_is_found(case: cases.Preempt, order) -> None:
    snapshot = case.snapshot(order)
    for request, _, answer in answers(snapshot):
        assert evicted(answer) == case.victims[order]
        if answer is not None:
            assert answer.proof is Proof.OPTIMAL
            assert not verify(snapshot, plan_of(snapshot, request, answer))


# -- against brute force


def agrees_with_brute_force(snapshot: Snapshot) -> None:
    entry = snapshot.pending[0]
    priced = costs(legal_victims(snapshot, entry.workload), snapshot.now, sizes_of(snapshot))
    for request, main, answer in answers(snapshot):
        best = least_victims(snapshot, entry, priced, only=request.flavors)
        assert (answer is None) == (best is None)
        if answer is not None and best is not None:
            assert answer.proof is Proof.OPTIMAL
            assert layers(main.victim_order, [p.cost for p in answer.victims]) == best[0]
            assert not verify(snapshot, plan_of(snapshot, request, answer))


@MANY
@given(CLUSTERS)
def test_the_victims_are_the_least_of_all_legal_sets(snapshot: Snapshot) -> None:
    agrees_with_brute_force(snapshot)


@pytest.mark.parametrize("mixed", [False, True], ids=["one shape", "several"])
@pytest.mark.seeds
@pytest.mark.parametrize("block", range(examples(5)))
def test_the_victims_are_the_least_on_crowded_clusters(block: int, mixed: bool) -> None:
    for seed in range(250 * block, 250 * (block + 1)):
        agrees_with_brute_force(generate.crowded(seed, mixed=mixed))


@SOME
@given(CLUSTERS)
def test_layers_too_large_for_one_sum_are_solved_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    monkeypatch.setattr(preempt_goal, "_RANGE", 1)
    agrees_with_brute_force(snapshot)


@SOME
@given(CLUSTERS)
def test_the_solver_alone_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    """Without greedy sets to start from every answer is the model's."""
    nothing_greedy(monkeypatch)
    agrees_with_brute_force(snapshot)


def nothing_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preempt_search.Search, "_greedy", lambda *_: None)


@SOME
@given(SEEDS.map(lambda seed: generate.crowded(seed, mixed=True)), st.booleans())
def test_a_placement_read_from_the_model_is_valid(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot, one_apart: bool
) -> None:
    """When no packing is found greedily, the exact model's own is used, also for equal pods in and outside a rack."""
    if one_apart:
        (entry,) = snapshot.pending
        first = replace(entry.workload.podsets[0], name="apart", topology=None, group=None)
        workload = replace(entry.workload, podsets=(first, *entry.workload.podsets))
        snapshot = replace(snapshot, pending=(replace(entry, workload=workload),))
    monkeypatch.setattr(preempt_search.Search, "_place", lambda *_: None)
    monkeypatch.setattr(preempt_search.Search, "_fits", lambda *_: False)
    monkeypatch.setattr(preempt, "find", lambda *_: None)
    agrees_with_brute_force(snapshot)
    monkeypatch.undo()


@SOME
@given(CLUSTERS)
def test_the_same_snapshot_gets_the_same_victims(snapshot: Snapshot) -> None:
    def results() -> list[object]:
        return [
            (a and (a.victims, a.proof, [(n.tolist(), c.tolist()) for n, c in a.node_counts]))
            for _, _, a in answers(snapshot)
        ]

    assert results() == results()


@SOME
@given(CLUSTERS)
def test_a_search_cut_short_still_evicts_no_gang_in_vain(snapshot: Snapshot) -> None:
    entry = snapshot.pending[0]
    cut_short = Solver(SolverLimits(deterministic_time=1e-9, growth=1.0))
    for request, _, answer in answers(snapshot, cut_short):
        if answer is None or answer.proof is Proof.UNDECIDED:
            continue
        assert not verify(snapshot, plan_of(snapshot, request, answer))
        victims = evicted(answer) or set()
        if len({p.shape for p in request.pods}) > 1 or len(request.podset_groups) > 1:
            continue  # a greedy packing of several shapes may miss that fewer would do
        for needed in victims:
            fewer = frozenset(victims - {needed})
            assert not fits_without(snapshot, entry, fewer, only=request.flavors)


# -- what it may use, and what else blocks


def low(uid: str, where: dict[str, int], gpu: int = 8, priority: int = 0, **kw):
    workload = gang(uid, podset(count=sum(where.values()), gpu=gpu), priority=priority)
    return holding(workload, where, **kw)


PAIR = [node("a0", "a", gpu=8), node("b0", "b", gpu=8)]
HIGH = gang("high", podset(gpu=8), priority=9)


def test_no_gang_is_evicted_when_leaving_gangs_free_enough() -> None:
    answer = only_answer(
        world(PAIR, [HIGH], [low("x", {"a0": 1}, leaving=True), low("y", {"b0": 1})])
    )
    assert answer is not None
    assert answer.victims == ()
    assert answer.proof is Proof.OPTIMAL
    assert answer.node_counts[0][0].tolist() == [0]


def test_capacity_leased_to_others_is_not_free() -> None:
    snapshot = world(PAIR, [HIGH], [low("x", {"a0": 1})])
    problem = survey(snapshot)
    main = snapshot.config.cluster_queues["main"]
    flavors = (dict.fromkeys(HIGH.podsets[0].shape.requests, FLAVOR),)
    request = request_of(problem, snapshot.pending[0], main, flavors)
    state = open_state(problem)
    idle = find_victims(state, request, main, Solver(snapshot.limits))
    state.hold(HeldCapacity(request, ((np.array([1]), np.array([1])),)))
    leased = find_victims(state, request, main, Solver(snapshot.limits))
    assert evicted(idle) == set()
    assert evicted(leased) == {"x"}


def test_a_victim_of_this_plan_is_not_evicted_twice() -> None:
    snapshot = world(PAIR[:1], [HIGH], [low("x", {"a0": 1})])
    problem = survey(snapshot)
    main = snapshot.config.cluster_queues["main"]
    flavors = (dict.fromkeys(HIGH.podsets[0].shape.requests, FLAVOR),)
    request = request_of(problem, snapshot.pending[0], main, flavors)
    state = open_state(problem)
    state.evict(snapshot.admitted[0])
    state.hold(HeldCapacity(request, ((np.array([0]), np.array([1])),)))
    assert find_victims(state, request, main, Solver(snapshot.limits)) is None


def test_quota_alone_takes_the_cheapest_victim_on_any_node() -> None:
    nodes = [*PAIR, node("c0", "c", gpu=8)]
    dear, cheap = low("dear", {"a0": 1}, started_at=0.0), low("cheap", {"b0": 1})
    answer = only_answer(world(nodes, [HIGH], [dear, cheap], queue(gpu=16)))
    assert evicted(answer) == {"cheap"}
    assert answer is not None
    assert answer.node_counts[0][0].tolist() in ([1], [2])


def test_quota_and_nodes_are_freed_by_one_set() -> None:
    """For nodes alone the cheap half-node gang would do; only the expensive one frees enough quota as well."""
    nodes = [node("a0", "a", gpu=8), node("b0", "b", gpu=8, cpu=1)]
    half = low("half", {"a0": 1}, gpu=4)
    full = low("full", {"b0": 1}, started_at=NOW - 1000)
    blocked = gang("high", podset(gpu=8), priority=9)
    assert evicted(only_answer(world(nodes, [blocked], [half, full]))) == {"half"}
    tight = queue(gpu=12)
    assert evicted(only_answer(world(nodes, [blocked], [half, full], tight))) == {"full"}


def test_a_quota_only_flavor_needs_no_node() -> None:
    flat = [ResourceFlavor(FLAVOR)]
    running = [
        holding(gang(f"r{i}", podset(gpu=4)), {}, started_at=NOW - 100 * i) for i in range(3)
    ]
    answer = only_answer(world(PAIR, [HIGH], running, queue(gpu=12), flavors=flat))
    assert answer is not None
    assert evicted(answer) == {"r0", "r1"}
    assert answer.node_counts == ()


def test_equal_gangs_leave_until_every_missing_quota_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them frees enough GPUs, all three are needed for the cpu."""
    nothing_greedy(monkeypatch)
    running = [holding(gang(f"r{i}", podset(gpu=4, cpu=1)), {}) for i in range(3)]
    blocked = gang("high", podset(gpu=4, cpu=3), priority=9)
    main = queue(gpu=12, cpu=3)
    answer = only_answer(world([], [blocked], running, main, flavors=[ResourceFlavor(FLAVOR)]))
    assert evicted(answer) == {"r0", "r1", "r2"}


def test_a_request_beyond_the_whole_quota_evicts_no_gang() -> None:
    assert only_answer(world(PAIR, [HIGH], [low("x", {"a0": 1})], queue(gpu=7))) is None


def test_policy_never_evicts_no_gang() -> None:
    never = queue(within=WithinClusterQueue.NEVER)
    full = [low("x", {"a0": 1}), low("y", {"b0": 1})]
    assert only_answer(world(PAIR, [HIGH], full, never)) is None


def test_the_cost_of_each_victim_is_stated() -> None:
    used = low("x", {"a0": 1}, started_at=NOW - 100, utilization=0.5)
    answer = only_answer(world(PAIR[:1], [HIGH], [used]))
    assert answer is not None
    (preemption,) = answer.victims
    assert preemption.preemptor == "high"
    assert preemption.cost == Cost(0, 8 * 100 // 2 + RESTART_COST, Fraction(8))


def test_an_idle_gang_is_evicted_before_a_busy_one() -> None:
    idle = low("idle", {"a0": 1}, started_at=0.0, utilization=0.0)
    busy = low("busy", {"b0": 1}, started_at=NOW - 60)
    assert evicted(only_answer(world(PAIR, [HIGH], [idle, busy]))) == {"idle"}


def test_an_overcommitted_node_does_not_force_evictions_elsewhere() -> None:
    """The excess on a0 does not matter while the gang uses b0."""
    running = [low("x", {"a0": 1}), low("y", {"b0": 1})]
    snapshot = world(PAIR, [HIGH], running, other_pods={"a0": resources(gpu=4)})
    assert evicted(only_answer(snapshot)) == {"y"}


def test_capacity_of_an_overcommitted_node_is_not_counted_for_pods_of_several_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without x, 4 GPUs are free on a0: enough for each of the pods, not for both."""
    nothing_greedy(monkeypatch)
    blocked = gang("high", podset("w", gpu=4), podset("l", gpu=1), priority=9)
    running = [low("x", {"a0": 1}), low("y", {"b0": 1}, started_at=0.0)]
    answer = only_answer(world(PAIR, [blocked], running, other_pods={"a0": resources(gpu=4)}))
    assert evicted(answer) == {"y"}
    assert answer is not None
    assert answer.proof is Proof.OPTIMAL


def test_the_newest_leave_an_overcommitted_node_until_it_has_room() -> None:
    """Four of its devices have failed. Five gangs must leave it, and a gang of another node frees most of the missing quota."""
    nodes = [node("a", gpu=4), node("b", gpu=8)]
    blocked = gang("high", podset(gpu=1, select={"kubernetes.io/hostname": "a"}), priority=9)
    small = [low(f"t{n}", {"a": 1}, gpu=1, started_at=NOW - 60 * n) for n in range(8)]
    large = low("large", {"b": 1}, gpu=8, started_at=NOW - 3600)
    for each in (True, False):
        order = small if each else small[::-1]
        answer = only_answer(world(nodes, [blocked], [*order, large], queue(gpu=8)))
        assert answer is not None
        assert answer.proof is Proof.OPTIMAL
        assert evicted(answer) == {"t0", "t1", "t2", "t3", "t4", "large"}


class Exhausted(Solver):
    """A solver whose limit always ends first."""

    def solve(self, model: Model, budget: int = 0, *, completes: bool = False) -> Solution:
        return Solution(Status.UNKNOWN)


def test_a_search_that_finds_nothing_in_time_is_undecided_not_no(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing_greedy(monkeypatch)
    snapshot = world(PAIR, [HIGH], [low("x", {"a0": 1}), low("y", {"b0": 1})])
    ((_, _, answer),) = answers(snapshot, solver=Exhausted(snapshot.limits))
    assert answer == Victims((), (), Proof.UNDECIDED)


def test_higher_priorities_stay_while_lower_ones_are_undecided_until_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search does not find that the low gang suffices; only at the largest budget does it consider higher ones."""
    nothing_greedy(monkeypatch)
    snapshot = world(PAIR, [HIGH], [low("x", {"a0": 1}), low("y", {"b0": 1}, priority=3)])
    exhausted = Exhausted(snapshot.limits)
    ((_, _, answer),) = answers(snapshot, solver=exhausted)
    assert answer is not None
    assert answer.proof is Proof.UNDECIDED
    ranks: list[int] = []

    def gives_up(search: preempt_search.Search, goals: object) -> BestVictims:
        ranks.append(search.table.size)
        return BestVictims(proved=False)

    monkeypatch.setattr(preempt_search.Search, "run", gives_up)
    spent = replace(snapshot, pending=(Pending(HIGH, budget=snapshot.limits.max_budget),))
    list(answers(spent, solver=exhausted))
    assert ranks == [1, 2]
    ranks.clear()
    list(answers(snapshot, solver=exhausted))
    assert ranks == [1]
