"""A gang is refused for good only for causes that nothing but a change of its request or of the configuration ends.

While anything else keeps it, it has its place at the head of a StrictFIFO queue, and its reason names what it waits for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from queuectl.devices.lower import DeviceCache, with_devices
from queuectl.domain.checks import PROVISIONING, AdmissionCheck, CheckRule
from queuectl.domain.devices import (
    AllocatedDevice,
    Device,
    DeviceEffect,
    DeviceInventory,
    DeviceTaint,
    PodDevices,
)
from queuectl.domain.fleet import Effect, Fleet, Node, Taint
from queuectl.domain.node_quota import quota_from_nodes
from queuectl.domain.plan import Plan
from queuectl.domain.provisioning import ProvisioningConfig
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    QueueingStrategy,
    QuotaOverride,
    ResourceFlavor,
    in_force,
)
from queuectl.domain.reasons import NEVER_FITS, Code, Reason
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import diagnose
from queuectl.planner.verify import verify
from tests.devices import build as devices
from tests.devices.test_numa import TWO_ZONES, container, pods
from tests.devices.test_numa import cluster as numa_cluster
from tests.planner import documents
from tests.planner.build import FLAVOR, NOW, gang, holding, node, podset, queue, resources, world
from tests.planner.build import config as build_config
from tests.planner.mixed import mixed
from tests.planner.splits import A, B, on, splitting
from tests.planner.test_advance import reserved
from tests.planner.test_shared_gpus import shared
from tests.support.examples import examples

STRICT: Final = QueueingStrategy.STRICT_FIFO
HOUR: Final = 3600.0
SEEDS: Final = examples(120)


def waiting(
    nodes: Sequence[Node], first: PodSet, behind: PodSet, *queues: ClusterQueue, **fields: Any
) -> Snapshot:
    """A StrictFIFO queue with a gang that is first and one behind it; ``fields``: of the first."""
    head = replace(Pending(gang("first", first)), **fields)
    gangs: list[Workload | Pending] = [head, gang("behind", behind, queued_at=1.0)]
    return world(nodes, gangs, [], *(queues or (queue(strategy=STRICT),)))


def reasons(snapshot: Snapshot) -> dict[str, Reason]:
    """The reason of each gang that does not start."""
    taken = with_devices(snapshot, DeviceCache())
    made = plan(taken)
    assert verify(taken, made, devices.matching) == ()
    return {refusal.uid: refusal.reasons[0] for refusal in made.pending}


def keeps_its_place(snapshot: Snapshot, named: str) -> None:
    found = reasons(snapshot)
    assert found["first"].code not in NEVER_FITS, found
    assert found["first"].waits_for_capacity
    assert named in found["first"].message
    assert found["behind"].code is Code.WAITING_IN_ORDER


def is_passed(snapshot: Snapshot) -> None:
    found = reasons(snapshot)
    assert found.keys() == {"first"}
    assert found["first"].code in NEVER_FITS


# Nodes: one of two is out of use, in whole or in part.

WHOLE: Final = node("n2", gpu=8)


def tainted(key: str) -> Node:
    return replace(WHOLE, taints=(Taint(key, Effect.NO_SCHEDULE),))


OUT: Final = {
    "not ready": (replace(WHOLE, ready=False), "not ready"),
    "not ready since a known time": (
        replace(WHOLE, ready=False, out_since=NOW),
        "not ready since 1970-01-12T13:46:40Z",
    ),
    "cordoned": (replace(WHOLE, unschedulable=True), "cordoned"),
    "hardware fails": (
        replace(WHOLE, unschedulable=True, unhealthy="GPU 3: XID 79"),
        "unhealthy: GPU 3: XID 79",
    ),
    "one GPU fails": (
        replace(WHOLE, allocatable=resources(gpu=7, pods=110), failed=resources(gpu=1)),
        "1 nvidia.com/gpu unhealthy",
    ),
    "the device plugin does not answer": (
        replace(WHOLE, allocatable=resources(pods=110), failed=resources(gpu=8)),
        "8 nvidia.com/gpu unhealthy",
    ),
    **{
        key: (tainted(key), f"taint {key}")
        for key in (
            "node.kubernetes.io/disk-pressure",
            "node.cloudprovider.kubernetes.io/uninitialized",
            "node.cloudprovider.kubernetes.io/shutdown",
            "node.cilium.io/agent-not-ready",
            "ebs.csi.aws.com/agent-not-ready",
            "startup-taint.cluster-autoscaler.kubernetes.io/gpu-driver",
            "ToBeDeletedByClusterAutoscaler",
            "DeletionCandidateOfClusterAutoscaler",
            "karpenter.sh/unregistered",
            "karpenter.sh/disrupted",
            "cloud.google.com/impending-node-termination",
            "readiness.k8s.io/network",
            "maintenance",
            "example.com/Planned-Maintenance",
        )
    },
}


@pytest.mark.parametrize(("out", "named"), OUT.values(), ids=OUT.keys())
@pytest.mark.parametrize("required", [None, "rack"])
def test_a_gang_that_waits_for_a_node_keeps_its_place(
    required: str | None, out: Node, named: str
) -> None:
    nodes, one = [node("n1", gpu=8), out], podset(gpu=1)
    pair = podset(count=2, gpu=8, required=required)
    keeps_its_place(waiting(nodes, pair, one), f"it waits for n2 ({named}")
    is_passed(waiting(nodes, replace(pair, count=3), one))
    is_passed(waiting(nodes, podset(gpu=9, required=required), one))


def test_a_gang_keeps_its_place_while_the_only_node_is_out_of_use() -> None:
    nodes = [replace(WHOLE, allocatable=resources(pods=110), failed=resources(gpu=8))]
    keeps_its_place(waiting(nodes, podset(gpu=8), podset(gpu=1)), "n2 (8 nvidia.com/gpu unhealthy)")


def test_a_gang_that_needs_several_flavors_keeps_its_place() -> None:
    out = replace(on("b", "n2", gpu=8), unschedulable=True)
    nodes = [on("a", "n0", gpu=8), on("b", "n1", gpu=8), out]

    def snapshot(count: int) -> Snapshot:
        strict = splitting(strategy=STRICT)
        made = waiting(nodes, podset(count=count, gpu=8), podset(gpu=1), strict)
        return replace(made, config=build_config(strict, flavors=[A, B]))

    keeps_its_place(snapshot(3), "it waits for n2 (cordoned)")
    is_passed(snapshot(4))


def test_a_gang_keeps_its_place_if_kube_scheduler_refused_a_node_for_it() -> None:
    nodes, refused = [node("n1", gpu=8), WHOLE], frozenset({"n2"})
    snapshot = waiting(nodes, podset(count=2, gpu=8), podset(gpu=1), excluded=refused)
    keeps_its_place(snapshot, "n2 (refused by kube-scheduler until the gang is requeued)")


@pytest.mark.parametrize(
    "key", ["nvidia.com/gpu", "dedicated", "node-role.kubernetes.io/control-plane"]
)
def test_a_taint_that_belongs_to_the_node_does_not_pass(key: str) -> None:
    is_passed(waiting([node("n1", gpu=8), tainted(key)], podset(count=2, gpu=8), podset(gpu=1)))


def test_a_gang_that_waits_for_other_gangs_alone_does_not_wait_for_capacity_out_of_use() -> None:
    """A node is out of use, and the others have room for it."""
    nodes = [node("n0", gpu=8), node("n1", gpu=8), tainted("maintenance")]
    busy = holding(gang("runs", podset(gpu=8)), {"n0": 1})
    snapshot = replace(waiting(nodes, podset(count=2, gpu=8), podset(gpu=1)), admitted=(busy,))
    reason = reasons(snapshot)["first"]
    assert reason.code is Code.TOPOLOGY_PLACEMENT_FAILED
    assert not reason.waits_for_capacity


def test_a_gang_that_waits_for_a_device_keeps_its_place_alongside_a_reservation() -> None:
    """The Reservation has its own node."""
    nodes = [node("n0", gpu=2), node("n1", gpu=8), OUT["one GPU fails"][0]]

    def snapshot(count: int) -> Snapshot:
        queues = queue(strategy=STRICT), queue("own")
        made = waiting(nodes, podset(count=count, gpu=8), podset(gpu=1), *queues)
        return replace(made, reservations=(reserved(1, starts=HOUR),))

    keeps_its_place(snapshot(2), "n2 (1 nvidia.com/gpu unhealthy)")
    is_passed(snapshot(3))


def test_a_gang_that_waits_for_a_device_keeps_its_place_alongside_shared_gpus() -> None:
    """It can use whole GPUs only."""
    nodes = [shared("n0"), node("n1", gpu=8), OUT["one GPU fails"][0]]
    pair, one = podset(count=2, gpu=8), podset(cpu=0)
    keeps_its_place(waiting(nodes, pair, one), "n2 (1 nvidia.com/gpu unhealthy)")
    is_passed(waiting(nodes, replace(pair, count=3), one))


# Devices.


def of_devices(first: PodDevices, *own: Device, held: Sequence[Device] = ()) -> Snapshot:
    """One node with devices, some of which a pod of no gang holds by a claim."""
    pod, behind = podset(), podset(cpu=1)
    asked = replace(pod, shape=replace(pod.shape, devices=first))
    snapshot = waiting([node("n1", cpu=8)], asked, behind)
    inventory = DeviceInventory({"n1": devices.node(*own)}, devices.CLASSES)
    other = {"n1": tuple(AllocatedDevice(one.id, "r") for one in held)} if held else {}
    return replace(snapshot, devices=inventory, other_devices=other)


XID: Final = DeviceTaint("xid", DeviceEffect.NO_SCHEDULE, "79")
TWO, THREE = (devices.pod(devices.option(count=number)) for number in (2, 3))
GOOD, OTHER = devices.device("gpu0", root="a"), devices.device("gpu1", root="a")
BAD: Final = devices.device("gpu1", root="a", taints=(XID,))
SAME_ROOT: Final = devices.pod(devices.option(count=2), match=devices.ROOT)


@pytest.mark.parametrize("first", [TWO, SAME_ROOT])
def test_a_gang_that_waits_for_a_device_with_a_taint_keeps_its_place(first: PodDevices) -> None:
    named = "n1 (device gpu.example.com/pool/gpu1 has the taint xid=79:NoSchedule)"
    keeps_its_place(of_devices(first, GOOD, BAD), named)
    is_passed(of_devices(THREE, GOOD, BAD))


@pytest.mark.parametrize("first", [TWO, SAME_ROOT])
def test_a_gang_that_waits_for_a_device_of_a_pod_of_no_gang_keeps_its_place(
    first: PodDevices,
) -> None:
    named = "n1 (pods of no gang hold gpu.example.com/pool/gpu1)"
    keeps_its_place(of_devices(first, GOOD, OTHER, held=[OTHER]), named)
    is_passed(of_devices(THREE, GOOD, OTHER, held=[OTHER]))


@pytest.mark.parametrize("first", [TWO, SAME_ROOT])
@pytest.mark.parametrize("left", [[], [GOOD]])
def test_a_gang_that_waits_for_devices_of_a_driver_that_restarts_keeps_its_place(
    left: list[Device], first: PodDevices
) -> None:
    def snapshot(asked: PodDevices) -> Snapshot:
        found = of_devices(asked, *left)
        before = {"n1": devices.node(GOOD, OTHER)}
        return replace(found, devices=replace(found.devices, recovered=before))

    gone = "1 device" if left else "2 devices"
    keeps_its_place(snapshot(first), f"n1 ({gone} of gpu.example.com not published)")
    is_passed(snapshot(THREE))


def test_devices_of_which_each_choice_leaves_none_never_fit_alongside_a_taint() -> None:
    roots = [devices.device(f"gpu{i}", root=f"root{i}") for i in range(2)]
    is_passed(of_devices(SAME_ROOT, *roots, replace(BAD, id=devices.device("gpu2").id)))


def test_a_gang_of_one_numa_node_keeps_its_place_alongside_a_guaranteed_pod_of_no_gang() -> None:
    def snapshot(cpu: int) -> Snapshot:
        first = gang("first", pods(1, container(cpu, 8)))
        behind = gang("behind", podset(gpu=1), queued_at=1.0)
        made = numa_cluster({"n1": TWO_ZONES}, [first, behind], guaranteed=["n1"])
        strict = world([], [], [], queue(strategy=STRICT, memory=1 << 50)).config
        return replace(made, config=strict)

    keeps_its_place(snapshot(8), "n1 (pods of no gang hold NUMA nodes)")
    is_passed(snapshot(9))


# Quota.


def of_quota(first: int, *overrides: QuotaOverride, **fields: Any) -> Snapshot:
    """A queue with a quota of 8, and one of its Cohort that lends 8; many nodes."""
    queues = [
        replace(queue("main", strategy=STRICT, gpu=8), cohort="all", **fields),
        replace(queue("lends", gpu=8), cohort="all"),
    ]
    nodes = [node(f"n{i}", gpu=8) for i in range(5)]
    snapshot = waiting(nodes, podset(count=first, gpu=8), podset(gpu=1), *queues)
    config = replace(
        snapshot.config,
        cohorts={"all": Cohort("all")},
        overrides={each.name: each for each in overrides},
    )
    return replace(snapshot, config=in_force(config, NOW))


def override(of: str, begins: float, ends: float, **change: Any) -> QuotaOverride:
    return QuotaOverride(f"{of}-{begins}", of, FLAVOR, GPU, NOW + begins, NOW + ends, **change)


FROM: Final = "ClusterQueue main can use enough from 1970-01-12T14:46:40Z on, when a QuotaOverride begins or ends"


@pytest.mark.parametrize(
    "own",
    [
        pytest.param(override("main", HOUR, 2 * HOUR, add=8), id="more later"),
        pytest.param(override("lends", HOUR, 2 * HOUR, add=8), id="more to borrow later"),
        pytest.param(override("main", HOUR, 2 * HOUR, nominal=16), id="a replacement later"),
    ],
)
def test_a_gang_that_waits_for_quota_of_later_keeps_its_place(own: QuotaOverride) -> None:
    keeps_its_place(of_quota(3, own), FROM)
    is_passed(of_quota(4, own))
    is_passed(of_quota(3))


@pytest.mark.parametrize("of", ["main", "lends"])
def test_a_gang_that_waits_for_the_end_of_less_quota_keeps_its_place(of: str) -> None:
    less = override(of, -HOUR, HOUR, add=-8)
    keeps_its_place(of_quota(2, less), FROM)
    is_passed(of_quota(3, less))


def test_an_override_that_has_ended_does_not_count() -> None:
    is_passed(of_quota(3, override("main", -2 * HOUR, -HOUR, add=8)))


@pytest.mark.parametrize("out", ["not ready", "cordoned", "one GPU fails"])
def test_a_gang_that_waits_for_quota_of_a_node_out_of_use_keeps_its_place(out: str) -> None:
    named = OUT[out][1]
    named = f"its quota follows the nodes, and it waits for n2 ({named}"
    keeps_its_place(of_followed(2, out), named)
    is_passed(of_followed(3, out))


def test_no_fix_adds_quota_that_follows_the_nodes() -> None:
    found = diagnose(of_followed(2, "cordoned"), "first")
    assert [fix.message for fix in found.suggested_fixes] == [
        "start with 1 of 2 pods of podset w",
        "repair or uncordon 1 node: n2 (cordoned)",
        "add 1 node like n1",
    ]


def of_followed(first: int, out: str) -> Snapshot:
    """Two nodes that a queue's quota follows, of which one is out of use."""
    made = OUT[out][0]
    nodes = [
        replace(each, labels={**each.labels, "pool": "x"}) for each in (node("n1", gpu=8), made)
    ]
    strict = replace(queue(strategy=STRICT, gpu=1), headroom=0.0)
    flavors = {FLAVOR: ResourceFlavor(FLAVOR, (("pool", "x"),), topology="gpus")}
    found = waiting(nodes, podset(count=first, gpu=8), podset(gpu=1), strict)
    config = replace(found.config, flavors=flavors)
    return replace(found, config=quota_from_nodes(config, found.fleet))


