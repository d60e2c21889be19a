"""The second solve: it consolidates placements that the walk's order scatters, at no cost to any gang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.plan import Plan, Proof
from queuectl.domain.quantity import Resources
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan, plan_cycle
from queuectl.planner.capacity.node_counts import TentativeAdmission, node_counts_of
from queuectl.planner.consolidate import ConsolidationModel, bundle, may_move
from queuectl.planner.placement.single import Wholes, placed_podset_groups, score
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.problem.request import request_of
from queuectl.planner.solver import Model
from queuectl.planner.verify import verify
from tests.planner import generate
from tests.planner.build import NOW, gang, holding, node, placed, podset, resources, world
from tests.planner.plans import start
from tests.support.examples import examples


def rack(name: str, count: int, cpu: int = 0) -> list[Node]:
    return [node(f"{name}{i}", name, gpu=8, cpu=cpu) for i in range(count)]


def whole(uid: str, nodes: int, queued_at: float = 0.0, **topology: Any) -> Workload:
    return gang(uid, podset(count=nodes, gpu=8, **topology), queued_at=queued_at)


def one(uid: str, gpus: int, queued_at: float = 0.0) -> Workload:
    return gang(uid, podset(gpu=gpus), queued_at=queued_at)


def without_second_solve(snapshot: Snapshot) -> Plan:
    """The plan of the walk alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_cycle, "consolidate", lambda *_: 0)
        return plan(snapshot)


def kept_of(problem: Problem, made: Plan) -> list[TentativeAdmission]:
    """The gangs that a plan starts, with their placements."""
    waiting = {p.workload.uid: p for p in problem.snapshot.pending}
    kept = []
    for admission in made.admitted:
        pending = waiting[admission.uid]
        queue = problem.snapshot.config.cluster_queue_of("team", pending.workload.queue)
        flavors = tuple(dict(p.flavors) for p in admission.placement.podsets)
        request = request_of(problem, pending, queue, flavors)
        node_counts = node_counts_of(problem, request, admission.placement)
        assert node_counts is not None
        kept.append(TentativeAdmission(request, node_counts))
    return kept


def measured(snapshot: Snapshot, made: Plan) -> tuple[int, ...]:
    problem = survey(snapshot)
    return score(Wholes(problem), placed_podset_groups(kept_of(problem, made)))


def domains(snapshot: Snapshot, made: Plan) -> dict[str, dict[str, int]]:
    """Per gang, how many blocks, racks and nodes each podset uses, podsets of a group together, and all of them."""
    nodes = snapshot.fleet.by_name
    gangs = {pending.workload.uid: pending.workload for pending in snapshot.pending}
    found: dict[str, dict[str, int]] = {}
    for admission in made.admitted:
        units: dict[str, set[str]] = {}
        for asked, got in zip(
            gangs[admission.uid].podsets, admission.placement.podsets, strict=True
        ):
            for unit in (asked.group or asked.name, "all"):
                units.setdefault(unit, set()).update(name for name, _ in got.nodes)
        used = found.setdefault(admission.uid, {})
        for unit, names in units.items():
            paths = [nodes[name].labels for name in names]
            used[f"{unit} nodes"] = len(names)
            used[f"{unit} racks"] = len({(p["block"], p["rack"]) for p in paths})
            used[f"{unit} blocks"] = len({p["block"] for p in paths})
    return found


# The measure.

TWO_RACKS = [*rack("a", 2), *rack("b", 2)]


@pytest.mark.parametrize(
    ("where", "blocks", "racks", "nodes", "vain", "broken_nodes", "broken_racks"),
    [
        ({"a0": 1, "a1": 1}, 1, 1, 2, 0, 2, 1),
        ({"a0": 1, "b0": 1}, 1, 2, 2, 1, 1, 1),
        ({"b0": 1, "b1": 1}, 1, 1, 2, 0, 1, 0),
        ({"b0": 2}, 1, 1, 1, 0, 0, 0),
    ],
    ids=["a whole rack", "scattered", "alongside the tenant", "on the tenant's node"],
)
def test_the_measure_counts_whole_racks_and_nodes(
    where: dict[str, int], blocks: int, racks: int, nodes: int, vain: int,
    broken_nodes: int, broken_racks: int,
) -> None:  # fmt: skip
    """b0 has a tenant, so it is not whole, nor is rack b; the gang prefers a rack."""
    wanted = gang("g", podset(count=2, gpu=4, preferred="rack"))
    tenant = holding(gang("t", podset(gpu=1)), {"b0": 1})
    # two pods of 4 GPUs do not fit alongside the tenant of b0; the measure does not ask
    snapshot = world(TWO_RACKS, [wanted], [tenant])
    made = plan(snapshot)
    moved = replace(made.admitted[0], placement=placed(wanted, where))
    got = measured(snapshot, replace(made, admitted=(moved,)))
    assert got == (blocks, racks, nodes, vain, broken_nodes, broken_racks)


