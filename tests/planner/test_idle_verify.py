"""The verifier's rules for gangs that are evicted for idleness, and for those that a dry run names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.queues import ClusterQueue, IdleReclaim, Protection
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule
from tests.planner.build import gang, holding, node, placed, podset, queue, world
from tests.planner.plans import lease, rules, waits
from tests.planner.queues import cq
from tests.planner.test_idle import DRY_RUN, IDLE, NEVER, OFF, ON_DEMAND, yields

WANTED = gang("wanted", podset(gpu=8), priority=5, queued_at=5.0, queue="a")
VICTIM = holding(gang("victim", podset(gpu=8), priority=1, queue="b"), {"n": 1})
CASE = (cq("a", 8, **yields()), cq("b", 8, **yields()))


def evicting(
    victim: Admitted, *queues: ClusterQueue, dry_run: bool = False
) -> tuple[Snapshot, Plan]:
    """``wanted`` gets the only node of ``victim``, or would."""
    made = [replace(queue(q.name, within=NEVER), cohort=q.cohort, idle_reclaim=q.idle_reclaim,
                    protection=q.protection) for q in queues]  # fmt: skip
    snapshot = world([node("n", gpu=8)], [WANTED], [victim], *made)
    real = plan(
        world([node("n", gpu=8)], [WANTED], [replace(VICTIM, idle_since=IDLE)], *(
            replace(q, idle_reclaim=IdleReclaim(mode=ON_DEMAND), protection=Protection(), cohort="all")
            for q in made
        ))
    )  # fmt: skip
    (one,) = real.preempted
    one = replace(one, cost=replace(one.cost, priority=victim.workload.priority))
    if dry_run:
        return snapshot, Plan(pending=(waits(WANTED),), spared=(one,))
    held = waits(WANTED, lease(placed(WANTED, {"n": 1}), one.victim))
    return snapshot, Plan(preempted=(one,), pending=(held,))


def of(priority: int = 1, **rest: Any) -> Admitted:
    workload = replace(VICTIM.workload, priority=priority, **rest)
    return replace(VICTIM, workload=workload, idle_since=IDLE)


MUTANTS = [
    ("as it should be", of(), CASE, True, True),
    ("not idle", replace(of(), idle_since=None), CASE, False, False),
    ("its queue has mode Off", of(), (CASE[0], cq("b", 8, **yields(OFF))), False, False),
    ("its queue does a dry run", of(), (CASE[0], cq("b", 8, **yields(DRY_RUN))), False, True),
    ("of higher priority", of(6), CASE, False, False),
    ("of equal priority", of(5), CASE, False, False),
    ("to an equal, as its queue allows", of(5), (CASE[0], cq("b", 8, **yields(to_equal=True))), True, True),
    ("to an equal, as the other queue allows", of(5), (cq("a", 8, **yields(to_equal=True)), CASE[1]), False, False),
    ("of another tree", of(), (CASE[0], cq("b", 8, None, **yields())), False, False),
    ("not preemptible", of(preemptible=False), CASE, False, False),
    ("protected", of(), (CASE[0], cq("b", 8, protection=Protection(min_runtime=60.0), **yields())), False, False),
    ("leaving already", replace(of(), leaving=True), CASE, False, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("why", "victim", "queues", "real", "named"), MUTANTS, ids=[m[0] for m in MUTANTS]
)
def test_the_verifier_checks_which_gangs_are_evicted_and_named(
    why: str, victim: Admitted, queues: Any, real: bool, named: bool
) -> None:
    found = rules(*evicting(victim, *queues))
    assert (PlanRule.VICTIM in found) != real, why
    assert rules(*evicting(victim, *queues, dry_run=True)) == (
        set() if named else {PlanRule.VICTIM}
    )


def test_the_verifier_rejects_a_dry_run_that_names_a_wrong_gang() -> None:
    snapshot, good = evicting(of(), *CASE, dry_run=True)
    (one,) = good.spared
    wrong = [
        replace(good, spared=(one, one)),
        replace(good, spared=(replace(one, victim="nobody"),)),
        replace(good, spared=(replace(one, preemptor="nobody"),)),
        replace(good, spared=(replace(one, preemptor="victim"),)),
        replace(good, spared=(replace(one, reason="InClusterQueue"),)),
    ]
    assert rules(snapshot, good) == set()
    for mutant in wrong:
        assert rules(snapshot, mutant) == {PlanRule.VICTIM}
    snapshot, real = evicting(of(), *CASE)
    other = replace(WANTED, uid="other", name="other")
    snapshot = replace(snapshot, pending=(*snapshot.pending, Pending(other)))
    real = replace(real, pending=(*real.pending, waits(other)))
    (taken_already,) = real.preempted
    mutant = replace(real, spared=(replace(taken_already, preemptor="other"),))
    assert rules(snapshot, mutant) - rules(snapshot, real) == {PlanRule.VICTIM}


def test_the_verifier_rejects_a_broken_gang_that_evicts_an_idle_one() -> None:
    broken = holding(gang("broken", podset(gpu=8), priority=9, queue="a"), {"gone": 1}, lost=(("w", "gone", 1),))  # fmt: skip
    snapshot, real = evicting(of(), *CASE)
    snapshot = replace(snapshot, admitted=(*snapshot.admitted, broken))
    (one,) = real.preempted
    held = waits(broken.workload, lease(placed(broken.workload, {"n": 1}), one.victim))
    mutant = Plan(preempted=(replace(one, preemptor="broken"),), pending=(held, waits(WANTED)))
    assert PlanRule.VICTIM in rules(snapshot, mutant)
