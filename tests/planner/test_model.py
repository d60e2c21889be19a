"""The models and the interface to the solver: exact rows, limits, defects, stopping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Pending, SolverLimits
from queuectl.planner import plan
from queuectl.planner.model import patterns as pack
from queuectl.planner.model.patterns import add_exact, greedy, maximal_patterns
from queuectl.planner.solver import LARGEST, Model, Solver, Status
from queuectl.planner.verify import verify
from tests.planner import cases
from tests.planner.build import gang, node, podset, world
from tests.support.examples import examples

TIGHT = next(c for c in cases.BATCH if c.name == "only the solver sees how")


def solver(**limits) -> Solver:
    return Solver(SolverLimits(**limits))


# Rows.


def test_rows_are_divided_by_their_gcd_with_bounds_rounded_inwards() -> None:
    model = Model()
    x = model.var(0, 10)
    model.row([x], [2**40], 2**39, 3 * 2**40 + 5)
    assert model.rows == [([x], [1], 1, 3)]


def _empty_domain(model: Model) -> None:
    model.var(2, 1)


def _no_variables(model: Model) -> None:
    model.equal([], [], 1)


def _odd_sum_of_even(model: Model) -> None:
    model.equal([model.var(0, 9)], [2], 3)


@pytest.mark.parametrize("build", [_empty_domain, _no_variables, _odd_sum_of_even])
def test_contradictions_refute_without_a_call(build: Callable[[Model], None]) -> None:
    model = Model()
    build(model)
    refusing = solver()
    assert refusing.solve(model).status is Status.REFUTED
    assert refusing.calls == 0


def test_rows_that_the_bounds_imply_are_left_out() -> None:
    model = Model()
    x, y = model.var(0, 2), model.var(0, 3)
    model.at_most([x, y], [1, 2], 8)
    assert model.rows == []
    model.at_most([x, y], [1, 2], 7)
    assert len(model.rows) == 1


def test_coefficients_that_could_overflow_are_a_defect_and_no_crash() -> None:
    model = Model()
    x, y = model.var(0, 8), model.var(0, 8)
    model.row([x, y], [LARGEST // 4, 1], 0, LARGEST)
    refusing = solver()
    assert refusing.solve(model).status is Status.DEFECT
    assert refusing.alarms


def test_the_least_value_of_an_objective_is_found() -> None:
    model = Model()
    x, y = model.var(0, 9), model.var(0, 9)
    model.row([x, y], [2, 3], 12, 99)
    model.minimize([x, y], [3, 4])
    outcome = solver().solve(model)
    assert outcome.optimal
    assert 3 * outcome.assignment[0] + 4 * outcome.assignment[1] == 16


# Exact rows of a cell against enumeration.

vectors = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 3)).map(np.array),
    min_size=1,
    max_size=3,
)
nodes = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3)


def packs(free: np.ndarray, shapes: list[np.ndarray], counts: list[int]) -> bool:
    pods = [s for s, n in zip(shapes, counts, strict=True) for _ in range(n)]
    return any(
        all(
            (
                sum((p for p, w in zip(pods, where, strict=True) if w == n), np.zeros(2))
                <= free[:, n]
            ).all()
            for n in range(free.shape[1])
        )
        for where in product(range(free.shape[1]), repeat=len(pods))
    )


@pytest.mark.parametrize("patterns", [2000, 0], ids=["patterns", "node by node"])
@settings(max_examples=examples(150), deadline=None)
@given(shapes=vectors, there=nodes, data=st.data())
def test_exact_rows_are_exact(patterns: int, shapes, there, data) -> None:
    counts = [data.draw(st.integers(1, 2)) for _ in shapes]
    free = np.array(there, dtype=np.int64).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "MOST_PATTERNS", patterns)
        model = Model()
        exact = add_exact(model, free, shapes, [model.var(n, n) for n in counts])
        outcome = solver().solve(model)
    assert (outcome.status is Status.SOLVED) == packs(free, shapes, counts)
    for placed in (
        exact.read(outcome.assignment, counts) if outcome.status is Status.SOLVED else None,
        greedy(free, shapes, counts),
    ):
        if placed is not None:
            assert placed.sum(axis=1).tolist() == counts
            assert (np.stack(shapes, axis=1) @ placed <= free).all()


def test_patterns_are_maximal_and_counted() -> None:
    vectors = ((4,), (2,))
    assert set(maximal_patterns((8,), vectors, (9, 9), 10) or ()) == {(2, 0), (1, 2), (0, 4)}
    assert set(maximal_patterns((8,), vectors, (1, 9), 10) or ()) == {(1, 2), (0, 4)}
    assert maximal_patterns((8,), vectors, (9, 9), 2) is None


# Limits and defects.


def undecided(made: Plan) -> dict[str, object]:
    """The details of the only pending gang, undecided."""
    (refusal,) = made.pending
    assert refusal.reasons[0].code is Code.UNDECIDED
    assert refusal.proof is Proof.UNDECIDED
    assert made.proof is Proof.UNDECIDED
    assert made.admitted == ()
    return dict(refusal.reasons[0].details)


def test_a_limit_that_ends_the_search_is_not_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cp_model.CpSolver, "solve", lambda self, model: _answer(self, "UNKNOWN"))
    made = plan(TIGHT.snapshot)
    assert undecided(made) == {"budget": 0}
    assert verify(TIGHT.snapshot, made) == ()
    assert made.stats["solver_unknown"] >= 1
    assert not made.cut


def _answer(self, status: str):
    """The solver's answer to an empty model, under another status."""
    model = cp_model.CpModel()
    _SOLVE(self, model)
    return getattr(cp_model, status)


