"""Victims across ClusterQueues, classic rules: those that Kueue would choose, and the least of all legal sets.

Each row of the tables lists the running gangs, the new gang, and the result of Kueue's own search (``peer``: as its tests for
such cases have it). Ours must evict where it must, not where it must not, and never more gangs than the peer nor higher ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from queuectl.domain.plan import Proof
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.capacity.state import open_state
from queuectl.planner.preempt.cost import costs, sizes_of
from queuectl.planner.preempt.find import Victims, find_victims
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import request_of
from queuectl.planner.solver import Solver
from queuectl.planner.verify import PlanRule, verify
from tests.planner.documents import (
    Doc,
    cluster_queue,
    cohort,
    flavor,
    planned,
    quota,
    workload,
)
from tests.planner.generate_cohorts import FLAVORS, cohorts
from tests.planner.oracle_cohorts import Cohorts
from tests.planner.test_preempt import plan_of
from tests.support.examples import examples

ORDER = {"victimOrder": ["maxPriority", "count", "lostWork"]}
LOWER, NEWER, ANY = "LowerPriority", "LowerOrNewerEqualPriority", "Any"


def team(
    name: str,
    gpu: Doc | int,
    cohort: str | None = "all",
    *,
    within: str = LOWER,
    reclaim: str = ANY,
    borrow: str | None = None,
    threshold: int | None = None,
    **spec: Any,
) -> list[Doc]:
    """A ClusterQueue with its preemption policies; ``borrow``: that of borrowWithinCohort."""
    preemption: Doc = {"withinClusterQueue": within, "reclaimWithinCohort": reclaim}
    if borrow is not None:
        preemption["borrowWithinCohort"] = {"policy": borrow} | (
            {"maxPriorityThreshold": threshold} if threshold is not None else {}
        )
    return cluster_queue(name, gpu, cohort, preemption=preemption, policy=ORDER, **spec)


def runs(name: str, queue: str, gpu: int, priority: int = 0, flavor: str = "default") -> Doc:
    return workload(name, queue, gpu=gpu, priority=priority, flavor=flavor, at=1)


def comes(queue: str, gpu: int, priority: int = 0) -> Doc:
    return workload("in", queue, gpu=gpu, priority=priority, at=2)


class Row(NamedTuple):
    """``victims``: one of these sets is ours; empty = no victims. ``peer``: how many Kueue evicts, and the highest priority."""

    why: str
    world: Iterable[Doc | list[Doc]]
    incoming: Doc
    victims: Iterable[str]
    peer: tuple[int, int] | None = None


def many(names: str, queue: str, gpu: int, priority: int = 0) -> list[Doc]:
    return [runs(name, queue, gpu, priority) for name in names.split()]


PAIR = (team("a", 6), team("b", 6))
TREE = (cohort("root"), cohort("left", "root"), cohort("right", "root"))

FLAT = [
    Row("its own lowest gang is the first victim", (team("a", 6), runs("x", "a", 3, 1), runs("y", "a", 3, 0)),
        comes("a", 3, 5), ["y"], (1, 0)),
    Row("two of its own when one is not enough", (team("a", 6), *many("x y", "a", 2), runs("z", "a", 2, 3)),
        comes("a", 4, 5), ["x y"], (2, 0)),
    Row("no gang of equal priority under LowerPriority", (team("a", 6), runs("x", "a", 6, 5)), comes("a", 3, 5), []),
    Row("lower ones are not enough", (team("a", 6), runs("x", "a", 2, 0), runs("y", "a", 4, 7)), comes("a", 3, 5), []),
    Row("free quota is used first", (team("a", 8), runs("x", "a", 3, 0), runs("y", "a", 3, 1)), comes("a", 5, 5), ["x"]),
    Row("one large gang instead of many small ones; Kueue takes the many as they are newer",
        (team("a", 8), *many("s1 s2 s3 s4", "a", 1), runs("big", "a", 4)), comes("a", 4, 5), ["big"], (4, 0)),
    Row("nominal quota is reclaimed from a borrower", (*PAIR, *many("x y z w", "b", 3)), comes("a", 3), ["x", "y", "z", "w"], (1, 0)),
    Row("of any priority, under Any", (*PAIR, *many("x y z w", "b", 3, 9)), comes("a", 3), ["x", "y", "z", "w"], (1, 9)),
    Row("the lowest of the borrowers", (*PAIR, *many("x y z", "b", 3, 9), runs("low", "b", 3, 4)), comes("a", 3), ["low"], (1, 4)),
    Row("only lower ones under LowerPriority", (team("a", 6, reclaim=LOWER), team("b", 6), *many("x y z", "b", 3, 5), runs("low", "b", 3, 4)),
        comes("a", 3, 5), ["low"], (1, 4)),
    Row("no gang of equal priority under LowerPriority", (team("a", 6, reclaim=LOWER), team("b", 6), *many("x y z w", "b", 3, 5)),
        comes("a", 3, 5), []),
    Row("no gang under Never", (team("a", 6, reclaim="Never"), team("b", 6), *many("x y z w", "b", 3)), comes("a", 3, 5), []),
    Row("nobody borrows", (*PAIR, runs("own", "a", 6, 9), *many("x y", "b", 3)), comes("a", 3, 5), []),
    Row("the borrowers do not hold enough of what is its own",
        (*PAIR, runs("own", "a", 5, 9), runs("x", "b", 7)), comes("a", 3, 5), []),
    Row("the last victim can leave its queue far below its own",
        (team("a", 4), team("b", 4), runs("x", "b", 8)), comes("a", 1), ["x"], (1, 0)),
    Row("but none after it: the small one first, then the large one",
        (team("a", 5), team("b", 4), runs("small", "b", 4), runs("large", "b", 5)), comes("a", 5), ["large"], (1, 0)),
    Row("two borrowers each give what is not theirs", (team("a", 4), team("b", 2), team("c", 2), *many("x y", "b", 2), *many("z w", "c", 2)),
        comes("a", 4), ["x z", "x w", "y z", "y w"], (2, 0)),
    Row("a queue that may not evict its own reclaims from others only",
        (team("a", 6, within="Never"), team("b", 6), runs("own", "a", 3), *many("x y z", "b", 3)), comes("a", 3, 5), ["x", "y", "z"], (1, 0)),
    Row("its own gang is evicted where no other is legal", (team("a", 6), team("b", 6), *many("own1 own2", "a", 3), *many("x y", "b", 3)),
        comes("a", 3, 5), ["own1", "own2"], (1, 0)),
    Row("a queue that has used all its own takes from itself while it borrows, and from no other queue",
        (*PAIR, *many("own1 own2", "a", 3, 1), *many("x y", "b", 3)), comes("a", 3, 5), ["own1", "own2"], (1, 1)),
    Row("neither would one of lower priority than its own gangs", (*PAIR, *many("own1 own2", "a", 3, 7), *many("x y", "b", 3)), comes("a", 3, 5), []),
    Row("newer ones of equal priority, where the queue allows it",
        (team("a", 4, within=NEWER), workload("newer", "a", gpu=4, priority=5, flavor="default", at=9)), comes("a", 4, 5), ["newer"], (1, 5)),
    Row("not older ones", (team("a", 4, within=NEWER), workload("older", "a", gpu=4, priority=5, flavor="default", at=1)), comes("a", 4, 5), []),
    Row("only those on the flavor it could use", (
        team("a", 0, flavors={"slow": 2, "fast": 4}), team("b", 0, flavors={"slow": 2, "fast": 4}),
        flavor("slow"), flavor("fast"),
        *many("f1", "b", 0)[:0], runs("slow1", "b", 4, 0, "slow"), runs("fast1", "b", 4, 0, "fast"), runs("fast2", "b", 4, 3, "fast")),
        comes("a", 4), ["fast1"], (1, 0)),
]  # fmt: skip

BORROWING = [
    Row("a queue may evict lower ones to borrow", (team("a", 2, borrow=LOWER), team("b", 2), team("c", 4), *many("x y", "b", 4, -1)),
        comes("a", 4), ["x", "y"], (1, -1)),
    Row("not without the policy", (team("a", 2), team("b", 2), team("c", 4), *many("x y", "b", 4, -1)), comes("a", 4), []),
    Row("no gang above the threshold while it borrows",
        (team("a", 2, borrow=LOWER, threshold=-2), team("b", 2), team("c", 4), *many("x y", "b", 4, -1)), comes("a", 4), []),
    Row("the threshold is for borrowing only: within its own it reclaims from above it",
        (team("a", 4, borrow=LOWER, threshold=-2), team("b", 4), *many("x y", "b", 4, -1)), comes("a", 4), ["x", "y"], (1, -1)),
    Row("nor does the policy name its own queue", (team("a", 2, within="Never", borrow=LOWER), team("b", 4), *many("own", "a", 6, -1)),
        comes("a", 3, 5), []),
    Row("equal priority is not lower", (team("a", 2, borrow=LOWER), team("b", 2), team("c", 4), *many("x y", "b", 4, 3)), comes("a", 4, 3), []),
    Row("own gangs where those of others are above the threshold",
        (team("a", 4, borrow=LOWER, threshold=0), team("b", 4), team("c", 4), *many("own", "a", 5, 1), *many("x", "b", 7, 1)),
        comes("a", 5, 3), ["own"], (1, 1)),
    Row("own ones and others' together",
        (team("a", 4, borrow=LOWER, threshold=0), team("b", 2), runs("own", "a", 1, 2), *many("x", "b", 5, 0)), comes("a", 6, 3), ["own x"], (2, 2)),
    Row("a borrowing limit holds: evicting others does not raise it",
        (team("a", quota(2, borrowing=1), borrow=LOWER), team("b", 2), *many("x", "b", 4, -1)), comes("a", 4), []),
]  # fmt: skip

LENDING = [
    Row("quota that is not lent was never available: exits free only the use beyond it",
        (team("a", 2, borrow=LOWER), team("b", quota(6, lending=2)), runs("x", "b", 5, -1), runs("y", "b", 2, -1)), comes("a", 4), ["x"], (2, -1)),
    Row("lent quota is reclaimed", (team("a", quota(4, lending=4)), team("b", 2), runs("x", "b", 3), runs("y", "b", 3)),
        comes("a", 4), ["x y"], (2, 0)),
    Row("more than all that lenders lend is never to be had",
        (team("a", 2, borrow=LOWER), team("b", quota(6, lending=1)), *many("x", "b", 6, -1)), comes("a", 4), []),
    Row("its own quota, kept or lent", (team("a", quota(4, lending=2)), team("b", 4), runs("x", "b", 6)), comes("a", 3), ["x"], (1, 0)),
]  # fmt: skip

TREES = [
    Row("a gang that its cohort has quota for takes it back from outside, whatever the priority",
        (*TREE, team("a", 0, "left", reclaim=ANY), team("l", 4, "left"), team("r", 0, "right"), runs("x", "r", 4, 9)), comes("a", 2), ["x"], (1, 9)),
    Row("not from gangs that are nearer and within the same cohort's quota",
        (*TREE, team("a", 0, "left"), team("l", 4, "left"), runs("x", "l", 4, -1)), comes("a", 2, 5), []),
    Row("a cohort within its own is left alone, though a queue of it borrows from its sister",
        (*TREE, team("a", 4, "left"), team("r", 2, "right"), team("s", 2, "right"), team("t", 0, "left"),
         runs("x", "r", 4), runs("y", "t", 4, 3)), comes("a", 4, 1), ["y"], (1, 3)),
    Row("nearer borrowers and farther ones together",
        (*TREE, team("a", 4, "left"), team("l", 0, "left"), team("r", 0, "right"), runs("x", "l", 2), runs("y", "r", 2)),
        comes("a", 4), ["x y"], (2, 0)),
    Row("every level on the way must be over: a queue in a cohort within its own is not to be had",
        (*TREE, team("a", 4, "left", reclaim=ANY), team("r", 0, "right"), cohort("deep", "right", 4), team("d", 0, "deep"),
         runs("x", "r", 4), runs("y", "d", 4, -5)), comes("a", 4), ["x"], (1, 0)),
    Row("a cohort's lending limit keeps what it keeps", (cohort("root"), cohort("left", "root"), cohort("right", "root", quota(0, lending=0)),
        team("a", 2, "left", borrow=LOWER), team("r", 4, "right"), runs("x", "r", 4, -3)), comes("a", 4), []),
    Row("quota of the root belongs to no queue below it: by priority only",
        (cohort("root", gpu=4), cohort("left", "root"), cohort("right", "root"),
         team("a", 0, "left", borrow=LOWER), team("r", 0, "right"), runs("x", "r", 2, 0), runs("y", "r", 2, 9)), comes("a", 2, 5), ["x"], (1, 0)),
]  # fmt: skip

ROWS = [*FLAT, *BORROWING, *LENDING, *TREES]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.why)
def test_the_victims_are_not_worse_than_those_of_kueue(row: Row) -> None:
    made = planned(flavor(), *row.world, row.incoming)
    assert "in" not in made.started or not row.victims
    expected = [sorted(names.split()) for names in row.victims]
    assert made.victims in expected if expected else made.victims == []
    if row.peer is not None:
        priorities = [v["cost"]["priority"] for v in made.document["preempted"]]
        assert len(priorities) <= row.peer[0]
        assert max(priorities) <= row.peer[1]
    assert made.plan.proof is Proof.OPTIMAL


# Against brute force.


def ask(snapshot: Snapshot) -> tuple[Cohorts, Victims | None, Any]:
    """Victims for the only pending gang, of queue ``a``, and the brute force alongside it."""
    (entry,) = snapshot.pending
    problem, main = survey(snapshot), snapshot.config.cluster_queues["a"]
    flavors = ({r: f for r, f in FLAVORS.items() if entry.workload.podsets[0].shape.requests[r]},)
    request = request_of(problem, entry, main, flavors)
    solver = Solver(snapshot.limits)
    answer = find_victims(open_state(problem), request, main, solver)
    assert not solver.alarms
    return Cohorts(snapshot, flavors), answer, request


def agrees_with_brute_force(snapshot: Snapshot) -> None:
    oracle, answer, request = ask(snapshot)
    able = [g for u, g in oracle.gangs.items() if oracle.able(u)]
    best = oracle.least(costs(able, snapshot.now, sizes_of(snapshot)))
    assert (answer is None) == (best is None)
    if answer is None or best is None:
        return
    assert answer.proof is Proof.OPTIMAL
    stated = {v.victim: v.cost for v in answer.victims}
    assert oracle.layers(stated, frozenset(stated)) == best[0]
    assert not verify(snapshot, plan_of(snapshot, request, answer))


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(examples(4)))
def test_the_victims_are_the_least_of_all_legal_sets(block: int) -> None:
    for seed in range(250 * block, 250 * (block + 1)):
        agrees_with_brute_force(cohorts(seed, opting_out=True))


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(examples(4)))
def test_the_victims_are_the_least_where_nodes_are_short_too(block: int) -> None:
    for seed in range(60 * block, 60 * (block + 1)):
        agrees_with_brute_force(cohorts(seed, nodes=True, opting_out=True))


@pytest.mark.parametrize("fair", [False, True], ids=["classic", "fair"])
def test_the_verifier_rejects_the_sets_that_brute_force_finds_illegal(fair: bool) -> None:
    """Any set of victims, legal or not: with nodes all resources are contended for, and the two must agree."""
    refused = passed = 0
    for seed in range(400):
        snapshot = cohorts(seed, nodes=True, fair=fair, opting_out=True)
        oracle, answer, request = ask(snapshot)
        if answer is None:
            continue
        rng = random.Random(seed)
        chosen = [u for u in oracle.gangs if rng.random() < 0.4]
        cost = costs(list(oracle.gangs.values()), snapshot.now, sizes_of(snapshot))
        one = next(iter(answer.victims), None)
        if one is None:
            continue
        other = [
            replace(one, victim=u, cost=cost[u], reason=_reason(oracle, u, fair=fair))
            for u in chosen
        ]
        made = plan_of(snapshot, request, replace(answer, victims=tuple(other)))
        strategies = snapshot.config.rules.fair_sharing
        victims = frozenset(chosen)
        legal = oracle.fair(victims, strategies) if fair else oracle.classic(victims)
        found = [v for v in verify(snapshot, made) if v.rule is PlanRule.VICTIM]
        assert bool(found) != legal, seed
        refused, passed = refused + (not legal), passed + (legal and bool(victims))
    assert refused > 20
    assert passed > 5


def _reason(oracle: Cohorts, uid: str, *, fair: bool) -> str:
    if oracle.queue_of(uid) is oracle.queue:
        return "InClusterQueue"
    return "InCohortFairSharing" if fair else "InCohortReclamation"
