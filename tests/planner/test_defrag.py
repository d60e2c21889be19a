"""Moves are the cheapest that free capacity, every gang is placed after them, and no gang moves in vain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from queuectl.domain.plan import Proof
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.planner import relocate as defrag
from queuectl.planner.capacity.node_counts import fits
from queuectl.planner.capacity.state import open_state
from queuectl.planner.preempt.cost import costs, sizes_of
from queuectl.planner.preempt.search import BestVictims
from queuectl.planner.problem.flavors import options_of
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import ANYWHERE, GangRequest, request_of
from queuectl.planner.relocate import (
    MoveModel,
    MoveSearch,
    MoveSolution,
    find_moves,
    move_candidates,
)
from queuectl.planner.solver import Solver, Status
from tests.planner.build import gang, holding, node, podset, world
from tests.planner.generate_moves import scattered, shaped, tight
from tests.planner.oracle_moves import cheapest_moves, movable
from tests.support.examples import examples


def answers(
    snapshot: Snapshot, budget: int | None = None
) -> Iterator[tuple[GangRequest, MoveSolution | None, Solver]]:
    """Moves for the pending gang under each of its choices of flavors; every queue allows moves."""
    (entry,) = snapshot.pending
    main = snapshot.config.cluster_queue_of(entry.workload.namespace, entry.workload.queue)
    assert main is not None
    problem = survey(snapshot)
    options = options_of(entry.workload, main, problem)
    for choice in () if options.impossible else options.choices():
        flavors = options.flavors_by_podset(choice, main, entry.workload)
        request = request_of(problem, entry, main, flavors)
        state = open_state(problem)
        solver = Solver(snapshot.limits)
        candidates = move_candidates(
            state, lambda _: True, {} if budget is None else {"main": budget}
        )
        yield request, find_moves(state, request, candidates, solver), solver
        assert not solver.alarms


def agrees_with_brute_force(snapshot: Snapshot, budget: int | None = None) -> str:
    (entry,) = snapshot.pending
    priced = costs(movable(snapshot), snapshot.now, sizes_of(snapshot))
    outcome = "no choice"
    for request, solution, _ in answers(snapshot, budget):
        best = cheapest_moves(snapshot, entry, priced, request.flavors, budget)
        if not movable(snapshot) or best == (0, 0, 0):
            outcome = "trivial"
            continue
        assert (solution is None) == (best is None), best
        outcome = "no"
        if solution is not None and best is not None:
            assert solution.proof is Proof.OPTIMAL
            assert solution.cost == best
            all_gangs_fit(snapshot, request, solution)
            outcome = "moves"
    return outcome


def all_gangs_fit(snapshot: Snapshot, request: GangRequest, solution: MoveSolution) -> None:
    problem = survey(snapshot)
    free = open_state(problem).later.free.copy()
    for moved in solution.moved:
        nodes, amounts = problem.use_of(moved.gang)
        for row, amount in zip(free, amounts, strict=True):
            np.add.at(row, nodes, amount)
    pods = (*request.pods, *(p for m in solution.moved for p in m.request.pods))
    assert fits(
        free, pods, (*solution.node_counts, *(s for m in solution.moved for s in m.node_counts))
    )


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(examples(4)))
def test_the_cheapest_moves_are_found(block: int) -> None:
    outcomes = [agrees_with_brute_force(scattered(s)) for s in range(80 * block, 80 * (block + 1))]
    assert outcomes.count("moves") >= 5, "the clusters are made so that moving helps often"
    assert outcomes.count("no") >= 5


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(examples(2)))
def test_the_cheapest_moves_are_found_where_several_must_move(block: int) -> None:
    outcomes = [agrees_with_brute_force(tight(s)) for s in range(100 * block, 100 * (block + 1))]
    assert outcomes.count("moves") >= 30


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(examples(2)))
def test_the_cheapest_moves_of_sliced_balanced_grouped_and_smaller_gangs_are_found(
    block: int,
) -> None:
    outcomes = [agrees_with_brute_force(shaped(s)) for s in range(100 * block, 100 * (block + 1))]
    assert outcomes.count("moves") >= 5
    assert outcomes.count("no") >= 5


@pytest.fixture
def only_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the victim search every answer is from the models."""
    no_gangs = BestVictims(frozenset(), proved=False)
    monkeypatch.setattr(MoveSearch, "_least_leaving", lambda _: no_gangs)


