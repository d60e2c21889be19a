"""Elastic gangs in plans: pods are added where there is room, in queue order, and leave from the highest rank on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given

from queuectl.domain.plan import Plan, Preemption
from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Duration, Growth, Workload
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner import generate
from tests.planner.build import NOW, gang, holding, node, podset, queue, world
from tests.planner.splits import A, B, on
from tests.planner.test_preempt import MANY, SEEDS, agrees_with_brute_force

STRATEGIES = list(QueueingStrategy)


def rank(number: int, base: str = "train", gpu: int = 8, queued_at: float = 0.0) -> Workload:
    """One pod that extends an elastic gang."""
    one = gang(f"{base}.{number:03d}", podset("w", gpu=gpu), queued_at=queued_at)
    return replace(one, growth=Growth(base, number))


def base(pods: int = 1, queued_at: float = 0.0) -> Workload:
    return gang("train", podset("w", pods, gpu=8), queued_at=queued_at)


def nodes(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def cluster(
    count: int,
    pending: Sequence[Workload | Pending],
    admitted: Sequence[Admitted],
    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO,
) -> Snapshot:
    machines = [node(name, gpu=8) for name in nodes(count)]
    return world(machines, pending, admitted, queue(strategy=strategy))


def checked(snapshot: Snapshot) -> Plan:
    found = plan(snapshot)
    assert not verify(snapshot, found)
    return found


def started(found: Plan) -> list[str]:
    return [admission.uid for admission in found.admitted]


def evicted(found: Plan) -> set[str]:
    return {preemption.victim for preemption in found.preempted}


def why(found: Plan, uid: str) -> Reason:
    return next(refusal.reasons[0] for refusal in found.pending if refusal.uid == uid)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_grows_in_the_order_of_ranks_as_far_as_there_is_room(
    strategy: QueueingStrategy,
) -> None:
    runs = holding(base(), {"n0": 1})
    found = checked(cluster(3, [rank(3), rank(1), rank(2)], [runs], strategy))
    assert started(found) == ["train.001", "train.002"]
    assert why(found, "train.003").code is not Code.QUEUED


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pod_without_room_holds_back_no_gang(strategy: QueueingStrategy) -> None:
    small = gang("small", podset("w", gpu=2), queued_at=5.0)
    runs = [holding(base(), {"n0": 1}), holding(gang("other", podset("w", gpu=4)), {"n1": 1})]
    assert started(checked(cluster(2, [rank(1), small], runs, strategy))) == ["small"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_does_not_grow_while_a_gang_before_it_waits(strategy: QueueingStrategy) -> None:
    large = gang("large", podset("w", 3, gpu=8), priority=1)
    runs = holding(base(), {"n0": 1})
    snapshot = cluster(3, [rank(1), large], [runs], strategy)
    snapshot = replace(snapshot, admitted=(replace(runs, evictable=False),))
    found = checked(snapshot)
    assert started(found) == []
    assert "team/large is pending" in why(found, "train.001").message
    later = replace(large, priority=0, queued_at=9.0)
    assert started(checked(replace(snapshot, pending=(Pending(rank(1)), Pending(later))))) == [
        "train.001"
    ]


def between_gangs_of_its_flavor(strategy: QueueingStrategy, *queued_at: float) -> Snapshot:
    """It could grow onto a node of flavor b. Gangs that were queued at these times wait for two of them, and another gang for flavor a."""
    runs = holding(base(), {"n0": 1}, flavor="b")
    machines = [on("a", "n2", gpu=8), *(on("b", name, gpu=8) for name in nodes(2))]
    large = [
        gang(f"large{at:.0f}", podset("w", 2, gpu=8, select={"model": "b"}), queued_at=at)
        for at in queued_at
    ]
    planned = gang("planned", podset("w", gpu=8, select={"model": "a"}), queued_at=1.0)
    pod = podset("w", gpu=8, select={"model": "b"})
    grown = replace(rank(1, queued_at=10.0), podsets=(pod,))
    timed = [
        replace(each, duration=Duration(60.0, enforced=True)) for each in (grown, *large, planned)
    ]
    other = holding(gang("other", podset("w", gpu=8)), {"n2": 1}, flavor="a")
    ends = replace(other, ends_at=NOW + 100.0, end_enforced=True)
    both = queue(flavors=("a", "b"), strategy=strategy)
    return world(machines, timed, [runs, ends], both, flavors=[A, B])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_grows_before_a_gang_that_was_queued_after_it(strategy: QueueingStrategy) -> None:
    """Also where the shortest gangs are considered first, and pods that are added last."""
    assert started(checked(between_gangs_of_its_flavor(strategy, 100.0))) == ["train.001"]
    found = checked(between_gangs_of_its_flavor(strategy, 100.0, 5.0))
    assert started(found) == []
    assert "team/large5 is pending" in why(found, "train.001").message


def test_a_gang_that_never_fits_does_not_keep_others_from_growing() -> None:
    never = gang("never", podset("w", gpu=9), priority=1)
    found = checked(cluster(2, [rank(1), never], [holding(base(), {"n0": 1})]))
    assert started(found) == ["train.001"]


@pytest.mark.parametrize("waits", [1, 2])
def test_a_rank_does_not_start_before_a_lower_one(waits: int) -> None:
    """Its pod does not exist, for example."""
    blocked = Pending(rank(waits), blocked=Reason(Code.WAITING_FOR_PODS, "no pod"))
    others = [rank(number) for number in (1, 2, 3) if number != waits]
    found = checked(cluster(5, [*others, blocked], [holding(base(), {"n0": 1})]))
    assert started(found) == [f"train.{number:03d}" for number in range(1, waits)]


def test_it_evicts_no_gang_to_grow() -> None:
    grown = replace(rank(1), priority=5)
    runs = [holding(base(), {"n0": 1}), holding(gang("low", podset("w", gpu=8)), {"n1": 1})]
    found = checked(cluster(2, [grown], runs))
    assert (started(found), evicted(found)) == ([], set())


def grown_to(ranks: int, started_at: float = NOW - 100) -> list[Admitted]:
    """A gang of one pod on n0 and its ranks on n1 and on."""
    return [
        holding(base(), {"n0": 1}, started_at=started_at),
        *(holding(rank(n), {f"n{n}": 1}, started_at=started_at) for n in range(1, ranks + 1)),
    ]


@pytest.mark.parametrize(
    ("pods", "select", "leave"),
    [
        (1, {}, {"train.003"}),
        (2, {}, {"train.002", "train.003"}),
        (1, {"kubernetes.io/hostname": "n2"}, {"train.002", "train.003"}),
        (1, {"kubernetes.io/hostname": "n0"}, {"train", "train.001", "train.002", "train.003"}),
    ],
)
def test_pods_leave_from_the_highest_rank_on_and_the_gang_after_all_of_them(
    pods: int, select: dict[str, str], leave: set[str]
) -> None:
    high = gang("high", podset("w", pods, gpu=8, select=select), priority=1)
    assert evicted(checked(cluster(4, [high], grown_to(3)))) == leave


def test_of_two_equal_losses_the_gang_that_runs_on_is_chosen() -> None:
    whole = [holding(gang(f"a{n}", podset("w", gpu=8)), {f"n{n + 2}": 1}, started_at=NOW - 100) for n in range(2)]  # fmt: skip
    high = gang("high", podset("w", gpu=8), priority=1)
    assert evicted(checked(cluster(4, [high], [*whole, *grown_to(1)]))) == {"train.001"}


def test_the_loss_of_a_gang_includes_the_pods_that_leave_with_it() -> None:
    """The gang alone lost less than the other one; with its ranks it loses more."""
    other = holding(gang("other", podset("w", gpu=8)), {"n3": 1}, started_at=NOW - 250)
    high = gang("high", podset("w", gpu=8, select={"rack": "r"}), priority=1)
    machines = [node("n0", "r", gpu=8), node("n1", "s", gpu=8), node("n2", "s", gpu=8)]
    snapshot = world([*machines, node("n3", "r", gpu=8)], [high], [other, *grown_to(2)])
    assert evicted(checked(snapshot)) == {"other"}


@MANY
@given(SEEDS.map(generate.elastic))
def test_the_victims_are_the_least_of_all_sets_that_begin_at_the_highest_rank(
    snapshot: Snapshot,
) -> None:
    agrees_with_brute_force(snapshot)


@pytest.mark.parametrize(
    ("victims", "sentence"),
    [
        ({"train.001"}, "train.002 of a higher rank stays"),
        ({"train"}, "train.001 would end with it"),
    ],
)
def test_the_verifier_refuses_to_evict_a_lower_rank_first(victims: set[str], sentence: str) -> None:
    high = gang("high", podset("w", gpu=8), priority=1)
    snapshot = cluster(3, [high], grown_to(2))
    right = checked(snapshot)
    (one,) = right.preempted
    wrong = tuple(Preemption(uid, one.preemptor, one.cost, one.reason) for uid in victims)
    (refusal,) = right.pending
    assert refusal.lease is not None
    lease = replace(refusal.lease, victims=tuple(victims))
    changed = replace(right, preempted=wrong, pending=(replace(refusal, lease=lease),))
    found = [v for v in verify(snapshot, changed) if v.rule is PlanRule.VICTIM]
    assert any(sentence in violation.message for violation in found)


def test_the_verifier_refuses_growth_before_a_gang_or_a_lower_rank_that_waits() -> None:
    runs = holding(base(), {"n0": 1})
    right = checked(cluster(3, [rank(1), rank(2)], [runs]))
    large = gang("large", podset("w", 3, gpu=8), priority=1)
    waits = replace(checked(cluster(2, [large], [runs])).pending[0], lease=None, reasons=())
    for others, refused, sentence in (
        ([large], waits, "while large is before it and waits"),
        ([], replace(waits, uid="train.001"), "before train.001 of a lower rank"),
    ):
        snapshot = cluster(3, [rank(1), rank(2), *others], [runs])
        left = tuple(a for a in right.admitted if a.uid != refused.uid)
        wrong = replace(right, admitted=left, pending=(refused,))
        texts = [v.message for v in verify(snapshot, wrong) if v.rule is PlanRule.ORDER]
        assert any(sentence in text for text in texts), texts