@pytest.mark.parametrize(
    ("nodes", "tenants", "other_pods", "wholes"),
    [
        (rack("a", 1), [], {}, 1),
        (rack("a", 1), [], {"a0": resources(cpu=1)}, 1),
        (rack("a", 1), [], {"a0": resources(gpu=1)}, 0),
        (rack("a", 1, cpu=4), [holding(gang("t", podset(cpu=1)), {"a0": 1})], {}, 0),
        ([node("a0", "a", gpu=8, ready=False)], [], {}, 0),
    ],
    ids=["idle", "a log shipper", "another pod's GPU", "a gang's cpu pod", "not ready"],
)
def test_a_node_is_whole_when_it_is_empty_and_free(
    nodes: list[Node], tenants: list[Admitted], other_pods: dict[str, Resources], wholes: int
) -> None:
    problem = survey(world(nodes, (), tenants, other_pods=other_pods))
    assert int(Wholes(problem).nodes.sum()) == wholes


# Gains of the second solve.


@pytest.mark.parametrize(
    ("nodes", "gangs", "cycle", "consolidated"),
    [
        pytest.param(
            rack("a", 4),
            [one("x", 3, 0.0), one("y", 3, 1.0), one("z", 5, 2.0), one("u", 5, 3.0)],
            (4, 4, 4, 0, 3, 1),
            (4, 4, 4, 0, 2, 1),
            id="3+3 leaves two fives apart; 5+3 twice keeps a node whole",
        ),
        pytest.param(
            [*rack("a", 5), *rack("b", 4)],
            [whole("x", 2, 0.0), whole("y", 4, 1.0, preferred="rack"), whole("z", 3, 2.0)],
            (3, 4, 9, 0, 9, 2),
            (3, 3, 9, 0, 9, 2),
            id="2 in the rack of four pushes 4 into that of five, and scatters 3",
        ),
        pytest.param(
            [*rack("a", 4), *rack("b", 3), *rack("c", 2)],
            [whole("x", 1, 0.0), whole("y", 2, 1.0, required="rack"), whole("z", 2, 2.0)],
            (3, 3, 5, 0, 5, 3),
            (3, 3, 5, 0, 5, 2),
            id="1, 2, 2 break three whole racks where 2 and 2+1 break two",
        ),
    ],
)
def test_placements_that_the_queue_order_scatters_are_consolidated(
    nodes: list[Node], gangs: list[Workload], cycle: tuple[int, ...], consolidated: tuple[int, ...]
) -> None:
    snapshot = world(nodes, gangs)
    alone, made = without_second_solve(snapshot), plan(snapshot)
    assert measured(snapshot, alone) == cycle
    assert measured(snapshot, made) == consolidated
    assert (made.stats["consolidated"] > 0) == (cycle != consolidated)
    assert verify(snapshot, made) == ()


def test_a_whole_rack_is_kept_where_broken_ones_are_enough() -> None:
    """1, 2, 2 nodes in racks with 2, 3 and 4 free: the walk breaks all three, 2 and 2+1 suffice."""
    nodes = [*rack("a", 4), *rack("b", 4), *rack("c", 4)]
    busy = [
        holding(whole("rb", 1), {"b3": 1}),
        holding(whole("rc", 2), {"c2": 1, "c3": 1}),
    ]
    gangs = [
        whole("x", 1, 0.0, required="rack"),
        whole("y", 2, 1.0, required="rack"),
        whole("z", 2, 2.0, required="rack"),
    ]
    snapshot = world(nodes, gangs, busy)
    assert measured(snapshot, without_second_solve(snapshot))[-1] == 1
    assert measured(snapshot, plan(snapshot))[-1] == 0


def test_slices_and_even_spreads_move_along_where_their_gang_stays_in_one_rack() -> None:
    """The same racks; y has slices of a rack each, z is spread evenly over the racks of its block."""
    nodes = [*rack("a", 4), *rack("b", 4), *rack("c", 4)]
    busy = [
        holding(whole("rb", 1), {"b3": 1}),
        holding(whole("rc", 2), {"c2": 1, "c3": 1}),
    ]
    gangs = [
        whole("x", 1, 0.0, required="rack"),
        whole("y", 2, 1.0, required="block", slices=[("rack", 2)]),
        whole("z", 2, 2.0, required="block", balanced=True),
    ]
    snapshot = world(nodes, gangs, busy)
    made = plan(snapshot)
    assert measured(snapshot, without_second_solve(snapshot))[-1] == 1
    assert measured(snapshot, made)[-1] == 0
    assert verify(snapshot, made) == ()


# Gangs that the second solve leaves as they are.


