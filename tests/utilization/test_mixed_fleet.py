"""A fleet of whole GPUs, MIG instances, time-sliced GPUs and GPUs of three vendors: its reports add up to its physical GPUs.

Exporters of all three vendors answer real scrapes. The state, the marks and the hours are those of the leader.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
import pytest_asyncio

from queuectl.domain.accounting import HOUR, UNITS, AccountingTerms, Amounts
from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.folding import Fold
from queuectl.domain.gpus import BY_NAME
from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.quantity import PODS, Resources
from queuectl.domain.queues import ClusterQueue, IdleReclaim, LocalQueue, QueueConfig
from queuectl.domain.records import NodeRecord, Upserted
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.domain.usage_reports import NO_GPUS
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.localcluster.exporter import Dialect, Exporters
from queuectl.localcluster.gpus import GpuPod, parse_profile
from queuectl.reports.cluster_map import efficiency_of
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.gpu_holders import held_gangs
from queuectl.state.ledger import Ledger
from queuectl.state.marking import Marker
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage
from queuectl.state.utilization import UseTracker
from queuectl.telemetry.signal.exporters import ExporterSource
from queuectl.telemetry.signal.names import AMD, INTEL, NVIDIA
from tests.support.counted import map_of

pytestmark = pytest.mark.asyncio

SCRAPE = 30.0
RULE = IdleReclaim(window=120.0, warmup=0.0, memory_window=240.0)
CONFIG = QueueConfig(
    cluster_queues={"all": ClusterQueue("all", idle_reclaim=RULE)},
    local_queues={("team", "q"): LocalQueue("team", "q", "all")},
)
GPU = "nvidia.com/gpu"
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
SINGLE = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}
T4 = {
    "nvidia.com/gpu.product": "Tesla-T4-SHARED",
    "nvidia.com/gpu.replicas": "3",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}
CPX = {"amd.com/gpu.compute-memory-partition": "cpx_nps4"}


@dataclass(frozen=True)
class Place:
    """A node: its physical GPUs, what the device plugin offers, and its exporter."""

    physical: int
    offers: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    dialect: Dialect = Dialect()


PLACES = {
    "whole": Place(8, {GPU: 8}),
    "mixed": Place(2, {"nvidia.com/mig-1g.5gb": 7, "nvidia.com/mig-3g.20gb": 1, "nvidia.com/mig-4g.20gb": 1}, A100),
    "single": Place(1, {GPU: 7}, SINGLE),
    "sliced": Place(2, {GPU: 6}, T4),
    "amd": Place(8, {"amd.com/gpu": 8}, {}, Dialect(vendor="amd")),
    "parts": Place(1, {"amd.com/gpu": 8}, CPX, Dialect(vendor="amd")),
    "intel": Place(2, {"gpu.intel.com/i915": 2}, {}, Dialect(vendor="intel")),
}  # fmt: skip
PHYSICAL = sum(place.physical for place in PLACES.values())


@dataclass(frozen=True)
class Run:
    """A gang whose pods are on one node.

    Attributes:
        state: the evaluation that is correct for it.
        gpus: the physical GPUs of all its pods, as a fraction.
    """

    node: str
    resource: str
    pods: int
    each: int
    profile: str
    state: UseState
    gpus: str


U = UseState
RUNS = {
    "train": Run("whole", GPU, 2, 3, "busy", U.ACTIVE, "6"),
    "instances": Run("mixed", "nvidia.com/mig-1g.5gb", 5, 1, "busy", U.ACTIVE, "5/7"),
    "idle-instance": Run("mixed", "nvidia.com/mig-3g.20gb", 1, 1, "idle", U.IDLE, "3/7"),
    "single": Run("single", GPU, 3, 1, "busy", U.ACTIVE, "3/7"),
    "sharer": Run("sliced", GPU, 1, 1, "idle", U.UNKNOWN, "1/3"),
    "only-one-named": Run("sliced", GPU, 1, 1, "idle", U.UNKNOWN, "1/3"),
    "amd": Run("amd", "amd.com/gpu", 1, 4, "busy", U.ACTIVE, "4"),
    "parts": Run("parts", "amd.com/gpu", 3, 1, "busy", U.UNKNOWN, "3/8"),
    "intel": Run("intel", "gpu.intel.com/i915", 1, 1, "idle", U.IDLE, "1"),
}


def requests(run: Run) -> Resources:
    return Resources({run.resource: run.each, "cpu": 1000, PODS: 1})


class Fleet:
    """The leader's view of the fleet, and the exporters that simulate its GPUs."""

    def __init__(self, exporters: Exporters) -> None:
        self.mirror = Mirror({"jobs": "Job"})
        for name, place in PLACES.items():
            offers = Resources({**place.offers, "cpu": 64_000, PODS: 110})
            node = Node(name, {HOSTNAME: name, **place.labels}, offers)
            self.mirror.apply([Upserted(NodeRecord(node, 1))])
            exporters.add_node(name, place.physical, place.dialect)
        self.entries = [self._entry(name, run) for name, run in RUNS.items()]
        self.ledger = Ledger(self.entries)
        for name, run in RUNS.items():
            self._run(name, run, exporters)

    def _entry(self, name: str, run: Run) -> Entry:
        podsets = (PodSet("w", run.pods, PodShape(requests(run))),)
        self.mirror.apply([Upserted(JobRecord("Job", "team", name, name, 1, 0.0, "q", podsets))])
        placement = Placement((PodSetPlacement("w", ((run.node, run.pods),)),))
        return Entry(
            name, "Job", "team", name, State.RUNNING, "q", "all",
            attempt=1, since=0.0, started_at=0.0, ready_at=0.0, placement=placement,
        )  # fmt: skip

    def _run(self, name: str, run: Run, exporters: Exporters) -> None:
        for number in range(run.pods):
            pod = f"{name}-{number}"
            self.mirror.apply([Upserted(self._pod(pod, name, run))])
            mig = run.resource.removeprefix("nvidia.com/mig-") if "mig-" in run.resource else ""
            if run.node in ("single", "parts"):
                mig = "1g.5gb"
            exporters.put(
                GpuPod(
                    "team", pod, pod, run.node, run.each, parse_profile(run.profile), 0.0,
                    mig=mig, shared=run.node == "sliced",
                )
            )  # fmt: skip

    def _pod(self, pod: str, name: str, run: Run) -> PodRecord:
        return PodRecord(
            "team", pod, pod, 1, requests(run), name,
            node=run.node, attempt=1, podset="w", phase=PodPhase.RUNNING, ready=True,
            started_at=0.0, owner_kind="Job",
        )  # fmt: skip

    def snapshot(self) -> Snapshot:
        usage = OtherPodUsage(self.mirror, self.ledger)
        usage.refresh(list(self.mirror.pods))
        return SnapshotBuilder(self.mirror, self.ledger, usage).freeze(
            CONFIG, float(HOUR), SolverLimits()
        )

    def hours(self, uses: Mapping[str, GangUse]) -> dict[str, Amounts]:
        """The usage ledger of the first hour, in which all gangs ran, by gang."""
        marker = Marker(self.mirror)
        found = {}
        for entry in self.entries:
            fold = Fold(0.0, float(HOUR), AccountingTerms())
            samples = [replace(uses[entry.uid], at=float(at)) for at in range(300, HOUR + 1, 300)]
            fold.workload(None, [marker.now(entry, 0.0, CONFIG)], samples)
            (found[entry.uid],) = fold.hours.values()
        return found


