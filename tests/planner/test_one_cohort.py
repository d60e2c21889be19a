"""The plan of one cohort alone is safe in the whole cluster, and is made whatever is wrong with the gangs of other cohorts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from queuectl.control.checked_plan import CheckedPlan, checked_plan
from queuectl.control.contained_plan import (
    ContainedPlan,
    cohorts_with_pending,
    contained_plan,
    one_cohort,
)
from queuectl.domain.budgets import Budget, BudgetBalance, BudgetScope, Month
from queuectl.domain.plan import Proof, Refusal
from queuectl.domain.queues import ClusterQueue, Cohort
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.planner import StopSignal, plan
from queuectl.planner.verify import verify
from tests.planner.build import NOW, gang, holding, node, placed, podset, queue, world
from tests.planner.mixed import mixed
from tests.support.examples import examples

LEFT_OUT = Reason(Code.PENDING_EVALUATION, "of another cohort")


def apart(snapshot: Snapshot) -> Snapshot:
    """Each ClusterQueue is its own cohort."""
    queues = snapshot.config.cluster_queues
    alone = {name: replace(one, cohort=None) for name, one in queues.items()}
    return replace(snapshot, config=replace(snapshot.config, cluster_queues=alone))


@pytest.mark.seeds
@pytest.mark.parametrize("part", range(4))
def test_a_plan_of_one_cohort_breaks_no_rule_of_the_whole_cluster(part: int) -> None:
    started = 0
    for seed in range(part, examples(240), 4):
        snapshot = apart(mixed(seed))
        for cohort in cohorts_with_pending(snapshot):
            made = plan(one_cohort(snapshot, cohort))
            answered = {one.uid for one in made.admitted} | {one.uid for one in made.pending}
            others = tuple(
                Refusal(p.workload.uid, (LEFT_OUT,), None, Proof.UNDECIDED)
                for p in snapshot.pending
                if p.workload.uid not in answered
            )
            whole = replace(made, pending=(*made.pending, *others))
            assert verify(snapshot, whole) == (), (seed, cohort)
            started += len(made.admitted)
    assert started


def test_cohorts_are_named_by_their_root_and_only_those_with_gangs_that_can_start() -> None:
    blocked = Pending(gang("held", podset(gpu=1), queue="e"), blocked=LEFT_OUT)
    pending = [gang(name, podset(gpu=1), queue=name) for name in "abcz"]
    queues = [
        replace(queue(name), cohort=parent)
        for name, parent in (("a", "x"), ("b", "y"), ("e", None))
    ]
    snapshot = world([], [*map(Pending, pending), blocked], [], *queues, queue("c"))
    cohorts = {"y": Cohort("y", parent="x"), "x": Cohort("x")}
    snapshot = replace(snapshot, config=replace(snapshot.config, cohorts=cohorts))
    assert cohorts_with_pending(snapshot) == ["cohort x", "queue c"]


def test_nodes_that_are_leased_to_gangs_of_other_cohorts_offer_nothing() -> None:
    waiting = gang("waiting", podset(gpu=4), queue="a")
    lease = CapacityLease(placed(waiting, {"n0": 1}), (), NOW, NOW + 60)
    other = gang("other", podset(gpu=4), queue="b")
    snapshot = world(
        [node("n0", gpu=8)], [Pending(waiting, lease), Pending(other)], [], queue("a"), queue("b")
    )
    assert not plan(one_cohort(snapshot, "queue b")).admitted


def test_no_budget_pays_for_a_gang_of_one_cohort() -> None:
    budget = Budget("common", BudgetScope.NAMESPACE, "team", monthly=10**15)
    snapshot = world([node("n0", gpu=8)], [gang("one", podset(gpu=4))])
    balance = BudgetBalance(budget, Month("now", 0, 2 * int(NOW)), granted=10**15)
    snapshot = replace(snapshot, budgets=(balance,))
    assert plan(snapshot).admitted
    assert not plan(one_cohort(snapshot, "queue main")).admitted


class Broken:
    """A planner that raises while a gang of these ClusterQueues runs."""

    def __init__(self, queues: Collection[str]) -> None:
        self.queues = queues

    def __call__(self, given: Snapshot) -> CheckedPlan:
        if any(one.workload.queue in self.queues for one in given.admitted):
            message = "a running gang"
            raise ValueError(message)
        return checked_plan(given)


def three_queues() -> Snapshot:
    """Each has a gang that runs and one that waits, and its own node."""
    names = "abc"
    running = [
        holding(gang(f"runs-{name}", podset(gpu=8), queue=name), {f"n-{name}": 1}) for name in names
    ]
    pending = [gang(f"waits-{name}", podset(gpu=8), queue=name) for name in names]
    nodes = [node(f"n-{name}", gpu=8) for name in names] + [node("spare", gpu=8)]
    queues: list[ClusterQueue] = [queue(name) for name in names]
    return world(nodes, pending, running, *queues)


def planned(snapshot: Snapshot, planner: Broken, last: str = "") -> ContainedPlan:
    return contained_plan(snapshot, (), planner, StopSignal(), last_cohort=last)


def test_a_running_gang_with_which_every_plan_fails_stops_only_its_own_cohort() -> None:
    snapshot, planner = three_queues(), Broken({"b"})
    seen, last = [], ""
    for _ in range(4):
        found = planned(snapshot, planner, last)
        assert found.checked is not None
        assert isinstance(found.error, ValueError)
        seen.append((found.cohort, [one.uid for one in found.checked.decided.admitted]))
        last = found.cohort
    assert seen == [("queue a", ["waits-a"]), ("queue c", ["waits-c"])] * 2
    assert set(found.put_off) == {"waits-a", "waits-b"}


def test_no_cohort_is_planned_alone_if_the_plan_of_all_passes() -> None:
    found = planned(three_queues(), Broken(()), "queue a")
    assert (found.cohort, found.error, found.plans) == ("", None, 1)


def test_planning_that_fails_for_each_cohort_has_no_plan() -> None:
    found = planned(three_queues(), Broken("abc"))
    assert (found.checked, found.cohort) == (None, "")
