"""If the solver fails or finds no answer, no gang starts, the fault is reported, and the next cycle works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ortools.sat.python import cp_model
from structlog.testing import capture_logs

from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from queuectl.lifecycle.machine import MAX_BUDGET
from tests.control.rig import Rig, gang, live, rig

Native = Callable[[Any, Any], Any]

SOLVE: Native = cp_model.CpSolver.solve


def _raises(solver: Any, model: Any) -> Any:
    raise RuntimeError("native failure")


def _gets_nonsense(solver: Any, model: Any) -> Any:
    """Add a variable with an invalid domain."""
    broken = cp_model.CpModel()
    broken.proto.variables.add().domain.extend([3, 1])
    return SOLVE(solver, broken)


def _finds_nothing(solver: Any, model: Any) -> Any:
    SOLVE(solver, cp_model.CpModel())
    return cp_model.UNKNOWN


class Fault:
    """A native call that fails until it is repaired."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broken: Native) -> None:
        self._broken = broken
        self.times = 0
        self.repaired = False
        fault = self

        def solve(solver: Any, model: Any) -> Any:
            if fault.repaired:
                return SOLVE(solver, model)
            fault.times += 1
            return fault._broken(solver, model)

        monkeypatch.setattr(cp_model.CpSolver, "solve", solve)


def total(world: Rig, name: str) -> float:
    return world.metrics.registry.get_sample_value(f"queuectl_{name}_total") or 0.0


async def until_undecided(world: Rig, uid: str) -> Entry:
    return await world.until_entry(uid, lambda e: e.reason.code is Code.UNDECIDED, "undecided")


@pytest.mark.parametrize(
    ("broken", "alarm"),
    [(_raises, "RuntimeError: native failure"), (_gets_nonsense, "invalid domain")],
    ids=["the native call raises", "the model is invalid"],
)
async def test_a_broken_solver_starts_nothing_and_is_reported_until_it_works_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch, broken: Native, alarm: str
) -> None:
    fault = Fault(monkeypatch, broken)
    with capture_logs() as logs:
        async with rig(database_url, 4) as world:
            uid = world.cluster.submit(gang("Job", "train", 2))
            entry = await until_undecided(world, uid)
            assert entry.state is State.PENDING
            assert alarm in entry.reason.details["alarm"]
            assert live(world.cluster.pods_of(uid)) == []
            assert total(world, "solver_alarms") >= 1
            fault.repaired = True
            await world.until_state(uid, State.RUNNING)
            assert world.kills == 0
    said = [line for line in logs if line["event"] == "solver_failed"]
    assert said
    assert all(line["log_level"] == "error" and alarm in line["message"] for line in said)


async def test_a_solver_without_an_answer_gets_a_larger_budget_each_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuectl.control.leader.planning.RETRY_SECONDS", 0.01)
    fault = Fault(monkeypatch, _finds_nothing)
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(gang("Job", "train", 2))
        await until_undecided(world, uid)

        async def spent() -> bool:
            entry = await world.store.get_workload(uid)
            return entry is not None and entry.budget == MAX_BUDGET

        await world.until(spent, "the largest budget")
        assert total(world, "solver_unknown") >= MAX_BUDGET
        assert total(world, "solver_alarms") == 0
        fault.repaired = True
        second = world.cluster.submit(gang("Job", "other", 1))  # any change triggers a cycle
        await world.until_state(second, State.RUNNING)
        await world.until_state(uid, State.RUNNING)
        assert world.kills == 0
