"""A mixed fleet over several hours: the reports add up to the physical GPU-hours exactly, whatever happens.

The fleet has whole GPUs, MIG instances of both strategies, GPUs shared by time-slicing and MPS, AMD GPUs and partitions, Intel GPUs, and
devices of ResourceSlices. Gangs arrive, end and are evicted at any millisecond. Nodes are lost and return, and MIG is reconfigured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from random import Random
from typing import Any

import msgspec
import pytest

from queuectl.control.leader.accounting import Accountant, Follower, UsageInputs
from queuectl.db.ports import Commit
from queuectl.domain.accounting import HOUR, MILLISECONDS, Accounting, ClusterAmounts, Price
from queuectl.domain.budgets import Budget, BudgetScope, Spender
from queuectl.domain.devices import ClaimReference, DeviceClass
from queuectl.domain.events import Admit, Drained, Event, Evict, ObjectDeleted, Submitted
from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.gpus import PARTS
from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.quantity import PODS, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import Deleted, DeviceClassRecord, NodeRecord, Upserted
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.domain.usage_reports import By, Grouping, Period
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.lifecycle.machine import handle
from queuectl.localcluster import nodes
from queuectl.objects.kubernetes.resource_claims import read_claim_template
from queuectl.objects.kubernetes.resource_slices import read_resource_slice
from queuectl.objects.kubernetes.resource_wire import WireClaimTemplate, WireResourceSlice
from queuectl.planner.cache import PlannerCache
from queuectl.reports.cluster_map import efficiency_of
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.ledger import Ledger
from queuectl.state.marking import Marker
from queuectl.state.mirror import Mirror
from queuectl.state.pastuse import BudgetSums
from queuectl.state.usage import OtherPodUsage
from tests.support.counted import map_of
from tests.support.stores import PostgresStore

pytestmark = pytest.mark.asyncio

GPU = "nvidia.com/gpu"
T0 = 1_700_002_800  # a full hour
POOL = "example.com/pool"


@dataclass(frozen=True)
class Kind:
    """Nodes of one kind: their physical GPUs, their offers and labels, and the request of a pod with its size."""

    physical: int
    offers: Mapping[str, int]
    labels: Mapping[str, str]
    asks: Mapping[str, int]
    size: str
    claim: str = ""
    devices: tuple[dict[str, Any], ...] = ()


def shared(replicas: int, way: str) -> dict[str, str]:
    return {
        f"{GPU}.product": "Tesla-T4-SHARED",
        f"{GPU}.replicas": str(replicas),
        f"{GPU}.sharing-strategy": way,
    }


def part(name: str, profile: str, slices: int) -> dict[str, Any]:
    consumes = [{"counterSet": "gpu-0", "counters": {"slices": {"value": str(slices)}}}]
    return nodes.device(name, {"profile": profile} if profile else None, consumesCounters=consumes)


DIVISIBLE = (part("whole", "", 7), part("half", "3g.40gb", 3), part("rest", "4g.40gb", 4))
A100 = {f"{GPU}.product": "NVIDIA-A100-SXM4-40GB"}
KINDS = {
    "h100": Kind(8, {GPU: 8}, {f"{GPU}.product": "NVIDIA-H100-80GB-HBM3"}, {GPU: 2}, "2"),
    "mixed": Kind(2, {"nvidia.com/mig-1g.5gb": 14}, A100, {"nvidia.com/mig-1g.5gb": 1}, "1/7"),
    "single": Kind(2, {GPU: 14}, {f"{GPU}.product": "NVIDIA-A100-MIG-1g.5gb"}, {GPU: 3}, "3/7"),
    "sliced": Kind(2, {GPU: 8}, shared(4, "time-slicing"), {GPU: 1}, "1/4"),
    "mps": Kind(2, {GPU: 20}, shared(10, "mps"), {GPU: 1}, "1/10"),
    "amd": Kind(8, {"amd.com/gpu": 8}, {}, {"amd.com/gpu": 3}, "3"),
    "cpx": Kind(1, {"amd.com/gpu": 8}, {"amd.com/gpu.compute-memory-partition": "cpx_nps4"}, {"amd.com/gpu": 1}, "1/8"),
    "intel": Kind(4, {"gpu.intel.com/xe": 4}, {}, {"gpu.intel.com/xe": 1}, "1"),
    "dra": Kind(8, {}, {}, {}, "4", "four", tuple(nodes.gpus(8, "H100"))),
    "parts": Kind(1, {}, {}, {}, "3/7", "half", DIVISIBLE),
}  # fmt: skip
CLAIMS: dict[str, dict[str, Any]] = {
    "four": {"exactly": {"deviceClassName": nodes.DRIVER, "count": 4}},
    "half": {"exactly": {"deviceClassName": "halves"}},
}
HALF = f"'{nodes.DRIVER}' in device.attributes && 'profile' in device.attributes['{nodes.DRIVER}'] && device.attributes['{nodes.DRIVER}'].profile == '3g.40gb'"
RECUT = Kind(2, {"nvidia.com/mig-3g.20gb": 2, "nvidia.com/mig-4g.20gb": 2}, A100, {}, "0")
RESOURCES = (
    "cpu",
    GPU,
    "nvidia.com/mig-1g.5gb",
    "amd.com/gpu",
    "gpu.intel.com/xe",
    nodes.EXTENDED_RESOURCE,
)
FLAVORS = {name: ResourceFlavor(name, ((POOL, name),), topology="t") for name in KINDS}
CONFIG = QueueConfig(
    cluster_queues={
        name: ClusterQueue(
            name,
            (ResourceGroup(RESOURCES, (FlavorQuotas(name, dict.fromkeys(RESOURCES, 10**6)),)),),
            cohort="all",
        )
        for name in KINDS
    },
    local_queues={(f"team-{name}", "q"): LocalQueue(f"team-{name}", "q", name) for name in KINDS},
    flavors=FLAVORS,
    rules=Rules(accounting=Accounting(prices=(Price("some", 2.0, "h100"),), labels=("project",))),
)  # fmt: skip

HOLDERS = {
    BudgetScope.CLUSTER_QUEUE: list(KINDS),
    BudgetScope.LOCAL_QUEUE: [f"team-{name}/q" for name in KINDS],
    BudgetScope.NAMESPACE: [f"team-{name}" for name in KINDS],
    BudgetScope.USER: ["user-1", "user-2"],
}
BUDGETS = {
    f"{scope}-{i}": Budget(f"{scope}-{i}", scope, holder, 0)
    for scope, holders in HOLDERS.items()
    for i, holder in enumerate(holders)
}


@dataclass
class World:
    """The leader's memory over a real database, with a clock of whole milliseconds."""

    store: PostgresStore
    rng: Random
    mirror: Mirror = field(default_factory=lambda: Mirror({"jobs": "Job"}))
    at: int = T0 * MILLISECONDS
    entries: dict[str, Entry] = field(default_factory=dict)
    held: dict[str, tuple[int, Fraction]] = field(default_factory=dict)
    gpu_ms: Fraction = Fraction()
    physical_ms: int = 0
    numbers: int = 0
    sums: BudgetSums = field(default_factory=BudgetSums)

    @property
    def now(self) -> float:
        return self.at / MILLISECONDS

    def version(self) -> int:
        self.numbers += 1
        return self.numbers

    def node(self, name: str, kind: Kind) -> None:
        """Create or change a node with its devices."""
        offers = Resources({**kind.offers, "cpu": 64_000, PODS: 110})
        labels = {HOSTNAME: name, POOL: name, **kind.labels}
        self.mirror.apply([Upserted(NodeRecord(Node(name, labels, offers), self.version()))])

    def slices(self, name: str, kind: Kind) -> None:
        counters = [{"name": "gpu-0", "counters": {"slices": {"value": "7"}}}]
        made = nodes.pool(name, kind.devices, counters=counters if name == "parts" else ())
        for one in made if kind.devices else ():
            one["metadata"] |= {
                "uid": one["metadata"]["name"],
                "resourceVersion": str(self.version()),
            }
            wire = msgspec.convert(one, WireResourceSlice, strict=False)
            self.mirror.apply([Upserted(read_resource_slice(wire))])

    def claims(self) -> None:
        classes = (
            DeviceClass(nodes.DRIVER, (f"device.driver == '{nodes.DRIVER}'",), nodes.EXTENDED_RESOURCE),
            DeviceClass("halves", (HALF,)),
        )  # fmt: skip
        for one in classes:
            self.mirror.apply([Upserted(DeviceClassRecord(one.name, self.version(), one))])
        for name, request in CLAIMS.items():
            for pool in KINDS:
                meta = {"namespace": f"team-{pool}", "name": name, "uid": f"{pool}-{name}"}
                meta["resourceVersion"] = str(self.version())
                spec = {"spec": {"devices": {"requests": [{"name": "r"} | request]}}}
                wire = msgspec.convert(
                    {"metadata": meta, "spec": spec}, WireClaimTemplate, strict=False
                )
                self.mirror.apply([Upserted(read_claim_template(wire))])

    async def lead(self) -> None:
        self.epoch = await self.store.take_over("test", 0)
        self.marker = Marker(self.mirror)
        facts = UsageInputs(
            marker=self.marker,
            live=lambda: [e for e in self.entries.values() if e.state is not State.FINISHED],
            config=lambda: CONFIG,
            samples=lambda uid: (),
            snapshot=self.snapshot,
        )
        follower = Follower(added=self.sums.add, read=self.read_sums)
        self.accountant = Accountant(
            self.store.usage,
            facts,
            lambda: self.now,
            self.epoch,
            PlannerCache(),
            follower=follower,
        )

    async def read_sums(self) -> None:
        self.sums.learn(BUDGETS, await self.store.usage.spent(BUDGETS.values(), self.now))

    def used(self) -> dict[str, int]:
        """Units that each budget has used until now, with running gangs."""
        sums = {}
        for balance in self.sums.balances(replace(CONFIG, budgets=BUDGETS), self.now):
            running = (e for e in self.entries.values() if e.uid in self.held)
            sums[balance.budget.name] = balance.used + sum(
                balance.cost(e.gpus, max(e.started_at or 0.0, balance.counted), self.now)
                for e in running
                if Spender(e.cluster_queue, e.namespace, e.queue, e.user).of(balance.budget.scope)
                == balance.budget.holder
            )
        return sums

    def snapshot(self) -> Snapshot:
        ledger = Ledger(self.entries.values())
        usage = OtherPodUsage(self.mirror, ledger)
        usage.refresh_all()
        return SnapshotBuilder(self.mirror, ledger, usage).freeze(CONFIG, self.now, SolverLimits())

    async def commit(self, change: EntryChange | None) -> None:
        assert change is not None
        changes = self.marker.marked([change], CONFIG)
        await self.store.commit(Commit(changes), epoch=self.epoch, cycle=1)
        self.entries[change.after.uid] = change.after
        self.sums.note([change])

    async def submit(self, name: str, pool: str, pods: int) -> None:
        """Submit a gang and start it at once."""
        kind = KINDS[pool]
        claims = (ClaimReference("c", template=kind.claim),) if kind.claim else ()
        shape = PodShape(Resources({**kind.asks, "cpu": 1000, PODS: 1}))
        record = JobRecord(
            "Job", f"team-{pool}", name, name, self.version(), self.now, "q",
            (PodSet("w", pods, shape, claims=claims),), labels=(("project", f"p{pods}"),), submitter=f"user-{pods}",
        )  # fmt: skip
        self.mirror.apply([Upserted(record)])
        record = self.mirror.sized(self.mirror.jobs[name], CONFIG)
        assert record.gpus == Fraction(kind.size) * pods
        await self.commit(handle(None, Submitted(record, 0, pool, f"user-{pods}"), self.now))
        flavors = dict.fromkeys(("cpu", *kind.asks), pool)
        placed = PodSetPlacement("w", ((pool, pods),), flavors)
        await self.event(name, Admit(Placement((placed,))))
        self.held[name] = self.at, Fraction(kind.size) * pods

    async def event(self, name: str, event: Event) -> None:
        await self.commit(handle(self.entries[name], event, self.now))

    async def stop(self, name: str) -> None:
        """Evict a gang or delete its job; its pods end some milliseconds later."""
        if self.rng.random() < 0.5:
            await self.event(name, Evict(Reason(Code.PREEMPTED, "for the test")))
            self.at += self.rng.randrange(1, 900)
            await self.event(name, Drained())
        await self.event(name, ObjectDeleted())
        since, gpus = self.held.pop(name)
        self.gpu_ms += gpus * (self.at - since)

    async def account(self) -> None:
        """Account for everything; nodes change only at these times."""
        await self.accountant.account()
        last, self.accounted = getattr(self, "accounted", self.at), self.at
        there = {name for name in KINDS if name in self.mirror.nodes}
        self.physical_ms += sum(KINDS[name].physical for name in there) * (self.at - last)