# Nodes that can be made.


def test_a_gang_for_which_nodes_can_be_made_keeps_its_place_until_quota_is_free() -> None:
    """Others use the quota. The nodes that exist never fit it."""
    check = CheckRule("nodes", provisions=True)
    settings = ProvisioningConfig("p", "c")
    known = AdmissionCheck("nodes", PROVISIONING, settings="p", provisioning=settings)
    strict = replace(queue(strategy=STRICT, gpu=24), admission_checks=(check,))
    nodes, busy = [node("n1", gpu=8), WHOLE], holding(gang("runs", podset(gpu=8)), {"n1": 1})
    for count, codes in (
        (3, [Code.WAITING_FOR_QUOTA, Code.WAITING_IN_ORDER]),
        (4, [Code.EXCEEDS_MAX_QUOTA]),
    ):
        snapshot = waiting(nodes, podset(count=count, gpu=8), podset(gpu=1), strict)
        config = replace(snapshot.config, checks={"nodes": known})
        snapshot = replace(snapshot, config=config, admitted=(busy,))
        made = {r.uid: r.reasons[0].code for r in plan(snapshot).pending if r.lease is None}
        assert list(made.values()) == codes


# From files.

SINCE: Final = "2025-12-31T23:00:00Z"
OVERRIDE: Final = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "QuotaOverride",
    "metadata": {"name": "more"},
    "spec": {
        "clusterQueue": "main",
        "flavor": "default",
        "resource": GPU,
        "add": 8,
        "from": "2026-01-02T00:00:00Z",
        "until": "2026-01-03T00:00:00Z",
    },
}
AGENT: Final = {"key": "node.cilium.io/agent-not-ready", "effect": "NoSchedule", "timeAdded": SINCE}


