"""Gangs for which an autoscaler makes nodes get quota and no nodes, in queue order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.checks import PROVISIONING, AdmissionCheck, CheckRule
from queuectl.domain.plan import Plan
from queuectl.domain.provisioning import ProvisioningConfig
from queuectl.domain.queues import ClusterQueue, ResourceFlavor
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import NO_END, Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.verify import Rule, verify
from tests.planner.build import FLAVOR, gang, holding, node, podset, queue, world
from tests.planner.plans import rules, start

NODE = node("n0", gpu=8)
PAIR = gang("pair", podset(count=2, gpu=8))
FLAVORS = [
    ResourceFlavor(FLAVOR, topology="gpus"),
    ResourceFlavor("spot", topology="gpus", node_labels=(("spot", "1"),)),
]


def checked(snapshot: Snapshot, rule: CheckRule | None = None) -> Snapshot:
    """The same with a check that makes nodes."""
    rule = rule or CheckRule("nodes", provisions=True)
    known = AdmissionCheck(
        "nodes", PROVISIONING, settings="p", provisioning=ProvisioningConfig("p", "c")
    )
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


def test_only_flavors_with_the_check_are_asked_for() -> None:
    on_spot = CheckRule("nodes", frozenset({"spot"}), provisions=True)
    two = queue(gpu=16, flavors=(FLAVOR, "spot"))
    made = decided(checked(world([NODE], [PAIR], (), two, flavors=FLAVORS), on_spot))
    lease: CapacityLease | None = made.pending[0].lease
    assert lease is not None
    assert {f for p in lease.placement.podsets for f in p.charged} == {"spot"}


def test_a_start_without_nodes_is_refused_by_the_verifier() -> None:
    asked = checked(world([], [Pending(PAIR, ready_checks=frozenset({"nodes"}))], (), of_quota(16)))
    assert rules(asked, start(PAIR, {})) == {Rule.INADMISSIBLE}