async def lived(store: PostgresStore, seed: int) -> World:
    """Two and a half hours of events, about one every four minutes."""
    world = World(store, Random(seed))
    for name, kind in KINDS.items():
        world.node(name, kind)
        world.slices(name, kind)
    world.claims()
    await world.lead()
    other = Resources({GPU: 1, "cpu": 100, PODS: 1})
    foreign = PodRecord("x", "p", "p", world.version(), other, node="h100", phase=PodPhase.RUNNING)
    world.mirror.apply([Upserted(foreign)])
    await world.account()
    while world.at < (T0 + 2.5 * HOUR) * MILLISECONDS:
        world.at += world.rng.randrange(1, 240_000)
        match world.rng.randrange(8):
            case 0 | 1 | 2 | 3:
                pool = world.rng.choice(sorted(KINDS))
                pods = 1 if pool in ("dra", "parts") else world.rng.randrange(1, 3)
                if not any(pool in name for name in world.held) and pool in world.mirror.nodes:
                    await world.submit(f"{pool}-{world.version()}", pool, pods)
            case 4 | 5 if world.held:
                await world.stop(world.rng.choice(sorted(world.held)))
            case 6:
                await world.account()
                lost = world.rng.choice(["h100", "mixed", "amd", "dra"])
                if not any(lost in name for name in world.held):
                    world.mirror.apply([Deleted("nodes", lost, world.version())])
            case _:
                await world.account()
                for name, kind in KINDS.items():
                    busy = any(name in gang for gang in world.held)
                    cut = (
                        RECUT if name == "mixed" and not busy and world.rng.random() < 0.5 else kind
                    )
                    world.node(name, kind if busy else cut)
        held = sum((gpus * (world.at - since) for since, gpus in world.held.values()), Fraction())
        used = world.used()
        for scope in BudgetScope:
            total = sum(used[name] for name, one in BUDGETS.items() if one.scope is scope)
            assert total == (world.gpu_ms + held) * PARTS, scope
    for name in sorted(world.held):
        await world.stop(name)
    await world.account()
    return world