@pytest.mark.parametrize(
    ("second", "quota", "more", "named"),
    [
        pytest.param(
            {"spec": {"taints": [AGENT]}},
            16,
            {},
            f"it waits for a1 (taint node.cilium.io/agent-not-ready:NoSchedule since {SINCE})",
            id="a taint of an agent",
        ),
        pytest.param(
            {
                "status": {
                    "conditions": [
                        {"type": "Ready", "status": "Unknown", "lastTransitionTime": SINCE}
                    ]
                }
            },
            16,
            {},
            f"it waits for a1 (not ready since {SINCE})",
            id="a node without a heartbeat",
        ),
        pytest.param(
            {"status": {"capacity": {GPU: 8}, "allocatable": {GPU: 7, "pods": 110}}},
            16,
            {},
            "it waits for a1 (1 nvidia.com/gpu unhealthy)",
            id="a GPU that fails",
        ),
        pytest.param(
            {},
            8,
            {"override": True},
            "ClusterQueue main can use enough from 2026-01-02T00:00:00Z on, when a QuotaOverride begins or ends",
            id="an override from tomorrow on",
        ),
        pytest.param(
            {"spec": {"unschedulable": True}},
            0,
            {"policy": {"quotaFromNodes": {"headroom": "0%"}}},
            "its quota follows the nodes, and it waits for a1 (cordoned)",
            id="quota that follows a cordoned node",
        ),
    ],
)
def test_files_show_what_a_gang_waits_for(
    second: documents.Doc, quota: int, more: dict[str, Any], named: str
) -> None:
    first, other = documents.nodes("a", 2, pool="x")
    other |= {
        "spec": second.get("spec", {}),
        "status": {**other["status"], **second.get("status", {})},
    }
    fleet = [documents.TOPOLOGY, documents.flavor(topology=True, pool="x"), first, other]
    overrides = [OVERRIDE] if more.pop("override", False) else []
    queues = documents.cluster_queue("main", quota, queueingStrategy="StrictFIFO", **more)
    for count, waiting_for in ((2, named), (3, None)):
        gangs = [
            documents.workload("first", "main", count, 8),
            documents.workload("behind", "main", at=1),
        ]
        made = documents.planned(fleet, queues, overrides, gangs)
        assert made.started == ([] if waiting_for else ["behind"])
        message = made.reason("first")["message"]
        assert (waiting_for or "") in message, message


