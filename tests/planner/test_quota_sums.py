"""Shortcuts that avoid searches and sorting agree with them: quota as a model, kept queue orders."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.queues import ResourceFlavor
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot, SolverLimits
from queuectl.domain.workload import Placement
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.node_counts import TentativeAdmission
from queuectl.planner.capacity.state import CycleState, open_state
from queuectl.planner.order.pending_gangs import PendingGangs, pending_gangs
from queuectl.planner.placement.feasible import confirm
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import request_of
from queuectl.planner.solver import Solver, Status
from tests.planner.build import FLAVOR, NOW, config, gang, holding, node, podset, world
from tests.planner.generate_cohorts import FLAVORS, contest
from tests.planner.queues import cq, gpus, quota_only, quotas

SEEDS = range(120)


def bare(made: Plan) -> Plan:
    """The decisions of a plan, without its statistics."""
    return replace(made, stats={})


def _with_all_admitted(snapshot: Snapshot) -> CycleState:
    """The pools as if every pending gang had been started, with or without quota."""
    problem = survey(snapshot)
    state = open_state(problem)
    for pending in snapshot.pending:
        workload = pending.workload
        queue = snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
        requests = workload.podsets[0].shape.requests
        flavors = ({r: flavor for r, flavor in FLAVORS.items() if requests[r]},)
        request = request_of(problem, pending, queue, flavors)
        state.admit(TentativeAdmission(request, ()))
    return state


def test_the_quota_model_holds_all_gangs_exactly_where_each_has_quota_alongside_the_others() -> (
    None
):
    answers: Counter[bool] = Counter()
    for seed in range(300):
        snapshot = contest(seed)
        some = tuple(p for p in snapshot.pending if random.Random(seed).random() < 0.6)
        state = _with_all_admitted(replace(snapshot, pending=some))
        fits = all(
            not need or state.now.quota.left(admission.request.queue or "", row) >= 0
            for admission in state.admissions
            for row, need in admission.request.charges.items()
        )
        solver = Solver(snapshot.limits)
        assert confirm(state, solver).status is (Status.SOLVED if fits else Status.REFUTED)
        answers[fits] += 1
    assert min(answers[True], answers[False]) >= 30


@pytest.mark.parametrize(("limit", "lent", "holds"), [(None, None, 4), (1, None, 3), (None, 1, 3)])
def test_the_quota_model_includes_limits_of_borrowing_and_lending(
    limit: int | None, lent: int | None, holds: int
) -> None:
    queues = [
        cq("a", quotas(2, borrowing=limit)),
        cq("b", quotas(2, lending=lent)),
    ]
    for started in range(1, 6):
        waiting = [gpus(f"g{number}", 1, "a") for number in range(started)]
        state = _with_all_admitted(quota_only(queues, waiting))
        status = confirm(state, Solver(SolverLimits())).status
        assert status is (Status.SOLVED if started <= holds else Status.REFUTED)


def test_gangs_that_take_no_nodes_start_on_a_solution_of_the_solver() -> None:
    made = plan(quota_only([cq("a", 2)], [gpus("one", 1, "a"), gpus("two", 1, "a")]))
    assert [a.uid for a in made.admitted] == ["one", "two"]
    assert made.stats["solves"] == 1


def _seen(lines: PendingGangs) -> object:
    """All that a walk sees of them."""
    queues = {name: [line.gangs for line in found] for name, found in lines.by_queue.items()}
    kinds = {gang.workload.uid: lines.keys[id(gang)] for gang in lines.in_order}
    return list(queues.items()), list(lines.in_order), list(lines.blocked), kinds


@pytest.mark.parametrize("seed", range(20))
def test_orders_kept_from_cycle_to_cycle_equal_fresh_ones(seed: int) -> None:
    rng = random.Random(seed)
    names = ["a", "b", "c"]
    snapshot = quota_only([cq(name, 2) for name in names], [])
    waiting: dict[str, Pending] = {}
    lease = CapacityLease(Placement(()), (), NOW, NOW + 60)
    reason = next(iter(plan(quota_only([cq("a", 0)], [gpus("x", 1, "a")])).pending)).reasons[0]
    cache = PlannerCache()
    for cycle in range(30):
        for uid in rng.sample(sorted(waiting), min(len(waiting), rng.choice((0, 1, 3, 30)))):
            del waiting[uid]
        for number in range(rng.choice((0, 1, 2, 8))):
            uid = f"u{cycle}-{number}"
            gang = gpus(uid, rng.choice((1, 2)), rng.choice(names), at=float(rng.randrange(9)))
            waiting[uid] = Pending(replace(gang, priority=rng.choice((0, 1))))
        for uid in rng.sample(
            sorted(waiting), min(len(waiting), 2)
        ):  # the same gang, another record
            change = rng.choice(
                ({"lease": lease}, {"lease": None}, {"blocked": reason}, {"blocked": None})
            )
            waiting[uid] = replace(waiting[uid], **change)
        now = replace(snapshot, pending=tuple(waiting.values()))
        kept = pending_gangs(now, cache)
        assert _seen(kept) == _seen(pending_gangs(now, PlannerCache()))


def test_a_fit_of_the_empty_fleet_under_one_configuration_does_not_imply_it_under_another() -> None:
    """The same gang and nodes: first the flavor is of all nodes, then of small ones that can never hold it."""
    nodes = [node("big", "r0", gpu=8), node("small", "r0", gpu=2, labels={"pool": "small"})]
    busy, waits = gang("busy", podset("w", 1, gpu=8)), gang("waits", podset("w", 1, gpu=8))
    first = world(nodes, [waits], [holding(busy, {"big": 1})])
    reasons = [plan(first).pending[0].reasons[0].code]
    small = ResourceFlavor(FLAVOR, node_labels=(("pool", "small"),), topology="gpus")
    later = config(*first.config.cluster_queues.values(), flavors=[small])
    reasons.append(plan(replace(first, config=later)).pending[0].reasons[0].code)
    assert reasons == [Code.TOPOLOGY_PLACEMENT_FAILED, Code.SHAPE_NEVER_FITS]