@dataclass
class Measured:
    fleet: Fleet
    uses: Mapping[str, GangUse]


@pytest_asyncio.fixture
async def measured() -> AsyncIterator[Measured]:
    """The fleet, and the evaluation after scrapes for ten minutes of its clock."""
    with Exporters() as exporters:
        fleet = Fleet(exporters)
        source = ExporterSource(
            [exporters.url(name) for name in PLACES],
            names=(NVIDIA, AMD, INTEL),
            scrape_seconds=SCRAPE,
        )
        tracker = UseTracker(SCRAPE)
        gangs = list(held_gangs(fleet.mirror, fleet.ledger, CONFIG))
        for step in range(20):
            at = 1000.0 + SCRAPE * step
            recent = await source.sample(120.0, at, set())
            longer = {w: await source.sample(w, at, set()) for w in tracker.windows(gangs, recent)}
            uses = tracker.judge(gangs, recent, longer)
        await source.close()
        yield Measured(fleet, uses)


async def test_the_use_of_a_gang_is_measured_or_unknown_and_never_that_of_other_pods(
    measured: Measured,
) -> None:
    assert {uid: use.state for uid, use in measured.uses.items()} == {
        name: run.state for name, run in RUNS.items()
    }


async def test_the_gpu_hours_of_gangs_and_free_gpus_are_the_physical_gpu_hours(
    measured: Measured,
) -> None:
    hours = measured.fleet.hours(measured.uses)
    held = {uid: Fraction(row.allocated, UNITS * HOUR) for uid, row in hours.items()}
    assert held == {name: Fraction(run.gpus) for name, run in RUNS.items()}
    free = sum((o.free_gpus for o in map_of(measured.fleet.snapshot(), {}).occupancies), Fraction())
    assert sum(held.values()) + free == PHYSICAL


async def test_what_is_not_measured_is_unknown_in_the_ledger(measured: Measured) -> None:
    for uid, row in measured.fleet.hours(measured.uses).items():
        unknown = RUNS[uid].state is UseState.UNKNOWN
        assert row.unknown == (row.allocated if unknown else 0.0)
        assert row.idle == (row.allocated if RUNS[uid].state is UseState.IDLE else 0.0)


async def test_the_parts_of_the_efficiency_are_exact(measured: Measured) -> None:
    found = map_of(measured.fleet.snapshot(), measured.uses)
    parts = sum(efficiency_of(found.gangs, found.occupancies).values(), NO_GPUS)
    gpus = {name: Fraction(run.gpus) for name, run in RUNS.items()}
    used = sum(gpus[name] for name, run in RUNS.items() if run.state is UseState.ACTIVE)
    blind = sum(gpus[name] for name, run in RUNS.items() if run.state is UseState.UNKNOWN)
    assert parts.total == PHYSICAL
    assert parts.effective == Fraction(used) * Fraction(9, 10)
    assert parts.unknown == blind


async def test_each_node_offers_its_physical_gpus(measured: Measured) -> None:
    offered = {
        node.name: BY_NAME.counted(node.allocatable, node.labels)
        for node in measured.fleet.mirror.fleet.nodes
    }
    assert offered == {name: Fraction(place.physical) for name, place in PLACES.items()}