# On random clusters.


def worn(rng: random.Random, one: Node) -> Node:
    """The node with some cause that passes, or none."""
    gpus = one.allocatable[GPU]
    fails = rng.randint(1, gpus) if gpus else 0
    less = resources(gpu=fails)
    return rng.choice(
        (
            one,
            replace(one, ready=False),
            replace(one, unschedulable=True),
            replace(
                one, taints=(*one.taints, Taint("node.kubernetes.io/not-ready", Effect.NO_EXECUTE))
            ),
            replace(one, allocatable=one.allocatable - less, failed=less),
        )
    )


def drawn(seed: int) -> Snapshot:
    """A random cluster with causes that pass, StrictFIFO queues and overrides."""
    rng, snapshot = random.Random(seed), mixed(seed)
    fleet = Fleet(tuple(worn(rng, one) for one in snapshot.fleet.nodes))
    queues = {
        name: replace(each, strategy=rng.choice((STRICT, each.strategy)))
        for name, each in snapshot.config.cluster_queues.items()
    }
    overrides = {}
    for name, each in queues.items():
        begins = rng.choice((-HOUR, HOUR))
        change = {"add": rng.choice((-4, 4, 16))} if rng.random() < 0.7 else {"nominal": 24}
        flavor = each.groups[0].flavors[0].flavor
        overrides[name] = QuotaOverride(
            name, name, flavor, GPU, NOW + begins, NOW + 2 * HOUR, **change
        )
    config = replace(snapshot.config, cluster_queues=queues, overrides=overrides)
    admitted = tuple(replace(each, lost=()) for each in snapshot.admitted)
    return replace(snapshot, fleet=fleet, config=config, admitted=admitted)