@pytest.mark.parametrize(
    ("where", "topology", "free"),
    [
        ({"a0": 1, "a1": 1}, {"slices": [("rack", 2)]}, True),
        ({"a0": 1, "b0": 1}, {"slices": [("rack", 1)]}, True),
        ({"a0": 2, "b0": 2}, {"slices": [("rack", 2)]}, False),
        ({"a0": 2, "b0": 2}, {"slices": [(HOSTNAME, 2)]}, True),
        ({"a0": 1, "a1": 1}, {"required": "block", "balanced": True}, True),
        ({"a0": 1, "a1": 1}, {"required": "rack", "balanced": True}, False),
        ({"a0": 1, "b0": 1}, {"required": "block", "balanced": True}, False),
        ({"a0": 2}, {"required": "rack", "balanced": True}, True),
    ],
)
def test_a_gang_moves_only_where_its_slices_stay_whole_and_its_spread_even(
    where: dict[str, int], topology: dict[str, Any], free: bool
) -> None:
    nodes = [node(f"{r}{i}", r, gpu=8) for r in "ab" for i in range(2)]
    workload = gang("g", podset(count=sum(where.values()), gpu=1, **topology))
    (kept,) = kept_of(survey(world(nodes, [workload])), start(workload, where))
    assert may_move(kept) is free


def test_a_single_gang_placed_by_counting_is_not_solved_again() -> None:
    made = plan(world(rack("a", 4), [whole("x", 2)]))
    assert made.stats["consolidated"] == 0


def test_a_gang_with_a_lease_keeps_its_reserved_nodes() -> None:
    promised = whole("x", 2, 0.0)
    lease = CapacityLease(placed(promised, {"a0": 1, "b0": 1}), (), NOW, NOW + 600)
    snapshot = world(TWO_RACKS, [Pending(promised, lease), one("y", 1, 1.0), one("z", 1, 2.0)])
    where = {a.uid: a.placement for a in plan(snapshot).admitted}
    assert where["x"] == lease.placement


# Limits of the second solve.

MANY = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
batches = st.integers(2, 5).flatmap(lambda n: generate.snapshots(gangs=n, tenants=3))


@MANY
@given(batches)
def test_no_gang_uses_more_domains_and_the_same_gangs_start(snapshot: Snapshot) -> None:
    alone, made = without_second_solve(snapshot), plan(snapshot)
    assert [a.uid for a in made.admitted] == [a.uid for a in alone.admitted]
    assert replace(made, admitted=(), stats={}) == replace(alone, admitted=(), stats={})
    before, after = domains(snapshot, alone), domains(snapshot, made)
    for uid, used in after.items():
        assert all(used[what] <= before[uid][what] for what in used), uid
    if made.admitted:
        assert measured(snapshot, made) <= measured(snapshot, alone)
    assert verify(snapshot, made) == ()


@MANY
@given(batches)
def test_the_placements_of_the_walk_are_a_solution_of_the_model(snapshot: Snapshot) -> None:
    """The model thus refuses no real placement, and its hint is complete."""
    problem = survey(snapshot)
    kept = kept_of(problem, without_second_solve(snapshot))
    placed = placed_podset_groups(kept)
    if not placed:
        return
    units = [bundle(problem, n, each) for n, each in enumerate(placed)]
    free = np.minimum(problem.now, problem.later)
    consolidation = ConsolidationModel(units, free, np.arange(problem.size), Wholes(problem))
    model = consolidation.model
    assert model.hint is not None
    assert broken_rows(model, model.hint) == []
    assert all(layer.reach > 0 for layer in consolidation.layers), "a layer keeps its direction"


def broken_rows(model: Model, values: Sequence[int]) -> list[object]:
    assert len(values) == len(model.bounds)
    bounds = [
        (v, value)
        for v, value in enumerate(values)
        if not model.bounds[v][0] <= value <= model.bounds[v][1]
    ]
    rows = [
        row
        for row in model.rows
        if not row[2] <= sum(c * values[v] for v, c in zip(row[0], row[1], strict=True)) <= row[3]
    ]
    return [*bounds, *rows]


FOUR = world(rack("a", 4), [one(f"g{i}", gpus, float(i)) for i, gpus in enumerate((3, 3, 5, 5))])


@pytest.mark.parametrize("fault", ["UNKNOWN", "MODEL_INVALID", "exception"])
def test_a_failure_of_the_second_solve_keeps_the_plan_of_the_walk(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    solve = cp_model.CpSolver.solve

    def fail_with_objective(self, model):
        if not model.has_objective():
            return solve(self, model)
        if fault == "exception":
            raise RuntimeError("native failure")
        solve(self, cp_model.CpModel())
        return getattr(cp_model, fault)

    alone = without_second_solve(FOUR)
    monkeypatch.setattr(cp_model.CpSolver, "solve", fail_with_objective)
    made = plan(FOUR)
    assert made.admitted == alone.admitted
    assert made.proof is Proof.OPTIMAL
    assert made.stats["consolidated"] == 0
    assert (made.stats["solver_alarms"] > 0) == (fault != "UNKNOWN")
