"""``policy.maxPerUser``: the most that one user may hold in a ClusterQueue at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.jobs import user_of
from queuectl.domain.plan import Admission, Plan, Refusal
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import Defragment, QueueingStrategy, WithinClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Placement, Workload
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, gang, holding, node, placed, podset, queue, world
from tests.planner.documents import Doc, cluster_queue, flavor, nodes, planned, workload

NODES = [node(f"n{i}", gpu=8) for i in range(4)]
STRICT = QueueingStrategy.STRICT_FIFO


def of(user: str | None, name: str, gpus: int, at: float = 0.0, **options: Any) -> Workload:
    """A gang of one pod."""
    return replace(gang(name, podset(gpu=gpus), queued_at=at, **options), user=user)


def capped(
    most: int,
    pending: list[Pending | Workload],
    running: list[Admitted] | None = None,
    **options: Any,
) -> Snapshot:
    main = replace(queue(**options), max_per_user=((GPU, most),))
    return world(NODES, pending, running or [], main)


def decided(snapshot: Snapshot) -> tuple[list[str], dict[str, Code]]:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return [a.uid for a in made.admitted], {r.uid: r.reasons[0].code for r in made.pending}


HELD = holding(of("ann", "held", 4), {"n0": 1})


@pytest.mark.parametrize("strategy", list(QueueingStrategy))
@pytest.mark.parametrize(
    ("most", "pending", "starts"),
    [
        pytest.param(8, [of("ann", "a", 4)], ["a"], id="up to the cap"),
        pytest.param(7, [of("ann", "a", 4)], [], id="not over it"),
        pytest.param(7, [of("ben", "a", 4)], ["a"], id="each user has a separate cap"),
        pytest.param(7, [of(None, "a", 8)], ["a"], id="a gang without a user has no cap"),
        pytest.param(
            8, [of("ann", "a", 2, 1.0), of("ann", "b", 2, 2.0), of("ann", "c", 2, 3.0)], ["a", "b"],
            id="gangs of one plan count together",
        ),
        pytest.param(
            8, [of("ann", "a", 8, 1.0), of("ben", "b", 8, 2.0)], ["b"], id="another user is not held back"
        ),
        pytest.param(
            6, [of("ann", "a", 8, 1.0), of("ann", "b", 2, 2.0)], ["b"],
            id="a gang that the cap never allows holds back no gang",
        ),
        pytest.param(0, [of("ben", "a", 1)], [], id="none at all"),
        pytest.param(3, [of("ann", "a", 0)], ["a"], id="what it asks nothing of does not matter"),
    ],
)  # fmt: skip
def test_a_user_holds_no_more_than_the_cap(
    strategy: QueueingStrategy, most: int, pending: list[Workload], starts: list[str]
) -> None:
    started, waiting = decided(capped(most, [*pending], [HELD], strategy=strategy))
    assert started == starts
    assert set(waiting.values()) <= {Code.MAX_PER_USER, Code.WAITING_IN_ORDER}


@pytest.mark.parametrize(
    ("strategy", "starts"), [(QueueingStrategy.BEST_EFFORT_FIFO, ["b", "c"]), (STRICT, ["c"])]
)
def test_later_gangs_of_the_same_user_pass_only_where_the_order_is_not_strict(
    strategy: QueueingStrategy, starts: list[str]
) -> None:
    pending = [of("ann", "a", 8, 1.0), of("ann", "b", 2, 2.0), of("ben", "c", 8, 3.0)]
    assert decided(capped(8, [*pending], [HELD], strategy=strategy))[0] == starts


def test_use_in_another_queue_does_not_count() -> None:
    parts = [*documents("a", 8), *documents("b", 8), *SETTINGS, flavor(), *nodes("r", 2)]
    runs = mine(workload("runs", "a", 1, 8, flavor="default", on={"r0": 1}))
    done = planned(parts, runs, mine(workload("next", "b", 1, 8, at=1)))
    assert (done.started, done.waiting) == (["next"], {})
    done = planned(parts, runs, mine(workload("next", "a", 1, 8, at=1)))
    assert done.waiting == {"next": "MaxPerUserExceeded"}


SETTINGS: list[Doc] = [
    {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Configuration",
        "admissionFairSharing": {"usageHalfLifeTime": "1h", "usageSamplingInterval": "5m"},
        "queuectl": {"userLabel": "example.com/user", "usageBeforePriority": True},
    }
]


def documents(name: str, most: int) -> list[Doc]:
    return cluster_queue(name, 100, policy={"maxPerUser": {GPU: most}})


def mine(job: Doc) -> Doc:
    job["metadata"]["labels"] = {"example.com/user": "ann"}
    return job


def test_the_reason_names_user_queue_cap_and_need() -> None:
    parts = [*documents("main", 12), *SETTINGS, flavor(), *nodes("r", 4)]
    runs = mine(workload("runs", "main", 1, 8, flavor="default", on={"r0": 1}))
    done = planned(parts, runs, mine(workload("next", "main", 2, 4, at=1)))
    reason = done.reason("next")
    assert reason["message"] == (
        f"4 more {GPU} are needed for user ann in ClusterQueue main: 8 requested, 8 held, maxPerUser 12"
    )
    assert reason["details"] == {
        "clusterQueue": "main",
        "user": "ann",
        "resource": GPU,
        "most": 12,
        "held": 8,
        "needed": 8,
    }


def test_it_starts_with_as_many_pods_as_its_user_may_hold() -> None:
    parts = [*documents("main", 5), *SETTINGS, flavor(), *nodes("r", 4)]
    done = planned(parts, mine(workload("train", "main", 8, 1, least=2)))
    assert done.podset("train")["count"] == 5


def test_no_gang_is_evicted_for_a_gang_over_its_users_cap() -> None:
    low = holding(gang("low", podset(gpu=8, count=4)), {f"n{i}": 1 for i in range(4)})
    vip = of("ann", "vip", 8, priority=9)
    options = {"within": WithinClusterQueue.LOWER_PRIORITY}
    made = plan(capped(7, [vip], [low], **options))
    assert (made.preempted, made.pending[0].reasons[0].code) == ((), Code.MAX_PER_USER)
    assert [p.victim for p in plan(capped(8, [vip], [low], **options)).preempted] == ["low"]


def test_a_leaving_gang_counts_until_its_pods_have_ended() -> None:
    leaving = replace(HELD, leaving=True)
    gone = replace(leaving, placement=placed(HELD.workload, {}))
    assert decided(capped(7, [of("ann", "a", 4)], [leaving]))[0] == []
    assert decided(capped(7, [of("ann", "a", 4)], [gone]))[0] == ["a"]


def test_a_lease_counts_for_its_user_like_a_running_gang() -> None:
    vip, low = of("ann", "vip", 8, 2.0, priority=9), gang("low", podset(gpu=8))
    lease = CapacityLease(placed(vip, {"n0": 1}), ("low",), NOW, NOW + 60)
    leaving = holding(low, {"n0": 1}, leaving=True)
    first = of("ann", "first", 8, 1.0, priority=10)
    waits = Pending(vip, lease, excluded=frozenset({"n1", "n2", "n3"}))
    for most, starts in ((8, []), (16, ["first"])):
        started, waiting = decided(capped(most, [waits, first], [leaving]))
        assert started == starts
        assert waiting["vip"] is Code.WAITING_FOR_PREEMPTED


def elastic(most: int, nodes: list[str], *others: Pending | Workload) -> Snapshot:
    """Gang ``vip`` of 1 or 2 pods of 8 GPUs has a lease for a pod on each of these nodes."""
    asked = replace(podset(gpu=8, count=2), min_count=1)
    vip = replace(gang("vip", asked, priority=9), user="ann")
    (place,) = placed(vip, dict.fromkeys(nodes, 1)).podsets
    lease = CapacityLease(Placement((replace(place, pods=len(nodes)),)), ("low",), NOW, NOW + 60)
    return capped(most, [Pending(vip, lease), *others])


@pytest.mark.parametrize(("most", "pods"), [(16, 2), (15, 1), (8, 1), (7, 0)])
def test_a_lease_for_more_pods_than_the_cap_now_allows_is_released(most: int, pods: int) -> None:
    """The cap was lowered since; the gang may start with fewer pods than the lease is for."""
    snapshot = elastic(most, ["n0", "n1"], of("ben", "other", 4))
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    started = {a.uid: a.placement.podsets[0].count for a in made.admitted}
    assert started == ({"vip": pods} if pods else {}) | {"other": 1}


def test_a_gang_that_starts_with_more_pods_than_its_lease_counts_with_all_of_them() -> None:
    """The node of its lease was deleted, so it is planned without the lease."""
    later = of("ann", "later", 8)
    assert decided(elastic(16, ["gone"], later))[0] == ["vip"]
    assert decided(elastic(24, ["gone"], later))[0] == ["vip", "later"]


def test_the_verifier_computes_the_cap_by_itself() -> None:
    first, second = of("ann", "a", 4, 1.0), of("ann", "b", 4, 2.0)
    snapshot = capped(12, [first, second], [HELD])
    made = plan(snapshot)
    assert [type(a) for a in made.admitted] == [Admission, Admission]
    tighter = capped(11, [first, second], [HELD])
    assert [violation.rule for violation in verify(tighter, made)] == [PlanRule.MAX_PER_USER]
    no_start = Plan(pending=tuple(Refusal(w.uid, (Reason(Code.MAX_PER_USER, "x"),)) for w in (first, second)))  # fmt: skip
    assert verify(capped(1, [first, second], [HELD]), no_start) == (), (
        "the excess existed before the plan"
    )


@pytest.mark.parametrize(
    ("submitter", "label", "user"),
    [
        ("ann", "", "ann"),
        ("ann", "ben", "ann"),
        ("pipelines", "ben", "ben"),
        ("pipelines", "", "pipelines"),
        ("", "ben", "ben"),
        ("", "", None),
    ],
)
def test_a_label_names_the_user_only_of_a_job_that_a_trusted_user_submitted(
    submitter: str, label: str, user: str | None
) -> None:
    """The same for a job that the admission webhook did not see."""
    labels = (("user", label), ("other", "x"))
    assert user_of(submitter, labels, "user", ["pipelines"]) == user
    assert user_of(submitter, labels, None, ["pipelines"]) == (submitter or None)


def test_moving_others_does_not_bring_a_user_over_the_cap() -> None:
    """It found no capacity when it was considered; starts of its user since then leave it no part of the cap."""
    rack = [node(f"m{i}", "b/one", gpu=8) for i in range(2)] + [node("m2", "b/two", gpu=8)]
    runs = [
        holding(gang("x", podset(gpu=4)), {"m0": 1}),
        holding(gang("y", podset(gpu=4)), {"m1": 1}),
        holding(gang("z", podset(gpu=4)), {"m2": 1}),
    ]
    whole, small = of("ann", "whole", 8, 1.0), of("ann", "small", 2, 2.0)
    for most, moved in ((10, 1), (9, 0)):
        main = replace(queue(within=WithinClusterQueue.NEVER), max_per_user=((GPU, most),))
        main = replace(main, defragment=Defragment.EXECUTE, defragment_budget=10**9)
        snapshot = world(rack, [whole, small], runs, main)
        made = plan(snapshot)
        assert verify(snapshot, made) == ()
        assert [a.uid for a in made.admitted] == ["small"]
        assert len(made.moved) == moved
