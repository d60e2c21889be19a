"""Gangs for which an autoscaler makes nodes get quota and no nodes, in queue order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.checks import PROVISIONING, AdmissionCheck, CheckRule
from queuectl.domain.devices import ClaimReference
from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.fleet import HOSTNAME, Effect, Node, NodeTemplate, Taint, Toleration
from queuectl.domain.plan import Plan
from queuectl.domain.provisioning import MergePolicy, ProvisioningConfig
from queuectl.domain.quantity import GPU, PODS
from queuectl.domain.queues import (
    Backfill,
    ClusterQueue,
    FlavorQuotas,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import (
    NO_END,
    Admitted,
    CapacityLease,
    Pending,
    Snapshot,
    SolverLimits,
)
from queuectl.domain.workload import Duration, PodSet, Workload
from queuectl.planner import plan
from queuectl.planner.explain.diagnosis import diagnose
from queuectl.planner.preempt.protections import next_plan_due
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import (
    FLAVOR,
    LEVELS,
    NOW,
    gang,
    holding,
    node,
    podset,
    queue,
    resources,
    with_gpus,
    world,
)
from tests.planner.plans import rules, start

NODE = node("n0", gpu=8)
PAIR = gang("pair", podset(count=2, gpu=8))
FLAVORS = [
    ResourceFlavor(FLAVOR, topology="gpus"),
    ResourceFlavor("spot", topology="gpus", node_labels=(("spot", "1"),)),
]


def checked(
    snapshot: Snapshot,
    rule: CheckRule | None = None,
    managed: Collection[str] = (),
    merge: MergePolicy | None = None,
) -> Snapshot:
    """The same with a check that makes nodes, for pods with one of the managed resources if there are any."""
    rule = rule or CheckRule("nodes", provisions=True)
    settings = ProvisioningConfig("p", "c", managed=frozenset(managed), merge=merge)
    known = AdmissionCheck("nodes", PROVISIONING, settings="p", provisioning=settings)
    queues = {
        name: replace(one, admission_checks=(rule,))
        for name, one in snapshot.config.cluster_queues.items()
    }
    config = replace(snapshot.config, cluster_queues=queues, checks={"nodes": known})
    return replace(snapshot, config=config)


def decided(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def awaits(made: Plan) -> list[str]:
    """The gangs that get quota without nodes."""
    return [
        refusal.uid
        for refusal in made.pending
        if refusal.lease is not None and refusal.lease.placement.awaits_nodes
    ]


def small(uid: str, pods: int = 1, *, queued_at: float = 0.0, priority: int = 0) -> Workload:
    return gang(uid, podset(count=pods, gpu=8), queued_at=queued_at, priority=priority)


def of_quota(gpus: int) -> ClusterQueue:
    return queue(gpu=gpus)


@pytest.mark.parametrize("nodes", [[], [NODE]], ids=["no nodes", "too few nodes"])
def test_a_gang_without_nodes_gets_quota_and_waits_for_its_check(nodes: list) -> None:  # type: ignore[type-arg]
    made = decided(checked(world(nodes, [PAIR], (), of_quota(16))))
    (refusal,) = made.pending
    assert refusal.reasons[0].code is Code.WAITING_FOR_CHECKS
    assert refusal.checks == ("nodes",)
    assert awaits(made) == ["pair"]
    assert made.admitted == ()


def test_a_gang_that_fits_needs_no_check() -> None:
    made = decided(checked(world([NODE], [small("a")], (), of_quota(16))))
    assert [a.uid for a in made.admitted] == ["a"]


def test_quota_is_given_in_queue_order() -> None:
    gangs = [small("first", 2), small("second", 2, queued_at=1.0), small("third", queued_at=2.0)]
    made = decided(checked(world([NODE], gangs, (), of_quota(24))))
    assert awaits(made) == ["first"]
    assert [a.uid for a in made.admitted] == ["third"], "a later gang uses the node that is there"


def test_equal_gangs_each_get_quota() -> None:
    gangs = [small(f"g{n}", 2, queued_at=float(n)) for n in range(3)]
    made = decided(checked(world([NODE], gangs, (), of_quota(32))))
    assert awaits(made) == ["g0", "g1"]


def test_no_gang_is_evicted_for_nodes_that_can_be_made() -> None:
    runs = holding(small("low"), {"n0": 1})
    made = decided(checked(world([NODE], [small("high", priority=9)], [runs], of_quota(16))))
    assert made.preempted == ()
    assert awaits(made) == ["high"]


def on_cpus(uid: str, *, queued_at: float = 0.0, priority: int = 0) -> Workload:
    return gang(uid, podset(cpu=8), queued_at=queued_at, priority=priority)


def test_a_gang_without_a_managed_resource_is_planned_as_without_the_check() -> None:
    low, high = holding(on_cpus("low"), {"n0": 1}), on_cpus("high", priority=9)
    unchecked = world([node("n0", cpu=8)], [high], [low], queue(cpu=16))
    made = decided(checked(unchecked, managed=[GPU]))
    assert [p.victim for p in made.preempted] == ["low"]
    assert made.pending == decided(unchecked).pending


def test_no_quota_is_kept_for_a_gang_without_a_managed_resource_that_fits_no_node() -> None:
    gangs = [on_cpus("large"), gang("small", podset(cpu=4), queued_at=1.0)]
    unchecked = world([node("n0", cpu=4)], gangs, (), queue(cpu=8))
    made = decided(checked(unchecked, managed=[GPU]))
    assert made == decided(unchecked)
    assert [a.uid for a in made.admitted] == ["small"]


def test_in_a_cluster_without_nodes_a_gang_without_a_managed_resource_starts_on_quota() -> None:
    empty = checked(world([], [on_cpus("a")], (), queue(cpu=16)), managed=[GPU])
    (refusal,) = decided(empty).pending
    assert (refusal.checks, awaits(decided(empty))) == (("nodes",), [])
    ready = Pending(on_cpus("a"), refusal.lease, ready_checks=frozenset({"nodes"}))
    assert [a.uid for a in decided(replace(empty, pending=(ready,))).admitted] == ["a"]


def test_nodes_are_asked_for_if_one_podset_requests_a_managed_resource() -> None:
    mixed = gang("mixed", podset("driver", cpu=8), podset(gpu=8))
    made = decided(checked(world([], [mixed], (), queue(cpu=16, gpu=16)), managed=[GPU]))
    assert awaits(made) == ["mixed"]


def test_a_gang_that_waits_for_nodes_holds_quota_and_is_preempted_for_it() -> None:
    first = plan(checked(world([NODE], [PAIR], (), of_quota(16))))
    (refusal,) = first.pending
    assert refusal.lease is not None
    held = Admitted(PAIR, refusal.lease.placement, utilization=0.0)
    equal = decided(checked(world([NODE], [small("other", queued_at=1.0)], [held], of_quota(16))))
    assert equal.pending[0].reasons[0].code is Code.WAITING_FOR_QUOTA
    higher = decided(checked(world([NODE], [small("other", priority=9)], [held], of_quota(16))))
    assert [p.victim for p in higher.preempted] == ["pair"]


def test_a_gang_whose_nodes_are_made_keeps_its_quota_until_it_fits() -> None:
    asked = checked(world([NODE], [PAIR], (), of_quota(16)))
    lease = plan(asked).pending[0].lease
    assert lease is not None
    assert (lease.victims, lease.expires_at) == ((), NO_END)
    ready = Pending(PAIR, lease, ready_checks=frozenset({"nodes"}))
    before = small("before", priority=1, queued_at=1.0)
    still = decided(checked(world([NODE], [ready, before], (), of_quota(16))))
    assert awaits(still) == ["pair"]
    assert still.admitted == (), "the gang before it does not get its quota"
    fits = decided(checked(world([NODE, node("n1", gpu=8)], [ready], (), of_quota(16))))
    assert [a.uid for a in fits.admitted] == ["pair"]


def made_for(workload: Workload, quota: ClusterQueue, **options: Any) -> Pending:
    """The gang with the quota that it got on no nodes, after its check is ready."""
    lease = plan(checked(world([], [workload], (), quota))).pending[0].lease
    return Pending(workload, lease, ready_checks=frozenset({"nodes"}), **options)


def test_a_gang_whose_nodes_are_made_keeps_its_quota_in_a_plan_with_too_many_gangs() -> None:
    """Otherwise its request would be deleted, and made again by the next plan."""
    fleet = [NODE, *(node(f"n{number}", gpu=8) for number in (1, 2))]
    first, later = small("first", 3), made_for(small("later", 2, queued_at=1.0), of_quota(40))
    snapshot = checked(world(fleet, [first, later], (), of_quota(40)))
    made = decided(replace(snapshot, limits=SolverLimits(window=1)))
    assert ([a.uid for a in made.admitted], awaits(made)) == (["first"], ["later"])
    (refusal,) = made.pending
    assert refusal.checks == ("nodes",)
    assert refusal.reasons[0].code is Code.PENDING_EVALUATION, "so that it is searched for soon"


HIGH = gang("high", podset(count=2, gpu=8), priority=9)
TWO_NODES = [NODE, node("n1", gpu=8)]
LOW = holding(small("low", queued_at=5.0), {"n0": 1})


def test_a_gang_whose_nodes_are_made_evicts_gangs_of_a_lower_priority_that_use_them() -> None:
    high = made_for(HIGH, of_quota(32))
    made = decided(checked(world(TWO_NODES, [high], [LOW], of_quota(32))))
    assert [p.victim for p in made.preempted] == ["low"]
    assert (awaits(made), made.pending[0].checks) == ([], ())


def test_a_gang_evicts_no_gang_while_the_nodes_that_are_made_for_it_can_still_join() -> None:
    high = made_for(HIGH, of_quota(32), spares_until=NOW + 60)
    still = checked(world(TWO_NODES, [high], [LOW], of_quota(32)))
    made = decided(still)
    assert (made.preempted, awaits(made)) == ((), ["high"])
    assert next_plan_due(still, made) == NOW + 60
    later = decided(replace(still, now=NOW + 60))
    assert [p.victim for p in later.preempted] == ["low"]


def test_a_gang_whose_nodes_are_made_keeps_its_quota_while_it_waits_to_reclaim() -> None:
    patient = replace(
        of_quota(32),
        cohort="c",
        reclaim_within_cohort=ReclaimWithinCohort.ANY,
        reclaim_patience=100.0,
    )
    borrows = replace(queue("borrows", gpu=0), cohort="c")
    borrower = gang("borrower", podset(gpu=8), priority=9, queue="borrows")
    runs = holding(borrower, {"n0": 1}, started_at=NOW - 9000.0)
    first = made_for(HIGH, patient, reclaim_since=NOW - 50)
    snapshot = checked(world(TWO_NODES, [first], [runs], patient, borrows))
    made = decided(snapshot)
    assert (made.preempted, awaits(made)) == ((), ["high"])
    later = decided(replace(snapshot, now=NOW + 60))
    assert [p.victim for p in later.preempted] == ["borrower"]


@pytest.mark.parametrize("strategy", list(QueueingStrategy)[:2])
def test_later_gangs_of_a_strict_queue_leave_the_nodes_that_are_made_to_the_gang_before_them(
    strategy: QueueingStrategy,
) -> None:
    line = replace(of_quota(32), strategy=strategy)
    pair = made_for(PAIR, line)
    made = decided(checked(world([NODE], [pair, small("later", queued_at=1.0)], (), line)))
    strict = strategy is QueueingStrategy.STRICT_FIFO
    if not strict:
        line = replace(line, strategy=QueueingStrategy.STRICT_FIFO)
        as_strict = checked(world([NODE], [pair, small("later", queued_at=1.0)], (), line))
        assert {violation.rule for violation in verify(as_strict, made)} == {PlanRule.ORDER}
    assert [a.uid for a in made.admitted] == ([] if strict else ["later"])
    assert awaits(made) == ["pair"]
    if strict:
        (reason,) = (r.reasons[0] for r in made.pending if r.uid == "later")
        assert (reason.code, reason.details["behind"]) == (Code.WAITING_IN_ORDER, "team/pair")


def test_a_gang_of_a_strict_queue_keeps_its_quota_behind_one_that_waits_for_its_nodes() -> None:
    line = replace(of_quota(32), strategy=QueueingStrategy.STRICT_FIFO)
    pair, later = made_for(PAIR, line), made_for(small("later", queued_at=1.0), line)
    made = decided(checked(world([NODE], [pair, later], (), line)))
    assert (awaits(made), made.admitted) == (["pair", "later"], ())
    both = decided(checked(world([*TWO_NODES, node("n2", gpu=8)], [pair, later], (), line)))
    assert [a.uid for a in both.admitted] == ["pair", "later"]


def test_later_gangs_of_a_strict_queue_start_while_nodes_are_requested() -> None:
    line = replace(of_quota(32), strategy=QueueingStrategy.STRICT_FIFO)
    gangs = [PAIR, small("later", queued_at=1.0)]
    made = decided(checked(world([NODE], gangs, (), line)))
    assert (awaits(made), [a.uid for a in made.admitted]) == (["pair"], ["later"])


def test_only_flavors_with_the_check_are_asked_for() -> None:
    on_spot = CheckRule("nodes", frozenset({"spot"}), provisions=True)
    two = queue(gpu=16, flavors=(FLAVOR, "spot"))
    made = decided(checked(world([NODE], [PAIR], (), two, flavors=FLAVORS), on_spot))
    lease: CapacityLease | None = made.pending[0].lease
    assert lease is not None
    assert {f for p in lease.placement.podsets for f in p.charged} == {"spot"}


def flavors_held(made: Plan) -> set[str]:
    """The flavors whose quota is reserved for the first gang that waits."""
    lease = made.pending[0].lease
    charged = lease.placement.podsets if lease is not None else ()
    return {flavor for placed in charged for flavor in placed.charged}


def test_a_gang_whose_nodes_are_made_keeps_the_quota_of_their_flavor() -> None:
    """Nothing requests nodes of another flavor for it, and others would get the quota for its nodes."""
    two = queue(gpu=16, flavors=(FLAVOR, "spot"))
    runs = holding(small("runs"), {"n0": 1})
    asked = decided(checked(world([NODE], [PAIR], [runs], two, flavors=FLAVORS)))
    assert flavors_held(asked) == {"spot"}, "the first flavor has no quota left"
    ready = Pending(PAIR, asked.pending[0].lease, ready_checks=frozenset({"nodes"}))
    later = decided(checked(world([NODE], [ready], (), two, flavors=FLAVORS)))
    assert (awaits(later), flavors_held(later)) == (["pair"], {"spot"})
    other = queue(gpu=16, flavors=(FLAVOR,))
    moved = decided(checked(world([NODE], [ready], (), other, flavors=FLAVORS)))
    assert awaits(moved) == [], "it queues again, and gets a request for nodes of another flavor"


def test_a_start_without_nodes_is_refused_by_the_verifier() -> None:
    asked = checked(world([], [Pending(PAIR, ready_checks=frozenset({"nodes"}))], (), of_quota(16)))
    assert rules(asked, start(PAIR, {})) == {PlanRule.INADMISSIBLE}


@pytest.mark.parametrize("nodes", [[], [NODE]], ids=["no nodes", "too few nodes"])
def test_no_nodes_are_asked_for_a_gang_with_resource_claims(nodes: list[Node]) -> None:
    claims = (ClaimReference("gpu", template="a-gpu"),)
    claiming = gang("claims", replace(podset(count=2, gpu=8), claims=claims))
    (refusal,) = decided(checked(world(nodes, [claiming], (), of_quota(16)))).pending
    assert refusal.lease is None
    assert refusal.reasons[0].code is Code.SHAPE_NEVER_FITS
    text = "no nodes are requested, because podset w requests devices by ResourceClaims"
    assert text in [reason.message for reason in refusal.reasons]


@pytest.mark.parametrize("merge", [None, MergePolicy.TEMPLATES])
def test_no_nodes_are_asked_for_a_gang_with_more_podsets_than_a_request_has(
    merge: MergePolicy | None,
) -> None:
    wide = gang("wide", *(podset(f"w{number}", gpu=1) for number in range(33)))
    two = queue(gpu=64, flavors=(FLAVOR, "spot"))
    snapshot = checked(world([], [wide], (), two, flavors=FLAVORS), merge=merge)
    (refusal,) = decided(snapshot).pending
    if merge is not None:
        assert awaits(decided(snapshot)) == ["wide"]
        return
    assert refusal.lease is None
    assert refusal.reasons[0].code is Code.SHAPE_NEVER_FITS
    assert len(refusal.reasons) == 1
    assert refusal.reasons[0].message == (
        "no nodes are requested, because a ProvisioningRequest has at most 32 podSets, and this one needs 33"
    )


@pytest.mark.parametrize("merged", [FLAVOR, "spot"])
def test_only_the_requests_of_the_flavor_have_a_limit_of_podsets(merged: str) -> None:
    """The checks of both flavors make nodes, and that of one of them merges equal podsets."""
    wide = gang("wide", *(podset(f"w{number}", gpu=1, group="g") for number in range(33)))
    two = queue(gpu=64, flavors=(FLAVOR, "spot"))
    snapshot = checked(world([], [wide], (), two, flavors=FLAVORS))
    of_flavors, checks = [], {}
    for flavor in (FLAVOR, "spot"):
        of_flavors.append(CheckRule(flavor, frozenset({flavor}), provisions=True))
        merge = MergePolicy.TEMPLATES if flavor == merged else None
        settings = ProvisioningConfig(flavor, "c", merge=merge)
        checks[flavor] = AdmissionCheck(
            flavor, PROVISIONING, settings=flavor, provisioning=settings
        )
    queues = {
        name: replace(one, admission_checks=tuple(of_flavors))
        for name, one in snapshot.config.cluster_queues.items()
    }
    config = replace(snapshot.config, cluster_queues=queues, checks=checks)
    made = decided(replace(snapshot, config=config))
    assert awaits(made) == ["wide"]
    assert flavors_held(made) == {merged}


# Flavors whose requests failed.


@pytest.mark.parametrize(("quota", "requested"), [(8, [1, 1]), (16, [2])])
def test_equal_podsets_are_merged_only_if_their_nodes_are_of_one_flavor(
    quota: int, requested: list[int]
) -> None:
    """A podset of a request has one template, with the node labels of one flavor."""
    two = queue(gpu=quota, flavors=(FLAVOR, "spot"))
    pair = gang("pair", podset("a", gpu=8), podset("b", gpu=8))
    made = decided(checked(world([], [pair], (), two, flavors=FLAVORS)))
    lease = made.pending[0].lease
    assert lease is not None
    settings = ProvisioningConfig("p", "c", merge=MergePolicy.TEMPLATES)
    asked = settings.requested(pair.podsets, lease.placement)
    assert [count for _, count in asked] == requested


def test_no_nodes_are_asked_for_of_a_flavor_whose_requests_failed() -> None:
    two = queue(gpu=16, flavors=(FLAVOR, "spot"))
    failed = Pending(PAIR, unasked=((FLAVOR, NOW + 1800),))
    made = decided(checked(world([NODE], [failed], (), two, flavors=FLAVORS)))
    lease = made.pending[0].lease
    assert lease is not None
    assert {f for p in lease.placement.podsets for f in p.charged} == {"spot"}


@pytest.mark.parametrize("nodes", [[], [NODE]], ids=["no nodes", "too few nodes"])
def test_a_gang_waits_for_present_nodes_after_the_requests_of_all_flavors_failed(
    nodes: list[Node],
) -> None:
    failed = Pending(PAIR, unasked=((FLAVOR, NOW + 1800),))
    snapshot = checked(world(nodes, [failed], (), of_quota(16)))
    (refusal,) = decided(snapshot).pending
    assert refusal.lease is None
    assert refusal.reasons[0].code is Code.TOPOLOGY_PLACEMENT_FAILED
    assert refusal.reasons[0].message == (
        "no nodes are requested of flavor default before 1970-01-12T14:16:40Z, because its requests for them failed"
    )
    there = [NODE, node("n1", gpu=8)]
    starts = decided(checked(world(there, [failed], (), of_quota(16))))
    assert [a.uid for a in starts.admitted] == ["pair"]
    assert awaits(decided(replace(snapshot, now=NOW + 1801))) == ["pair"]


def test_equal_gangs_of_which_one_has_no_failed_request_get_their_own_answers() -> None:
    failed = Pending(small("failed", 2), unasked=((FLAVOR, NOW + 1800),))
    made = decided(
        checked(world([NODE], [failed, small("other", 2, queued_at=1.0)], (), of_quota(16)))
    )
    assert awaits(made) == ["other"]


# Node templates.


def described(
    template: NodeTemplate, *pods: Workload | Pending, nodes: Sequence[Node] = ()
) -> Snapshot:
    """A flavor in whose racks an autoscaler makes such nodes, and quota for 1,000 GPUs."""
    flavor = ResourceFlavor(FLAVOR, topology="gpus", node_template=template)
    return checked(world(list(nodes), list(pods), (), of_quota(1000), flavors=[flavor]))


def template(maximum: int, gpu: int = 8, **domains: int) -> NodeTemplate:
    allocatable = resources(gpu=gpu, pods=110)
    return NodeTemplate(allocatable, maximum, domains=tuple(sorted(domains.items())))


NEVER_MADE = {
    "a pod is larger than a node": (
        template(16, gpu=4), podset(count=2, gpu=8),
        "room for 2 pods \u00d7 8 nvidia.com/gpu is needed; even if all nodes were empty, none fits on 16 eligible nodes: 16 nodes have less than 8 nvidia.com/gpu (at most 4)",
    ),
    "the gang is larger than all nodes": (
        template(16), podset(count=17, gpu=8),
        "room for 1 more pod \u00d7 8 nvidia.com/gpu is needed; even if all nodes were empty, at most 16 of 17 fit on 16 eligible nodes",
    ),
    "the gang is larger than a rack": (
        template(16, rack=4), podset(count=5, gpu=8, required="rack"),
        "room for 1 more pod \u00d7 8 nvidia.com/gpu is needed in one rack; even if all nodes were empty, at most 4 of 5 fit (default-0-0)",
    ),
    "a slice is larger than a rack": (
        template(16, rack=4), podset(count=16, gpu=8, slices=[("rack", 8)]),
        "room for 16 pods \u00d7 8 nvidia.com/gpu in slices (8 per rack) is needed; even if all nodes were empty, none fits in whole slices on 16 eligible nodes",
    ),
    "a rack is no larger than its block": (
        template(16, block=2), podset(count=3, gpu=8, required="rack"),
        "room for 1 more pod \u00d7 8 nvidia.com/gpu is needed in one rack; even if all nodes were empty, at most 2 of 3 fit (default-0-0)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("nodes", [[], [NODE]], ids=["no nodes", "too few nodes"])
@pytest.mark.parametrize(("made", "pods", "says"), list(NEVER_MADE.values()), ids=list(NEVER_MADE))
def test_no_nodes_are_asked_for_a_gang_that_never_fits_the_template(
    made: NodeTemplate, pods: PodSet, says: str, nodes: list[Node]
) -> None:
    (refusal,) = decided(described(made, gang("big", pods), nodes=nodes)).pending
    assert (refusal.lease, refusal.checks) == (None, ())
    assert refusal.reasons[0].code is Code.SHAPE_NEVER_FITS
    assert refusal.reasons[0].message == (
        "no nodes are requested, because it does not fit the nodeTemplate of flavor default "
        f"(at most 16 nodes): {says}"
    )


def test_without_nodes_the_template_is_the_whole_explanation() -> None:
    snapshot = described(template(1), PAIR)
    assert diagnose(snapshot, "pair") == Diagnosis("pair")


FITS = {
    "all nodes": (template(16), podset(count=16, gpu=8)),
    "a whole rack": (template(16, rack=4), podset(count=4, gpu=8, required="rack")),
    "slices in racks": (template(16, rack=4), podset(count=16, gpu=8, slices=[("rack", 4)])),
    "labels that it selects": (
        replace(template(2), labels=(("kind", "h100"),)), podset(count=2, gpu=8, select={"kind": "h100"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "pods"), list(FITS.values()), ids=list(FITS))
def test_nodes_are_asked_for_a_gang_that_fits_the_template(
    made: NodeTemplate, pods: PodSet
) -> None:
    assert awaits(decided(described(made, gang("fits", pods)))) == ["fits"]


def test_labels_and_taints_of_the_template_decide() -> None:
    tainted = replace(template(2), taints=(Taint("spot", Effect.NO_SCHEDULE),))
    tolerates = podset(count=2, gpu=8, tolerations=[Toleration("spot", "Exists")])
    made = decided(described(tainted, PAIR, gang("spot", tolerates)))
    assert awaits(made) == ["spot"]
    labeled = replace(template(2), labels=(("kind", "a100"),))
    selects = gang("selects", podset(count=2, gpu=8, select={"kind": "h100"}))
    assert awaits(decided(described(labeled, selects))) == []


def test_a_gang_that_waits_for_present_nodes_learns_that_none_are_made() -> None:
    runs = holding(small("runs", 2), {"n0": 1, "n1": 1})
    nodes = [NODE, node("n1", gpu=8)]
    snapshot = described(template(1), PAIR, nodes=nodes)
    made = decided(replace(snapshot, admitted=(runs,)))
    (refusal,) = made.pending
    codes = [reason.code for reason in refusal.reasons]
    assert codes == [Code.TOPOLOGY_PLACEMENT_FAILED, Code.SHAPE_NEVER_FITS]
    assert refusal.reasons[1].details["flavors"] == [FLAVOR]


def test_the_next_flavor_with_a_template_that_fits_is_asked_for() -> None:
    flavors = [
        ResourceFlavor(FLAVOR, topology="gpus", node_template=template(1)),
        ResourceFlavor("spot", topology="gpus", node_template=template(2)),
    ]
    two = queue(gpu=16, flavors=(FLAVOR, "spot"))
    made = decided(checked(world([], [PAIR], (), two, flavors=flavors)))
    lease = made.pending[0].lease
    assert lease is not None
    assert {f for p in lease.placement.podsets for f in p.charged} == {"spot"}


def test_a_podset_on_nodes_without_a_template_is_not_judged() -> None:
    flavors = [
        ResourceFlavor(FLAVOR, topology="gpus", node_template=template(2)),
        ResourceFlavor("cpus", topology="gpus", node_labels=(("cpus", "1"),)),
    ]
    quotas = queue(gpu=16)
    cpus = ResourceGroup(("cpu",), (FlavorQuotas("cpus", {"cpu": 100}),))
    quotas = replace(quotas, groups=(replace(quotas.groups[0], covered=(GPU, PODS)), cpus))
    mixed = gang("mixed", podset("gpus", 2, gpu=8), podset("cpus", 1, cpu=8))
    assert awaits(decided(checked(world([], [mixed], (), quotas, flavors=flavors)))) == ["mixed"]
    three = gang("three", podset("gpus", 3, gpu=4), podset("cpus", 1, cpu=8))
    assert awaits(decided(checked(world([], [three], (), quotas, flavors=flavors)))) == ["three"]
    five = gang("five", podset("gpus", 5, gpu=8), podset("cpus", 1, cpu=8))
    quotas = replace(
        quotas,
        groups=(
            replace(quotas.groups[0], flavors=(FlavorQuotas(FLAVOR, {GPU: 99, PODS: 99}),)),
            cpus,
        ),
    )
    assert awaits(decided(checked(world([], [five], (), quotas, flavors=flavors)))) == []


@given(
    maximum=st.integers(1, 9),
    racks=st.integers(1, 4),
    blocks=st.integers(2, 6),
    pods=st.integers(1, 9),
    gpus=st.sampled_from([1, 2, 3, 5]),
    required=st.sampled_from([None, "rack", "block", HOSTNAME]),
    more=st.integers(0, 3),
)
def test_nodes_are_asked_for_exactly_if_the_gang_would_start_on_all_of_them(
    maximum: int, racks: int, blocks: int, pods: int, gpus: int, required: str | None, more: int
) -> None:
    made = template(maximum, gpu=4, rack=racks, block=blocks)
    podsets = [podset("a", pods, gpu=gpus, required=required, group="g")]
    if more:
        podsets.append(podset("b", more, gpu=1, required=required, group="g"))
    asked = gang("asked", *podsets)
    nodes = tuple(made.nodes(FLAVOR, LEVELS, {}, ()))
    starts = plan(world(list(nodes), [asked], (), of_quota(1000))).admitted
    assert bool(awaits(decided(described(made, asked)))) == bool(starts)


def limited(workload: Workload, seconds: float | None) -> Workload:
    return replace(
        workload, duration=Duration(seconds, enforced=True) if seconds is not None else None
    )


BUSY = replace(holding(small("busy"), {"n0": 1}), ends_at=NOW + 1000.0, end_enforced=True)
TWO_NODES = [NODE, node("n1", gpu=8)]


def backfilling(quota: ClusterQueue) -> ClusterQueue:
    return replace(quota, strategy=QueueingStrategy.BACKFILL, backfill=Backfill(delay=0.0))


def delayed(made: Plan) -> str:
    """Why the gang ``asks`` would delay the gang ``first``, which keeps its time."""
    assert [(each.uid, each.start.at - NOW) for each in made.planned] == [("first", 1000.0)]
    reason = next(refusal.reasons[0] for refusal in made.pending if refusal.uid == "asks")
    assert reason.code is Code.WOULD_DELAY
    assert reason.details["behind"] == "team/first"
    return reason.message


RESERVES = "capacity would be reserved for it until it can start, and this would delay team/first"
BEHIND = "Backfill: it waits behind team/first, because the end of its run is unknown"


@pytest.mark.parametrize(
    ("seconds", "why"), [(None, BEHIND), (100.0, RESERVES), (1000.0, RESERVES)]
)
def test_no_nodes_are_requested_for_a_gang_whose_quota_would_delay_a_planned_start(
    seconds: float | None, why: str
) -> None:
    """The first gang of a Backfill queue waits for the quota of a gang that runs on one of its nodes."""
    first = limited(small("first", 2), 100.0)
    asks = limited(gang("asks", podset(gpu=8, select={"pool": "new"}), queued_at=1.0), seconds)
    line = backfilling(of_quota(16))
    made = decided(checked(world(TWO_NODES, [first, asks], [BUSY], line)))
    assert delayed(made).startswith(why)
    assert awaits(made) == []
    assert awaits(decided(checked(world(TWO_NODES, [asks], [BUSY], line)))) == ["asks"]


def test_no_nodes_are_requested_for_a_gang_that_uses_a_claim_of_a_planned_start() -> None:
    """The nodes can join at any time, and only then the gang begins to use up its limit."""
    on_spot = CheckRule("nodes", frozenset({"spot"}), provisions=True)
    first = replace(limited(small("first", 2), 100.0), claims=("data",))
    spot = gang("asks", podset(gpu=8, select={"spot": "1"}), queued_at=1.0)
    asks = replace(limited(spot, 100.0), claims=("data",))
    two = with_gpus(queue(flavors=(FLAVOR, "spot")), {FLAVOR: 24, "spot": 8})
    made = decided(
        checked(world(TWO_NODES, [first, asks], [BUSY], backfilling(two), flavors=FLAVORS), on_spot)
    )
    assert delayed(made).startswith("it would still use a ResourceClaim that team/first needs")
    assert awaits(made) == []
