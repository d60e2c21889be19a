"""A cycle whose starts the solver does not confirm decides nothing: evictions, repairs and leases rest on the starts."""

from __future__ import annotations

import pytest

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.planner import plan, plan_cycle
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.model.builder import Placed
from queuectl.planner.solver import Solver, Status
from queuectl.planner.verify import verify
from tests.planner.build import NOW, gang, holding, node, placed, podset, world
from tests.planner.generate_cohorts import contest
from tests.planner.generate_features import snapshot_of


@pytest.fixture(params=[Status.UNKNOWN, Status.REFUTED, Status.DEFECT])
def status(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Status:
    """The answer of the solver to the model of all starts."""
    answer: Status = request.param

    def confirm(_state: CycleState, _solver: Solver) -> Placed:
        return Placed(answer)

    monkeypatch.setattr(plan_cycle, "confirm", confirm)
    return answer


def undecided(snapshot: Snapshot) -> Plan:
    """The plan; it passes the verifier and changes nothing."""
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert (made.admitted, made.preempted, made.moved) == ((), (), ())
    assert made.proof is Proof.UNDECIDED
    return made


@pytest.mark.usefixtures("status")
@pytest.mark.parametrize(("seed", "nodes"), [(299, False), (678, True), (1196, True)])
def test_no_gang_is_evicted_whose_queue_borrows_only_with_the_starts(
    seed: int, *, nodes: bool
) -> None:
    """Confirmed, gangs start, and then victims of their ClusterQueues can leave: it uses more than its own."""
    made = undecided(contest(seed, nodes=nodes))
    assert Code.UNDECIDED in {refusal.reasons[0].code for refusal in made.pending}


@pytest.mark.usefixtures("status")
def test_a_lease_remains_only_on_nodes_that_are_there() -> None:
    """Confirmed, both gangs start: ``moves`` on the node that is left of its lease's and ``stays`` on its own."""
    nodes = [node("n0", gpu=8), node("n1", gpu=8), node("gone", gpu=8, ready=False)]
    leases = {"stays": "n0", "moves": "gone"}
    waiting = [
        Pending(one, CapacityLease(placed(one, {leases[one.uid]: 1}), (), NOW, NOW + 60.0))
        for one in (gang("stays", podset(gpu=8)), gang("moves", podset(gpu=8)))
    ]
    made = undecided(world(nodes, waiting))
    assert {r.uid: r.lease is not None for r in made.pending} == {"stays": True, "moves": False}


@pytest.mark.usefixtures("status")
def test_a_broken_gang_is_neither_repaired_nor_evicted() -> None:
    nodes = [node("n0", gpu=8), node("gone", gpu=8, ready=False)]
    spread = gang("spread", podset(count=2, gpu=4), priority=9)
    broken = holding(spread, {"n0": 1, "gone": 1}, lost=(("w", "gone", 1),))
    low = holding(gang("low", podset(gpu=4)), {"n0": 1})
    assert not undecided(world(nodes, [], [broken, low])).evicted


@pytest.mark.usefixtures("status")
def test_planned_starts_stay_as_the_last_plan_had_them() -> None:
    """Of the seeds, 6 plans starts alongside gangs that start."""
    undecided(snapshot_of(6))