@pytest.mark.usefixtures("only_models")
def test_the_models_alone_find_the_same() -> None:
    outcomes = [agrees_with_brute_force(tight(s)) for s in range(100)]
    outcomes += [agrees_with_brute_force(scattered(s)) for s in range(200, 225)]
    outcomes += [agrees_with_brute_force(shaped(s)) for s in range(60)]
    assert outcomes.count("moves") >= 15


@pytest.mark.parametrize(("each", "fits"), [(2, False), (1, True)])
def test_the_model_of_moves_keeps_slices_whole(each: int, fits: bool) -> None:
    """Once r has left, rack a has three nodes and rack b one: four pods, but only one slice of two in each rack."""
    nodes = [node(name, name[0], gpu=8, cpu=8) for name in ("a0", "a1", "a2", "b0")]
    nodes.append(node("c0", "c", gpu=8, cpu=1))
    running = holding(gang("r", podset(gpu=8, cpu=1)), {"a2": 1})
    asked = podset(count=4, gpu=8, cpu=2, slices=[("rack", each)] if each > 1 else ())
    snapshot = world(nodes, [gang("g", asked)], [running])
    problem = survey(snapshot)
    (entry,) = snapshot.pending
    request = request_of(problem, entry, None, ({},))
    state = open_state(problem)
    candidates = move_candidates(state, lambda _: True, {})
    model = MoveModel(request, candidates, [0], state.later.free, ANYWHERE).model
    found = Solver(snapshot.limits).solve(model).status
    assert found is (Status.SOLVED if fits else Status.REFUTED)


@pytest.mark.usefixtures("only_models")
def test_layers_too_large_for_one_sum_are_solved_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defrag, "_RANGE", 1)
    assert [agrees_with_brute_force(tight(s)) for s in range(60)].count("moves") >= 10


@pytest.mark.parametrize("budget", [0, 70, 150, 400])
def test_the_cheapest_moves_within_a_budget_are_found(budget: int) -> None:
    for seed in range(40):
        agrees_with_brute_force(tight(seed), budget)


LIMITED: dict[str, dict[str, object]] = {
    "few may leave": {"_ALL": 2},
    "one domain": {"_ALL": 2, "_SCOPES": 1},
    "one round": {"_ROUNDS": 1},
}


@pytest.mark.seeds
@pytest.mark.parametrize("limited", LIMITED.values(), ids=LIMITED)
def test_a_limited_search_reports_its_limit(
    monkeypatch: pytest.MonkeyPatch, limited: dict[str, object]
) -> None:
    """Its proof is true, and its suggestion works and moves no gang in vain."""
    for name, value in limited.items():
        monkeypatch.setattr(defrag, name, value)
    for seed in range(examples(150)):
        proofs_hold(tight(seed), SolverLimits())


@pytest.mark.seeds
def test_a_search_cut_short_reports_it() -> None:
    for seed in range(examples(100)):
        proofs_hold(tight(seed), SolverLimits(deterministic_time=1e-9, max_budget=0))


def proofs_hold(snapshot: Snapshot, limits: SolverLimits) -> None:
    snapshot = replace(snapshot, limits=limits)
    (entry,) = snapshot.pending
    priced = costs(movable(snapshot), snapshot.now, sizes_of(snapshot))
    for request, solution, _ in answers(snapshot):
        best = cheapest_moves(snapshot, entry, priced, request.flavors)
        if solution is None or solution.proof is Proof.OPTIMAL:
            if movable(snapshot):
                assert (solution.cost if solution is not None else None) == best
        elif solution.proof is Proof.FEASIBLE:
            assert best is not None
            assert solution.cost >= best
            all_gangs_fit(snapshot, request, solution)


def test_the_same_snapshot_gets_the_same_answer() -> None:
    def results(seed: int) -> list[object]:
        return [
            solution
            and (solution.cost, solution.proof, [m.gang.workload.uid for m in solution.moved])
            for _, solution, _ in answers(tight(seed))
        ]

    assert [results(s) for s in range(40)] == [results(s) for s in range(40)]
