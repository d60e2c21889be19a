"""A gang that can never start changes nothing for the other gangs, whatever its priority and its ClusterQueue."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

import pytest

from queuectl.domain.budgets import BudgetBalance, month_of, units_of
from queuectl.domain.checks import PROVISIONING, AdmissionCheck, CheckRule
from queuectl.domain.limits import QuotaLimit
from queuectl.domain.plan import Plan
from queuectl.domain.provisioning import ProvisioningConfig
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    Cohort,
    QueueingStrategy,
    ResourceFlavor,
)
from queuectl.domain.reasons import Code
from queuectl.domain.rules import FairStrategy, Rules
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import Duration, PodSet, Workload
from queuectl.planner import plan
from queuectl.planner.explain import diagnose
from queuectl.planner.plan_cycle import begin, one_by_one
from queuectl.planner.problem.problem import survey
from queuectl.planner.verify import verify
from tests.planner.build import NOW, gang, holding, node, podset, queue, world
from tests.planner.generate_cohorts import cohorts, contest
from tests.planner.mixed import mixed
from tests.planner.test_budgets import HOUR, budget
from tests.planner.test_resource_quota import allowed
from tests.support.examples import examples

SEEDS: Final = examples(720)
NEVER: Final = {
    "quota": (podset(gpu=100), Code.EXCEEDS_MAX_QUOTA),
    "nodes": (podset(count=2, required="rack", gpu=8), Code.SHAPE_NEVER_FITS),
    "resource": (podset(gpu=1, fpga=1), Code.NO_MATCHING_FLAVOR),
    "quota, with fewer pods": (
        replace(podset(count=9, gpu=50), min_count=2),
        Code.EXCEEDS_MAX_QUOTA,
    ),
}


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def two_queues(pending: Sequence[Workload], fair: bool, **fields: Any) -> Snapshot:
    """Each has a nominal quota of 8; the only node has 8 GPUs."""
    queues = [replace(queue(name, gpu=8), cohort="all", **fields) for name in "ab"]
    snapshot = world([node("n0", gpu=8)], pending, [], *queues)
    rules = Rules(fair_sharing=tuple(FairStrategy) if fair else ())
    config = replace(snapshot.config, cohorts={"all": Cohort("all")}, rules=rules)
    return replace(snapshot, config=config)


@pytest.mark.parametrize("strategy", list(QueueingStrategy))
@pytest.mark.parametrize("splits", [False, True], ids=["whole", "split over flavors"])
@pytest.mark.parametrize("fair", [False, True], ids=["classic", "fair sharing"])
@pytest.mark.parametrize(("pods", "code"), NEVER.values(), ids=NEVER.keys())
def test_a_gang_that_never_fits_does_not_give_its_place_to_another_queue(
    pods: PodSet, code: Code, fair: bool, splits: bool, strategy: QueueingStrategy
) -> None:
    """Its request would borrow, so that heads of other queues would be before it."""
    huge = gang("huge", pods, priority=10, queue="a")
    others = [
        gang("a", podset(gpu=8), priority=9, queue="a"),
        gang("b", podset(gpu=8), priority=1, queue="b"),
    ]
    snapshot = two_queues([huge, *others], fair, strategy=strategy, split_flavors=splits)
    made = planned(snapshot)
    assert [start.uid for start in made.admitted] == ["a"]
    assert {r.uid: r.reasons[0].code for r in made.pending}["huge"] is code
    (obstacle,) = diagnose(snapshot, "b", plan=made).conflict
    assert obstacle.details.get("before") == ["team/a"]


def test_a_gang_for_which_nodes_can_be_made_keeps_its_place_in_the_order() -> None:
    """The nodes that exist never fit it."""
    check = CheckRule("nodes", provisions=True)
    pods = podset(count=2, required="rack", gpu=8)
    first = gang("first", pods, priority=10, queue="a")
    second = gang("second", podset(gpu=8), priority=1, queue="b")
    snapshot = two_queues([first, second], fair=False, admission_checks=(check,))
    makes = AdmissionCheck("nodes", PROVISIONING, provisioning=ProvisioningConfig("nodes", "class"))
    snapshot = replace(snapshot, config=replace(snapshot.config, checks={"nodes": makes}))
    order = [pending.workload.uid for pending in one_by_one(begin(survey(snapshot)))]
    assert order == ["second", "first"]


def over_a_resource_quota(snapshot: Snapshot) -> Snapshot:
    return allowed(snapshot, QuotaLimit(f"requests.{GPU}", GPU, 16, 8))


def over_max_per_user(snapshot: Snapshot) -> Snapshot:
    main = replace(snapshot.config.cluster_queues["main"], max_per_user=((GPU, 16),))
    config = replace(snapshot.config, cluster_queues={"main": main})
    busy = replace(gang("busy", podset(gpu=8)), user="ann")
    return replace(snapshot, config=config, admitted=(holding(busy, {"n0": 1}),))


def over_a_budget(snapshot: Snapshot) -> Snapshot:
    rule = budget(20, whole_run=True)
    month = month_of(NOW, rule.time_zone)
    balance = BudgetBalance(rule, month, rule.monthly, units_of(Fraction(10)), 0, NOW)
    config = replace(snapshot.config, budgets={rule.name: rule})
    return replace(snapshot, config=config, budgets=(balance,))


@pytest.mark.parametrize("limit", [over_a_resource_quota, over_max_per_user, over_a_budget])
@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("first", [podset(gpu=9), replace(podset(count=2, gpu=9), min_count=1)])
def test_a_gang_that_never_fits_holds_back_no_gang_at_a_limit_that_they_share(
    first: PodSet, queues: int, limit: Callable[[Snapshot], Snapshot]
) -> None:
    """The limit has room for the second one, and not for the first one."""
    gangs = [
        replace(gang(name, pods, queued_at=at), user="ann")
        for name, pods, at in (("first", first, 0.0), ("second", podset(gpu=8), 1.0))
    ]
    gangs = [replace(one, duration=Duration(HOUR, enforced=True)) for one in gangs]
    gangs[0] = replace(gangs[0], duration=Duration(2 * HOUR, enforced=True))
    more = [gang("other", podset(gpu=9), queue="b")] if queues > 1 else []
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO)
    nodes = [node(f"n{i}", gpu=8) for i in range(2)]
    made = planned(limit(world(nodes, [*gangs, *more], [], strict, queue("b"))))
    assert [start.uid for start in made.admitted] == ["second"]
    assert {r.uid: r.reasons[0].code for r in made.pending}["first"] is Code.SHAPE_NEVER_FITS


@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("least", [None, 1])
def test_a_gang_that_never_fits_behind_a_head_holds_back_no_gang(
    least: int | None, queues: int
) -> None:
    """A part of it can only use the flavor that the head waits for, and the other part is too large for the other flavor."""
    known = [ResourceFlavor(name, (("model", name),), topology="gpus") for name in ("a", "b")]
    on_a, on_b = {"model": "a"}, {"model": "b"}
    busy = holding(gang("busy", podset(gpu=8)), {"n0": 1}, flavor="a")
    second = [podset("x", gpu=1, select=on_a), podset("y", 2, gpu=9, select=on_b)]
    second[1] = replace(second[1], min_count=least)
    gangs = [
        gang("first", podset(gpu=8, select=on_a), queued_at=0.0),
        gang("second", *second, queued_at=1.0),
        gang("third", podset(gpu=8, select=on_b), queued_at=2.0),
        *([gang("other", podset(gpu=9), queue="other")] if queues > 1 else []),
    ]
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO, flavors=["a", "b"])
    nodes = [node("n0", gpu=8, labels=on_a), node("n1", gpu=8, labels=on_b)]
    more = queue("other", flavors=["a", "b"])
    made = planned(world(nodes, gangs, [busy], strict, more, flavors=known))
    assert [start.uid for start in made.admitted] == ["third"]
    assert {r.uid: r.reasons[0].code for r in made.pending}["second"] is Code.SHAPE_NEVER_FITS


# On random clusters.


def too_large(rng: random.Random, snapshot: Snapshot, like: PodSet) -> PodSet:
    """More than any node, or than any quota: only the quota limits a pod of a cluster without nodes."""
    amount = rng.choice((9, 10**5, 10**5) if snapshot.fleet.nodes else (10**5,))
    requests = type(like.shape.requests)({**like.shape.requests, GPU: amount})
    return replace(like, shape=replace(like.shape, requests=requests))


def unknown(_: random.Random, __: Snapshot, like: PodSet) -> PodSet:
    """A resource that no queue covers."""
    requests = type(like.shape.requests)({**like.shape.requests, "example.com/card": 1})
    return replace(like, shape=replace(like.shape, requests=requests))


def hopeless(rng: random.Random, snapshot: Snapshot, uid: str) -> Pending:
    """A gang of some queue that never fits, at any place of the order."""
    change: Callable[[random.Random, Snapshot, PodSet], PodSet]
    change = rng.choice((too_large, too_large, unknown))
    like = rng.choice(snapshot.pending).workload
    pods = replace(like.podsets[0], count=1, min_count=None, topology=None, group=None)
    workload = replace(
        like,
        uid=uid,
        name=uid,
        podsets=(change(rng, snapshot, pods),),
        priority=rng.randint(2, 6),
        queued_at=float(rng.randint(0, 9)),
    )
    return Pending(workload)


def drawn(seed: int) -> Snapshot:
    sorts = {"fair": bool(seed & 1), "nodes": bool(seed & 2)}
    return (mixed(seed), cohorts(seed, **sorts), contest(seed, **sorts))[seed % 3]


def answers(made: Plan, without: Sequence[Pending]) -> tuple[object, ...]:
    """Everything that is decided about all other gangs, in the order of their uids."""
    left_out = {pending.workload.uid for pending in without}
    return (
        {start.uid: start.placement for start in made.admitted},
        sorted((gone.victim, gone.preemptor) for gone in made.preempted),
        {
            waits.uid: (waits.lease, [reason.code for reason in waits.reasons])
            for waits in made.pending
            if waits.uid not in left_out
        },
    )


@pytest.mark.seeds
@pytest.mark.parametrize("part", range(6))
def test_gangs_that_never_fit_change_nothing(part: int) -> None:
    for seed in range(part, SEEDS, 6):
        rng, snapshot = random.Random(seed), drawn(seed)
        if not snapshot.pending:
            continue
        more = [hopeless(rng, snapshot, f"never{i}") for i in range(rng.randint(1, 3))]
        pending = [*snapshot.pending, *more]
        rng.shuffle(pending)
        made = planned(replace(snapshot, pending=tuple(pending)))
        assert answers(made, more) == answers(plan(snapshot), more), seed
