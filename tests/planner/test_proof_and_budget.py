"""The certainty of each answer, and the limit of the search before it returns "undecided"."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ortools.sat.python import cp_model

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Pending, SolverLimits
from queuectl.planner import plan
from queuectl.planner.preempt.find import find_victims
from queuectl.planner.solver import Model, Solver
from queuectl.planner.verify import verify
from tests.planner import cases
from tests.planner.build import gang, holding, node, podset, queue, world

SOLVE = cp_model.CpSolver.solve
OPTIMAL, FEASIBLE, UNDECIDED = Proof.OPTIMAL, Proof.FEASIBLE, Proof.UNDECIDED

# Needs a search: sums and floors leave it open, and no greedy placement exists.
HARD = next(c for c in cases.BATCH if c.name == "only the solver sees how")
ELSEWHERE = [node("z0", "z", gpu=1), node("z1", "z", gpu=1)]


def small(uid: str, queued_at: float, **asks: Any):
    return gang(uid, podset(gpu=1, select={"rack": "z"}, **asks), queued_at=queued_at)


def proofs(made: Plan) -> dict[str, Proof]:
    return {a.uid: a.proof for a in made.admitted} | {r.uid: r.proof for r in made.pending}


def give_up_on_searches(patch: pytest.MonkeyPatch) -> None:
    """The solver only confirms its hints; it returns unknown for all else."""

    def solve(self: Any, model: Any) -> Any:
        if len(model.proto.solution_hint.vars):
            return SOLVE(self, model)
        SOLVE(self, cp_model.CpModel())
        return cp_model.UNKNOWN

    patch.setattr(cp_model.CpSolver, "solve", solve)


def test_a_proved_plan_is_optimal() -> None:
    gangs = [small("a", 1.0), small("b", 2.0), small("never", 3.0, count=3)]
    made = plan(world(ELSEWHERE, gangs))
    assert proofs(made) == {"a": OPTIMAL, "b": OPTIMAL, "never": OPTIMAL}
    assert made.proof is OPTIMAL


def test_gangs_that_start_after_an_undecided_one_are_not_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The undecided one could have taken their capacity; those before it are certain, and so is a refusal."""
    give_up_on_searches(monkeypatch)
    gangs = [
        small("before", 1.0),
        gang("open", *HARD.gangs[0], queued_at=2.0),
        small("after", 3.0),
        small("full", 4.0),
    ]
    snapshot = world([*HARD.nodes, *ELSEWHERE], gangs)
    made = plan(snapshot)
    assert proofs(made) == {
        "before": OPTIMAL,
        "open": UNDECIDED,
        "after": FEASIBLE,
        "full": OPTIMAL,
    }
    assert made.proof is UNDECIDED
    assert verify(snapshot, made) == ()


@pytest.mark.parametrize("proof", [OPTIMAL, FEASIBLE])
def test_victims_carry_the_proof_that_they_are_the_least(
    monkeypatch: pytest.MonkeyPatch, proof: Proof
) -> None:
    def unsure(*args: Any) -> Any:
        found = find_victims(*args)
        return None if found is None else replace(found, proof=proof)

    monkeypatch.setattr("queuectl.planner.search.flavor_choice.find_victims", unsure)
    victim = holding(gang("victim", podset(gpu=8)), {"a0": 1})
    made = plan(world([node("a0", gpu=8)], [gang("w", podset(gpu=8), priority=5)], [victim]))
    assert [p.proof for p in made.preempted] == [proof]
    assert proofs(made) == {"w": proof}
    assert made.proof is proof


def test_beyond_the_window_nothing_is_proved() -> None:
    gangs = [small(f"g{i}", float(i)) for i in range(2)]
    made = plan(replace(world(ELSEWHERE, gangs), limits=SolverLimits(window=1)))
    assert proofs(made) == {"g0": OPTIMAL, "g1": UNDECIDED}


