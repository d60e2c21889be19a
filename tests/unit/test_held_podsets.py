"""A gang holds what its pods requested until they have ended, however its object changes in the meantime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queues import LocalQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import NamespaceRecord, NodeRecord, Record, Upserted
from queuectl.domain.snapshot import SolverLimits
from queuectl.domain.workload import DecidedRequest
from queuectl.lifecycle.observations import Observer
from queuectl.lifecycle.outstanding_writes import planned_of
from queuectl.planner import plan
from queuectl.planner.verify import verify
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.holdings import Holdings
from queuectl.state.ledger import Ledger
from queuectl.state.marking import Marker
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage
from tests.planner.build import config, gang, node, placed, queue
from tests.support.jobs import job_of, read_job

CONFIG = replace(
    config(queue("pool", gpu=4)),
    local_queues={("default", "main"): LocalQueue("default", "main", "pool")},
)
ROLES = {"Job": ("main", "main"), "PyTorchJob": ("master", "worker")}
Document = dict[str, Any]
Edit = Callable[[Document], None]


def document(kind: str, version: int, *, uid: str = "u", suspend: bool = False) -> Document:
    made = job_of(kind, uid, pods=2, gpus=2)
    made["metadata"] |= {"uid": uid, "resourceVersion": str(version)}
    spec = made["spec"]
    (spec if kind == "Job" else spec.setdefault("runPolicy", {}))["suspend"] = suspend
    templates = [spec["template"]] if kind == "Job" else [one["template"] for one in replicas(made)]
    for role, template in zip(ROLES[kind], templates, strict=False):
        marks = {"attempt": "1", "podset": role, "workload": uid} if uid == "u" else {}
        labels = template.setdefault("metadata", {}).setdefault("labels", {})
        labels |= {f"queuectl.dev/{name}": value for name, value in marks.items()}
    return made


def replicas(made: Document) -> list[Document]:
    return list(made["spec"]["pytorchReplicaSpecs"].values())


def _annotated(made: Document) -> None:
    made["metadata"].setdefault("annotations", {})["queuectl.dev/job-min-parallelism"] = "x"


def _smaller(made: Document) -> None:
    for replica in replicas(made):
        resources = replica["template"]["spec"]["containers"][0]["resources"]
        for amounts in resources.values():
            amounts["nvidia.com/gpu"] = "1"


def _without_workers(made: Document) -> None:
    del made["spec"]["pytorchReplicaSpecs"]["Worker"]


EDITS = {
    "an annotation with an error": ("Job", False, _annotated),
    "an annotation with an error while its pods end": ("Job", True, _annotated),
    "a smaller template while its pods end": ("PyTorchJob", True, _smaller),
    "a template less while its pods end": ("PyTorchJob", True, _without_workers),
}


class World:
    """A gang of two pods of 2 GPUs on two nodes of 2 GPUs, and one that waits for as much."""

    def __init__(self, kind: str, *, adopted: bool) -> None:
        self.kind = kind
        self.mirror = Mirror({"jobs": "Job", "pytorchjobs": "PyTorchJob"})
        job = read_job(document(kind, 2))
        waits = read_job(document(kind, 2, uid="waits", suspend=True))
        shapes = {podset.name: podset.shape.requests for podset in job.podsets}
        pods = [
            PodRecord(
                *("default", f"p{rank}", f"p{rank}", 3),
                requests=shapes[role],
                owner="u",
                owner_kind=kind,
                podset=role,
                attempt=1,
                rank=rank,
                node=f"n{rank}",
                phase=PodPhase.RUNNING,
                ready=True,
            )
            for rank, role in enumerate(ROLES[kind])
        ]
        nodes = [NodeRecord(node(f"n{n}", gpu=2, cpu=64000, memory=2**40), 1) for n in range(2)]
        records: list[Record] = [job, waits, *pods, NamespaceRecord("default", 1), *nodes]
        self.mirror.apply([Upserted(record) for record in records])
        slots: list[dict[str, int]] = (
            [{"n0": 1}, {"n1": 1}] if len(shapes) == 2 else [{"n0": 1, "n1": 1}]
        )
        placement = placed(gang("u", *job.podsets), *slots)
        decided: DecidedRequest | None = None if adopted else planned_of(job)
        runs = Entry(
            *("u", kind, "default", "u", State.RUNNING, "main", "pool"),
            gpus=Fraction(4),
            pods=2,
            attempt=1,
            reason=Reason(Code.PODS_READY),
            placement=placement,
            planned=decided,
            started_at=1.0,
            ready_at=2.0,
        )
        pending = Entry(*("waits", kind, "default", "waits", State.PENDING, "main", "pool"))
        self.ledger = Ledger([runs, pending])
        self.usage = OtherPodUsage(self.mirror, self.ledger)
        self.usage.refresh_all()
        self.builder = SnapshotBuilder(self.mirror, self.ledger, self.usage)
        self.observer = Observer(self.mirror, self.ledger, self.usage, 30.0)
        self.holdings = Holdings(self.mirror)
        self.holdings.configure(CONFIG, self.ledger)
        self.marker = Marker(self.mirror, lambda: list(self.ledger))
        self.lost = 0.0

    def change(self, version: int, edit: Edit | None = None, *, suspend: bool = False) -> None:
        made = document(self.kind, version, suspend=suspend)
        if edit is not None:
            edit(made)
        self.mirror.apply([Upserted(read_job(made))])
        changes = self.observer.observe(CONFIG, 10.0 + version).changes
        for change in self.marker.marked(changes, CONFIG):
            self.lost += sum(mark.loss.gpu_seconds for mark in change.marks if mark.loss)
        self.ledger.apply(changes)
        self.mirror.recognize([change.after for change in changes])
        self.usage.refresh_all()
        self.holdings.note(changes)
        self.holdings.note_requests(["u"])

    def held(self) -> int:
        """GPUs of quota, as gauges and reports have it."""
        return sum(
            amount for row, amount in self.holdings.held.items() if row[-1] == "nvidia.com/gpu"
        )


@pytest.mark.parametrize("adopted", [False, True], ids=["started", "adopted"])
@pytest.mark.parametrize(("kind", "suspended", "edit"), EDITS.values(), ids=EDITS)
def test_an_edit_frees_nothing_that_the_pods_hold(
    kind: str, edit: Edit, *, suspended: bool, adopted: bool
) -> None:
    world = World(kind, adopted=adopted)
    if suspended:
        world.change(8, suspend=True)
    world.change(9, edit, suspend=suspended)
    evicted = world.ledger.get("u")
    assert evicted is not None
    assert evicted.state is State.EVICTING
    assert world.held() == 4
    assert world.lost > 0
    snapshot = world.builder.freeze(CONFIG, 30.0, SolverLimits())
    planned = plan(snapshot)
    assert [gang.uid for gang in planned.admitted] == []
    assert verify(snapshot, planned) == ()