_SOLVE = cp_model.CpSolver.solve


def test_the_limit_grows_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, bool]] = []

    def record(self, model):
        p = self.parameters
        seen.append((p.max_deterministic_time, p.cp_model_presolve))
        return _answer(self, "UNKNOWN")

    monkeypatch.setattr(cp_model.CpSolver, "solve", record)
    limits = SolverLimits(deterministic_time=0.5, growth=2.0, max_budget=3)
    for budget in (0, 1, 9):
        Solver(limits).solve(Model(bounds=[(0, 1)]), budget)
    whole = [tried for at, tried in enumerate(seen) if at % 4 == 3]  # behind three short tries
    assert whole == [(1.0, True), (2.0, True), (8.0, True)]


def test_a_gang_undecided_before_is_not_searched_again_in_the_same_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cp_model.CpSolver, "solve", lambda self, model: _answer(self, "UNKNOWN"))
    podsets = TIGHT.gangs[0]
    entries = [Pending(gang(f"g{i}", *podsets, queued_at=float(i))) for i in range(20)]
    made = plan(world(TIGHT.nodes, entries))
    alone = plan(TIGHT.snapshot)
    assert made.stats["solves"] == alone.stats["solves"]
    assert {r.reasons[0].code for r in made.pending} == {Code.UNDECIDED}


@pytest.mark.parametrize("fault", ["MODEL_INVALID", "exception"])
def test_a_broken_solver_admits_no_gang_and_raises_an_alarm(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def broken(self, model):
        if fault == "exception":
            raise RuntimeError("native failure")
        return _answer(self, fault)

    monkeypatch.setattr(cp_model.CpSolver, "solve", broken)
    easy = world([node("a0", gpu=8)], [gang("g", podset(gpu=8))])
    for snapshot in (easy, TIGHT.snapshot):
        made = plan(snapshot)
        assert undecided(made)["alarm"]
        assert made.stats["solver_alarms"] >= 1
        assert verify(snapshot, made) == ()


def test_a_solver_that_refutes_a_verified_placement_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cp_model.CpSolver, "solve", lambda self, model: _answer(self, "INFEASIBLE"))
    made = plan(world([node("a0", gpu=8)], [gang("g", podset(gpu=8))]))
    assert "refuted" in str(undecided(made)["alarm"])


def test_a_solution_other_than_the_hint_is_placed_as_the_solver_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = Model.build

    def without_hint(self: Model) -> cp_model.CpModel:
        hint, self.hint = self.hint, None
        try:
            return build(self)
        finally:
            self.hint = hint

    monkeypatch.setattr(Model, "build", without_hint)
    nodes = [node(f"{rack}{i}", rack, gpu=8) for rack in "abcd" for i in range(2)]
    gangs = [
        gang(f"g{gpus}", podset(count=2, gpu=gpus, required="rack"), queued_at=float(gpus))
        for gpus in (5, 6, 7, 8)
    ]
    snapshot = world(nodes, gangs)
    made = plan(snapshot)
    assert [a.uid for a in made.admitted] == ["g5", "g6", "g7", "g8"]
    assert made.stats["solves"] == 2  # the solver's own placement differs from the witness
    assert verify(snapshot, made) == ()


def test_the_wall_clock_net_cuts_the_plan() -> None:
    limits = SolverLimits(wall_seconds=0.0)
    snapshot = world([node("a0", gpu=8)], [gang("g", podset(gpu=8))])
    made = plan(replace(snapshot, limits=limits))
    assert made.cut
    assert made.admitted == ()