async def test_budgets_spend_the_gpu_hours_of_the_ledger_at_each_moment(
    store: PostgresStore,
) -> None:
    world = await lived(store, 2)
    in_the_database = await store.usage.spent(BUDGETS.values(), world.now)
    in_memory = world.sums.balances(replace(CONFIG, budgets=BUDGETS), world.now)
    assert in_the_database.until == world.now
    assert [b.ended for b in in_memory] == [0] * len(BUDGETS)
    for balance in in_memory:
        key = (balance.budget.name, balance.month.begins)
        assert balance.spent == in_the_database.units[key]
    for scope in BudgetScope:
        those = [b.spent for b in in_memory if b.budget.scope is scope]
        assert sum(those) == world.gpu_ms * PARTS


async def test_the_reports_of_a_mixed_fleet_are_its_physical_gpu_hours(
    store: PostgresStore,
) -> None:
    world = await lived(store, 1)
    period = Period.around(T0 - HOUR, world.now + HOUR)
    expected = world.gpu_ms * PARTS
    assert expected > 0
    groupings: list[Any] = [*(by for by in By if by is not By.LABEL), "label:project", "user,hour"]
    for by in groupings:
        report = await store.usage.report(period, Grouping.parse(str(by)))
        assert sum(row.amounts.allocated for row in report.rows) == expected, by
        assert sum(row.amounts.unknown for row in report.rows) == expected, by
        cluster = report.cluster
        assert isinstance(cluster, ClusterAmounts)
        assert cluster.physical == world.physical_ms * PARTS
        assert cluster.allocated == expected
        assert cluster.unmanaged > 0
        assert cluster.unallocated > 0
    flavors = await store.usage.report(period, Grouping(By.FLAVOR))
    assert {row.names["flavor"] for row in flavors.rows if row.amounts.allocated} <= KINDS.keys()


async def test_the_gpus_of_all_nodes_add_up_to_the_physical_gpus(store: PostgresStore) -> None:
    world = World(store, Random(0))
    for name, kind in KINDS.items():
        world.node(name, kind)
        world.slices(name, kind)
    world.claims()
    await world.lead()
    for name in KINDS:
        await world.submit(f"{name}-gang", name, 1)
    found = map_of(world.snapshot(), {})
    by_node = efficiency_of(found.gangs, found.occupancies, HOSTNAME)
    assert {name: parts.total for name, parts in by_node.items()} == {
        name: kind.physical for name, kind in KINDS.items()
    }
    assert {name: parts.unknown for name, parts in by_node.items()} == {
        name: Fraction(kind.size) for name, kind in KINDS.items()
    }
