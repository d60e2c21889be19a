"""The effect of a pending gang on others: behind it in its queue by strategy, in its cohort by its own quota.

In a StrictFIFO queue a pending head holds back later gangs, on the flavors that it can use:

- A head that lacks quota or nodes also keeps its own quota from borrowers, as far as it needs it.
- A head that requests more than its own quota keeps no quota in the cohort.
- A head that waits for its victims, on a lease, keeps no more than the lease.
- A head that never fits, or is held or stopped, holds back no gang.

In BestEffortFIFO a pending head holds back no gang, except from the capacity of its lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from queuectl.domain.plan import Admission, Plan
from queuectl.domain.queues import QueueingStrategy, ResourceFlavor, WithinClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules, UsageFairness
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import PodSet
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import gang, holding, node, podset, queue, world
from tests.planner.queues import cq, gpus, group, quota_only, quotas, running

STRICT, BEST = QueueingStrategy.STRICT_FIFO, QueueingStrategy.BEST_EFFORT_FIFO


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def started(snapshot: Snapshot) -> list[str]:
    return [a.uid for a in planned(snapshot).admitted]


def pair(
    strategy: QueueingStrategy,
    mine: Sequence[tuple[int, int]],
    theirs: Sequence[int] = (),
    *,
    uses: tuple[int, int] = (0, 0),
) -> Snapshot:
    """``mine`` and ``theirs`` own 4 GPUs each and share them; ``mine`` waits as (GPUs, priority), all of it before ``theirs``."""
    queues = [cq("mine", 4, strategy=strategy), cq("theirs", 4)]
    pending = [gpus(f"m{i}", n, "mine", float(i), p) for i, (n, p) in enumerate(mine)]
    pending += [gpus(f"t{i}", n, "theirs", 10.0 + i) for i, n in enumerate(theirs)]
    used = zip(("mine", "theirs"), uses, strict=True)
    return quota_only(queues, pending, [running(f"r-{q}", n, q) for q, n in used if n])


@pytest.mark.parametrize(("strategy", "starts"), [(STRICT, []), (BEST, ["m1"])])
def test_behind_a_head_that_waits(strategy: QueueingStrategy, starts: list[str]) -> None:
    assert started(pair(strategy, [(5, 0), (1, 0)], uses=(0, 4))) == starts


@pytest.mark.parametrize(("strategy", "starts"), [(STRICT, []), (BEST, ["m0"])])
def test_the_head_is_the_gang_of_the_highest_priority_however_late_it_came(
    strategy: QueueingStrategy, starts: list[str]
) -> None:
    assert started(pair(strategy, [(1, 0), (5, 7)], uses=(0, 4))) == starts


@pytest.mark.parametrize(("strategy", "starts"), [(STRICT, []), (BEST, ["t0"])])
def test_a_strict_head_keeps_its_own_unused_quota_from_borrowers(
    strategy: QueueingStrategy, starts: list[str]
) -> None:
    """Others have borrowed 2 of its 4, so it is pending; of the other 2 another queue would borrow more."""
    assert started(pair(strategy, [(4, 0)], [1], uses=(0, 6))) == starts


def test_the_reason_names_the_head_for_which_quota_is_kept() -> None:
    """Of 22 GPUs, a uses its 2 and borrows 4, and a gang of c takes 8. The head of c, which is equal to that gang, lacks a node,
    not quota, and keeps the other 8.
    """
    queues = [
        replace(queue(name, gpu=amount, strategy=strategy), cohort="top")
        for name, amount, strategy in (("a", 2, BEST), ("b", 4, BEST), ("c", 16, STRICT))
    ]
    runs = holding(gang("ra", podset(gpu=6), queue="a"), {"n0": 1})
    pending = [
        gang("starts", podset(gpu=8), queue="c", priority=5),
        gang("head", podset(gpu=8), queue="c", priority=5, queued_at=1.0),
        gang("borrows", podset(gpu=1), queue="a"),
        gang("own", podset(gpu=2), queue="b"),
    ]
    nodes = [node("n0", gpu=8), node("n1", gpu=5), node("n2", gpu=8)]
    made = planned(world(nodes, pending, [runs], *queues))
    assert [admission.uid for admission in made.admitted] == ["starts"]
    reasons = {refusal.uid: refusal.reasons[0] for refusal in made.pending}
    kept = "8 are kept for team/head, the first gang that waits for it in StrictFIFO ClusterQueue c"
    for uid, unused in (
        ("borrows", "0 of nominal quota 2 unused, 8 left to borrow in cohort top"),
        ("own", "4 of nominal quota 4 unused, 4 left to borrow in cohort top"),
    ):
        assert reasons[uid].code is Code.WAITING_FOR_QUOTA
        assert reasons[uid].message.endswith(f"{unused}, but {kept}")
        (row,) = reasons[uid].details["quota"]
        assert row["keptFor"] == [{"gang": "team/head", "clusterQueue": "c", "amount": 8}]
        assert row["left"] == 0


def test_the_reason_names_no_head_that_keeps_no_quota_from_the_gang() -> None:
    """All quota of the cohort is in use, so nothing is kept."""
    snapshot = pair(STRICT, [(4, 0)], [1], uses=(0, 8))
    (reason,) = (r.reasons[0] for r in planned(snapshot).pending if r.uid == "t0")
    assert reason.message.endswith("nothing left to borrow in cohort all")
    assert "keptFor" not in reason.details["quota"][0]


@pytest.mark.parametrize(("strategy", "starts"), [(STRICT, 2), (BEST, 4)])
def test_a_head_lends_quota_that_it_does_not_need(strategy: QueueingStrategy, starts: int) -> None:
    """The head needs two GPUs of one node, and the only such node is half full: 2 of its 4 stay with it, 2 are lent."""
    nodes = [node("n0", gpu=2), *(node(f"n{i}", gpu=1) for i in range(1, 6))]
    queues = [
        replace(queue("mine", strategy=strategy, gpu=4), cohort="all"),
        replace(queue("theirs", gpu=0), cohort="all"),
    ]
    others = [gang(f"t{i}", podset(gpu=1), queue="theirs", queued_at=1.0 + i) for i in range(5)]
    other = {"n0": podset(gpu=1).shape.requests}
    head = gang("m0", podset(gpu=2), queue="mine", priority=1)
    snapshot = world(nodes, [head, *others], (), *queues, other_pods=other)
    assert len(started(snapshot)) == starts


@pytest.mark.parametrize("strategy", [STRICT, BEST])
def test_quota_that_a_head_would_borrow_itself_is_not_kept_for_it(
    strategy: QueueingStrategy,
) -> None:
    """It asks 6 with a quota of 4: until they are free, the other queue may use all free quota."""
    assert started(pair(strategy, [(6, 9)], [4], uses=(3, 0))) == ["t0"]


@pytest.mark.parametrize("strategy", [STRICT, BEST])
def test_a_head_that_never_fits_or_is_held_keeps_nothing(strategy: QueueingStrategy) -> None:
    never = pair(strategy, [(9, 5), (1, 0)], [5])
    assert started(never) == ["m1", "t0"]
    first, *rest = never.pending
    held = replace(first, blocked=Reason(Code.HELD, "held"))
    assert started(replace(never, pending=(held, *rest))) == ["m1", "t0"]


def test_strict_queues_hold_back_only_their_own() -> None:
    assert started(pair(STRICT, [(5, 0), (1, 0)], [1], uses=(1, 3))) == ["t0"]


@pytest.mark.parametrize(("asks", "starts"), [(6, ["m1"]), (4, [])])
def test_a_strict_head_holds_back_only_flavors_it_could_use(asks: int, starts: list[str]) -> None:
    """Six never fit spot (4), so that spot is free for those behind; four could use it if it were not in use."""
    both = group(quotas(4, flavor="spot"), quotas(6, flavor="on-demand"))
    strict = cq("mine", cohort=None, strategy=STRICT, groups=both)
    pending = [gpus("m0", asks, "mine"), gpus("m1", 1, "mine", 1.0)]
    busy = [running("r", 3, "mine", "on-demand"), running("s", 1, "mine", "spot")]
    snapshot = quota_only([strict], pending, busy, flavors=("spot", "on-demand"))
    assert started(snapshot) == starts


@pytest.mark.parametrize(
    ("asks", "code"), [(5, Code.WAITING_IN_ORDER), (7, Code.EXCEEDS_MAX_QUOTA)]
)
def test_a_gang_that_could_use_only_quota_that_a_head_waits_for_waits_behind_it(
    asks: int, code: Code
) -> None:
    """Five exceed spot (4), and the head waits for on-demand (6). Seven exceed each of them."""
    both = group(quotas(4, flavor="spot"), quotas(6, flavor="on-demand"))
    strict = cq("mine", cohort=None, strategy=STRICT, groups=both)
    pending = [gpus("m0", 6, "mine"), gpus("m1", asks, "mine", 1.0), gpus("m2", 5, "mine", 2.0)]
    busy = [running("r", 3, "mine", "on-demand")]
    made = planned(quota_only([strict], pending, busy, flavors=("spot", "on-demand")))
    refused = {refusal.uid: refusal.reasons for refusal in made.pending}
    assert refused["m1"][0].code is code
    assert refused["m2"][0].details == {"behind": "team/m0"}


@pytest.mark.parametrize(
    ("split", "later", "code"),
    [
        (False, podset(gpu=4), Code.WAITING_IN_ORDER),
        (False, podset(gpu=9), Code.SHAPE_NEVER_FITS),
        (False, podset(count=9, gpu=1), Code.SHAPE_NEVER_FITS),
        (True, podset(count=9, gpu=1), Code.WAITING_IN_ORDER),
        (True, podset(count=11, gpu=1), Code.SHAPE_NEVER_FITS),
        (True, replace(podset(count=11, gpu=1), min_count=8), Code.WAITING_IN_ORDER),
        (True, replace(podset(count=13, gpu=1), min_count=11), Code.SHAPE_NEVER_FITS),
    ],
)
def test_a_gang_that_fits_only_nodes_that_a_head_waits_for_waits_behind_it(
    split: bool, later: PodSet, code: Code
) -> None:
    """The head waits for the big node, with 8 GPUs. The small one, with 2, is open."""
    sizes = {"big": 8, "small": 2}
    nodes = [node(name, gpu=size, labels={"model": name}) for name, size in sizes.items()]
    flavors = [ResourceFlavor(name, (("model", name),), topology="gpus") for name in sizes]
    strict = queue("main", strategy=STRICT, flavors=tuple(sizes))
    head = gang("head", podset(gpu=8, select={"model": "big"}))
    used = {"big": podset(gpu=1).shape.requests}
    pending = [head, gang("behind", later, queued_at=1.0)]
    queues = replace(strict, split_flavors=split)
    snapshot = world(nodes, pending, [], queues, flavors=flavors, other_pods=used)
    reasons = {refusal.uid: refusal.reasons for refusal in planned(snapshot).pending}
    assert reasons["behind"][0].code is code


@pytest.mark.parametrize(("strategy", "starts"), [(STRICT, ["t0"]), (BEST, ["m1", "t0"])])
def test_alongside_a_head_that_waits_for_its_victim(
    strategy: QueueingStrategy, starts: list[str]
) -> None:
    """Its lease holds 8 of the 16 GPUs of both; the rest is free for others, but not for those behind it in a strict queue."""
    nodes = [node("n0", gpu=8), node("n1", gpu=4), node("n2", gpu=4)]
    queues = [
        replace(queue("mine", strategy=strategy, gpu=12), cohort="all"),
        replace(queue("theirs", gpu=4, within=WithinClusterQueue.NEVER), cohort="all"),
    ]
    victim = holding(gang("low", podset(gpu=8), queue="mine", priority=-1), {"n0": 1})
    pending = [
        gang("head", podset(gpu=8), queue="mine", priority=1),
        gang("m1", podset(gpu=4), queue="mine", queued_at=1.0),
        gang("t0", podset(gpu=4), queue="theirs", queued_at=2.0),
        gang("t1", podset(gpu=4), queue="theirs", queued_at=3.0),
    ]
    made = planned(world(nodes, pending, [victim], *queues))
    assert [p.victim for p in made.preempted] == ["low"]
    if strategy is BEST:
        assert [a.uid for a in made.admitted] == starts
    else:  # t1 borrows the quota that m1 must not use
        assert [a.uid for a in made.admitted] == ["t0", "t1"]


# The independent check.


def _passed(snapshot: Snapshot, starts: str, flavor: str = "default") -> list[str]:
    """The gangs that the verifier finds passed if ``starts`` started instead of those that the plan starts."""
    made = plan(snapshot)
    (admission,) = made.admitted
    refusal = next(r for r in made.pending if r.uid == starts)
    (waits,) = (p for p in snapshot.pending if p.workload.uid == starts)
    (other,) = (p for p in snapshot.pending if p.workload.uid == admission.uid)
    assert waits.workload.podsets == other.workload.podsets
    swapped = replace(
        made,
        admitted=(Admission(starts, admission.placement),),
        pending=tuple(
            replace(refusal, uid=admission.uid) if r is refusal else r for r in made.pending
        ),
    )
    return [v.subject for v in verify(snapshot, swapped) if v.rule is PlanRule.ORDER]


@pytest.mark.parametrize("strategy", [STRICT, BEST])
def test_no_gang_is_passed_by_one_with_the_same_request(strategy: QueueingStrategy) -> None:
    snapshot = pair(strategy, [(4, 0), (4, 0)], uses=(0, 4))
    assert started(snapshot) == ["m0"]
    assert _passed(snapshot, "m1")


def test_where_past_use_decides_order_is_enforced_only_within_a_local_queue() -> None:
    rules = Rules(usage_fairness=UsageFairness(half_life=60.0))
    mine = cq("mine", 4, None, strategy=STRICT, usage_fairness=True)
    waits = [Pending(gpus("m0", 4, "mine")), Pending(gpus("m1", 4, "mine", 1.0))]
    apart = replace(waits[1], workload=replace(waits[1].workload, queue="other"))
    for second, found in ((waits[1], True), (apart, False)):
        snapshot = quota_only([mine], [waits[0], second], rules=rules, locals_={"other": "mine"})
        assert bool(_passed(snapshot, "m1")) is found
