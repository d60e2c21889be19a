"""Gangs on devices with taints that the claims of their pods do not tolerate are requeued: by policy, or because they lose pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.devices import (
    AllocatedDevice,
    ClaimReference,
    ClaimSpec,
    DeviceEffect,
    DeviceOption,
    DeviceRequest,
    DeviceTaint,
    DeviceToleration,
)
from queuectl.domain.events import Drained
from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.ledger import EntryChange, State
from queuectl.domain.node_health import HealthMode, NodeHealthRules, UnhealthyNodes
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.reasons import Code
from queuectl.domain.records import ClaimRecord, Deleted, NodeRecord
from queuectl.domain.rules import Rules
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.lifecycle.machine import handle
from queuectl.lifecycle.nodes import requeued
from tests.unit.test_state import LIVE, World, on, pod
from tests.unit.test_state_devices import (
    CLAIMING,
    CLASSED,
    RUNS,
    TAINT,
    claim,
    claimed,
    gpu,
    published,
    spec,
    taint_rule,
    template,
)

NOW = 1000.0
RUNNING = replace(LIVE, state=State.RUNNING)
DRAIN, STAY = UnhealthyNodes.DRAIN, UnhealthyNodes.STAY
CLOSED = replace(TAINT, effect=DeviceEffect.NO_SCHEDULE)
INFORMS = replace(TAINT, effect=DeviceEffect.NONE)
FOR_EVER = DeviceToleration("xid", "Exists", effect=DeviceEffect.NO_EXECUTE)
FOR_A_MINUTE = replace(FOR_EVER, seconds=60)
EACH = DeviceToleration(operator="Exists")
GPUS = DeviceOption("gpu")
EVIDENCE = (
    "n1: device gpu.example.com/n1/gpu-0 has the taint xid=79:NoExecute (DeviceTaintRule broken)"
)


def holding(*tolerations: DeviceToleration, name: str | None = None) -> ClaimRecord:
    """The claim of pod p1, or a named one, with the device gpu-0 of n1."""
    made = claim("p1" if name is None else None, [gpu("n1", 0)], spec(1), name=name)
    held = (AllocatedDevice(gpu("n1", 0), "gpu", tolerations=tolerations),)
    return replace(made, content=replace(made.content, allocated=held))


def world(*records: Any, job: Any = RUNS) -> World:
    base = [published("n1"), published("n2"), CLASSED, template("four", spec(1)), CLAIMING, job]
    return World(RUNNING, records=[*base, on("p1", "n1"), on("p2", "n2"), *records])


def changes(given: World, policy: UnhealthyNodes = DRAIN, **health: Any) -> Sequence[Any]:
    config = QueueConfig(
        cluster_queues={"cq": ClusterQueue("cq", unhealthy_nodes=policy)},
        rules=Rules(eviction_grace=30.0, node_health=NodeHealthRules(**health)),
    )
    return requeued(given.mirror, given.ledger, config, NOW, ())


@pytest.mark.parametrize(
    ("taint", "tolerations", "policy", "evicted"),
    [
        (TAINT, (), DRAIN, True),
        (TAINT, (), STAY, False),
        (TAINT, (FOR_A_MINUTE,), DRAIN, True),
        (TAINT, (FOR_EVER,), DRAIN, False),
        (TAINT, (EACH,), DRAIN, True),
        (CLOSED, (), DRAIN, True),
        (CLOSED, (), STAY, False),
        (CLOSED, (EACH,), DRAIN, False),
        (CLOSED, (FOR_EVER,), DRAIN, True),
        (INFORMS, (), DRAIN, False),
    ],
)
def test_a_gang_is_requeued_from_a_device_with_a_taint_that_its_claim_does_not_tolerate(
    taint: DeviceTaint,
    tolerations: tuple[DeviceToleration, ...],
    policy: UnhealthyNodes,
    evicted: bool,
) -> None:
    given = world(holding(*tolerations), taint_rule(taint=taint, pool="n1", device="gpu-0"))
    found = changes(given, policy)
    assert bool(found) is evicted
    for change in found:
        assert change.after.state is State.EVICTING
        assert change.after.stop_at == NOW + 30.0
        assert change.after.reason.code is Code.NODE_UNHEALTHY
        text = EVIDENCE.replace("NoExecute", str(taint.effect))
        assert change.after.reason.message == f"requeued from unhealthy nodes: {text}"


def test_a_gang_with_quota_only_is_requeued_from_the_node_of_its_pod() -> None:
    entry = replace(RUNNING, placement=Placement((PodSetPlacement("main", ()),)))
    given = world(holding(), taint_rule(pool="n1", device="gpu-0"))
    given.ledger.apply([EntryChange(RUNNING, entry, NOW)])
    (change,) = changes(given)
    assert change.after.reason.details == {"nodes": ["n1"]}


def test_a_taint_in_a_resource_slice_counts_as_that_of_a_rule() -> None:
    bad = published("n1", version=2)
    [first, *others] = bad.content.devices
    first = replace(
        first, kind=replace(first.kind, taints=(DeviceTaint("xid", DeviceEffect.NO_EXECUTE),))
    )
    bad = replace(bad, content=replace(bad.content, devices=(first, *others)))
    [change] = changes(world(holding(), bad))
    assert (
        "device gpu.example.com/n1/gpu-0 has the taint xid:NoExecute" in change.after.reason.message
    )


def test_devices_of_a_claim_that_pods_share_count() -> None:
    sharing = claimed(RUNS, ClaimReference("g", claim="ours"))
    given = world(holding(name="ours"), taint_rule(device="gpu-0", pool="n1"), job=sharing)
    assert len(changes(given)) == 1


@pytest.mark.parametrize("selector", [{"pool": "n1", "device": "gpu-1"}, {"pool": "n2"}])
def test_devices_of_other_pods_do_not_count(selector: dict[str, Any]) -> None:
    assert changes(world(holding(), taint_rule(**selector))) == []


@pytest.mark.parametrize(
    ("taint", "most", "evicted"),
    [(CLOSED, 0.2, False), (CLOSED, 1.0, True), (TAINT, 0.2, True)],
    ids=["maintenance", "few nodes", "Kubernetes deletes the pods"],
)
def test_devices_of_more_nodes_than_the_limit_count_only_if_their_pods_are_deleted(
    taint: DeviceTaint, most: float, evicted: bool
) -> None:
    given = world(holding(), taint_rule(taint=taint))
    assert bool(changes(given, most=most)) is evicted


@pytest.mark.parametrize("mode", [HealthMode.REPORT, HealthMode.OFF])
def test_no_gang_is_requeued_without_the_effect_of_node_health(mode: HealthMode) -> None:
    given = world(holding(), taint_rule(pool="n1", device="gpu-0"))
    assert changes(given, mode=mode) == []


ALL = taint_rule(pool="n1")
OTHERS = claim("unmanaged", [gpu("n1", n) for n in range(1, 8)])


@pytest.mark.parametrize("policy", [DRAIN, STAY])
@pytest.mark.parametrize("mode", list(HealthMode))
@pytest.mark.parametrize(
    "records",
    [[ALL], [OTHERS, taint_rule(pool="n1", device="gpu-0")]],
    ids=["all devices have the taint", "other claims hold the others"],
)
def test_a_gang_that_loses_pods_for_which_its_node_has_no_other_devices_starts_again_at_once(
    records: list[Any], mode: HealthMode, policy: UnhealthyNodes
) -> None:
    [change] = changes(world(holding(), *records), policy, mode=mode)
    assert change.after.state is State.EVICTING
    assert change.after.stop_at is None
    assert change.after.reason.code is Code.NODE_FAILURES
    text = f"Kubernetes deletes pods that cannot be replaced: {EVIDENCE}"
    assert change.after.reason.message == text
    after = handle(change.after, Drained(), NOW + 1)
    assert after is not None
    assert (after.after.state, after.after.failures) == (State.PENDING, 0)


@pytest.mark.parametrize(
    ("tolerations", "record"),
    [
        ((), taint_rule(pool="n1", device="gpu-0")),
        ((), taint_rule(taint=CLOSED, pool="n1")),
        ((FOR_A_MINUTE,), ALL),
        ((FOR_EVER,), ALL),
    ],
    ids=[
        "other devices are free",
        "pods stay",
        "pods stay for a minute",
        "pods stay indefinitely",
    ],
)
def test_a_gang_stays_if_its_pods_stay_or_can_be_replaced(
    tolerations: tuple[DeviceToleration, ...], record: Any
) -> None:
    assert changes(world(holding(*tolerations), record), STAY) == []


def requests(*wanted: DeviceOption | tuple[DeviceOption, ...]) -> ClaimSpec:
    """Each with one option, or with several."""
    options = [each if isinstance(each, tuple) else (each,) for each in wanted]
    return ClaimSpec(tuple(DeviceRequest(f"r{n}", each) for n, each in enumerate(options)))


@pytest.mark.parametrize(
    ("content", "evicted"),
    [
        (requests(GPUS, GPUS), True),
        (requests(replace(GPUS, count=2)), True),
        (requests(GPUS, replace(GPUS, count=None, admin=True)), False),
        (requests(GPUS, replace(GPUS, tolerations=(FOR_EVER,))), False),
        (requests(replace(GPUS, tolerations=(FOR_EVER,)), GPUS), False),
        (requests(GPUS, (GPUS, replace(GPUS, tolerations=(FOR_EVER,)))), False),
    ],
    ids=[
        "two requests",
        "one request",
        "administration",
        "the second tolerates the taint",
        "the first tolerates the taint",
        "another option",
    ],
)
def test_requests_of_one_claim_need_different_devices(content: ClaimSpec, evicted: bool) -> None:
    held = tuple(AllocatedDevice(gpu("n1", n), f"r{n}") for n in (0, 1))
    made = claim("p1", [gpu("n1", 0)], content)
    made = replace(made, content=replace(made.content, allocated=held))
    others = claim("unmanaged", [gpu("n1", n) for n in range(2, 8)])
    given = world(made, others, taint_rule(pool="n1", device="gpu-0"))
    assert bool(changes(given, STAY)) is evicted


@pytest.mark.parametrize("taint", [TAINT, CLOSED])
def test_a_pod_that_kube_scheduler_refuses_because_of_a_taint_stops_its_gang_at_once(
    taint: DeviceTaint,
) -> None:
    stuck = pod("p1", gated=False, pin="n1", unschedulable=True)
    given = world(claim("p1", None, spec(8)), taint_rule(taint=taint, pool="n1", device="gpu-3"))
    given.see(replace(stuck, version=8))
    [change] = given.look().changes
    text = f"n1: device gpu.example.com/n1/gpu-3 has the taint xid=79:{taint.effect} (DeviceTaintRule broken)"
    assert change.after.state is State.EVICTING
    assert change.after.reason.code is Code.NODE_FAILURES
    assert change.after.reason.message == f"kube-scheduler refuses pods: {text}"
    assert change.after.excluded == ("n1",)


def test_a_pod_that_kube_scheduler_refuses_alongside_tainted_devices_of_another_kind_waits() -> (
    None
):
    stuck = pod("p1", gated=False, pin="n1", unschedulable=True)
    given = world(claim("p1", None, spec(8, "nic")), taint_rule(pool="n1", device="gpu-3"))
    given.see(replace(stuck, version=8))
    assert all(change.after.state is State.RUNNING for change in given.look().changes)


@pytest.mark.parametrize("by_plugin", [False, True])
def test_a_taint_is_the_evidence_if_a_refused_pod_requests_an_extended_resource_without_a_claim(
    *, by_plugin: bool
) -> None:
    """Without devices, kube-scheduler makes no claim for an extended resource."""
    amounts = {"pods": 110, GPU: 8 if by_plugin else 0}
    backed = replace(CLASSED, version=8, content=replace(CLASSED.content, extended_resource=GPU))
    n1 = NodeRecord(Node("n1", {HOSTNAME: "n1"}, Resources(amounts)), 8)
    given = world(taint_rule(pool="n1", device="gpu-3"), backed, n1)
    given.see(pod("p1", gated=False, pin="n1", unschedulable=True, version=8))
    found = [c.after for c in given.look().changes if c.after.state is State.EVICTING]
    text = f"kube-scheduler refuses pods: {EVIDENCE.replace('gpu-0', 'gpu-3')}"
    assert [(e.reason.message, e.excluded) for e in found] == [(text, ("n1",))] * (not by_plugin)


@pytest.mark.parametrize("own", [True, False])
def test_a_pod_of_a_deleted_node_with_tainted_devices_breaks_no_observation(own: bool) -> None:
    """The ResourceSlices of the node exist for longer than the node. ``own``: the pod has a claim."""
    claims = [claim("p1", None, spec(8))] if own else []
    given = world(*claims, taint_rule(pool="n1", device="gpu-3"))
    given.see(pod("p1", gated=False, pin="n1", unschedulable=True, version=8))
    given.mirror.apply([Deleted("nodes", "n1", 9)])
    given.look()
    assert given.mirror.containment.empty
