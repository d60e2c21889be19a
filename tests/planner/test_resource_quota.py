"""The ResourceQuota of a namespace holds back gangs whose pods it would reject."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.limits import Allowance, QuotaLimit
from queuectl.domain.plan import Admission
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Placement, PodSet, Workload
from queuectl.planner import plan
from queuectl.planner.explain import diagnose
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, gang, holding, node, placed, podset, queue, world
from tests.planner.documents import Doc, cluster_queue, flavor, nodes, planned, workload

GPUS = f"requests.{GPU}"
NODES = [node(f"n{i}", gpu=8) for i in range(4)]
OTHERS = frozenset({"n1", "n2", "n3"})


def resource_quota(
    hard: dict[str, Any], used: dict[str, Any] | None = None, name: str = "team", **spec: Any
) -> Doc:
    document: Doc = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"hard": hard, **spec},
    }
    if used is not None:
        document["status"] = {"hard": hard, "used": used}
    return document


def allowed(world: Snapshot, *limits: QuotaLimit, **options: Any) -> Snapshot:
    return replace(world, allowances={"team": (Allowance("quota", limits, **options),)})


BASE = [*cluster_queue("main", 100), flavor(), *nodes("r", 8)]


@pytest.mark.parametrize(
    ("hard", "used", "starts"),
    [
        ({GPUS: "8"}, {GPUS: "0"}, True),
        ({GPUS: "8"}, {GPUS: "1"}, False),
        ({"pods": "4"}, {"pods": "0"}, True),
        ({"pods": "3"}, {"pods": "0"}, False),
        ({"count/pods": "5"}, {"count/pods": "2"}, False),
        ({"requests.cpu": "2"}, {"requests.cpu": "500m"}, False),
        ({"requests.cpu": "2"}, {"requests.cpu": "0"}, True),
        ({"cpu": "1999m"}, {"cpu": "0"}, False),
        ({"memory": "4Gi"}, {"memory": "0"}, True),
        ({"requests.memory": "4Gi"}, {"requests.memory": "1"}, False),
        ({"limits.cpu": "4"}, {"limits.cpu": "0"}, True),
        ({"limits.cpu": "4"}, {"limits.cpu": "1m"}, False),
        ({"limits.memory": "8Gi"}, {"limits.memory": "0"}, True),
        ({"limits.memory": "8191Mi"}, {"limits.memory": "0"}, False),
        ({"limits.ephemeral-storage": "1"}, {"limits.ephemeral-storage": "1"}, True),
        # The controller does not judge resources that pods do not use.
        ({"services": "1", "requests.storage": "1Gi"}, {"services": "1"}, True),
        # Already over, but of no resource that it requests.
        ({"requests.ephemeral-storage": "1"}, {"requests.ephemeral-storage": "2"}, True),
    ],
)  # fmt: skip
def test_every_line_that_pods_count_against_is_enforced(
    hard: dict[str, str], used: dict[str, str], starts: bool
) -> None:
    asks = workload("train", "main", 4, 2)
    requests = {GPU: "2", "cpu": "500m", "memory": "1Gi"}
    asks["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"] = {
        "requests": requests,
        "limits": {GPU: "2", "cpu": "1", "memory": "2Gi"},
    }
    queues = cluster_queue("main", 100)
    groups = queues[0]["spec"]["resourceGroups"][0]
    for name in ("cpu", "memory"):
        groups["coveredResources"].append(name)
        groups["flavors"][0]["resources"].append({"name": name, "nominalQuota": "1Ti"})
    fleet = nodes("r", 8)
    for one in fleet:
        one["status"]["allocatable"] |= {"cpu": "64", "memory": "64Gi"}
    done = planned(queues, flavor(), fleet, asks, resource_quota(hard, used))
    assert done.waiting == ({} if starts else {"train": "ResourceQuotaExceeded"})


def test_the_reason_names_quota_resource_use_and_need() -> None:
    done = planned(BASE, workload("train", "main", 4, 2), resource_quota({GPUS: 20}, {GPUS: 13}))
    reason = done.reason("train")
    assert reason["message"] == (
        f"1 more {GPUS} is needed in ResourceQuota team of namespace default: 8 requested, 13 of 20 in use"
    )
    assert reason["details"] == {
        "namespace": "default",
        "resourceQuota": "team",
        "resource": GPUS,
        "hard": 20,
        "used": 13,
        "promised": 0,
        "needed": 8,
    }


def test_gangs_of_one_plan_share_the_remaining_quota() -> None:
    gangs = [workload(name, "main", 2, 4, at=i) for i, name in enumerate("abc")]
    done = planned(BASE, gangs, resource_quota({GPUS: 20}, {GPUS: 0}))
    assert (done.started, done.waiting) == (["a", "b"], {"c": "ResourceQuotaExceeded"})
    assert "16 reserved for gangs that start" in done.reason("c")["message"]


def test_a_smaller_gang_behind_starts_in_the_meantime() -> None:
    big, small = workload("big", "main", 4, 4, at=0), workload("small", "main", 1, 4, at=1)
    done = planned(BASE, big, small, resource_quota({GPUS: 8}, {GPUS: 0}))
    assert done.started == ["small"]


def test_a_file_without_usage_counts_its_running_gangs() -> None:
    runs = workload("runs", "main", 2, 4, flavor="default")
    done = planned(BASE, runs, workload("next", "main", 2, 4, at=1), resource_quota({GPUS: 12}))
    assert done.waiting == {"next": "ResourceQuotaExceeded"}


@pytest.mark.parametrize(
    ("spec", "applies"),
    [
        ({"scopes": ["NotTerminating"]}, True),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["BestEffort"]}, True),  # requests only GPUs
        ({"scopes": ["NotBestEffort"]}, False),
        ({"scopes": ["PriorityClass"]}, True),
        ({"scopes": ["NotTerminating", "BestEffort"]}, True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, False),
        ({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["queuectl-managed"]}]}}, True),
        ({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}, False),
        ({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "NotIn", "values": ["high"]}]}}, True),
        ({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "DoesNotExist"}]}}, False),
    ],
)  # fmt: skip
def test_scopes_decide_whether_its_pods_count(spec: dict[str, Any], applies: bool) -> None:
    quota = resource_quota({"pods": 0}, {"pods": 0}, **spec)
    done = planned(BASE, workload("train", "main", 1, 1), quota)
    assert bool(done.waiting) is applies


@pytest.mark.parametrize(("scope", "counts"), [("Terminating", True), ("NotTerminating", False)])
def test_a_pod_with_a_deadline_is_terminating(scope: str, counts: bool) -> None:
    """As ``IsTerminating`` of Kubernetes. The deadline of the job does not count."""
    train = workload("train", "main", 1, 1)
    train["spec"]["podSets"][0]["template"]["spec"]["activeDeadlineSeconds"] = 60
    quota = resource_quota({"pods": 0}, {"pods": 0}, scopes=[scope])
    assert bool(planned(BASE, train, quota).waiting) is counts


SANDBOXED = podset(gpu=1, cpu=1)
SCOPES: dict[str, tuple[PodSet, PodSet, dict[str, bool]]] = {
    "a deadline": (replace(SANDBOXED, has_deadline=True), SANDBOXED, {"terminating": True}),
    "no request": (replace(SANDBOXED, overhead=Resources({"cpu": 1})), SANDBOXED, {"best_effort": True}),
    "no limit": (podset(gpu=1), replace(podset(gpu=1), limits=Resources({"cpu": 1})), {"best_effort": True}),
}  # fmt: skip


@pytest.mark.parametrize("difference", SCOPES)
def test_gangs_that_a_scope_separates_do_not_share_an_answer(difference: str) -> None:
    """Their pods are equal for a placement."""
    limited, free, scope = SCOPES[difference]
    waiting = [gang("limited", limited, queued_at=1.0), gang("free", free, queued_at=2.0)]
    fleet = [node(f"n{i}", gpu=8, cpu=8) for i in range(4)]
    snapshot = allowed(world(fleet, waiting), QuotaLimit("pods", "pods", 0, 0), **scope)
    made = plan(snapshot)
    assert [a.uid for a in made.admitted] == ["free"]
    assert verify(snapshot, made) == ()
    unlimited = plan(world(fleet, waiting))
    assert [violation.rule for violation in verify(snapshot, unlimited)] == [
        PlanRule.RESOURCE_QUOTA
    ]


def test_it_starts_with_as_many_pods_as_the_quota_allows() -> None:
    done = planned(
        BASE, workload("train", "main", 8, 1, least=2), resource_quota({"pods": 9}, {"pods": 4})
    )
    assert [done.podset("train")["count"]] == [5]


def test_the_limit_of_one_namespace_is_not_that_of_another() -> None:
    """They request the same of one ClusterQueue; one is refused first, and the other must not be refused with it."""
    other = replace(gang("b", podset(gpu=1), queued_at=2.0), namespace="free")
    snapshot = world(NODES, [gang("a", podset(gpu=1), queued_at=1.0), other])
    local = snapshot.config.local_queues["team", "main"]
    queues = {**snapshot.config.local_queues, ("free", "main"): replace(local, namespace="free")}
    snapshot = replace(
        allowed(snapshot, QuotaLimit("pods", "pods", 0, 0)),
        config=replace(snapshot.config, local_queues=queues),
        namespaces={"team": {}, "free": {}},
    )
    made = plan(snapshot)
    assert [a.uid for a in made.admitted] == ["b"]
    assert verify(snapshot, made) == ()


def test_pods_that_do_not_exist_yet_count() -> None:
    limit = QuotaLimit(GPUS, GPU, 8, 0)
    waiting = [gang("a", podset(gpu=4))]
    assert plan(allowed(world(NODES, waiting), limit, promised=(4,))).admitted
    assert not plan(allowed(world(NODES, waiting), limit, promised=(5,))).admitted


def test_no_gang_is_evicted_for_one_that_its_namespace_holds_back() -> None:
    running = holding(gang("low", podset(gpu=8, count=4)), {f"n{i}": 1 for i in range(4)})
    vip = gang("vip", podset(gpu=8), priority=9)
    made = plan(allowed(world(NODES, [vip], [running]), QuotaLimit(GPUS, GPU, 32, 32)))
    assert (made.preempted, made.pending[0].reasons[0].code) == ((), Code.RESOURCE_QUOTA_EXCEEDED)


class TestStrictFIFO:
    def snapshot(self, *gangs: Workload, hard: int = 8, used: int = 4) -> Snapshot:
        main = queue(strategy=QueueingStrategy.STRICT_FIFO)
        return allowed(world(NODES, gangs, (), main), QuotaLimit(GPUS, GPU, hard, used))

    def test_a_later_gang_of_the_same_namespace_stays_behind(self) -> None:
        big = gang("big", podset(gpu=8), queued_at=1.0)
        made = plan(self.snapshot(big, gang("small", podset(gpu=1), queued_at=2.0)))
        codes = [refusal.reasons[0].code for refusal in made.pending]
        assert codes == [Code.RESOURCE_QUOTA_EXCEEDED, Code.WAITING_IN_ORDER]

    def test_one_of_another_namespace_passes_all_of_them(self) -> None:
        big = gang("big", podset(gpu=8), queued_at=1.0)
        small = gang("small", podset(gpu=1), queued_at=1.5)
        free = replace(gang("free", podset(gpu=1), queued_at=2.0), namespace="free")
        snapshot = self.snapshot(big, small, free)
        local = snapshot.config.local_queues["team", "main"]
        queues = {
            **snapshot.config.local_queues,
            ("free", "main"): replace(local, namespace="free"),
        }
        snapshot = replace(
            snapshot,
            config=replace(snapshot.config, local_queues=queues),
            namespaces={"team": {}, "free": {}},
        )
        made = plan(snapshot)
        assert [a.uid for a in made.admitted] == ["free"]
        assert verify(snapshot, made) == ()

    def test_a_gang_that_the_quota_never_allows_holds_back_no_gang(self) -> None:
        big = gang("big", podset(gpu=8, count=2), queued_at=1.0)
        snapshot = self.snapshot(big, gang("small", podset(gpu=1), queued_at=2.0))
        made = plan(snapshot)
        assert [a.uid for a in made.admitted] == ["small"]
        assert verify(snapshot, made) == ()


class TestLeases:
    """A gang whose victims are leaving holds its capacity and its part of the quota."""

    def leased(self, hard: int) -> Snapshot:
        vip = gang("vip", podset(gpu=8), priority=9)
        lease = CapacityLease(placed(vip, {"n0": 1}), ("low",), NOW, NOW + 60)
        leaving = holding(gang("low", podset(gpu=8)), {"n0": 1}, leaving=True)
        later = gang("later", podset(gpu=8))
        waits = Pending(vip, lease, excluded=OTHERS)
        snapshot = world(NODES, [waits, later], [leaving])
        return allowed(snapshot, QuotaLimit(GPUS, GPU, hard, 8))

    def test_it_holds_its_part_from_the_plan_that_evicts_for_it(self) -> None:
        running = holding(gang("low", podset(gpu=8, count=3)), {f"n{i}": 1 for i in range(3)})
        vip, later = gang("vip", podset(gpu=8, count=2), priority=9), gang("later", podset(gpu=8))
        for hard, starts in ((44, []), (48, ["later"])):
            snapshot = world(NODES, [vip, later], [running])
            made = plan(allowed(snapshot, QuotaLimit(GPUS, GPU, hard, 24)))
            assert [p.preemptor for p in made.preempted] == ["vip"]
            assert [a.uid for a in made.admitted] == starts

    def test_others_leave_it_its_part(self) -> None:
        made = plan(self.leased(16))
        codes = {refusal.uid: refusal.reasons[0].code for refusal in made.pending}
        assert codes == {
            "vip": Code.WAITING_FOR_PREEMPTED,
            "later": Code.RESOURCE_QUOTA_EXCEEDED,
        }

    def test_it_keeps_its_lease_when_the_quota_is_deleted(self) -> None:
        snapshot = self.leased(15)
        made = plan(snapshot)
        [vip] = [refusal for refusal in made.pending if refusal.uid == "vip"]
        assert (vip.reasons[0].code, vip.lease) == (
            Code.RESOURCE_QUOTA_EXCEEDED,
            snapshot.pending[0].lease,
        )
        assert verify(snapshot, made) == ()


@pytest.mark.parametrize(
    ("hard", "pods", "starting"),
    [(24, 2, ["vip", "other"]), (16, 2, ["vip"]), (15, 1, ["vip"]), (8, 1, ["vip"]), (7, 0, [])],
)
def test_a_lease_for_more_pods_than_the_quota_now_allows_is_released(
    hard: int, pods: int, starting: list[str]
) -> None:
    """The quota was lowered since; the gang may start with fewer pods than the lease is for."""
    vip = gang("vip", replace(podset(gpu=8, count=2), min_count=1), priority=9)
    place = Placement((replace(placed(vip, {"n0": 1, "n1": 1}).podsets[0], pods=2),))
    lease = CapacityLease(place, ("low",), NOW, NOW + 60)
    snapshot = world(NODES, [Pending(vip, lease), gang("other", podset(gpu=8))])
    snapshot = allowed(snapshot, QuotaLimit(GPUS, GPU, hard, 0))
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert [a.uid for a in made.admitted] == starting
    assert [a.placement.podsets[0].count for a in made.admitted if a.uid == "vip"] == [pods][:pods]


def test_a_gang_with_a_lease_uses_quota_for_the_pods_that_it_starts_with() -> None:
    vip = gang("vip", replace(podset(gpu=8, count=3), min_count=1), priority=9)
    place = Placement((replace(placed(vip, {"n0": 1}).podsets[0], pods=1),))
    lease = CapacityLease(place, ("low",), NOW, NOW + 60)
    leaving = holding(gang("low", podset(gpu=8)), {"n0": 1}, leaving=True)
    waits = Pending(vip, lease, excluded=OTHERS)
    snapshot = world(NODES, [waits, gang("other", podset(gpu=8))], [leaving])
    snapshot = allowed(snapshot, QuotaLimit(GPUS, GPU, 24, 8))
    made = plan(snapshot)
    assert [a.uid for a in made.admitted] == ["other"]
    assert verify(snapshot, made) == ()


def test_the_verifier_computes_the_quota_by_itself() -> None:
    train = gang("train", podset(gpu=4, count=2))
    free = world(NODES, [train])
    made = plan(free)
    assert [type(a) for a in made.admitted] == [Admission]
    for promised, broken in (((8,), []), ((9,), [PlanRule.RESOURCE_QUOTA])):
        snapshot = allowed(free, QuotaLimit(GPUS, GPU, 20, 4), promised=promised)
        assert [violation.rule for violation in verify(snapshot, made)] == broken


def test_a_diagnosis_leaves_the_explanation_to_the_reason() -> None:
    snapshot = allowed(world(NODES, [gang("a", podset(gpu=1))]), QuotaLimit("pods", "pods", 0, 0))
    assert diagnose(snapshot, "a").conflict == ()


def test_gangs_with_the_same_request_under_other_limits_do_not_share_an_answer() -> None:
    """A proof for the first must not be used for the second, which the quota allows."""
    roomy, tight = podset(gpu=1), podset(gpu=1)
    roomy, tight = (
        replace(p, limits=Resources({"cpu": most})) for p, most in ((roomy, 9000), (tight, 1000))
    )
    waiting = [gang("roomy", roomy, queued_at=1.0), gang("tight", tight, queued_at=2.0)]
    snapshot = allowed(
        world(NODES, waiting), QuotaLimit("limits.cpu", "cpu", 4000, 0, of_limits=True)
    )
    made = plan(snapshot)
    assert [a.uid for a in made.admitted] == ["tight"]
    assert verify(snapshot, made) == ()
    free = plan(world(NODES, waiting))
    assert [violation.rule for violation in verify(snapshot, free)] == [PlanRule.RESOURCE_QUOTA]


def test_limits_that_gangs_of_one_plan_will_use_are_counted() -> None:
    each = replace(podset(gpu=1), limits=Resources({"cpu": 2000}))
    waiting = [gang(name, each, queued_at=float(i)) for i, name in enumerate("abc")]
    limit = QuotaLimit("limits.cpu", "cpu", 6000, 0, of_limits=True)
    made = plan(allowed(world(NODES, waiting), limit, promised=(2000,)))
    assert [a.uid for a in made.admitted] == ["a", "b"]