def crowded(steps: int, now: float = 1000.0) -> Plan:
    """Two gangs of one queue that need victims, one of another queue that does, and one that fits."""
    victims = [
        holding(gang(f"victim{i}", podset(gpu=8), queue="a" if i < 2 else "b"), {f"n{i}": 1})
        for i in range(3)
    ]
    gangs = [
        gang(uid, podset(gpu=8), priority=5, queue=uid[0], queued_at=float(at))
        for at, uid in enumerate(("a0", "a1", "b0"))
    ]
    fits = gang("a2", podset(gpu=1), queue="a", queued_at=9.0)
    nodes = [*(node(f"n{i}", gpu=8) for i in range(3)), node("free", gpu=1)]
    snapshot = world(nodes, [*gangs, fits], victims, *map(queue, "ab"))
    snapshot = replace(snapshot, now=now, limits=SolverLimits(search_steps=steps))
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def test_when_the_searches_of_a_cycle_are_used_up_gangs_that_fit_start_and_other_queues_take_turns() -> (
    None
):
    turns = 0
    for second in range(40):
        made = crowded(steps=20, now=1000.0 + second)
        assert {a.uid for a in made.admitted} == {"a2"}
        served = {p.preemptor for p in made.preempted}
        late = {r.uid: r for r in made.pending if r.uid not in served}
        assert late.keys() == {"a1"} | ({"b0"} - served)
        assert {r.reasons[0].code for r in late.values()} == {Code.PENDING_EVALUATION}
        assert {r.proof for r in late.values()} == {UNDECIDED}
        assert "a0" in served
        turns += "b0" in served
    assert 0 < turns < 40
    assert {p.preemptor for p in crowded(steps=2000).preempted} == {"a0", "a1", "b0"}


def test_a_gang_whose_search_reaches_the_limit_of_the_cycle_is_undecided_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its next search then has a larger budget."""
    give_up_on_searches(monkeypatch)
    gangs = [small("before", 1.0), gang("open", *HARD.gangs[0], queued_at=2.0)]
    snapshot = world([*HARD.nodes, *ELSEWHERE], gangs)
    made = plan(replace(snapshot, limits=SolverLimits(search_steps=1)))
    assert [(r.uid, r.reasons[0].code) for r in made.pending] == [("open", Code.UNDECIDED)]


# Limits.


@pytest.mark.parametrize(
    ("budget", "first", "then"),
    [(0, 0.25, 1.0), (1, 1.0, 4.0), (2, 4.0, 16.0), (4, 64.0, 256.0), (9, 64.0, 256.0)],
)
def test_each_retry_has_four_times_the_limit_up_to_a_cap(
    monkeypatch: pytest.MonkeyPatch, budget: int, first: float, then: float
) -> None:
    """In deterministic time, so that every machine gives the same answer.

    Three short tries without presolve come first, a third of the limit together; then one with it and more.
    """
    asked: list[tuple[float, bool, int]] = []

    def record(self: Any, model: Any) -> Any:
        p = self.parameters
        asked.append((p.max_deterministic_time, p.cp_model_presolve, p.num_workers))
        SOLVE(self, cp_model.CpModel())
        return cp_model.UNKNOWN

    monkeypatch.setattr(cp_model.CpSolver, "solve", record)
    Solver(SolverLimits()).solve(Model(bounds=[(0, 1)]), budget)
    *short, presolved = asked
    assert presolved == (then, True, 1)
    assert [each[1:] for each in short] == [(False, 1)] * 3
    assert first / 4 < sum(limit for limit, _, _ in short) < first / 3


def test_the_budget_of_a_gang_is_the_limit_of_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same question, undecided with a small limit, is answered with a larger one."""
    solve = cp_model.CpSolver.solve

    def needs_time(self: Any, model: Any) -> Any:
        if len(model.proto.solution_hint.vars) or self.parameters.max_deterministic_time >= 4.0:
            return solve(self, model)
        solve(self, cp_model.CpModel())
        return cp_model.UNKNOWN

    monkeypatch.setattr(cp_model.CpSolver, "solve", needs_time)
    wanted = gang("g0", *HARD.gangs[0])
    answers = [
        plan(world(HARD.nodes, [Pending(wanted, budget=budget)])).proof for budget in (0, 1, 2)
    ]
    assert answers == [UNDECIDED, OPTIMAL, OPTIMAL]
