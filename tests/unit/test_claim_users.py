"""A ResourceClaim that several gangs share since before queuectl was installed: its devices count once, for the gang that started first."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations

import pytest

from queuectl.devices.gpu_sizes import GpuSizes
from queuectl.domain.accounting import UNITS, AccountingTerms, Mark
from queuectl.domain.devices import (
    Claim,
    ClaimReference,
    ClaimSpec,
    DeviceClass,
    DeviceOption,
    DeviceRequest,
)
from queuectl.domain.events import Adopt, Ended, Event, ObjectDeleted, Submitted
from queuectl.domain.fleet import Node
from queuectl.domain.folding import Fold
from queuectl.domain.jobs import JobOutcome, JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.pastuse import PastUseAccount
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.records import ClaimRecord, DeviceClassRecord, NodeRecord, Upserted
from queuectl.domain.rules import Rules, UsageFairness
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.lifecycle.machine import handle
from queuectl.planner.cache import PlannerCache
from queuectl.reports.node_gpus import HeldGpus, cluster_gpus
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.holdings import Holdings
from queuectl.state.ledger import Ledger
from queuectl.state.marking import Marker
from queuectl.state.mirror import Mirror
from queuectl.state.pastuse import PastUseSums
from queuectl.state.usage import OtherPodUsage

CHARGED = "example.com/gpu"
CLASS = DeviceClass("gpu.example.com", (), CHARGED)
HALF_LIFE = 1000.0
TWO = ClaimSpec((DeviceRequest("r", (DeviceOption(CLASS.name, count=2),)),))
QUOTAS = FlavorQuotas("f", {GPU: 8, CHARGED: 8})
CONFIG = QueueConfig(
    cluster_queues={"cq": ClusterQueue("cq", (ResourceGroup((GPU, CHARGED), (QUOTAS,)),))},
    local_queues={("ns", "q"): LocalQueue("ns", "q", "cq")},
    flavors={"f": ResourceFlavor("f")},
    rules=Rules(usage_fairness=UsageFairness(half_life=HALF_LIFE, sampling=1e-6)),
)
STARTS = {"first": 100.0, "second": 200.0, "third": 300.0}
"""Each gang has one pod with one GPU alongside the two devices of the claim."""


class World:
    """Three gangs that share one claim, and the marks of their lives."""

    def __init__(self) -> None:
        self.mirror = Mirror({"jobs": "Job"})
        node = Node("n", {}, Resources({GPU: 8}), unschedulable=True)
        claim = Claim("pair", "ns", "pair", TWO)
        self.mirror.apply(
            [
                Upserted(NodeRecord(node, 1)),
                Upserted(DeviceClassRecord(CLASS.name, 2, CLASS)),
                Upserted(ClaimRecord("ns", "pair", 3, claim)),
            ]
        )
        shape = PodShape(Resources({GPU: 1}))
        podset = PodSet("w", 1, shape, claims=(ClaimReference("c", claim="pair"),))
        for name in STARTS:
            record = JobRecord("Job", "ns", name, name, 4, 0.0, "q", (podset,), attempt=1)
            self.mirror.apply([Upserted(record)])
        self.entries: dict[str, Entry] = {}
        self.marks: dict[str, list[Mark]] = {}
        self.lead()

    def lead(self) -> None:
        """A process becomes the leader."""
        self.marker = Marker(self.mirror, self.entries.values)
        self.holdings = Holdings(self.mirror)
        self.holdings.configure(CONFIG, self.entries.values())
        self.past_use = PastUseSums(self.mirror)
        self.past_use.configure(CONFIG, self.entries.values(), 0.0)

    def happens(self, at: float, *events: tuple[str, Event]) -> None:
        """All in one commit."""
        changes = []
        for name, event in events:
            before = self.entries.get(name)
            change = handle(before, event, at)
            assert change is not None
            changes.append(change)
        for change in self.marker.marked(changes, CONFIG):
            self.entries[change.after.uid] = change.after
            for mark in change.marks:
                self.marks.setdefault(mark.uid, []).append(mark)
        self.holdings.note(changes)
        self.past_use.note(changes)

    def adopt(self, at: float, *names: str) -> None:
        """The gangs run when they are first seen."""
        placed = Placement((PodSetPlacement("w", (("n", 1),), {GPU: "f", CHARGED: "f"}),))
        changes = []
        for name in names:
            new = handle(None, Submitted(self.mirror.jobs[name], 0, "cq"), at)
            assert new is not None
            adopted = handle(new.after, Adopt(placed, 1, started_at=STARTS[name]), at)
            assert adopted is not None
            changes.append(EntryChange(None, adopted.after, at))
        for change in self.marker.marked(changes, CONFIG):
            self.entries[change.after.uid] = change.after
            for mark in change.marks:
                self.marks.setdefault(mark.uid, []).append(mark)
        self.holdings.note(changes)
        self.past_use.note(changes)

    def past_devices(self, at: float) -> float:
        """Past use of devices by the LocalQueue."""
        account = PastUseAccount.of_local_queue("ns", "q")
        used = {one.account: one for one in self.past_use.current(at)}
        return used[account].amounts[CHARGED]

    def seconds(self, until: float) -> dict[str, Fraction]:
        """GPU-seconds of each gang."""
        found = {}
        for name, marks in self.marks.items():
            fold = Fold(0.0, until, AccountingTerms())
            fold.workload(None, marks)
            found[name] = Fraction(sum(a.allocated for a in fold.hours.values()), UNITS)
        return found

    def quota(self) -> int:
        """Quota of devices that all gangs hold."""
        return self.holdings.held["ns", "q", "cq", "f", CHARGED]

    def snapshot(self) -> Snapshot:
        ledger = Ledger(self.entries.values())
        usage = OtherPodUsage(self.mirror, ledger)
        usage.refresh_all()
        return SnapshotBuilder(self.mirror, ledger, usage).freeze(CONFIG, 500.0, SolverLimits())


@pytest.mark.parametrize("order", list(permutations(STARTS)))
@pytest.mark.parametrize("together", [True, False])
def test_the_devices_of_a_shared_claim_are_charged_once_at_each_moment(
    order: tuple[str, ...], *, together: bool
) -> None:
    world = World()
    for names in [order] if together else [(name,) for name in order]:
        world.adopt(400.0, *names)
    assert world.quota() == 2
    world.happens(1000.0, ("first", Ended(JobOutcome.SUCCEEDED)))
    assert world.quota() == 2
    world.happens(1500.0, ("third", Ended(JobOutcome.SUCCEEDED)))
    assert world.quota() == 2
    world.happens(2000.0, ("second", Ended(JobOutcome.SUCCEEDED)))
    assert world.quota() == 0
    assert world.seconds(3000.0) == {
        "first": 3 * 900,
        "second": 800 + 3 * 1000,
        "third": 1200,
    }


@pytest.mark.parametrize("order", list(permutations(STARTS)))
@pytest.mark.parametrize("together", [True, False])
def test_the_devices_of_a_shared_claim_are_past_use_once(
    order: tuple[str, ...], *, together: bool
) -> None:
    world = World()
    for names in [order] if together else [(name,) for name in order]:
        world.adopt(400.0, *names)
    for at, name in ((1000.0, "first"), (1500.0, "third"), (2000.0, "second")):
        world.happens(at, (name, Ended(JobOutcome.SUCCEEDED)))
        assert world.past_devices(at) == pytest.approx(_past_use(2, at - 400.0))


def test_a_new_leader_counts_the_devices_of_a_shared_claim_as_past_use_once() -> None:
    world = World()
    world.adopt(400.0, *STARTS)
    world.lead()
    world.happens(1000.0, ("first", Ended(JobOutcome.SUCCEEDED)))
    world.happens(1500.0, ("second", Ended(JobOutcome.SUCCEEDED)))
    # The new leader counts the gang that is charged since its start.
    assert world.past_devices(1500.0) == pytest.approx(_past_use(2, 1500.0 - STARTS["first"]))


def _past_use(held: int, seconds: float) -> float:
    """Past use of an account that has held this much for this long."""
    return held * (1 - math.exp2(-seconds / HALF_LIFE))


def test_the_next_gang_is_charged_if_the_first_one_is_deleted_while_no_process_leads() -> None:
    world = World()
    world.adopt(400.0, *STARTS)
    del world.mirror.jobs["first"]
    world.lead()
    world.happens(1000.0, ("first", ObjectDeleted()))
    assert world.seconds(2000.0) == {
        "first": 3 * 900,
        "second": 800 + 3 * 1000,
        "third": 1700,
    }
    assert world.quota() == 2


def test_a_new_leader_charges_the_same_gang() -> None:
    world = World()
    world.adopt(400.0, *STARTS)
    marks = {name: len(own) for name, own in world.marks.items()}
    world.lead()
    world.happens(1000.0, ("second", Ended(JobOutcome.SUCCEEDED)))
    assert {name: len(own) for name, own in world.marks.items()} == marks | {
        "second": marks["second"] + 1
    }
    assert world.seconds(2000.0) == {"first": 3 * 1900, "second": 800, "third": 1700}


def test_reports_on_nodes_count_a_shared_claim_once() -> None:
    world = World()
    world.adopt(400.0, *STARTS)
    given = world.snapshot()
    assert {entry.state for entry in world.entries.values()} == {State.RUNNING}
    sizes = GpuSizes.of(given.fleet, given.devices, given.config)
    known = HeldGpus(given, sizes)
    held = {gang.workload.name: known.of(gang)["n"].gpus for gang in given.admitted}
    assert held == {"first": 3, "second": 1, "third": 1}
    node = given.fleet.nodes[0]
    assert node.unschedulable
    assert cluster_gpus(given, PlannerCache()).unhealthy == 8 - 5
