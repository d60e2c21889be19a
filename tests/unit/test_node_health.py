"""The judgment about the health of nodes, and its effect: the copy of the cluster, explanations, and evictions with notice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from queuectl.control.leader.periodic import NodeHealthWatch
from queuectl.domain.errors import SourceUnavailable
from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobOwner, PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.node_health import (
    FATAL_XIDS,
    GpuFault,
    HealthMode,
    HealthSignal,
    NodeHealthRules,
    UnhealthyNodes,
)
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.reasons import Code
from queuectl.domain.records import NodeRecord, Upserted
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import Admitted, Pending, SolverLimits
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.lifecycle.nodes import requeued
from queuectl.objects.kubernetes.nodes import read_node
from queuectl.objects.kubernetes.wire import Condition, NodeMeta, NodeStatus, WireNode
from queuectl.state.mirror import Mirror
from queuectl.state.nodes import Judgment, NodeHealthTracker
from queuectl.telemetry.metrics import MetricsRecorder
from queuectl.telemetry.signal.health import VENDORS_HEALTH, HealthQueries
from queuectl.telemetry.signal.trust import NVIDIA_TRUST
from tests.unit.test_idleness import RUNNING
from tests.unit.test_state import CONFIG, ENTRY, JOB, RESUMED, World, on

NOW = 1000.0
RULES = NodeHealthRules(most=1.0)


def record(name: str, *conditions: tuple[str, str, str], version: int = 1) -> NodeRecord:
    return NodeRecord(Node(name, {"kubernetes.io/hostname": f"{name}.local"}), version, conditions)


def fleet(*records: NodeRecord) -> dict[str, NodeRecord]:
    found = records or tuple(record(f"n{number}") for number in range(10))
    return {one.node.name: one for one in found}


def queries(vendor: str = "nvidia", prefix: str = "") -> HealthQueries:
    return HealthQueries(NVIDIA_TRUST, 30.0, VENDORS_HEALTH[vendor].prefixed(prefix))


def xid(node: str, number: int = 79, gpu: int = 3) -> GpuFault:
    labels = {"Hostname": node, "gpu": str(gpu)}
    found = queries().fault(
        HealthSignal.XID, labels, float(number), NodeHealthRules(xids=(number,))
    )
    assert found is not None
    return found


def judged(
    *faults: GpuFault, rules: NodeHealthRules = RULES, nodes: dict[str, NodeRecord] | None = None
) -> Judgment:
    return NodeHealthTracker().judge(nodes or fleet(), faults, rules, NOW)


# ---- which signals count


APPLICATIONS, USABLE, NVLINK = (13, 31, 43, 45, 109), (63, 94), (74, 145, 155)


@pytest.mark.parametrize("number", [*FATAL_XIDS, *APPLICATIONS, *USABLE, *NVLINK])
def test_only_errors_of_the_device_count(number: int) -> None:
    found = queries().fault(HealthSignal.XID, {"Hostname": "n1", "gpu": "3"}, float(number), RULES)
    assert (found is not None) == (number not in (*APPLICATIONS, *USABLE, *NVLINK))


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -1.0, 79.5])
def test_a_number_that_is_not_an_xid_does_not_count(number: float) -> None:
    labels = {"Hostname": "n1", "gpu": "3"}
    assert queries().fault(HealthSignal.XID, labels, number, RULES) is None


@pytest.mark.parametrize(
    ("vendor", "signal", "labels", "evidence"),
    [
        ("nvidia", HealthSignal.CHECK, {"Hostname": "n1", "gpu": "3"}, "GPU 3: a health check of DCGM fails"),
        ("amd", HealthSignal.ECC, {"hostname": "n1", "gpu_id": "3"}, "GPU 3: uncorrectable ECC errors"),
        ("amd", HealthSignal.CHECK, {"hostname": "n1", "gpu_id": "3"}, "GPU 3: a health check of AMD's exporter fails"),
        ("intel", HealthSignal.ECC, {"node": "n1", "pci_bdf": "0000:18:00.0"}, "GPU 0000:18:00.0: uncorrectable ECC errors"),
        ("amd", HealthSignal.ECC, {"Hostname": "n1", "gpu": "3"}, None),
    ],
)  # fmt: skip
def test_each_vendors_exporter_names_node_and_gpu(
    vendor: str, signal: HealthSignal, labels: dict[str, str], evidence: str | None
) -> None:
    found = queries(vendor).fault(signal, labels, 1.0, RULES)
    assert (found and (found.node, f"{found.device}: {found.text}")) == (
        evidence and ("n1", evidence)
    )


def test_a_vendor_is_asked_for_the_signals_that_its_exporter_has() -> None:
    asked = {vendor: set(queries(vendor).of(RULES)) for vendor in VENDORS_HEALTH}
    assert asked == {
        "nvidia": set(RULES.signals),
        "amd": {HealthSignal.ECC, HealthSignal.THERMAL, HealthSignal.CHECK},
        "intel": {HealthSignal.ECC},
    }
    assert set(queries().of(replace(RULES, signals=(HealthSignal.ECC,)))) == {HealthSignal.ECC}


def test_the_prefix_of_amds_exporter_is_on_each_metric() -> None:
    texts = queries("amd", "amd_").of(RULES).values()
    assert all("amd_gpu_" in text and "(gpu_" not in text for text in texts)


@pytest.mark.parametrize(
    ("condition", "evidence"),
    [
        (("KernelDeadlock", "True", "DockerHung"), "condition KernelDeadlock=True (DockerHung)"),
        (("KernelDeadlock", "False", "KernelHasNoDeadlock"), None),
        (("KernelDeadlock", "Unknown", ""), None),
        (("AcceleratedHardwareReady", "False", "Xid79"), "condition AcceleratedHardwareReady=False (Xid79)"),
        (("AcceleratedHardwareReady", "True", ""), None),
        (("FrequentKubeletRestart", "True", ""), None),
    ],
)  # fmt: skip
def test_a_condition_counts_only_with_its_bad_status(
    condition: tuple[str, str, str], evidence: str | None
) -> None:
    found = judged(nodes=fleet(record("n1", condition)))
    assert found.out == ({"n1": evidence} if evidence else {})


def test_a_fault_names_its_node_by_name_or_by_host_name() -> None:
    found = judged(xid("n1"), xid("n2.local"), xid("elsewhere"))
    assert found.out == {"n1": "GPU 3: XID 79", "n2": "GPU 3: XID 79"}


@pytest.mark.parametrize("signal", list(HealthSignal)[1:])
def test_a_signal_that_is_not_configured_does_not_count(signal: HealthSignal) -> None:
    found = GpuFault("n1", signal, "GPU 0", "a text")
    assert judged(found, rules=replace(RULES, signals=(signal,))).out == {"n1": "GPU 0: a text"}
    others = tuple(one for one in RULES.signals if one is not signal)
    assert judged(found, rules=replace(RULES, signals=others)).out == {}


def test_the_evidence_has_three_findings_at_most() -> None:
    found = judged(*(xid("n1", gpu=gpu) for gpu in range(5)))
    assert found.out["n1"].count("XID") == 3
    assert found.out["n1"].startswith("5 GPUs: GPU 0: XID 79; ")
    assert found.out["n1"].endswith(" and 2 more")
    assert found.signals[HealthSignal.XID] == 1


# ---- for how long


@pytest.mark.parametrize(
    ("later", "faults", "counts"),
    [
        (599.0, (), True),
        (601.0, (), False),
        (601.0, (xid("n1"),), True),
        (599.0, None, True),
        (601.0, None, False),
    ],
)
def test_a_fault_counts_for_ten_minutes_after_it_was_last_observed(
    later: float, faults: Iterable[GpuFault] | None, counts: bool
) -> None:
    """``None``: the source does not answer. It neither finds a fault nor ends one."""
    tracker = NodeHealthTracker()
    tracker.judge(fleet(), [xid("n1")], RULES, NOW)
    assert ("n1" in tracker.judge(fleet(), faults, RULES, NOW + later).out) is counts


def test_no_node_is_unhealthy_without_an_answer_of_the_source() -> None:
    assert NodeHealthTracker().judge(fleet(), None, RULES, NOW) == Judgment(
        {}, {}, dict.fromkeys(HealthSignal, 0)
    )


@pytest.mark.parametrize("faults", [None, ()], ids=["no answer", "the fault is no longer shown"])
@pytest.mark.parametrize(
    ("gpus", "conditions", "kept"),
    [(1, 0, True), (5, 0, True), (1, 1, True), (1, 5, True), (5, 2, True), (0, 1, False), (0, 3, False)],
)  # fmt: skip
def test_a_new_leader_keeps_nodes_with_faults_of_gpus_out_for_the_time_of_the_rule(
    gpus: int, conditions: int, kept: bool, faults: Iterable[GpuFault] | None
) -> None:
    """The condition has ended by then: it is a state, and has no time."""
    rules = replace(
        RULES, conditions=tuple((f"KernelDeadlock{n}", "True") for n in range(conditions))
    )
    failing = record("n1", *((f"KernelDeadlock{n}", "True", "") for n in range(conditions)))
    found = [xid("n1", gpu=gpu) for gpu in range(gpus)]
    out = NodeHealthTracker().judge(fleet(failing), found, rules, NOW).out
    tracker, nodes = NodeHealthTracker(out), fleet(record("n1"), record("n2"))
    for later, still in ((0.0, kept), (599.0, kept), (601.0, False)):
        judged = tracker.judge(nodes, faults, rules, NOW + later)
        assert judged.out == (out if still else {})
        assert not any(judged.signals.values())


async def test_the_watch_of_a_new_leader_begins_with_the_nodes_that_are_out() -> None:
    """While the source does not answer."""

    class Down:
        async def faults(self, *_: object) -> Iterable[GpuFault]:
            raise SourceUnavailable("Prometheus is down")

    mirror = Mirror({})
    mirror.apply([Upserted(record("n1")), Upserted(record("n2"))])
    mirror.mark_unhealthy({"n1": "GPU 3: XID 79"})  # as the standby has read it
    metrics: Any = MetricsRecorder().node_health
    down: Any = Down()
    watch = NodeHealthWatch(down, mirror, metrics, lambda: NOW, evaluation_seconds=30, timeout=1)
    for _ in range(2):
        assert mirror.mark_unhealthy((await watch.evaluate(RULES)).out) is False
        assert set(mirror.nodes.closed) == {"n1"}


def test_nodes_that_an_earlier_leader_took_out_are_the_first_within_the_limit() -> None:
    tracker = NodeHealthTracker({"n7": "GPU 3: XID 79", "deleted": "GPU 3: XID 79"})
    found = tracker.judge(fleet(), [xid("n5")], NodeHealthRules(most=0.1), NOW)
    assert (set(found.out), set(found.staying)) == ({"n7"}, {"n5"})
    found = tracker.judge(fleet(), [xid("n7", 48)], NodeHealthRules(most=0.1), NOW)
    assert found.out == {"n7": "GPU 3: XID 48"}, "its own finding replaces the earlier one"


# ---- how many, and with which effect


@pytest.mark.parametrize(
    ("most", "nodes", "limit"),
    [
        (0.29, 100, 29),
        (0.57, 100, 57),
        (0.07, 1000, 70),
        (0.2, 9, 1),
        (0.2, 10, 2),
        (1 / 3, 9, 2),
        (0.0, 10, 1),
        (1e-9, 10, 1),
        (0.5, 0, 1),
        (1.0, 7, 7),
    ],
)
def test_the_limit_is_the_exact_part_of_all_nodes(most: float, nodes: int, limit: int) -> None:
    assert NodeHealthRules(most=most).most_unhealthy(nodes) == limit


def test_no_more_nodes_than_the_limit_are_taken_out_and_the_first_stay_out() -> None:
    tracker, rules = NodeHealthTracker(), NodeHealthRules(most=0.2)
    assert set(tracker.judge(fleet(), [xid("n5")], rules, NOW).out) == {"n5"}
    found = tracker.judge(fleet(), [xid(f"n{number}") for number in range(10)], rules, NOW)
    assert set(found.out) == {"n0", "n5"}
    assert len(found.staying) == 8


def test_one_node_of_a_small_cluster_can_be_taken_out() -> None:
    assert judged(xid("n1"), nodes=fleet(record("n1")), rules=NodeHealthRules(most=0.0)).out


@pytest.mark.parametrize(
    ("mode", "out", "kept"),
    [(HealthMode.CORDON, 1, 0), (HealthMode.REPORT, 0, 1), (HealthMode.OFF, 0, 0)],
)
def test_the_mode_decides_the_effect(mode: HealthMode, out: int, kept: int) -> None:
    found = judged(xid("n1"), rules=replace(RULES, mode=mode))
    assert (len(found.out), len(found.staying)) == (out, kept)


# ---- the copy of the cluster


def test_conditions_of_other_programs_are_read_without_heartbeats() -> None:
    conditions = [
        Condition("Ready", "True", "KubeletReady", "2026-11-23T09:00:00Z"),
        Condition("KernelDeadlock", "True", "DockerHung", "2026-11-23T09:00:00Z"),
    ]
    wire = WireNode(NodeMeta("n1", resource_version="7"), None, NodeStatus(conditions=conditions))
    assert read_node(wire).conditions == (("KernelDeadlock", "True", "DockerHung"),)


def test_an_unhealthy_node_is_unschedulable_until_the_judgment_ends() -> None:
    mirror = Mirror({})
    mirror.apply([Upserted(record("n1")), Upserted(replace(record("n2"), cordoned=True))])
    assert mirror.mark_unhealthy({"n1": "GPU 3: XID 79", "n2": "GPU 0: XID 79"})
    assert not mirror.mark_unhealthy({"n1": "GPU 3: XID 79", "n2": "GPU 0: XID 79"})
    mirror.apply([Upserted(record("n1", version=2))])
    node = mirror.fleet.by_name["n1"]
    assert (node.unhealthy, node.in_service) == ("GPU 3: XID 79", False)
    assert node.recovered == record("n1").node
    assert mirror.mark_unhealthy({})
    assert mirror.fleet.by_name["n1"] == record("n1").node
    assert mirror.fleet.by_name["n2"].unschedulable


def test_a_node_whose_end_is_announced_stays_out_of_placement_alongside_unhealthy_ones() -> None:
    mirror = Mirror({})
    mirror.apply([Upserted(record("n1")), Upserted(record("n2"))])
    assert mirror.mark_unhealthy({"n1": "GPU 3: XID 79"})
    assert mirror.mark_interrupted({"n2": "condition VMEventScheduled=True"}, {})
    assert not mirror.mark_unhealthy({"n1": "GPU 3: XID 79"})
    assert set(mirror.nodes.closed) == {"n1", "n2"}
    assert mirror.mark_unhealthy({})
    assert [node.in_service for node in mirror.fleet.nodes] == [True, False]


def test_the_announcement_of_an_end_by_a_taint_changes_what_is_planned_once() -> None:
    mirror = Mirror({})
    mirror.apply([Upserted(record("n1"))])
    assert mirror.mark_interrupted({}, {"n1": "taint"})
    assert not mirror.mark_interrupted({}, {"n1": "taint"})
    assert mirror.mark_interrupted({}, {})


def test_a_heartbeat_shows_no_new_condition() -> None:
    mirror = Mirror({})
    condition, other = ("Fault", "True", ""), ("Fault", "False", "")
    for version, shown, seen in [(1, condition, 1), (2, condition, 1), (3, other, 2)]:
        mirror.apply([Upserted(record("n1", shown, version=version))])
        assert mirror.nodes.conditions_seen == seen


# ---- evictions


@pytest.mark.parametrize(
    ("policy", "unhealthy", "evicted"),
    [
        (UnhealthyNodes.STAY, "n1", False),
        (UnhealthyNodes.DRAIN, "n1", True),
        (UnhealthyNodes.DRAIN, "n9", False),
    ],
)
def test_a_queue_can_drain_unhealthy_nodes_with_notice(
    policy: UnhealthyNodes, unhealthy: str, evicted: bool
) -> None:
    world = World(RUNNING, records=[RESUMED, on("p1", "n1"), on("p2", "n2")])
    world.mirror.mark_unhealthy({unhealthy: "GPU 3: XID 79"})
    config = QueueConfig(
        cluster_queues={"cq": ClusterQueue("cq", unhealthy_nodes=policy)},
        rules=Rules(eviction_grace=30.0),
    )
    changes = requeued(world.mirror, world.ledger, config, NOW, ())
    assert bool(changes) is evicted
    assert requeued(world.mirror, world.ledger, config, NOW, {RUNNING.uid}) == []
    for change in changes:
        assert change.after.state is State.EVICTING
        assert change.after.reason.code is Code.NODE_UNHEALTHY
        assert "n1: GPU 3: XID 79" in change.after.reason.message
        assert change.after.stop_at == NOW + 30.0


@pytest.mark.parametrize("nodes", [(("n1", 1), ("n2", 1)), ()], ids=["nodes", "quota only"])
def test_an_unhealthy_node_lets_no_pods_of_other_nodes_be_read(
    monkeypatch: pytest.MonkeyPatch, nodes: tuple[tuple[str, int], ...]
) -> None:
    """It is unhealthy for hours, and each cycle asks."""
    entry = replace(RUNNING, placement=Placement((PodSetPlacement("main", nodes),)))
    world = World(entry, records=[RESUMED, on("p1", "n1"), on("p2", "n2")])
    world.mirror.mark_unhealthy({"n3": "GPU 3: XID 79"})
    config = QueueConfig(
        cluster_queues={"cq": ClusterQueue("cq", unhealthy_nodes=UnhealthyNodes.DRAIN)}
    )
    read: list[JobOwner] = []

    def pods_of(owner: JobOwner) -> Iterable[PodRecord]:
        read.append(owner)
        return ()

    monkeypatch.setattr(world.mirror, "pods_of", pods_of)
    assert requeued(world.mirror, world.ledger, config, NOW, ()) == []
    assert not read


def test_a_gang_that_changes_for_another_reason_keeps_no_other_gang_on_a_failing_node() -> None:
    busy, other = RUNNING, replace(RUNNING, uid="u2")
    world = World(busy, other, records=[RESUMED, replace(RESUMED, uid="u2", name="other")])
    world.mirror.mark_unhealthy({"n1": "GPU 3: XID 79"})
    config = QueueConfig(
        cluster_queues={"cq": ClusterQueue("cq", unhealthy_nodes=UnhealthyNodes.DRAIN)}
    )
    changes = requeued(world.mirror, world.ledger, config, NOW, {busy.uid})
    assert [change.after.uid for change in changes] == [other.uid]


@pytest.mark.parametrize(
    ("policy", "expected"), [(UnhealthyNodes.STAY, {"n2"}), (UnhealthyNodes.DRAIN, {"n1", "n2"})]
)
@pytest.mark.parametrize("entry", [ENTRY, RUNNING], ids=["pending", "running"])
def test_no_pod_is_placed_on_a_node_from_which_its_gang_would_be_evicted_again(
    policy: UnhealthyNodes, expected: set[str], entry: Entry
) -> None:
    """Failing nodes where its queue drains them, and nodes that are taken away; including those that it tolerates, and only while they last."""
    world = World(entry, replace(entry, uid="u2", excluded=("n3",)))
    job = JOB if entry is ENTRY else RESUMED
    world.see(job, replace(job, uid="u2"))
    config = replace(
        CONFIG, cluster_queues={"cq": replace(CONFIG.cluster_queues["cq"], unhealthy_nodes=policy)}
    )

    def excluded() -> list[set[str]]:
        snapshot = world.snapshot_builder.freeze(config, NOW, SolverLimits())
        gangs: list[Pending | Admitted] = [*snapshot.pending, *snapshot.admitted]
        return [set(gang.excluded) for gang in gangs]

    assert excluded() == [set(), {"n3"}]
    world.mirror.mark_unhealthy({"n1": "GPU 3: XID 79"})
    world.mirror.mark_interrupted({}, {"n2": "taint"})
    assert excluded() == [expected, {*expected, "n3"}]
    world.mirror.mark_unhealthy({})
    world.mirror.mark_interrupted({}, {})
    assert excluded() == [set(), {"n3"}]
