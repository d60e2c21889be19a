"""A fleet of whole GPUs, MIG instances, time-sliced GPUs and AMD GPUs on a real control plane, measured by a real Prometheus.

Its usage reports add up to the physical GPU-hours, and those of a gang to its GPUs and its times, to the millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fractions import Fraction

import pytest

from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.accounting import HOUR, Amounts, milliseconds
from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.gpus import PARTS
from queuectl.domain.ledger import State
from queuectl.domain.quantity import GPU
from queuectl.domain.queries import HistoryLine
from queuectl.domain.usage_reports import By, Grouping, Period, Report
from queuectl.localcluster.exporter import PROFILE, SHARED, Dialect
from queuectl.localcluster.prometheus import EXPORTERS_JOB
from tests.support.shared_resource import SharedResource
from tests.support.stores import PostgresStore
from tests.system.installation import Workspace
from tests.system.measured import MeasuredInstallation, judged_quickly, measured_installation

pytestmark = [pytest.mark.system, pytest.mark.gpus, pytest.mark.timeout(600)]

MIG, AMD = "nvidia.com/mig-1g.10gb", "amd.com/gpu"
SLICED = {f"{GPU}.replicas": "4", f"{GPU}.sharing-strategy": "time-slicing"}


@dataclass(frozen=True)
class Kind:
    """A node, and a gang on it.

    Attributes:
        physical: GPUs of the node.
        offers: its resources.
        labels: of the node, in addition to those of each node.
        gang: the pods, and the amount that each requests.
        size: GPUs of the gang.
        measured: whether the use of its GPUs is known.
    """

    physical: int
    offers: Mapping[str, int]
    gang: tuple[int, int]
    size: Fraction
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    measured: bool = True

    @property
    def resource(self) -> str:
        return next(iter(self.offers))


KINDS = {
    "b0-r0-h0": Kind(8, {GPU: 8}, (2, 3), Fraction(6)),
    "b0-r0-h1": Kind(2, {MIG: 14}, (3, 1), Fraction(3, 7), {"nvidia.com/mig.strategy": "mixed"}),
    "b0-r0-h2": Kind(2, {GPU: 8}, (1, 1), Fraction(1, 4), SLICED, {SHARED: "true"}, measured=False),
    "b0-r0-h3": Kind(8, {AMD: 8}, (1, 4), Fraction(4)),
}
PHYSICAL = sum(kind.physical for kind in KINDS.values())


def _built() -> AbstractContextManager[MeasuredInstallation]:
    settings = {"VENDOR": "nvidia,amd", "TRUSTED_JOBS": EXPORTERS_JOB}
    return measured_installation({f"QUEUECTL_UTILIZATION__{k}": v for k, v in settings.items()})


@pytest.fixture
def fleet(shared_resource: SharedResource) -> MeasuredInstallation:
    """The nodes offer what their kinds do."""
    measured = shared_resource.get(_built)
    client = measured.installation.cluster.client
    for name, kind in KINDS.items():
        path = f"/api/v1/nodes/{name}"
        client.patch(path, {"metadata": {"labels": dict(kind.labels)}})
        amounts = {GPU: None, **{resource: str(n) for resource, n in kind.offers.items()}}
        client.patch(f"{path}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
        if AMD in kind.offers:
            measured.exporters.add_node(name, kind.physical, Dialect(vendor="amd"))
    return measured


@pytest.fixture
def workspace(fleet: MeasuredInstallation) -> Iterator[Workspace]:
    with fleet.installation.workspace(0) as one:
        covered = dict.fromkeys((GPU, MIG, AMD), 100) | {"cpu": "1M"}
        queue = m.cluster_queue(one.namespace, "gpu", covered)
        queue["spec"]["policy"] = judged_quickly(one.namespace, 0)["spec"]["policy"]
        one.rest.apply([queue])
        yield one


def job(namespace: str, node: str, kind: Kind) -> Document:
    """The gang of a node; each runs for another time."""
    pods, amount = kind.gang
    annotations = {PROFILE: "busy", **kind.annotations}
    seconds = 15 + 3 * list(KINDS).index(node)
    made = m.job(
        node, namespace, "main", PodSetManifest(pods, annotations=annotations), seconds=seconds
    )
    spec = made["spec"]["template"]["spec"]
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), HOSTNAME: node}
    for each in ("requests", "limits"):
        spec["containers"][0]["resources"].setdefault(each, {})[kind.resource] = str(amount)
    return made


@dataclass(frozen=True)
class Ledger:
    """The usage ledger at a time, and the history of each gang by name."""

    report: Report
    history: Mapping[str, list[HistoryLine]]

    @property
    def until(self) -> int:
        """Milliseconds up to which everything is accounted for."""
        assert self.report.as_of is not None
        return milliseconds(self.report.as_of)

    @property
    def rows(self) -> dict[str, Amounts]:
        return {row.names["name"]: row.amounts for row in self.report.rows}


async def read(url: str, uids: Mapping[str, str]) -> Ledger:
    store = await PostgresStore.connect(DatabaseSettings(url))
    try:
        now = await store.now()
        period = Period.around(now - HOUR, now + HOUR)
        report = await store.usage.report(period, Grouping(By.WORKLOAD))
        history = {name: list(await store.history(uid)) for name, uid in uids.items()}
    finally:
        await store.close()
    return Ledger(report, history)


def ledger(workspace: Workspace, after: int = 0) -> Ledger:
    """The ledger as soon as it accounts for times after ``after`` (milliseconds)."""
    (folder,) = (workspace.installation.controller.home / "queuectl").glob("pg*")
    uids = {name: str(workspace.workload(name)["uid"]) for name in workspace.workloads()}
    found: list[Ledger] = []

    def accounted() -> bool:
        found[:] = [asyncio.run(read(EmbeddedServer(folder).url(), uids))]
        return found[0].report.as_of is not None and found[0].until > after

    workspace.until(accounted, "the ledger is up to date")
    return found[0]


def held(lines: list[HistoryLine]) -> int:
    """Milliseconds from the start of a gang to its end."""
    (start,) = (line.at for line in lines if line.to_state is State.STARTING)
    (end,) = (line.at for line in lines if line.to_state is State.FINISHED)
    return milliseconds(end) - milliseconds(start)


def test_the_reports_of_a_measured_mixed_fleet_are_its_physical_gpu_hours(
    workspace: Workspace,
) -> None:
    first = ledger(workspace)
    before = ledger(workspace, ledger(workspace, first.until).until)  # the nodes have changed
    for node, kind in KINDS.items():
        workspace.submit(job(workspace.namespace, node, kind))
    for node in KINDS:
        workspace.until_state(node, "Finished")
    last = max(map(_end, ledger(workspace).history.values()))
    after = ledger(workspace, last)
    for node, kind in KINDS.items():
        row = after.rows[node]
        assert row.allocated == kind.size * PARTS * held(after.history[node]), node
        assert (row.allocated - row.unknown > 0) is kind.measured, node
        assert 0 <= row.used <= row.allocated - row.unknown
    was, now = before.report.cluster, after.report.cluster
    assert was is not None
    assert now is not None
    assert now.physical - was.physical == PHYSICAL * PARTS * (after.until - before.until)
    assert now.allocated - was.allocated == sum(after.rows[node].allocated for node in KINDS)
    assert now.unmanaged == was.unmanaged


def _end(lines: list[HistoryLine]) -> int:
    return max(milliseconds(line.at) for line in lines)
