"""The mirror, its counts, and the events that are derived from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from queuectl.domain.accounting import Accounting
from queuectl.domain.admission import RuntimeClass
from queuectl.domain.checks import (
    EXTERNAL,
    AdmissionCheck,
    CheckRule,
    Checks,
    CheckState,
    CheckStatus,
    PodSetUpdate,
)
from queuectl.domain.devices import DeviceClass
from queuectl.domain.fleet import HOSTNAME, Effect, Node, NodeRules, Taint, Toleration
from queuectl.domain.gpus import GpuWeights
from queuectl.domain.jobs import ArrayIndex, JobOutcome, JobRecord, PodPhase, PodRecord
from queuectl.domain.ledger import Entry, EntryChange, Intent, Purpose, State
from queuectl.domain.provisioning import ProvisioningRecord
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queries import NamespaceSum, UnmanagedPod, summed
from queuectl.domain.queues import (
    ClusterQueue,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    StopPolicy,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import (
    Deleted,
    Delta,
    DeviceClassRecord,
    ListCompleted,
    NamespaceRecord,
    NodeRecord,
    PriorityClassRecord,
    RuntimeClassRecord,
    Unreadable,
    Upserted,
)
from queuectl.domain.rules import PodsReadyRules, Rules
from queuectl.domain.snapshot import CapacityLease, Snapshot, SolverLimits
from queuectl.domain.workload import (
    DecidedRequest,
    FlavorShare,
    Placement,
    PodSet,
    PodSetPlacement,
    PodShape,
)
from queuectl.lifecycle import observations
from queuectl.lifecycle.observations import Observations, Observer
from queuectl.lifecycle.outstanding_writes import outstanding_writes, planned_of, request_digest
from queuectl.lifecycle.transitions import Timers, alarm_of
from queuectl.state.arrays import RETURN_SECONDS
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.holding_gangs import closed_slots
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage, SentPin, SentPins
from tests.support.work import lines_run

SHAPE = PodShape(Resources({"nvidia.com/gpu": 8, "pods": 1}))
LARGER = PodShape(SHAPE.requests * 2)
JOB = JobRecord("Job", "a", "train", "u1", 7, 1.0, "q", podsets=(PodSet("main", 2, SHAPE),))
PLACEMENT = Placement((PodSetPlacement("main", (("n1", 1), ("n2", 1))),))
CONFIG = QueueConfig(
    revision=3,
    cluster_queues={"cq": ClusterQueue("cq", namespace_selector=LabelSelector())},
    local_queues={("a", "q"): LocalQueue("a", "q", "cq")},
    priority_classes={"high": 100},
    rules=Rules(
        pods_ready=PodsReadyRules(timeout=100.0, recovery_timeout=50.0, backoff_jitter=0.0)
    ),
)
ENTRY = Entry(
    "u1", "Job", "a", "train", State.PENDING, queue="q", cluster_queue="cq", gpus=16, pods=2
)
LIVE = replace(
    ENTRY,
    state=State.STARTING,
    attempt=1,
    started_at=10.0,
    placement=PLACEMENT,
    intent=Intent.START,
)
EVICTED = replace(LIVE, state=State.EVICTING, intent=Intent.STOP)


def held_for_checks(*statuses: CheckStatus, request: str = request_digest(JOB)) -> Entry:
    lease = CapacityLease(PLACEMENT, (), 0.0, expires_at=math.inf)
    checks = Checks(statuses, round=1, request=request)
    return replace(ENTRY, state=State.RESERVED, lease=lease, checks=checks)


RESUMED = replace(JOB, version=8, suspended=False, attempt=1)
GONE = replace(RESUMED, version=9, suspended=True, drained=True)


def pod(name: str, **changes: Any) -> PodRecord:
    base = PodRecord("a", name, name, 5, SHAPE.requests, "u1", owner_kind="Job")
    return replace(base, **{"attempt": 1, "podset": "main", "gated": True, **changes})


def on(name: str, node: str, **changes: Any) -> PodRecord:
    return pod(name, gated=False, node=node, phase=PodPhase.RUNNING, **changes)


class World:
    """A mirror and a ledger put together as the loop does."""

    def __init__(self, *entries: Entry, records: Iterable[Any] = ()) -> None:
        self.mirror = Mirror({"jobs": "Job", "pytorchjobs": "PyTorchJob"})
        self.ledger = Ledger(entries)
        self.usage = OtherPodUsage(self.mirror, self.ledger)
        self.snapshot_builder = SnapshotBuilder(self.mirror, self.ledger, self.usage)
        nodes = [NodeRecord(Node(n, {HOSTNAME: n}, SHAPE.requests), 1) for n in ("n1", "n2", "n3")]
        self.see(*nodes, NamespaceRecord("a", 1), *records)

    def see(self, *records: Any) -> None:
        self.mirror.apply([Upserted(record) for record in records])

    def look(self, now: float = 20.0, config: QueueConfig = CONFIG) -> Observations:
        observer = Observer(self.mirror, self.ledger, self.usage, 30.0)
        self.mirror.touched |= {*self.mirror.jobs, *(e.uid for e in self.ledger)}
        seen = observer.observe(config, now)
        self.ledger.apply(seen.changes)
        self.usage.refresh_owned([c.after for c in seen.changes])
        return seen

    def freeze(self, now: float = 20.0, config: QueueConfig = CONFIG) -> Snapshot:
        """The snapshot. The use of nodes and devices is that of a new count, although only marked pods are counted again."""
        self.usage.refresh_moved(self.mirror.moved_pods)
        fresh = OtherPodUsage(self.mirror, self.ledger)
        fresh.refresh_all()
        inventory = self.mirror.devices.inventory(self.mirror.fleet)
        assert self.usage.other_pods == fresh.other_pods
        assert self.usage.devices.by_node(inventory) == fresh.devices.by_node(inventory)
        return SnapshotBuilder(self.mirror, self.ledger, self.usage).freeze(
            config, now, SolverLimits()
        )


def saved(world: World) -> float | None:
    """When the gang last saved its work, as plans have it."""
    (gang,) = world.snapshot_builder.freeze(CONFIG, 20.0, SolverLimits()).admitted
    return gang.checkpoint_at


class TestCheckpoints:
    """Declared by the job or by its pods: plans and the usage ledger go by the same time."""

    @pytest.fixture
    def world(self) -> World:
        return World(LIVE, records=[RESUMED, on("p1", "n1"), on("p2", "n2")])

    def test_of_several_pods_the_one_that_is_behind_counts(self, world: World) -> None:
        assert saved(world) is None
        world.see(on("p1", "n1", version=6, checkpoint_at=15.0))
        assert saved(world) == 15.0
        world.see(on("p2", "n2", version=6, checkpoint_at=12.0))
        assert saved(world) == 12.0
        world.see(on("p2", "n2", version=7, checkpoint_at=18.0))
        assert saved(world) == 15.0

    def test_the_job_may_know_better(self, world: World) -> None:
        world.see(on("p1", "n1", version=6, checkpoint_at=15.0))
        world.see(replace(RESUMED, version=9, checkpoint_at=16.0))
        assert saved(world) == 16.0
        world.see(replace(RESUMED, version=10, checkpoint_at=14.0))
        assert saved(world) == 15.0

    def test_pods_of_an_earlier_attempt_say_nothing(self, world: World) -> None:
        world.see(on("old", "n3", attempt=0, checkpoint_at=5.0))
        assert saved(world) is None

    def test_a_pod_that_removes_its_checkpoint_or_is_deleted_no_longer_has_a_checkpoint(
        self, world: World
    ) -> None:
        world.see(on("p1", "n1", version=6, checkpoint_at=15.0))
        world.see(on("p1", "n1", version=7))
        assert saved(world) is None
        world.see(on("p2", "n2", version=6, checkpoint_at=15.0))
        world.mirror.apply([Deleted("pods", "p2", 9)])
        assert saved(world) is None


class TestMirror:
    def test_an_older_version_never_wins(self) -> None:
        world = World(records=[replace(JOB, version=9), replace(JOB, version=8, attempt=5)])
        assert world.mirror.jobs["u1"].attempt == 0

    def test_a_relist_removes_what_it_does_not_name(self) -> None:
        world = World(records=[JOB, on("p1", "n1"), replace(JOB, uid="u2", kind="PyTorchJob")])
        gone: list[Delta] = [
            ListCompleted("jobs", frozenset(), 50),
            ListCompleted("pods", frozenset(), 50),
        ]
        world.mirror.apply(gone)
        assert set(world.mirror.jobs) == {"u2"}
        assert list(world.mirror.pods_of(JOB)) == []

    def test_a_heartbeat_of_a_node_does_not_make_a_new_fleet(self) -> None:
        world = World()
        before = world.mirror.fleet
        world.see(NodeRecord(before.nodes[0], 99))
        assert world.mirror.fleet is before
        world.see(NodeRecord(replace(before.nodes[0], ready=False), 100))
        assert world.mirror.fleet is not before

    @pytest.mark.parametrize(
        ("old", "new", "planned"),
        [
            (NamespaceRecord("x", 1), NamespaceRecord("x", 1), False),
            (NamespaceRecord("x", 1), NamespaceRecord("x", 2), False),
            (NamespaceRecord("x", 1), NamespaceRecord("x", 2, deleting=True), True),
            (NamespaceRecord("x", 2, deleting=True), NamespaceRecord("x", 1), False),
            (PriorityClassRecord("x", 1, 5), PriorityClassRecord("x", 2, 5), False),
            (PriorityClassRecord("x", 1, 5), PriorityClassRecord("x", 2, 6), True),
        ],
    )
    def test_only_a_change_of_what_it_states_makes_a_plan_due(
        self, old: Any, new: Any, planned: bool
    ) -> None:
        world = World(records=[old])
        world.mirror.planning_changed = False
        world.see(new)
        assert world.mirror.planning_changed is planned
        kept: Any = {**world.mirror.namespaces, **world.mirror.priority_classes}["x"]
        assert kept.version == max(old.version, new.version)

    def test_another_version_of_a_namespace_leaves_its_gangs_in_the_snapshot(self) -> None:
        world = World(ENTRY, records=[NamespaceRecord("a", 8), JOB])
        before = world.snapshot_builder.freeze(CONFIG, 20.0, SolverLimits())
        world.see(NamespaceRecord("a", 9))
        after = world.snapshot_builder.freeze(CONFIG, 20.0, SolverLimits())
        assert after.pending[0] is before.pending[0]

    def test_an_older_runtime_class_replaces_no_newer_one(self) -> None:
        newer = RuntimeClassRecord("x", 7, RuntimeClass("x", selector=(("pool", "a"),)))
        world = World(records=[newer, RuntimeClassRecord("x", 6, RuntimeClass("x"))])
        assert world.mirror.admission.runtime_classes == {"x": newer.content}

    @pytest.mark.parametrize(
        ("resource", "key", "record"),
        [
            ("nodes", "x", NodeRecord(Node("x"), 1)),
            ("namespaces", "x", NamespaceRecord("x", 1)),
            ("priorityclasses", "x", PriorityClassRecord("x", 1, 5)),
        ],
    )
    def test_deletions_are_seen(self, resource: str, key: str, record: Any) -> None:
        world = World(records=[record])
        world.mirror.apply([Deleted(resource, key, 2)])
        left = {**world.mirror.nodes, **world.mirror.namespaces, **world.mirror.priority_classes}
        assert key not in left


class TestUsage:
    @pytest.mark.parametrize(
        ("entry", "seen", "other_pods"),
        [
            pytest.param(LIVE, on("p", "n1"), {}, id="a pod in its slot is counted by the slot"),
            pytest.param(LIVE, on("p", "n3"), {"n3"}, id="alongside its slots it is another pod"),
            pytest.param(LIVE, on("p", "n1", attempt=7), {"n1"}, id="so is one of another attempt"),
            pytest.param(ENTRY, on("p", "n1"), {"n1"}, id="and one of a waiting gang"),
            pytest.param(EVICTED, on("p", "n1"), set(), id="one of an evicted gang is counted by its slot"),
            pytest.param(EVICTED, on("p", "n1", podset=""), {"n1"}, id="but not if it is in no podset of its placement"),
            pytest.param(
                replace(EVICTED, placement=None), on("p", "n1"), {"n1"}, id="nor if queuectl never placed its gang"
            ),
            pytest.param(None, on("p", "n1", owner=""), {"n1"}, id="and a bare pod"),
            pytest.param(None, pod("p", owner=""), set(), id="a gated pod uses nothing"),
            pytest.param(
                None, pod("p", gated=False, pin="n2"), {"n2"}, id="a pinned one of a start does before it is bound"
            ),
            pytest.param(
                None, pod("p", gated=False, host="n2"), {"n2"}, id="so does one with the hostname of a node"
            ),
            pytest.param(
                None, pod("p", owner="", attempt=0, gated=False, pin="n2"), set(), id="one that a user pinned does not: it may never fit"
            ),
            pytest.param(
                None, pod("p", owner="", attempt=0, gated=False, host="n2"), set(), id="nor does one that selects a hostname"
            ),
            pytest.param(
                None, on("p", "n1", owner="", terminating=True), {"n1"}, id="a terminating one still does"
            ),
            pytest.param(
                None, pod("p", gated=False, node="n1", phase=PodPhase.SUCCEEDED), set(), id="a finished one does not"
            ),
        ],
    )  # fmt: skip
    def test_a_pod_counts_once(
        self, entry: Entry | None, seen: PodRecord, other_pods: set[str]
    ) -> None:
        world = World(*([entry] if entry else []), records=[RESUMED, seen])
        assert set(world.freeze().other_pods) == set(other_pods)

    @pytest.mark.parametrize(
        ("pins", "node"),
        [({"pin": "n2"}, "n2"), ({"host": "n2"}, "n1"), ({"host": "n1.local"}, "n2")],
    )
    def test_a_node_can_have_the_name_of_another_one_as_its_hostname(
        self, pins: dict[str, str], node: str
    ) -> None:
        nodes = (Node("n1", {HOSTNAME: "n2"}), Node("n2", {HOSTNAME: "n1.local"}))
        records = [NodeRecord(one, 2) for one in nodes]
        world = World(records=[*records, pod("p", gated=False, **pins)])
        assert set(world.freeze().other_pods) == {node}

    def test_a_pod_counts_on_the_node_that_it_selects_when_that_node_appears(self) -> None:
        world = World(records=[pod("p", gated=False, host="n9")])
        world.look()
        assert set(world.usage.other_pods) == {"n9"}
        world.see(NodeRecord(Node("n9.example.com", {HOSTNAME: "n9"}), 2))
        assert world.look().plan_again
        assert set(world.usage.other_pods) == {"n9.example.com"}

    @pytest.mark.parametrize(
        ("then", "nodes"),
        [
            pytest.param(None, {"n3"}, id="while nothing is known of it"),
            pytest.param(pod("p", owner=""), {"n3"}, id="if the same version is read again"),
            pytest.param(pod("p", owner="", version=6), set(), id="not once the pod has changed"),
            pytest.param(on("p", "n2", owner="", version=6), {"n2"}, id="nor where it is bound"),
            pytest.param(Deleted("pods", "p", 9), set(), id="nor after its deletion"),
        ],
    )  # fmt: skip
    def test_a_gated_pod_counts_on_the_node_of_a_pin_that_was_sent(
        self, then: PodRecord | Deleted | None, nodes: set[str]
    ) -> None:
        world, pins = World(records=[pod("p", owner="")]), SentPins()
        usage = OtherPodUsage(world.mirror, world.ledger, pins)
        pin = SentPin("n3", world.mirror.pods["p"].version, 1)
        pins.sending("p", pin)
        if isinstance(then, Deleted):
            world.mirror.apply([then])
        elif then is not None:
            world.see(then)
        usage.refresh_all()
        assert set(usage.other_pods) == nodes
        assert pins.ended("p", pin, unknown=False) is ("n3" in nodes)
        usage.refresh_all()
        assert set(usage.other_pods) == nodes - {"n3"}

    def test_a_pin_of_unknown_outcome_counts_after_the_pod_has_its_first_slot_again(self) -> None:
        world, pins = World(records=[pod("p", owner="")]), SentPins()
        usage = OtherPodUsage(world.mirror, world.ledger, pins)
        for node in ("n1", "n3", "n1"):
            pin = SentPin(node, world.mirror.pods["p"].version, 1)
            pins.sending("p", pin)
            pins.ended("p", pin, unknown=True)
        usage.refresh_all()
        assert set(usage.other_pods) == {"n3"}

    @pytest.mark.parametrize("later", ["n3", "n4"], ids=["the same pin", "a pin to another node"])
    def test_a_pin_of_unknown_outcome_counts_whatever_becomes_of_a_later_one(
        self, later: str
    ) -> None:
        world, pins = World(records=[pod("p", owner="")]), SentPins()
        usage = OtherPodUsage(world.mirror, world.ledger, pins)
        first, second = (SentPin(node, world.mirror.pods["p"].version, 1) for node in ("n3", later))
        pins.sending("p", first)
        assert not pins.ended("p", first, unknown=True)
        pins.sending("p", second)
        usage.refresh_all()
        assert set(usage.other_pods) == {"n3"}
        assert pins.ended("p", second, unknown=False) is (first != second)
        usage.refresh_all()
        assert set(usage.other_pods) == {"n3"}
        world.see(pod("p", owner="", version=6))
        usage.refresh_all()
        assert (usage.other_pods, list(pins.pods)) == ({}, [])

    def test_a_pod_without_an_attempt_fills_its_slot_once_its_pin_was_sent(self) -> None:
        """The pin itself labels the pods of a group with their attempt."""
        world, pins = World(LIVE, records=[RESUMED, pod("p1", attempt=0)]), SentPins()
        usage = OtherPodUsage(world.mirror, world.ledger, pins)
        pins.sending("p1", SentPin("n1", world.mirror.pods["p1"].version, LIVE.attempt))
        usage.refresh_all()
        assert usage.other_pods == {}

    @pytest.mark.parametrize("then", [on("p", "n3", version=6), Deleted("pods", "p", 9)], ids=str)
    def test_a_pin_is_forgotten_when_its_pod_starts_or_is_deleted(
        self, then: PodRecord | Deleted
    ) -> None:
        world, pins = World(records=[pod("p")]), SentPins()
        usage = OtherPodUsage(world.mirror, world.ledger, pins)
        pins.sending("p", SentPin("n3", world.mirror.pods["p"].version, 1))
        world.mirror.apply([Upserted(then) if isinstance(then, PodRecord) else then])
        usage.refresh_all()
        assert list(pins.pods) == []

    def test_a_node_that_comes_or_goes_counts_only_the_pods_again_that_select_hostnames(
        self,
    ) -> None:
        world = World(records=[on(f"p{n}", f"n{n}") for n in range(500)])
        world.see(pod("q", owner="", gated=False, host="n9"))
        world.usage.refresh_all()

        def work() -> int:
            return lines_run(lambda: world.usage.refresh_moved(()))

        few = work()
        world.see(NodeRecord(Node("n9.example.com", {HOSTNAME: "n9"}), 2))
        assert work() < few + 500
        assert "n9.example.com" in world.usage.other_pods

    def test_a_slot_is_filled_by_one_pod(self) -> None:
        """Pods of the gang beyond its slots on a node use more than what was planned there."""
        seen = [RESUMED, on("p1", "n1"), on("p2", "n1"), on("p3", "n1")]
        world = World(LIVE, records=seen)
        assert world.freeze().other_pods == {"n1": SHAPE.requests * 2}
        world.see(on("p1", "n1", version=6, terminating=True))
        assert world.freeze().other_pods == {"n1": SHAPE.requests * 2}
        world.mirror.apply([Deleted("pods", "p1", 9)])
        world.usage.refresh(["p1"])
        assert world.freeze().other_pods == {"n1": SHAPE.requests}
        world.mirror.apply([Deleted("pods", "p3", 9)])
        world.usage.refresh(["p3"])
        assert world.usage.other_pods == {}

    def test_pods_of_daemon_sets_are_counted_apart_too(self) -> None:
        agent = on("agent", "n1", owner="d", owner_kind="DaemonSet")
        world = World(records=[agent, on("other", "n1", owner="")])
        assert world.freeze().other_pods == {"n1": SHAPE.requests * 2}
        assert world.freeze().of_daemons == {"n1": SHAPE.requests}
        world.see(replace(agent, node="n2", version=6))
        assert world.freeze().of_daemons == {"n2": SHAPE.requests}
        world.mirror.apply([Deleted("pods", "agent", 9)])
        world.usage.refresh(["agent"])
        assert (world.usage.of_daemons, set(world.usage.other_pods)) == ({}, {"n1"})

    @pytest.mark.parametrize("forged", [{"namespace": "b"}, {"owner_kind": "PyTorchJob"}], ids=str)
    def test_a_pod_that_only_names_the_uid_of_a_job_fills_no_slot(
        self, forged: dict[str, str]
    ) -> None:
        """The creator of a pod writes its owner reference; an owner is always in the namespace of the objects that it owns."""
        claims = on("evil", "n1", **forged, requests=SHAPE.requests * 2, checkpoint_at=15.0)
        world = World(RUNNING, records=[RESUMED, *READY, claims])
        assert world.freeze().other_pods == {"n1": claims.requests}
        assert world.look().changes == [], "the gang is not evicted for pods larger than asked"
        assert saved(world) is None
        evicting = World(replace(NOTIFIED, stop_at=None), records=[GONE, claims])
        assert evicting.freeze().other_pods == {"n1": claims.requests}
        (drained,) = evicting.look().changes
        assert drained.after.state is State.PENDING, "it does not wait for that pod to go"

    def test_pods_of_no_job_in_a_queue_that_hold_gpus_are_listed(self) -> None:
        gpus = Resources({GPU: 4})
        seen = [
            on("p1", "n1", requests=gpus),
            on("old", "n1", requests=gpus, attempt=0),
            on("bare", "n1", owner="", requests=gpus, started_at=12.0),
            on("claims", "n2", namespace="b", requests=gpus),
            pod("unbound", gated=False, owner="", requests=gpus),
            pod("done", gated=False, node="n2", owner="", requests=gpus, phase=PodPhase.SUCCEEDED),
            on("plain", "n2", namespace="c", owner="", requests=Resources({"cpu": 1})),
        ]
        world = World(LIVE, records=[RESUMED, *seen])
        world.freeze()
        assert world.usage.unmanaged(QueueConfig()) == (
            UnmanagedPod("a", "bare", "n1", Fraction(4), 12.0),
            UnmanagedPod("b", "claims", "n2", Fraction(4), None),
        )
        weights = GpuWeights(((GPU, Fraction(1, 2)),))
        halves = world.usage.unmanaged(
            QueueConfig(rules=Rules(accounting=Accounting(gpus=weights)))
        )
        assert summed(halves) == (
            NamespaceSum("a", 1, Fraction(2)),
            NamespaceSum("b", 1, Fraction(2)),
        )
        world.mirror.apply([Deleted("pods", "bare", 9)])
        world.usage.refresh(["bare"])
        assert [held.name for held in world.usage.unmanaged(QueueConfig())] == ["claims"]

    def test_sevenths_of_a_gpu_sum_to_a_whole_one(self) -> None:
        parts = [UnmanagedPod("a", f"p{n}", "n1", Fraction(1, 7), None) for n in range(7)]
        assert summed(parts) == (NamespaceSum("a", 7, Fraction(1)),)

    def test_what_left_is_given_back(self) -> None:
        world = World(records=[on("p", "n1", owner="")])
        world.freeze()
        world.mirror.apply([Deleted("pods", "p", 9)])
        world.usage.refresh(["p"])
        assert world.usage.other_pods == {}

    def test_names_of_nodes_that_no_longer_exist_do_not_accumulate(self) -> None:
        """Pods of a DaemonSet run on each node."""
        world = World()
        for number in range(100):
            name = f"node-{number}"
            daemon = replace(on(name, name, owner="daemons"), owner_kind="DaemonSet")
            world.see(daemon)
            world.usage.refresh([name])
            assert set(world.usage.of_daemons) == set(world.usage.other_pods) == {name}
            world.mirror.apply([Deleted("pods", name, 9)])
            world.usage.refresh([name])
        assert (world.usage._other_pods, world.usage._of_daemons) == ({}, {})

    def test_uids_of_deleted_jobs_do_not_accumulate(self) -> None:
        world = World()
        for number in range(100):
            uid = f"job-{number}"
            world.see(replace(RESUMED, uid=uid, name=uid))
            world.mirror.apply([Deleted("jobs", uid, 9)])
        assert world.mirror._found_running == set()


RUNNING = replace(
    LIVE, state=State.RUNNING, ready_at=15.0, intent=None, reason=Reason(Code.PODS_READY)
)
READY = [on("p1", "n1", ready=True), on("p2", "n2", ready=True)]
NOTIFIED = replace(
    RUNNING,
    state=State.EVICTING,
    intent=Intent.STOP,
    stop_at=100.0,
    reason=Reason(Code.PREEMPTED),
)
GATED = replace(
    ENTRY, state=State.HELD, gates=("a", "b"), reason=Reason(Code.ADMISSION_GATED, "a, b")
)
BY_ALICE = Reason(Code.HELD, "held by alice")
HELD = replace(ENTRY, state=State.HELD, parked=BY_ALICE, reason=BY_ALICE)
JOB_DRAINED = replace(JOB, drained=True)


# (what, entry, job, pods, time, state it leads to, reason)
LOOKS: list[tuple[str, Entry, JobRecord | None, list[PodRecord], float, State, Code]] = [
    ("ready pods", LIVE, RESUMED, [on("p1", "n1", ready=True), on("p2", "n2", ready=True)], 20, State.RUNNING, Code.PODS_READY),
    ("a pod that already succeeded counts as ready", LIVE, RESUMED,
     [on("p1", "n1", ready=True), pod("p2", gated=False, node="n2", phase=PodPhase.SUCCEEDED)], 20, State.RUNNING, Code.PODS_READY),
    ("pods that have succeeded and were replaced do not count as ready", LIVE, RESUMED,
     [*(pod(f"p{n}", gated=False, node=f"n{n}", phase=PodPhase.SUCCEEDED) for n in (1, 2)), on("p3", "n1"), on("p4", "n2", ready=True)],
     20, State.STARTING, Code.QUEUED),
    ("pods of a podset that had succeeded before this start", RUNNING,
     replace(RESUMED, podsets=(*RESUMED.podsets, PodSet("first", 1, SHAPE))), [*READY, pod("again", podset="first")], 20,
     State.EVICTING, Code.CHANGED_OUTSIDE),
    ("half a gang is not ready", LIVE, RESUMED, [on("p1", "n1", ready=True)], 20, State.STARTING, Code.QUEUED),
    ("readiness of an older attempt does not count", LIVE, RESUMED,
     [on("p1", "n1", ready=True, attempt=9), on("p2", "n2", ready=True)], 20, State.STARTING, Code.QUEUED),
    ("a start that takes too long", LIVE, RESUMED, [on("p1", "n1")], 110, State.EVICTING, Code.PODS_READY_TIMEOUT),
    ("one that became ready between two checks", LIVE, RESUMED, READY, 110, State.RUNNING, Code.PODS_READY),
    ("pods larger than their template", LIVE, RESUMED, [pod("p1", requests=SHAPE.requests * 2)], 20,
     State.EVICTING, Code.PODS_LARGER_THAN_ASKED),
    ("a running pod with its overhead counted twice", RUNNING, RESUMED,
     [on("p1", "n1", ready=True, requests=LARGER.requests, overhead=SHAPE.requests), READY[1]], 20, State.RUNNING, Code.PODS_READY),
    ("a running pod that also was resized", RUNNING, RESUMED,
     [on("p1", "n1", ready=True, requests=SHAPE.requests * 3, overhead=SHAPE.requests), READY[1]], 20,
     State.EVICTING, Code.PODS_LARGER_THAN_ASKED),
    ("a larger pod of an earlier attempt stops no gang", RUNNING, RESUMED,
     [*READY, pod("old", attempt=0, requests=LARGER.requests)], 20, State.RUNNING, Code.PODS_READY),
    ("pods larger than was planned, though their template is as large by now",
     replace(LIVE, planned=DecidedRequest({"main": SHAPE.requests}, "")), replace(RESUMED, podsets=(PodSet("main", 2, LARGER),)),
     [pod("p1", requests=LARGER.requests)], 20, State.EVICTING, Code.PODS_LARGER_THAN_ASKED),
    ("a template that grew before the start", replace(LIVE, planned=planned_of(JOB)),
     replace(JOB, podsets=(PodSet("main", 2, LARGER),)), [], 20, State.EVICTING, Code.CHANGED_OUTSIDE),
    ("nothing that was planned for changed", replace(LIVE, planned=planned_of(JOB)),
     replace(JOB, version=9, status="x", utilization=0.5), [], 20, State.STARTING, Code.QUEUED),
    ("a gang resized while it ran", LIVE, replace(RESUMED, podsets=(PodSet("main", 3, SHAPE),)), [], 20,
     State.EVICTING, Code.CHANGED_OUTSIDE),
    ("a pending job that a user resumed", ENTRY, replace(JOB, suspended=False), [], 20, State.EVICTING, Code.RESUMED_OUTSIDE),
    ("a running job that a user suspended", replace(LIVE, intent=None), replace(RESUMED, suspended=True), [], 20,
     State.EVICTING, Code.SUSPENDED_OUTSIDE),
    ("an evicted gang with a pod left", replace(LIVE, state=State.EVICTING, intent=Intent.STOP), GONE,
     [on("p1", "n1", terminating=True)], 20, State.EVICTING, Code.QUEUED),
    ("an evicted gang without", replace(LIVE, state=State.EVICTING, intent=Intent.STOP), GONE,
     [pod("p1", gated=False, node="n1", phase=PodPhase.FAILED)], 20, State.PENDING, Code.QUEUED),
    ("a suspension its controller has not confirmed", replace(LIVE, state=State.EVICTING, intent=Intent.STOP),
     replace(GONE, drained=False), [], 599, State.EVICTING, Code.QUEUED),
    ("nor in ten minutes: the controller may not exist", replace(LIVE, state=State.EVICTING, intent=Intent.STOP),
     replace(GONE, drained=False), [], 600, State.PENDING, Code.QUEUED),
    ("but a pod is left", replace(LIVE, state=State.EVICTING, intent=Intent.STOP),
     replace(GONE, drained=False), [on("p1", "n1", terminating=True)], 600, State.EVICTING, Code.QUEUED),
    ("a withdrawn start whose write has not landed", replace(LIVE, state=State.EVICTING, intent=Intent.STOP),
     replace(GONE, attempt=0), [], 600, State.EVICTING, Code.QUEUED),
    ("a gang that lost a pod is given time", RUNNING, RESUMED, READY[:1], 50, State.RUNNING, Code.WAIT_FOR_RECOVERY),
    ("and is evicted when it is not whole again in time", replace(RUNNING, unready_since=20.0), RESUMED, READY[:1], 70,
     State.EVICTING, Code.PODS_READY_TIMEOUT),
    ("whole again it runs on", replace(RUNNING, unready_since=20.0), RESUMED, READY, 70, State.RUNNING, Code.PODS_READY),
    ("longer than it may run", RUNNING, replace(RESUMED, max_execution=60.0), READY, 70, State.EVICTING,
     Code.MAX_EXECUTION_TIME),
    ("not yet as long", RUNNING, replace(RESUMED, max_execution=60.0), READY, 69, State.RUNNING, Code.PODS_READY),
    ("earlier attempts count", replace(RUNNING, past_seconds=1.0), replace(RESUMED, max_execution=60.0), READY, 69,
     State.EVICTING, Code.MAX_EXECUTION_TIME),
    ("a start counts too", replace(LIVE, intent=None), replace(RESUMED, max_execution=60.0), [], 70, State.EVICTING,
     Code.MAX_EXECUTION_TIME),
    ("under notice until its time", NOTIFIED, RESUMED, READY, 99, State.EVICTING, Code.PREEMPTED),
    ("gated and still gated", GATED, replace(JOB, gates=("a", "b")), [], 20, State.HELD, Code.ADMISSION_GATED),
    ("one gate is removed", GATED, replace(JOB, gates=("b",)), [], 20, State.HELD, Code.ADMISSION_GATED),
    ("all gates are removed", GATED, JOB, [], 20, State.PENDING, Code.QUEUED),
    ("a gate that comes late does not count", ENTRY, replace(JOB, gates=("late",)), [], 20, State.PENDING, Code.QUEUED),
    ("nor alongside one that was there", GATED, replace(JOB, gates=("late",)), [], 20, State.PENDING, Code.QUEUED),
    ("a gated job that a user resumed", GATED, replace(JOB, gates=("a", "b"), suspended=False), [], 20, State.EVICTING,
     Code.RESUMED_OUTSIDE),
    ("a held job that a user resumed", HELD, replace(JOB, suspended=False), [], 20, State.EVICTING, Code.RESUMED_OUTSIDE),
    ("and once its pods are deleted it is held again", replace(HELD, state=State.EVICTING, intent=Intent.STOP), JOB_DRAINED,
     [], 20, State.HELD, Code.HELD),
    ("back-off not over", replace(ENTRY, state=State.BACKOFF, requeue_at=50.0), JOB, [], 40, State.BACKOFF, Code.QUEUED),
    ("back-off over", replace(ENTRY, state=State.BACKOFF, requeue_at=50.0), JOB, [], 50, State.PENDING, Code.QUEUED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "job", "pods", "now", "state", "code"),
    [pytest.param(*rest, id=text) for text, *rest in LOOKS],
)
def test_what_the_watch_shows_leads_to(
    entry: Entry, job: JobRecord, pods: list[PodRecord], now: float, state: State, code: Code
) -> None:
    world = World(entry, records=[job, *pods])
    world.look(now)
    after = world.ledger.get("u1")
    assert after is not None
    assert after.state is state
    assert after.reason.code is code


@pytest.mark.parametrize(
    ("job", "pods", "now"),
    [
        pytest.param(RESUMED, READY, 100.0, id="its time is over"),
        pytest.param(
            replace(RESUMED, preempt_ready=True), READY, 50.0, id="it reports that it is ready"
        ),
        pytest.param(
            RESUMED, [replace(p, phase=PodPhase.FAILED) for p in READY], 50.0, id="its pods ended"
        ),
        pytest.param(replace(GONE, drained=False), READY, 50.0, id="a user suspended it"),
    ],
)
def test_a_notice_ends_when(job: JobRecord, pods: list[PodRecord], now: float) -> None:
    world = World(NOTIFIED, records=[job, *pods])
    world.look(now)
    after = world.ledger.get("u1")
    assert after is not None
    assert (after.state, after.stop_at, after.intent) == (State.EVICTING, None, Intent.STOP)


def test_a_pin_that_kube_scheduler_refuses_ends_with_an_eviction() -> None:
    stuck = pod("p1", gated=False, pin="n1", unschedulable=True)
    world = World(replace(LIVE, started_at=350.0), records=[RESUMED, replace(stuck, gated=True)])
    observer = Observer(world.mirror, world.ledger, world.usage, 30.0)

    def look(now: float) -> State:
        world.mirror.touched.add("u1")
        world.ledger.apply(observer.observe(CONFIG, now).changes)
        entry = world.ledger.get("u1")
        assert entry is not None
        return entry.state

    assert look(300.0) is State.STARTING  # gated: no refusal counts
    world.see(replace(stuck, version=6))
    assert look(340.0) is State.STARTING
    world.see(replace(stuck, version=7, unschedulable=False))
    assert look(360.0) is State.STARTING
    world.see(replace(stuck, version=8))
    assert look(375.0) is State.STARTING
    assert look(404.0) is State.STARTING, "it counts from the second refusal"
    assert look(405.0) is State.EVICTING
    entry = world.ledger.get("u1")
    assert entry is not None
    assert (entry.reason.code, entry.excluded) == (Code.PIN_UNSCHEDULABLE, ("n1",))


def stopped(
    cluster: StopPolicy = StopPolicy.NONE, local: StopPolicy = StopPolicy.NONE
) -> QueueConfig:
    queue = ClusterQueue("cq", namespace_selector=LabelSelector(), stop_policy=cluster)
    return replace(
        CONFIG,
        cluster_queues={"cq": queue},
        local_queues={("a", "q"): LocalQueue("a", "q", "cq", local)},
    )


HOLD, DRAIN = StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN


@pytest.mark.parametrize(
    ("config", "state", "code"),
    [
        pytest.param(stopped(HOLD), State.RUNNING, Code.PODS_READY, id="Hold leaves what runs"),
        pytest.param(stopped(local=HOLD), State.RUNNING, Code.PODS_READY, id="of a LocalQueue too"),
        pytest.param(stopped(DRAIN), State.EVICTING, Code.QUEUE_STOPPED, id="HoldAndDrain does not"),
        pytest.param(stopped(local=DRAIN), State.EVICTING, Code.LOCAL_QUEUE_STOPPED, id="nor there"),
        pytest.param(stopped(HOLD, DRAIN), State.EVICTING, Code.LOCAL_QUEUE_STOPPED, id="the stricter"),
    ],
)  # fmt: skip
def test_what_runs_in_a_stopped_queue(config: QueueConfig, state: State, code: Code) -> None:
    world = World(RUNNING, records=[RESUMED, *READY])
    world.look(config=config)
    after = world.ledger.get("u1")
    assert after is not None
    assert (after.state, after.reason.code) == (state, code)


def test_a_gang_that_is_drained_keeps_its_place_and_waits_with_the_queues_reason() -> None:
    world = World(replace(RUNNING, queued_at=3.0), records=[RESUMED, *READY])
    world.look(config=stopped(DRAIN))
    world.see(GONE)
    for name in ("p1", "p2"):
        world.mirror.apply([Deleted("pods", name, 9)])
    world.look(config=stopped(DRAIN))
    (pending,) = world.freeze(config=stopped(DRAIN)).pending
    assert pending.workload.queued_at == 3.0
    assert pending.blocked is not None
    assert pending.blocked.code is Code.QUEUE_STOPPED


WIDE = PodSet("main", 4, SHAPE)
ON_FOUR = Placement((PodSetPlacement("main", (("n1", 2), ("n2", 1), ("n3", 1))),))


@pytest.mark.parametrize(
    ("job", "pods", "left"),
    [
        pytest.param(
            replace(RESUMED, podsets=(WIDE,), expected=(("main", 2),)), [on("p1", "n1"), on("p2", "n3")],
            (("n1", 1), ("n3", 1)), id="a Job with two completions left releases the slots of the others",
        ),
        pytest.param(
            replace(RESUMED, podsets=(WIDE,), expected=(("main", 2),)), [on("p1", "n1")],
            ON_FOUR.podsets[0].nodes, id="not while one of the two is missing: it can be re-created on any of them",
        ),
        pytest.param(
            replace(RESUMED, podsets=(WIDE,)), [on("p1", "n1"), on("p2", "n3", terminating=True)],
            ON_FOUR.podsets[0].nodes, id="no slot is released of pods that will be re-created",
        ),
        pytest.param(
            replace(RESUMED, podsets=(WIDE,), followed=False),
            [on("p1", "n1"), replace(on("p2", "n1"), phase=PodPhase.SUCCEEDED), on("p3", "n2"), on("p4", "n3")],
            (("n1", 1), ("n2", 1), ("n3", 1)), id="a worker that succeeded is not followed by another",
        ),
        pytest.param(
            replace(RESUMED, podsets=(WIDE,), expected=(("main", 0),)), [], ON_FOUR.podsets[0].nodes,
            id="all are done: it ends any moment",
        ),
    ],
)  # fmt: skip
def test_slots_of_pods_that_are_done_for_good_are_free(
    job: JobRecord, pods: list[PodRecord], left: tuple[tuple[str, int], ...]
) -> None:
    world = World(replace(RUNNING, placement=ON_FOUR), records=[job, *pods])
    world.look()
    after = world.ledger.get("u1")
    assert after is not None
    assert after.state is State.RUNNING
    assert after.placement is not None
    (placed,) = after.placement.podsets
    assert placed.nodes == left
    assert placed.pods in (None, sum(count for _, count in left))
    (gang,) = world.freeze().admitted
    assert gang.placement == after.placement, "the planner gets only the slots that are still used"
    before = after
    world.look()
    assert world.ledger.get("u1") == before, "and it stays so"


def test_a_podset_that_is_done_while_another_runs_releases_every_slot() -> None:
    master = PodSet("master", 1, SHAPE)
    job = replace(RESUMED, podsets=(master, PodSet("worker", 2, SHAPE)), followed=False)
    placement = Placement(
        (
            PodSetPlacement("master", (("n1", 1),)),
            PodSetPlacement(
                "worker",
                (("n2", 1), ("n3", 1)),
                {"nvidia.com/gpu": "a"},
                shares=(
                    FlavorShare(1, {"nvidia.com/gpu": "a"}),
                    FlavorShare(1, {"nvidia.com/gpu": "b"}),
                ),
            ),
        )
    )
    workers = [
        on("w0", "n2", podset="worker"),
        replace(on("w1", "n3"), podset="worker", phase=PodPhase.SUCCEEDED),
    ]
    world = World(
        replace(RUNNING, placement=placement),
        records=[job, replace(on("m", "n1"), podset="master"), *workers],
    )
    world.look()
    after = world.ledger.get("u1")
    assert after is not None
    assert after.placement is not None
    worker = after.placement.of("worker")
    assert worker is not None
    assert (worker.nodes, worker.pods) == ((("n2", 1),), 1)
    assert worker.shares == (FlavorShare(1, {"nvidia.com/gpu": "a"}),), (
        "and what they are charged to"
    )
    world.see(replace(workers[0], version=9, phase=PodPhase.SUCCEEDED))
    world.look()
    after = world.ledger.get("u1")
    assert after is not None
    assert after.placement is not None
    assert [(p.nodes, p.pods) for p in after.placement.podsets] == [((("n1", 1),), None), ((), 0)]


@pytest.mark.parametrize(
    ("job", "whole"),
    [
        pytest.param(RESUMED, True, id="a pod that succeeded a moment ago counts"),
        pytest.param(
            replace(RESUMED, expected=(("main", 1),)), False, id="not for another, once its job counts it as done"
        ),
    ],
)  # fmt: skip
def test_pods_that_are_done_do_not_stand_for_pods_that_are_lost(
    job: JobRecord, whole: bool
) -> None:
    done = replace(on("p1", "n1"), phase=PodPhase.SUCCEEDED)
    other = on("p2", "n2", ready=whole)
    world = World(RUNNING, records=[job, done, other])
    world.look(now=30.0)
    after = world.ledger.get("u1")
    assert after is not None
    assert after.unready_since == (None if whole else 30.0)


def test_a_job_whose_controller_can_restart_it_keeps_the_slots_of_pods_that_have_ended() -> None:
    ended = replace(RESUMED, expected=(("main", 1),), restarts=True)
    world = World(RUNNING, records=[ended, on("p2", "n2")])
    world.look()
    after = world.ledger.get("u1")
    assert after is not None
    assert after.placement == RUNNING.placement


def test_only_time_rings() -> None:
    alarms = Timers()
    alarms.put("a", 10.0)
    alarms.put("b", 20.0)
    alarms.put("a", 30.0)
    assert alarms.due(15.0) == set()
    assert alarms.due(25.0) == {"b"}
    alarms.put("a", None)
    assert alarms.due(99.0) == set()


@pytest.mark.parametrize(
    ("entry", "job", "at"),
    [
        pytest.param(LIVE, RESUMED, 110.0, id="the time to start"),
        pytest.param(replace(RUNNING, unready_since=20.0), RESUMED, 70.0, id="to recover"),
        pytest.param(RUNNING, RESUMED, None, id="nothing while all is well"),
        pytest.param(RUNNING, replace(RESUMED, max_execution=60.0), 70.0, id="to run"),
        pytest.param(
            replace(RUNNING, past_seconds=50.0), replace(RESUMED, max_execution=60.0), 20.0, id="what is left"
        ),
        pytest.param(NOTIFIED, RESUMED, 100.0, id="under notice"),
        pytest.param(replace(NOTIFIED, stop_at=None), GONE, 600.0, id="to confirm a suspension"),
        pytest.param(replace(NOTIFIED, stop_at=None, since=-590.0), GONE, None, id="no longer than that"),
        pytest.param(replace(ENTRY, state=State.BACKOFF, requeue_at=50.0), JOB, 50.0, id="in back-off"),
        pytest.param(replace(ENTRY, requeue_at=50.0), JOB, None, id="to borrow: that is the planner's"),
        pytest.param(replace(ENTRY, priority_set=70, priority_until=40.0), JOB, 40.0, id="a priority waiting"),
        pytest.param(replace(RUNNING, priority_set=70, priority_until=40.0), RESUMED, 40.0, id="or running"),
    ],
)  # fmt: skip
def test_the_time_of_the_next_check(entry: Entry, job: JobRecord, at: float | None) -> None:
    assert alarm_of(entry, job, CONFIG.rules.pods_ready, now=10.0) == at


@pytest.mark.parametrize(
    ("job", "config", "queue", "priority"),
    [
        pytest.param(replace(JOB, queue="r"), CONFIG, "r", 0, id="another queue"),
        pytest.param(replace(JOB, priority_class="high"), CONFIG, "q", 100, id="another class"),
    ],
)
def test_a_waiting_job_that_is_relabeled(
    job: JobRecord, config: QueueConfig, queue: str, priority: int
) -> None:
    world = World(ENTRY, records=[job])
    world.look(config=config)
    after = world.ledger.get("u1")
    assert after is not None
    assert (after.queue, after.priority) == (queue, priority)


def test_a_running_gang_that_is_relabeled_is_charged_where_it_was_admitted() -> None:
    world = World(RUNNING, records=[replace(RESUMED, queue="r", priority_class="high"), *READY])
    world.look()
    after = world.ledger.get("u1")
    assert after == RUNNING


BOOST: dict[str, Any] = {"priority": 70, "priority_set": 70, "priority_until": 20.0}


@pytest.mark.parametrize(
    ("entry", "records"),
    [
        pytest.param(replace(ENTRY, **BOOST), [replace(JOB, priority_class="high")], id="waits"),
        pytest.param(
            replace(RUNNING, **BOOST), [replace(RESUMED, priority_class="high"), *READY], id="runs"
        ),
    ],
)
def test_a_priority_whose_time_is_over_is_as_its_classes_say_and_plans_follow(
    entry: Entry, records: list[Any]
) -> None:
    world = World(entry, records=records)
    assert not world.look(now=19.9).changes
    seen = world.look(now=20.0)
    (change,) = seen.changes
    assert (change.after.priority, change.after.priority_set) == (100, None)
    assert seen.plan_again
    assert not world.look(now=21.0).changes, "it is reported once"


def test_the_end_of_a_priority_does_not_hide_other_news_of_the_same_look() -> None:
    starts = replace(LIVE, **BOOST)
    world = World(starts, records=[RESUMED, *READY])
    codes = []
    for _ in range(3):
        for change in world.look(now=20.0).changes:
            assert change.note is not None
            codes.append(change.note.reason.code)
    assert codes == [Code.PODS_READY, Code.PRIORITY_SET]


def test_ended_pods_that_its_controller_keeps_block_a_gang_until_they_are_deleted() -> None:
    ended = [pod(name, gated=False, phase=PodPhase.FAILED) for name in ("p1", "p2")]
    world = World(ENTRY, records=[replace(JOB, kept_podsets=("main",)), *ended])
    (pending,) = world.freeze().pending
    assert pending.blocked is not None
    assert pending.blocked.code is Code.WAITING_FOR_PODS
    assert "keeps 2 pods of an earlier attempt" in pending.blocked.message
    assert "delete p1, p2" in pending.blocked.message
    world.look()
    world.mirror.apply([Deleted("pods", one.uid, 9) for one in ended])
    assert world.look().plan_again
    assert world.freeze().pending[0].blocked is None


def test_ended_pods_of_other_podsets_block_nothing() -> None:
    ended = pod("p1", gated=False, phase=PodPhase.FAILED)
    for kept in ((), ("other",)):
        world = World(ENTRY, records=[replace(JOB, kept_podsets=kept), ended])
        assert world.freeze().pending[0].blocked is None


@pytest.mark.parametrize(
    ("attempt", "changes", "now", "by"),
    [
        pytest.param(1, {"awaits": "none of its 2 pods exists"}, 20.0, 70.0, id="it has started before"),
        pytest.param(1, {"awaits": "none of its 2 pods exists"}, 70.0, None, id="its controller takes too long"),
        pytest.param(0, {"awaits": "none of its 2 pods exists"}, 20.0, None, id="it has never started"),
        pytest.param(1, {"kept_podsets": ("main",)}, 20.0, None, id="a user must delete pods"),
        pytest.param(1, {}, 20.0, None, id="it is not blocked"),
        pytest.param(1, {"awaits": "spec.parallelism is 1", "index": ArrayIndex(2, "train", "u", True, True)}, 20.0, None, id="it was added to an elastic gang"),
    ],
)  # fmt: skip
def test_a_gang_whose_pods_are_to_be_created_again_keeps_its_place_for_a_minute(
    attempt: int, changes: dict[str, Any], now: float, by: float | None
) -> None:
    ended = pod("p1", gated=False, phase=PodPhase.FAILED)
    waits = replace(ENTRY, attempt=attempt, since=10.0)
    world = World(waits, records=[replace(JOB, attempt=attempt, **changes), ended])
    (pending,) = world.freeze(now).pending
    assert pending.returns_by == by


def test_a_kept_place_ends_with_its_time_although_nothing_else_changes() -> None:
    waits = replace(ENTRY, attempt=1, since=10.0)
    world = World(waits, records=[replace(JOB, attempt=1, awaits="none of its 2 pods exists")])
    builder = world.snapshot_builder
    frozen = (builder.freeze(CONFIG, now, SolverLimits()) for now in (20.0, 69.0, 70.0))
    assert [snapshot.pending[0].returns_by for snapshot in frozen] == [70.0, 70.0, None]


MOVING = replace(ENTRY, queue_set="r", intent=Intent.MOVE)


def test_a_gang_that_moves_is_not_planned_until_its_object_names_the_queue() -> None:
    world = World(MOVING, records=[JOB])
    assert world.look().changes == []
    (pending,) = world.freeze().pending
    assert pending.blocked is not None
    assert "moving to LocalQueue r" in pending.blocked.message
    world.see(replace(JOB, version=8, queue="r"))
    seen = world.look()
    (change,) = seen.changes
    after = change.after
    assert (after.queue, after.queue_set, after.intent) == ("r", None, None)
    assert after.queued_at == MOVING.queued_at
    assert seen.plan_again


def test_a_pending_gang_that_is_resized_loses_its_reservation() -> None:
    lease = CapacityLease(PLACEMENT, ("v",), 0.0, expires_at=500.0)
    reserved = replace(ENTRY, state=State.RESERVED, lease=lease)
    world = World(reserved, records=[replace(JOB, podsets=(PodSet("main", 3, SHAPE),))])
    assert world.look().plan_again
    after = world.ledger.get("u1")
    assert after is not None
    assert (after.state, after.lease, after.pods, after.gpus) == (State.PENDING, None, 3, 24)


MORE_CPU = PodShape(Resources({**SHAPE.requests, "cpu": 10**9}))
EDITED = replace(JOB, version=8, podsets=(PodSet("main", 2, MORE_CPU),))


@pytest.mark.parametrize(
    "state", [pytest.param(s, id=str(s)) for s in (CheckState.PENDING, CheckState.READY)]
)
def test_a_gang_held_for_checks_whose_request_is_edited_loses_its_reservation_and_its_approvals(
    state: CheckState,
) -> None:
    world = World(held_for_checks(CheckStatus("c", state)), records=[EDITED])
    assert world.look().plan_again
    after = world.ledger.get("u1")
    assert after is not None
    assert (after.state, after.lease, after.checks.statuses) == (State.PENDING, None, ())
    assert after.reason.message == "its request changed; its reservation is released"


@pytest.mark.parametrize(
    ("held_for", "job"),
    [
        pytest.param(request_digest(JOB), JOB, id="the same"),
        pytest.param(request_digest(JOB), replace(JOB, labels=(("a", "b"),)), id="a label"),
        pytest.param("", EDITED, id="held by a release that did not record the request"),
    ],
)
def test_a_gang_held_for_checks_whose_request_is_the_same_stays_held(
    held_for: str, job: JobRecord
) -> None:
    world = World(held_for_checks(CheckStatus("c"), request=held_for), records=[job])
    world.look()
    after = world.ledger.get("u1")
    assert after is not None
    assert after.awaits_checks


def test_a_gang_held_for_checks_can_be_evicted_and_never_moves() -> None:
    queue = replace(CONFIG.cluster_queues["cq"], admission_checks=(CheckRule("c"),))
    checks = {"c": AdmissionCheck("c", EXTERNAL)}
    config = replace(CONFIG, cluster_queues={"cq": queue}, checks=checks)
    world = World(held_for_checks(CheckStatus("c")), records=[JOB])
    (gang,) = world.freeze(config=config).admitted
    assert (gang.held, gang.evictable, gang.restartable) == (True, True, False)


def test_a_job_that_is_being_deleted_is_not_planned() -> None:
    world = World(ENTRY, records=[replace(JOB, deleting=True)])
    (pending,) = world.freeze().pending
    assert pending.blocked is not None
    assert pending.blocked.code is Code.TERMINATING


@pytest.mark.parametrize(
    ("job", "code"),
    [
        pytest.param(None, Code.DELETED, id="deleted"),
        pytest.param(replace(RESUMED, outcome=JobOutcome.FAILED), Code.FAILED, id="failed"),
        pytest.param(
            replace(RESUMED, outcome=JobOutcome.SUCCEEDED), Code.SUCCEEDED, id="succeeded"
        ),
    ],
)
def test_an_end_leaves_the_ledger(job: JobRecord | None, code: Code) -> None:
    world = World(LIVE, records=[job] if job else [])
    (change,) = world.look().changes
    assert (change.after.state, change.after.reason.code) == (State.FINISHED, code)
    assert world.ledger.get("u1") is None


def test_a_gated_gang_whose_job_is_deleted_leaves_the_ledger() -> None:
    (change,) = World(GATED).look().changes
    assert (change.after.state, change.after.reason.code) == (State.FINISHED, Code.DELETED)


@pytest.mark.parametrize(
    ("state", "cause", "ends"),
    [
        (State.EVICTING, Code.SUSPENDED_OUTSIDE, True),
        (State.PENDING, Code.SUSPENDED_OUTSIDE, True),
        (State.EVICTING, Code.PREEMPTED, False),
        (State.PENDING, Code.PREEMPTED, False),
    ],
)
def test_a_group_without_pods_waits_for_others_only_if_queuectl_deleted_them(
    state: State, cause: Code, ends: bool
) -> None:
    intent = Intent.STOP if state is State.EVICTING else None
    evicted = replace(
        ENTRY, state=state, attempt=1, intent=intent, evicted_for=cause, evictions=1, since=10.0
    )
    if state is State.EVICTING:
        evicted = replace(evicted, placement=PLACEMENT)
    group = replace(JOB, attempt=1, of_pods=True, absent=True, drained=True)
    world = World(evicted, records=[group])
    changes = world.look(now=20.0).changes
    assert any(one.after.state is State.FINISHED for one in changes) is ends


@pytest.mark.parametrize("held", [True, False])
def test_a_group_that_runs_without_pods_ends_after_a_time_if_its_statefulset_can_replace_them(
    *, held: bool
) -> None:
    runs = replace(LIVE, state=State.RUNNING, intent=None, ready_at=20.0)
    group = replace(RESUMED, attempt=1, of_pods=True, absent=True, drained=True, suspended=not held)
    world = World(runs, records=[group])
    observer = Observer(world.mirror, world.ledger, world.usage, 30.0)

    patient = replace(CONFIG.rules.pods_ready, recovery_timeout=None)
    config = replace(CONFIG, rules=replace(CONFIG.rules, pods_ready=patient))

    def ends(now: float) -> bool:
        world.mirror.touched |= observer.alarms.due(now)
        world.ledger.apply(observer.observe(config, now).changes)
        entry = world.ledger.get("u1")
        return entry is None or entry.state is State.FINISHED

    world.mirror.touched.add("u1")
    assert ends(1000.0) == (not held)
    if held:
        world.mirror.touched.add("u1")
        assert not ends(1000.0 + RETURN_SECONDS - 1)
        assert ends(1000.0 + RETURN_SECONDS)


def test_the_echo_of_a_start_clears_the_intent() -> None:
    world = World(LIVE, records=[RESUMED])
    world.look()
    after = world.ledger.get("u1")
    assert after is not None
    assert after.intent is None


def test_a_submitted_job_takes_priority_and_queue_from_the_configuration() -> None:
    world = World(records=[replace(JOB, priority_class="high")])
    (change,) = world.look().changes
    assert (change.after.priority, change.after.cluster_queue) == (100, "cq")
    world.look(config=replace(CONFIG, priority_classes={"high": 7}))
    after = world.ledger.get("u1")
    assert after is not None
    assert after.priority == 7


def test_of_two_jobs_of_the_same_second_the_first_created_is_first_in_the_queue() -> None:
    world = World(records=[replace(JOB, uid="a", version=9), replace(JOB, uid="b", version=8)])
    world.look(now=1.5)
    first, second = (world.ledger.get(uid) for uid in ("b", "a"))
    assert first is not None
    assert second is not None
    assert first.queued_at < second.queued_at


def test_what_changes_a_job_since_does_not_move_it_behind_those_that_came_later() -> None:
    """The job controller writes the status of the first before queuectl reads both."""
    world = World()
    first, then = (
        replace(JOB, uid="z", name="z", version=3),
        replace(JOB, uid="y", name="y", version=4),
    )
    world.see(first, then, replace(first, version=5))
    world.look(now=JOB.created_at + 0.5)
    before, after = (world.ledger.get(uid) for uid in ("z", "y"))
    assert before is not None
    assert after is not None
    assert before.queued_at < after.queued_at


def test_without_a_workload_priority_class_the_pods_class_counts() -> None:
    job = replace(JOB, pod_priority_class="urgent")
    world = World(records=[PriorityClassRecord("urgent", 1, 55), job])
    (change,) = world.look().changes
    assert change.after.priority == 55


@pytest.mark.parametrize(
    ("job", "config", "code", "text"),
    [
        (replace(JOB, error="bad", unsupported=True), CONFIG, Code.UNSUPPORTED, "bad"),
        (replace(JOB, error="bad"), CONFIG, Code.MISCONFIGURED, "bad"),
        (replace(JOB, queue="nope"), CONFIG, Code.MISCONFIGURED, "LocalQueue nope does not exist"),
        (JOB, replace(CONFIG, cluster_queues={}), Code.MISCONFIGURED, "ClusterQueue cq"),
        (replace(JOB, priority_class="x"), CONFIG, Code.MISCONFIGURED, "WorkloadPriorityClass x"),
        (
            JOB,
            replace(CONFIG, cluster_queues={"cq": ClusterQueue("cq")}),
            Code.MISCONFIGURED,
            "spec.namespaceSelector of ClusterQueue cq is not set, so it selects no namespace",
        ),
        (
            JOB,
            replace(
                CONFIG,
                cluster_queues={
                    "cq": ClusterQueue("cq", stop_policy=StopPolicy.HOLD, namespace_selector=LabelSelector())
                },
            ),
            Code.QUEUE_STOPPED,
            "stopped",
        ),
        (
            JOB,
            replace(
                CONFIG,
                cluster_queues={
                    "cq": ClusterQueue("cq", namespace_selector=LabelSelector(), admission_checks=(CheckRule("prov"),))
                },
            ),
            Code.UNSATISFIED_CHECKS,
            "ClusterQueue cq starts no gang: AdmissionCheck prov does not exist",
        ),
        (
            JOB,
            replace(CONFIG, local_queues={("a", "q"): LocalQueue("a", "q", "cq", StopPolicy.HOLD)}),
            Code.LOCAL_QUEUE_STOPPED,
            "stopped",
        ),
    ],
)  # fmt: skip
def test_a_workload_that_must_not_be_planned_has_its_reason(
    job: JobRecord, config: QueueConfig, code: Code, text: str
) -> None:
    world = World(records=[job])
    world.look(config=config)
    (pending,) = world.freeze(config=config).pending
    assert pending.blocked is not None
    assert pending.blocked.code is code
    assert text in pending.blocked.message


def test_a_snapshot_has_the_time_until_which_a_gang_does_not_borrow() -> None:
    world = World(replace(ENTRY, requeue_at=50.0), records=[JOB])
    found = [world.freeze(now=at).pending[0].borrows_at for at in (40.0, 49.9, 50.0, 60.0)]
    assert found == [50.0, 50.0, None, None]


@pytest.mark.parametrize(
    ("reason", "since"),
    [
        (Reason(Code.WAITING_TO_RECLAIM, "", {"since": 40.0}), 40.0),
        (Reason(Code.PENDING_EVALUATION, "", {"since": 40.0}), 40.0),
        (Reason(Code.PENDING_EVALUATION, ""), None),
        (Reason(Code.WAITING_FOR_QUOTA, ""), None),
    ],
)
def test_a_snapshot_has_the_time_since_which_a_gang_waits_to_evict(
    reason: Reason, since: float | None
) -> None:
    world = World(replace(ENTRY, reason=reason), records=[JOB])
    assert world.freeze(now=60.0).pending[0].reclaim_since == since


def test_a_snapshot_has_the_times_at_which_a_gang_was_preempted() -> None:
    entry = replace(LIVE, preempted_at=(10.0, 5_000.0))
    world = World(entry, records=[RESUMED])
    assert world.freeze(now=100_000.0).admitted[0].evictions == (10.0, 5_000.0)


RUNS = [on("p1", "n1", ready=True), on("p2", "n2", ready=True)]


@pytest.mark.parametrize(
    ("entry", "job", "pods", "state"),
    [
        pytest.param(None, RESUMED, RUNS, State.RUNNING, id="whole at first sight"),
        pytest.param(
            None, replace(RESUMED, attempt=0), [replace(p, attempt=0) for p in RUNS],
            State.RUNNING, id="started before queuectl came",
        ),
        pytest.param(None, RESUMED, RUNS[:1], State.PENDING, id="half of it is not adopted"),
        pytest.param(None, RESUMED, [*RUNS[:1], pod("p2")], State.PENDING, id="nor a gated one"),
        pytest.param(
            replace(ENTRY, attempt=1), replace(RESUMED, attempt=3),
            [replace(p, attempt=3) for p in RUNS], State.RUNNING, id="the ledger is from the past",
        ),
        pytest.param(
            replace(ENTRY, cluster_queue="before"), RESUMED, RUNS, State.RUNNING,
            id="its LocalQueue led elsewhere then",
        ),
        pytest.param(
            replace(ENTRY, attempt=1), RESUMED, RUNS, State.EVICTING, id="resumed by another user"
        ),
    ],
)  # fmt: skip
def test_what_runs_without_the_ledger(
    entry: Entry | None, job: JobRecord, pods: list[PodRecord], state: State
) -> None:
    world = World(*([entry] if entry else []), records=[job, *pods])
    world.look()
    after = world.ledger.get("u1")
    assert after is not None
    assert after.state is state
    if state is State.RUNNING:
        assert after.attempt == job.attempt
        assert after.placement is not None
        assert after.placement.podsets[0].nodes == (("n1", 1), ("n2", 1))
        assert after.cluster_queue == "cq", "of which the placement has flavors"
        world.look()
        assert world.ledger.get("u1") == after, "and it stays so"
    else:
        assert world.freeze().pending == (), "it is not planned while it runs"


class TestFreeze:
    def test_an_evicted_gang_holds_all_slots_until_its_job_is_seen_suspended(self) -> None:
        leaving = replace(LIVE, state=State.EVICTING, intent=Intent.STOP)
        world = World(leaving, records=[RESUMED, on("p1", "n1")])
        (held,) = world.freeze().admitted
        assert held.leaving
        assert held.placement == PLACEMENT
        world.see(GONE)
        (held,) = world.freeze().admitted
        assert held.placement.podsets[0].nodes == (("n1", 1),)

    def test_a_slot_is_lost_only_when_its_node_and_its_pod_are(self) -> None:
        running = replace(LIVE, state=State.RUNNING)
        world = World(running, records=[RESUMED, on("p1", "n1"), on("p2", "n2")])
        world.mirror.apply([Deleted("nodes", "n2", 9)])
        assert world.freeze().admitted[0].lost == ()
        world.mirror.apply([Deleted("pods", "p2", 9)])
        assert world.freeze().admitted[0].lost == (("main", "n2", 1),)

    def test_a_slot_on_a_cordoned_node_is_lost_once_its_pod_is_deleted(self) -> None:
        world = World(RUNNING, records=[RESUMED, *READY])
        cordoned = Node("n2", {HOSTNAME: "n2"}, SHAPE.requests, unschedulable=True)
        world.see(NodeRecord(cordoned, 2))
        assert world.freeze().admitted[0].lost == (), "its pod runs on"
        world.see(replace(READY[1], version=6, terminating=True))
        assert world.freeze().admitted[0].lost == (), "it ends in its own time"
        world.mirror.apply([Deleted("pods", "p2", 7)])
        assert world.freeze().admitted[0].lost == (("main", "n2", 1),)
        assert world.look().plan_again

    @pytest.mark.parametrize(
        ("effect", "tolerated_by", "lost"),
        [
            (Effect.NO_EXECUTE, "", True),
            (Effect.NO_EXECUTE, "its template", False),
            (Effect.NO_EXECUTE, "its flavor", False),
            (Effect.NO_EXECUTE, "its check", False),
            (Effect.NO_SCHEDULE, "", True),
            (Effect.NO_SCHEDULE, "its template", False),
            (Effect.PREFER_NO_SCHEDULE, "", False),
        ],
    )
    def test_a_slot_without_a_pod_is_lost_if_a_taint_keeps_new_pods_off_its_node(
        self, effect: Effect, tolerated_by: str, lost: bool
    ) -> None:
        taint = Taint("example.com/maintenance", effect)
        by = {tolerated_by: (Toleration(taint.key, "Exists"),)}
        rules = NodeRules(tolerations=by.get("its template", ()))
        job = replace(RESUMED, podsets=(PodSet("main", 2, replace(SHAPE, rules=rules)),))
        update = PodSetUpdate("main", tolerations=by.get("its check", ()))
        placed = replace(PLACEMENT.podsets[0], flavors={"nvidia.com/gpu": "f"})
        entry = replace(
            RUNNING,
            placement=Placement((placed,)),
            checks=Checks((CheckStatus("c", CheckState.READY, updates=(update,)),)),
        )
        flavor = ResourceFlavor("f", tolerations=by.get("its flavor", ()))
        config = replace(CONFIG, flavors={"f": flavor})
        world = World(entry, records=[job, *READY])
        world.see(NodeRecord(Node("n2", {HOSTNAME: "n2"}, SHAPE.requests, (taint,)), 2))
        world.mirror.apply([Deleted("pods", "p2", 7)])
        world.see(pod("p3", version=8, tolerations=rules.tolerations))
        gang = world.freeze(config=config).admitted[0]
        assert gang.lost == ((("main", "n2", 1),) if lost else ())
        pods, nodes = world.mirror.pods_of(job), world.mirror.fleet.by_name
        writes = outstanding_writes(entry, job, list(pods), nodes, config.flavors)
        assert [write.node for write in writes if write.purpose is Purpose.PIN] == (
            [] if lost else ["n2"]
        )
        observer = Observer(world.mirror, world.ledger, world.usage, 30.0)
        assert observer.on_lost_nodes(entry, config) is lost

    @pytest.mark.parametrize(
        ("left", "backed", "lost"),
        [(0, True, False), (0, False, True), (4, True, True), (8, True, False)],
    )
    def test_a_slot_is_not_lost_if_its_node_offers_an_extended_resource_by_devices(
        self, left: int, backed: bool, lost: bool
    ) -> None:
        """``left``: the GPUs in the allocatable resources of the node. A ResourceSlice is not part of them."""
        world = World(RUNNING, records=[RESUMED, *READY])
        if backed:
            world.see(DeviceClassRecord("gpu", 1, DeviceClass("gpu", (), "nvidia.com/gpu")))
        allocatable = Resources({"nvidia.com/gpu": left, "pods": 1})
        world.see(NodeRecord(Node("n2", {HOSTNAME: "n2"}, allocatable), 2))
        world.mirror.apply([Deleted("pods", "p2", 7)])
        world.see(pod("p3", version=8))
        assert world.freeze().admitted[0].lost == ((("main", "n2", 1),) if lost else ())
        pods, nodes = list(world.mirror.pods_of(RESUMED)), world.mirror.fleet.by_name
        writes = outstanding_writes(
            RUNNING, RESUMED, pods, nodes, {}, backed=world.mirror.devices.backed
        )
        assert [w.node for w in writes if w.purpose is Purpose.PIN] == ([] if lost else ["n2"])

    def test_gangs_and_nodes_that_have_not_changed_are_not_read_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[str] = []

        def slots(mirror: Mirror, entry: Entry, *more: Any) -> Iterator[tuple[str, str, int]]:
            read.append(entry.uid)
            return closed_slots(mirror, entry, *more)

        monkeypatch.setattr(observations, "closed_slots", slots)
        world = World(RUNNING, records=[RESUMED, *READY])
        observer = Observer(world.mirror, world.ledger, world.usage, 30.0)

        def answers(config: QueueConfig = CONFIG) -> tuple[bool, int]:
            """Whether a gang is on lost nodes, and the number of gangs that were read."""
            read.clear()
            return observer.any_on_lost_nodes(config), len(read)

        assert answers() == (False, 1)
        assert answers() == (False, 0)
        world.see(replace(RESUMED, version=9))
        assert answers() == (False, 1)
        assert answers(replace(CONFIG, flavors={"f": ResourceFlavor("f")})) == (False, 1)
        world.mirror.apply([Deleted("nodes", "n2", 9)])
        assert answers() == (True, 1)
        assert answers() == (True, 0)
        world.ledger.apply([EntryChange(RUNNING, replace(RUNNING, placement=None), 20.0)])
        assert answers() == (False, 0), "it has no nodes"

    def test_a_pod_that_goes_after_its_node_is_a_reason_to_plan(self) -> None:
        running = replace(LIVE, state=State.RUNNING, intent=None)
        world = World(running, records=[RESUMED, on("p1", "n1"), on("p2", "n2")])
        world.mirror.apply([Deleted("nodes", "n2", 9)])
        world.look()
        world.mirror.apply([Deleted("pods", "p2", 9)])
        assert world.look().plan_again

    def test_only_a_gang_that_queues_again_keeps_its_place(self) -> None:
        rests, at_once = {"restSeconds": 60}, {"restSeconds": 0}
        for reason, returns in (
            (Reason(Code.PREEMPTED), True),
            (Reason(Code.PODS_READY_TIMEOUT), False),
            (Reason(Code.IDLE_RECLAIMED, "", rests), False),
            (Reason(Code.IDLE_RECLAIMED, "", at_once), True),
        ):
            leaving = replace(LIVE, state=State.EVICTING, intent=Intent.STOP, reason=reason)
            (gang,) = World(leaving, records=[RESUMED]).freeze().admitted
            assert gang.returns is returns

    def test_nor_does_one_that_is_held_when_it_has_left(self) -> None:
        leaving = replace(NOTIFIED, placement=PLACEMENT, stop_at=None, parked=BY_ALICE)
        (gang,) = World(leaving, records=[RESUMED]).freeze().admitted
        assert not gang.returns

    def test_a_gang_that_failed_to_start_has_the_position_that_its_eviction_gave_it(self) -> None:
        world = World(replace(ENTRY, queued_at=5.0, requeued_at=90.0), records=[JOB])
        assert world.freeze().pending[0].workload.queued_at == 90.0

    def test_a_lease_that_ran_out_is_not_shown(self) -> None:
        lease = CapacityLease(PLACEMENT, ("v",), 0.0, expires_at=50.0)
        reserved = replace(ENTRY, state=State.RESERVED, lease=lease, reason=Reason(Code.UNDECIDED))
        world = World(reserved, records=[JOB])
        assert world.freeze(now=49.0).pending[0].lease == lease
        assert world.freeze(now=50.0).pending[0].lease is None

    def test_a_gang_on_the_move_shows_the_place_held_for_it(self) -> None:
        lease = CapacityLease(PLACEMENT, (), 0.0, expires_at=50.0)
        why = Reason(Code.DEFRAGMENTED)
        moving = replace(
            ENTRY,
            state=State.EVICTING,
            placement=PLACEMENT,
            lease=lease,
            intent=Intent.STOP,
            reason=why,
        )
        world = World(moving, records=[JOB])
        (gang,) = world.freeze(now=49.0).admitted
        assert (gang.leaving, gang.returns, gang.lease) == (True, True, lease)
        assert world.freeze(now=50.0).admitted[0].lease is None

    @pytest.mark.parametrize(
        ("job", "restartable"),
        [
            (JOB, True),
            (replace(JOB, error="asks for what placement cannot honor"), False),
            (replace(JOB, priority_class="gone"), False),
        ],
    )
    def test_a_running_gang_whose_job_is_refused_by_now_could_not_start_again(
        self, job: JobRecord, restartable: bool
    ) -> None:
        runs = replace(ENTRY, state=State.RUNNING, placement=PLACEMENT)
        (gang,) = World(runs, records=[job]).freeze().admitted
        assert gang.restartable == restartable

    def test_equal_pictures_share_what_did_not_change(self) -> None:
        world = World(records=[JOB])
        world.look()
        snapshot_builder = SnapshotBuilder(world.mirror, world.ledger, world.usage)
        first = snapshot_builder.freeze(CONFIG, 1.0, SolverLimits())
        second = snapshot_builder.freeze(CONFIG, 2.0, SolverLimits())
        assert first.fleet is second.fleet
        assert first.pending[0].workload is second.pending[0].workload


@pytest.mark.parametrize(
    ("resource", "key", "record"),
    [
        ("pods", "p1", pod("p1", version=9, node="n1", requests=Resources({"cpu": 7}))),
        ("jobs", "u1", replace(JOB, version=9, priority_class="high")),
        ("nodes", "n1", NodeRecord(Node("n1", {}, Resources({"cpu": 7})), 9)),
    ],
)
def test_an_object_that_can_be_decoded_again_replaces_what_is_known_of_it(
    resource: str, key: str, record: Any
) -> None:
    world = World(records=[JOB, pod("p1")])
    world.mirror.apply([Unreadable(resource, key, 9)])
    world.mirror.apply([Upserted(record)])
    tables: dict[str, Mapping[str, Any]] = {
        "pods": world.mirror.pods,
        "jobs": world.mirror.jobs,
        "nodes": world.mirror.nodes,
    }
    assert tables[resource][key] == record
    assert not world.mirror.unreadable


@pytest.mark.parametrize(
    ("resource", "key"),
    [
        ("jobs", "u9"),
        ("pods", "p9"),
        ("nodes", "n9"),
        ("resourceslices", "s9"),
        ("resourceclaims", "c9"),
        ("resourceclaimtemplates", "t9"),
        ("deviceclasses", "d9"),
    ],
)
def test_an_object_that_was_never_decoded_is_forgotten_after_a_list_without_it(
    resource: str, key: str
) -> None:
    """It was deleted while the watch was interrupted."""
    world = World(records=[JOB, pod("p1")])
    world.mirror.apply([Unreadable(resource, key, 9)])
    world.mirror.touched.clear()
    world.mirror.apply([ListCompleted(resource, frozenset({"u1", "p1", "n1", "n2"}), 10)])
    assert not world.mirror.unreadable
    assert resource != "jobs" or key in world.mirror.touched


def test_the_gang_of_a_deleted_request_for_nodes_is_observed_again() -> None:
    """Its gang makes another one."""
    request = ProvisioningRecord("a", "train", "r1", 5, "u1")
    world = World(ENTRY, records=[JOB, request])
    world.mirror.touched.clear()
    world.mirror.apply([Deleted("provisioningrequests", "r1", 9)])
    assert world.mirror.touched == {"u1"}


@pytest.mark.parametrize(("checks", "held"), [((), []), ((CheckStatus("c"),), [PLACEMENT])])
def test_a_gang_that_waits_for_a_check_keeps_its_nodes_if_its_job_cannot_be_decoded(
    checks: tuple[CheckStatus, ...], held: list[Placement]
) -> None:
    """As after the start of a leader. Any other reservation ends with what is known of its gang."""
    lease = CapacityLease(PLACEMENT, (), 0.0, expires_at=50.0)
    reserved = replace(ENTRY, state=State.RESERVED, lease=lease, checks=Checks(checks))
    world = World(reserved)
    world.mirror.apply([Unreadable("jobs", "u1", 9)])
    admitted = world.freeze().admitted
    assert [gang.placement for gang in admitted] == held
    assert all(gang.held for gang in admitted)


def test_a_running_gang_whose_object_no_longer_states_a_request_is_stopped_with_the_error() -> None:
    broken = replace(RESUMED, version=9, podsets=(), error="podsets: 129 have pods")
    (change,) = World(RUNNING, records=[broken, *READY]).look().changes
    assert change.after.state is State.EVICTING
    assert change.after.reason.message == (
        "its object changed while it ran: podsets: 129 have pods"
    )
