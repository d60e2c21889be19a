"""The devices of a snapshot, and the requests of jobs for them, from the objects that the watch shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from queuectl.control.leader.leader_state import LeaderState
from queuectl.domain.containment import Boundary
from queuectl.domain.devices import (
    NO_DEVICES,
    AllocatedDevice,
    Claim,
    ClaimReference,
    ClaimSpec,
    DeviceClass,
    DeviceEffect,
    DeviceId,
    DeviceKind,
    DeviceOption,
    DeviceRequest,
    DeviceTaint,
    DeviceTaintRule,
    NodeAccess,
    PodDevices,
    PoolSlice,
    PublishedDevice,
)
from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.jobs import JobRecord, PodPhase
from queuectl.domain.ledger import Entry, Loaded, State
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.reasons import Code
from queuectl.domain.records import (
    ClaimRecord,
    ClaimTemplateRecord,
    Deleted,
    DeviceClassRecord,
    ListCompleted,
    NodeRecord,
    SliceRecord,
    TaintRuleRecord,
)
from queuectl.domain.snapshot import Pending, SolverLimits
from queuectl.objects.kubernetes.resource_claims import read_claim
from queuectl.objects.kubernetes.resource_wire import WireResourceClaim
from queuectl.state.checks import CommittedSlots
from queuectl.state.mirror import asked_of
from tests.unit.test_state import ENTRY, JOB, LIVE, World, on, pod

DRIVER = "gpu.example.com"
CLASS = DeviceClass("gpu", ("device.driver == 'gpu.example.com'",), "example.com/gpu")
KIND = DeviceKind(DRIVER)


def spec(count: int = 1, of: str = "gpu") -> ClaimSpec:
    return ClaimSpec((DeviceRequest("gpu", (DeviceOption(of, count=count),)),))


def published(node: str, gpus: int = 8, version: int = 1, generation: int = 1) -> SliceRecord:
    devices = tuple(PublishedDevice(f"gpu-{i}", KIND) for i in range(gpus))
    access = NodeAccess(node=node)
    pool = PoolSlice(f"{node}-gpu", DRIVER, node, generation, 1, access, devices)
    return SliceRecord(pool.name, version, pool)


def template(name: str, asked: ClaimSpec, version: int = 1, **fields: Any) -> ClaimTemplateRecord:
    return ClaimTemplateRecord("a", name, f"t-{name}", version, asked, **fields)


def claim(
    of: str | None,
    devices: Sequence[DeviceId] | None,
    asked: ClaimSpec | None = None,
    version: int = 1,
    name: str | None = None,
) -> ClaimRecord:
    results = None if devices is None else tuple(AllocatedDevice(one, "gpu") for one in devices)
    uid = f"c-{name or of}"
    asked = asked or spec(len(devices or ()) or 1)
    return ClaimRecord("a", uid, version, Claim(uid, "a", name or uid, asked, of, results))


def gpu(node: str, number: int) -> DeviceId:
    return DeviceId(DRIVER, node, f"gpu-{number}")


def claimed(job: JobRecord, *references: ClaimReference) -> JobRecord:
    [podset] = job.podsets
    return replace(job, podsets=(replace(podset, claims=references),))


CLASSED = DeviceClassRecord("gpu", 1, CLASS)
TAINT = DeviceTaint("xid", DeviceEffect.NO_EXECUTE, "79", "broken")


def taint_rule(version: int = 1, taint: DeviceTaint = TAINT, **selector: Any) -> TaintRuleRecord:
    return TaintRuleRecord(taint.rule, version, DeviceTaintRule(taint, **selector))


NAMED = ClaimReference("g", template="four")
CLAIMING = claimed(JOB, NAMED)
RUNS = replace(CLAIMING, version=9, suspended=False, attempt=1)


def pending(world: World) -> Pending:
    [one] = world.freeze().pending
    return one


def test_a_leader_that_reads_the_database_again_counts_the_claims_of_no_pod() -> None:
    world = World(records=[published("n1"), CLASSED, claim(None, [gpu("n1", 3)], name="kept")])
    state = LeaderState(world.mirror, SolverLimits(), 10.0, lambda: 100.0, 60.0)
    held = []
    for _ in range(2):
        state.load(Loaded((), (), 1))
        state.observer.observe(state.config, 100.0)
        held.append(state.snapshot(seek_room=False).other_devices)
    assert [[one.id for one in devices["n1"]] for devices in held] == [[gpu("n1", 3)]] * 2


@pytest.mark.parametrize("of", ["p", None])
@pytest.mark.parametrize("node_comes", [False, True])
def test_a_standby_that_takes_over_knows_that_the_devices_of_a_deleted_claim_are_free(
    of: str | None, node_comes: bool
) -> None:
    ended = replace(on("p", "n1"), owner="", owner_kind="", phase=PodPhase.SUCCEEDED)
    held = claim(of, [gpu("n1", 3)])
    world = World(records=[published("n1"), CLASSED, ended, held])
    state = LeaderState(world.mirror, SolverLimits(), 30.0, lambda: 100.0, 60.0)
    loaded = Loaded((), (), 1)
    state.follow_database(loaded)
    assert "n1" in state.snapshot(seek_room=True).other_devices
    world.mirror.apply([Deleted("pods", "p", 9), Deleted("resourceclaims", held.uid, 9)])
    if node_comes:
        world.see(NodeRecord(Node("n9", {HOSTNAME: "n9"}, NOTHING), 9))
    state.clear_marks()
    state.follow_database(loaded)
    assert state.snapshot(seek_room=True).other_devices == {}
    state.load(loaded)
    assert state.snapshot(seek_room=True).other_devices == {}


class TestInventory:
    def test_a_cluster_without_objects_of_dynamic_resource_allocation_has_none(self) -> None:
        snapshot = World().freeze()
        assert snapshot.devices is NO_DEVICES
        assert (snapshot.other_devices, snapshot.claims) == ({}, {})

    def test_it_is_the_same_object_until_a_slice_or_a_class_changes(self) -> None:
        world = World(records=[published("n1"), CLASSED])
        first = world.freeze().devices
        assert len(first.nodes["n1"].devices) == 8
        world.see(published("n1", version=2), replace(CLASSED, version=2), claim("p1", []))
        assert world.freeze().devices is first
        world.see(published("n1", gpus=4, version=3))
        second = world.freeze().devices
        assert len(second.nodes["n1"].devices) == 4
        world.mirror.apply([Deleted("deviceclasses", "gpu", 9)])
        assert world.freeze().devices.classes == {}

    def test_a_taint_rule_causes_a_plan_and_takes_devices_out_of_placement(self) -> None:
        world = World(records=[published("n1"), published("n2"), CLASSED])
        world.look()
        first = world.freeze().devices
        assert not world.look().plan_again
        world.see(taint_rule(version=5, pool="n1", device="gpu-3"))
        assert world.look().plan_again
        second = world.freeze().devices
        assert second.nodes["n2"] is first.nodes["n2"]
        [device] = world.mirror.devices.out_of_placement(world.mirror.fleet)["n1"]
        assert (device.id, device.kind.taints) == (gpu("n1", 3), (TAINT,))
        world.see(taint_rule(version=6, pool="n1", device="gpu-3"), taint_rule(version=4))
        assert world.freeze().devices is second
        world.mirror.apply([ListCompleted("devicetaintrules", frozenset(), 9)])
        assert world.look().plan_again
        assert world.mirror.devices.out_of_placement(world.mirror.fleet) == {}

    def test_an_older_slice_never_replaces_a_newer_one(self) -> None:
        world = World(records=[published("n1", gpus=4, version=3), published("n1", version=2)])
        assert len(world.freeze().devices.nodes["n1"].devices) == 4

    def test_slices_that_a_list_does_not_have_are_forgotten(self) -> None:
        world = World(records=[published("n1"), published("n2")])
        world.mirror.apply([ListCompleted("resourceslices", frozenset({"n2-gpu"}), 9)])
        assert set(world.freeze().devices.nodes) == {"n2"}

    def test_a_node_recovers_the_devices_that_its_driver_published(self) -> None:
        world = World(records=[published("n1"), published("n2"), CLASSED])
        assert world.freeze().devices.recovered == {}
        world.mirror.apply([Deleted("resourceslices", "n1-gpu", 9)])
        assert [len(one.devices) for one in world.freeze().devices.recovered.values()] == [8]
        world.see(published("n1", version=10))
        assert world.freeze().devices.recovered == {}


class TestRequests:
    def test_a_job_requests_the_devices_of_its_template(self) -> None:
        world = World(ENTRY, records=[CLAIMING, CLASSED, template("four", spec(4))])
        gang = pending(world)
        assert gang.blocked is None
        assert gang.workload.podsets[0].shape.devices == PodDevices((spec(4),))

    @pytest.mark.parametrize(
        ("job", "records", "code", "message"),
        [
            (CLAIMING, [CLASSED], Code.MISCONFIGURED, "ResourceClaimTemplate a/four does not exist"),
            (
                CLAIMING,
                [template("four", spec(4))],
                Code.MISCONFIGURED,
                "ResourceClaimTemplate a/four: DeviceClass gpu does not exist",
            ),
            (
                CLAIMING,
                [CLASSED, template("four", spec(4), error="spec.x: is not supported")],
                Code.UNSUPPORTED,
                "ResourceClaimTemplate a/four: spec.x: is not supported",
            ),
            (
                claimed(JOB, ClaimReference("g", claim="ours")),
                [CLASSED],
                Code.MISCONFIGURED,
                "ResourceClaim a/ours does not exist",
            ),
        ],
        ids=["no template", "no class", "unsupported", "no claim"],
    )  # fmt: skip
    def test_a_claim_that_cannot_be_planned_blocks_the_gang(
        self, job: JobRecord, records: list[Any], code: Code, message: str
    ) -> None:
        blocked = pending(World(ENTRY, records=[job, *records])).blocked
        assert blocked is not None
        assert (blocked.code, blocked.message) == (code, message)
        assert blocked.details == {"namespace": "a", "podSet": "main"}

    def test_a_template_that_is_created_later_causes_a_plan(self) -> None:
        world = World(ENTRY, records=[CLAIMING, CLASSED])
        assert world.look().plan_again
        assert not world.look().plan_again
        world.see(template("four", spec(4)))
        assert world.look().plan_again
        assert pending(world).blocked is None
        world.mirror.apply([Deleted("resourceclaimtemplates", "t-four", 9)])
        assert world.look().plan_again
        assert pending(world).blocked is not None

    def test_a_class_that_is_created_later_causes_a_plan(self) -> None:
        world = World(ENTRY, records=[CLAIMING, template("four", spec(4))])
        world.look()
        world.see(CLASSED)
        assert world.look().plan_again
        assert pending(world).blocked is None

    def test_a_template_that_is_listed_after_the_job_of_a_running_gang_causes_a_plan(self) -> None:
        world = World(LIVE, records=[RUNS, CLASSED])
        world.look()
        world.see(template("four", spec(4)))
        assert world.look().plan_again

    def test_a_running_gang_keeps_the_request_that_it_started_with(self) -> None:
        world = World(LIVE, records=[CLAIMING, CLASSED, template("four", spec(4)), RUNS])
        world.see(replace(template("four", spec(2), version=5), uid="t-new"))
        [gang] = world.freeze().admitted
        assert gang.workload.podsets[0].shape.devices == PodDevices((spec(4),))

    def test_named_claims_of_users_are_in_the_snapshot(self) -> None:
        job = claimed(JOB, ClaimReference("g", claim="ours"))
        ours = claim(None, None, spec(2), name="ours")
        snapshot = World(ENTRY, records=[job, CLASSED, ours, claim("p9", None)]).freeze()
        assert snapshot.claims == {("a", "ours"): ours.content}
        assert snapshot.pending[0].workload.podsets[0].shape.devices == PodDevices(shared=("ours",))


class TestOtherDevices:
    """Allocations outside the slots of gangs take devices off the node."""

    BASE = (published("n1"), CLASSED, template("four", spec(4)), CLAIMING)
    FOUR = tuple(gpu("n1", i) for i in range(4))

    def taken(self, world: World) -> list[DeviceId]:
        world.look()
        return [one.id for one in world.freeze().other_devices.get("n1", ())]

    def test_the_claim_of_a_pod_in_its_slot_takes_nothing(self) -> None:
        world = World(
            LIVE, records=[*self.BASE, RUNS, on("p1", "n1"), claim("p1", self.FOUR, spec(4))]
        )
        assert self.taken(world) == []

    def test_the_claim_of_a_gated_pod_of_the_attempt_takes_nothing(self) -> None:
        """The watch of claims can be ahead of the watch of pods."""
        world = World(LIVE, records=[*self.BASE, RUNS, pod("p1"), claim("p1", self.FOUR, spec(4))])
        assert self.taken(world) == []

    @pytest.mark.parametrize(
        "records",
        [
            [claim("stranger", FOUR, spec(4))],
            [on("p1", "n1", owner="", attempt=0), claim("p1", FOUR, spec(4))],
            [on("p1", "n1", attempt=0), claim("p1", FOUR, spec(4))],
            [on("p1", "n1", version=6), claim("p1", FOUR, spec(3))],
            [replace(on("p1", "n1"), phase=PodPhase.SUCCEEDED), claim("p1", FOUR, spec(4))],
            [claim(None, FOUR, spec(4), name="ours")],
        ],
        ids=["no pod", "unmanaged", "old attempt", "other request", "ended pod", "named claim"],
    )
    def test_each_other_claim_takes_its_devices(self, records: list[Any]) -> None:
        world = World(LIVE, records=[*self.BASE, RUNS, *records])
        assert self.taken(world) == list(self.FOUR)

    def test_a_claim_that_a_running_gang_shares_counts_with_the_gang(self) -> None:
        sharing = claimed(JOB, ClaimReference("g", claim="ours"))
        running = replace(sharing, version=9, suspended=False, attempt=1)
        ours = claim(None, self.FOUR, spec(4), name="ours")
        world = World(LIVE, records=[published("n1"), CLASSED, ours, running])
        assert self.taken(world) == []

    def test_the_claims_of_an_evicted_gang_are_those_of_its_pods_until_they_end(self) -> None:
        leaving = replace(LIVE, state=State.EVICTING)
        suspended = replace(RUNS, version=10, suspended=True)
        records = [*self.BASE, RUNS, suspended, on("p1", "n1"), claim("p1", self.FOUR, spec(4))]
        world = World(leaving, records=records)
        assert self.taken(world) == []
        world.mirror.apply([Deleted("pods", "p1", 20)])
        assert self.taken(world) == list(self.FOUR)

    def test_a_released_claim_causes_a_plan(self) -> None:
        world = World(records=[published("n1"), CLASSED, claim("gone", self.FOUR, spec(4))])
        assert self.taken(world) == list(self.FOUR)
        assert not world.look().plan_again
        world.see(claim("gone", None, spec(4), version=2))
        assert world.look().plan_again
        assert self.taken(world) == []

    def test_the_allocations_of_a_starting_gang_cause_no_plan(self) -> None:
        world = World(LIVE, records=[*self.BASE, RUNS, on("p1", "n1"), on("p2", "n2")])
        world.look()
        assert not world.look().plan_again
        world.see(claim("p1", None, spec(4)))
        world.see(claim("p1", self.FOUR, spec(4), version=2))
        assert not world.look().plan_again


class TestInvariants:
    def test_an_extended_resource_of_a_class_is_not_capacity_of_the_node(self) -> None:
        [podset] = JOB.podsets
        amounts = {**podset.shape.requests, "example.com/gpu": 4}
        asked = replace(podset, shape=replace(podset.shape, requests=Resources(amounts)))
        running = replace(JOB, version=9, suspended=False, attempt=1, podsets=(asked,))
        world = World(LIVE, records=[published("n1"), CLASSED, running])
        assert CommittedSlots.of(world.ledger, world.mirror).over() == []
        world.mirror.apply([Deleted("deviceclasses", "gpu", 9)])
        violations = CommittedSlots.of(world.ledger, world.mirror).over()
        assert violations
        assert all("4 of 0 example.com/gpu" in one.message for one in violations)


def made_for(owner: str, users: Sequence[str], version: int) -> ClaimRecord:
    """A claim with this pod as its owner, which these pods use (by uid)."""
    document = {
        "metadata": {
            "namespace": "a",
            "name": "made",
            "uid": "c-made",
            "resourceVersion": str(version),
            "ownerReferences": [{"kind": "Pod", "name": "x", "uid": owner, "controller": True}],
        },
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": "gpu-3"}
                    ]
                }
            },
            "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in users],
        },
    }
    return read_claim(msgspec.convert(document, WireResourceClaim))


class Leader:
    """Follows the cluster as a leader does."""

    def __init__(self, *records: Any, entries: Sequence[Entry] = ()) -> None:
        self.world = World(records=[published("n1"), CLASSED, *records])
        self.state = LeaderState(self.world.mirror, SolverLimits(), 10.0, lambda: 100.0, 60.0)
        self.state.load(Loaded(tuple(entries), (), 1))

    @property
    def other_devices(self) -> list[DeviceId]:
        self.state.observer.observe(self.state.config, 100.0)
        held = self.state.snapshot(seek_room=False).other_devices
        return [one.id for own in held.values() for one in own]


@pytest.mark.parametrize(
    ("users", "counted"), [(["p"], False), (["p", "other"], False), (["other"], True), ([], False)]
)
def test_a_claim_counts_with_the_gang_of_its_owner_unless_only_other_pods_use_it(
    users: list[str], counted: bool
) -> None:
    one = template("one", spec())
    job = claimed(JOB, ClaimReference("g", template="one"))
    runs = replace(job, version=9, suspended=False, attempt=1)
    leader = Leader(one, runs, on("p", "n1"), made_for("p", users, 2), entries=[LIVE])
    assert leader.other_devices == ([gpu("n1", 3)] if counted else [])


def test_a_claim_with_a_new_owner_leaves_nothing_with_the_one_before() -> None:
    leader = Leader(made_for("p", [], 2))
    assert leader.other_devices == [gpu("n1", 3)]
    leader.world.see(made_for("q", [], 3))
    assert leader.other_devices == [gpu("n1", 3)]
    leader.world.mirror.apply([Deleted("resourceclaims", "c-made", 9)])
    assert leader.other_devices == []


def test_devices_of_a_running_gang_count_once_after_its_template_is_listed() -> None:
    """Until then, the claims of its pods are those of others."""
    used = claim("p1", [gpu("n1", number) for number in range(4)], spec(4))
    world = World(LIVE, records=[published("n1"), CLASSED, RUNS, on("p1", "n1"), used])
    world.usage.refresh_all()
    assert others(world) == 4
    world.mirror.moved_pods.clear()
    world.see(template("four", spec(4)))
    world.usage.refresh_moved(world.mirror.moved_pods)
    assert others(world) == 0


def test_held_devices_follow_the_inventory() -> None:
    """Of a driver that is replaced, another node can publish the same device."""
    world = World(records=[published("n1"), published("n2"), CLASSED])
    world.see(claim(None, [gpu("n1", 3), gpu("n2", 1)], name="kept"))
    world.usage.refresh_all()
    assert [others(world, node) for node in ("n1", "n2", "n3")] == [1, 1, 0]
    moved = replace(published("n1", version=2).content, access=NodeAccess(node="n3"))
    world.see(SliceRecord("n1-gpu", 2, moved))
    assert [others(world, node) for node in ("n1", "n2", "n3")] == [0, 1, 1]
    world.mirror.apply([Deleted("resourceslices", "n2-gpu", 9)])
    assert [others(world, node) for node in ("n1", "n2", "n3")] == [0, 0, 1]


def others(world: World, node: str = "n1") -> int:
    """The devices of the node that others use."""
    inventory = world.mirror.devices.inventory(world.mirror.fleet)
    return len(world.usage.devices.by_node(inventory).get(node, ()))


@pytest.mark.sets_aside
def test_a_running_gang_that_is_set_aside_keeps_its_devices() -> None:
    world = World(
        LIVE, records=[published("n1"), CLASSED, template("four", spec(4)), CLAIMING, RUNS]
    )
    world.see(on("p1", "n1"), claim("p1", [gpu("n1", number) for number in range(4)], spec(4)))
    world.look()
    expected = [gang.workload.podsets[0].shape.devices for gang in world.freeze().admitted]
    version = asked_of(world.mirror.jobs["u1"])
    world.mirror.containment.failed(
        *(Boundary.SNAPSHOT, "u1", RuntimeError(), "Job/a/train"), namespace="a", version=version
    )
    snapshot = world.freeze()
    assert [gang.workload.podsets[0].shape.devices for gang in snapshot.admitted] == expected
    assert [gang.restartable for gang in snapshot.admitted] == [False]