def alone(snapshot: Snapshot, workload: Workload, now: float) -> Plan:
    """The plan for one gang on nodes without anything that passes, at another time."""
    return plan(
        replace(
            snapshot,
            fleet=snapshot.fleet.recovered,
            config=in_force(snapshot.config, now),
            pending=(Pending(workload),),
            admitted=(),
            other_pods={},
        )
    )


@pytest.mark.seeds
@pytest.mark.parametrize("part", range(4))
def test_no_gang_that_fits_without_what_passes_is_refused_for_good(part: int) -> None:
    for seed in range(part, SEEDS, 4):
        snapshot = drawn(seed)
        present = replace(snapshot, config=in_force(snapshot.config, NOW))
        cache = PlannerCache()
        made = plan(present, cache=cache)
        assert verify(present, made) == (), seed
        assert plan(present, cache=cache) == made, seed
        for refusal in made.pending:
            workload = next(p.workload for p in snapshot.pending if p.workload.uid == refusal.uid)
            times = (NOW, NOW + HOUR, NOW + 2 * HOUR)
            starts = any(alone(snapshot, workload, now).admitted for now in times)
            if starts:
                assert refusal.reasons[0].code not in NEVER_FITS, (seed, refusal)
            elif len(refusal.reasons) == 1:
                assert not refusal.reasons[0].waits_for_capacity, (seed, refusal)
