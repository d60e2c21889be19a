"""Which marks the usage ledger gets of a workload's life: what it is charged for, from when on, and what it lost."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from queuectl.domain.accounting import (
    Accounting,
    FlavorGpus,
    LostWork,
    Mark,
    Meter,
    Price,
    Subject,
    UsagePhase,
)
from queuectl.domain.commands import Action
from queuectl.domain.events import (
    Admit,
    Adopt,
    Drained,
    Ended,
    Event,
    Evict,
    ObjectChanged,
    PodsDone,
    PodsReady,
    Refuse,
    Repair,
    StartConfirmed,
    Submitted,
)
from queuectl.domain.fleet import Node
from queuectl.domain.gpus import GpuWeights
from queuectl.domain.jobs import JobOutcome, JobRecord, PodRecord
from queuectl.domain.ledger import Entry, EntryChange
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import Deleted, NodeRecord, Upserted
from queuectl.domain.rules import Rules
from queuectl.domain.workload import FlavorShare, Placement, PodSet, PodSetPlacement, PodShape
from queuectl.lifecycle.machine import handle
from queuectl.state.marking import Marker
from queuectl.state.mirror import Mirror
from tests.db.histories import ask

SPOT = Price("spot", 1.0, None, (("capacity", "spot"),))
PRICES = Accounting("user", ("team",), (SPOT, Price("rest", 3.0)))
CONFIG = QueueConfig(
    cluster_queues={"gpus": ClusterQueue("gpus")},
    local_queues={("default", "research"): LocalQueue("default", "research", "gpus")},
    flavors={
        "h100": ResourceFlavor("h100", topology="racks"),
        "a100": ResourceFlavor("a100", topology="racks"),
        "cloud": ResourceFlavor("cloud", (("capacity", "spot"),)),
    },
    rules=Rules(accounting=PRICES),
)
H100 = {GPU: "h100"}


def job(**more: Any) -> JobRecord:
    """A master of one GPU and four workers of eight."""
    podsets = (
        PodSet("master", 1, PodShape(Resources({GPU: 1}))),
        PodSet("worker", 4, PodShape(Resources({GPU: 8}))),
    )
    labels = (("team", "nlp"), ("user", "ann"), ("other", "x"))
    return JobRecord(
        "PyTorchJob", "default", "train", "u1", 1, 90.0, "research", podsets, labels=labels, **more
    )


def whole(*worker: tuple[str, int], **more: Any) -> Placement:
    master = PodSetPlacement("master", (("n0", 1),), H100)
    return Placement((master, PodSetPlacement("worker", worker, H100, **more)))


class Life:
    """A workload and its marks; the test sets the seconds."""

    def __init__(self, record: JobRecord | None = None, config: QueueConfig = CONFIG) -> None:
        self.config = config
        self.mirror = Mirror({"pytorchjobs": "PyTorchJob"})
        capacity = {"n0": "spot", "n1": "spot", "n2": "reserved"}
        nodes = [Node(name, {"capacity": kind}) for name, kind in capacity.items()]
        self.record = record or job()
        self.mirror.apply([Upserted(NodeRecord(node, 1)) for node in nodes])
        self.mirror.apply([Upserted(self.record)])
        self.marker = Marker(self.mirror)
        self.entry: Entry | None = None
        self.happens(100.0, Submitted(self.record, 0, "gpus"))

    def happens(self, at: float, *events: Event) -> tuple[Mark, ...]:
        """The marks of one commit."""
        before, note = self.entry, None
        for event in events:
            change = handle(self.entry, event, at)
            assert change is not None
            self.entry, note = change.after, change.note
        assert self.entry is not None
        (marked,) = self.marker.marked([EntryChange(before, self.entry, at, note)], self.config)
        self.line = marked.line
        self.marks = marked.marks
        return marked.marks


def test_a_job_waits_from_its_creation_and_the_mark_has_its_user_and_queue() -> None:
    (mark,) = Life().marks
    assert (mark.at, mark.written_at, mark.phase, mark.gpus) == (
        90.999,
        100.0,
        UsagePhase.WAITS,
        33,
    )
    assert mark.subject is not None
    assert (mark.subject.user, mark.subject.labels) == ("ann", (("team", "nlp"),))
    assert (mark.subject.queue, mark.subject.cluster_queue) == ("research", "gpus")


def test_a_start_holds_each_podset_at_the_price_of_its_nodes() -> None:
    (mark,) = Life().happens(110.0, Admit(whole(("n1", 1), ("n2", 3))))
    assert (mark.at, mark.phase, mark.attempt) == (110.0, UsagePhase.HOLDS, 1)
    assert mark.held == (FlavorGpus("h100", "rest", 24), FlavorGpus("h100", "spot", 9))
    assert mark.subject is None, "nothing about whose it is has changed"


def test_a_start_with_fewer_pods_holds_no_more_than_those() -> None:
    (mark,) = Life().happens(110.0, Admit(whole(("n1", 2), pods=2)))
    assert mark.held == (FlavorGpus("h100", "spot", 17),)


def test_pods_on_several_flavors_are_held_by_flavor() -> None:
    shares = (FlavorShare(1, H100), FlavorShare(3, {GPU: "a100"}))
    (mark,) = Life().happens(110.0, Admit(whole(("n2", 4), shares=shares)))
    assert mark.held == (
        FlavorGpus("a100", "rest", 24),
        FlavorGpus("h100", "rest", 8),
        FlavorGpus("h100", "spot", 1),
    )


OTHER_GPUS = (
    PodSet("mig", 6, PodShape(Resources({"nvidia.com/mig-2g.20gb": 7}))),
    PodSet("amd", 2, PodShape(Resources({"amd.com/gpu": 4}))),
)


@pytest.mark.parametrize(
    ("weights", "mig"),
    [(GpuWeights(), 12.0), (GpuWeights((("nvidia.com/mig-2g.20gb", Fraction(1, 2)),)), 21.0)],
    ids=["by slices", "as configured"],
)
def test_instances_and_other_vendors_gpus_count_by_their_weight(
    weights: GpuWeights, mig: float
) -> None:
    rules = replace(CONFIG.rules, accounting=replace(PRICES, gpus=weights))
    life = Life(replace(job(), podsets=OTHER_GPUS), replace(CONFIG, rules=rules))
    assert life.marks[0].gpus == pytest.approx(mig + 8)
    placement = Placement(
        (
            PodSetPlacement("mig", (("n1", 6),), {"nvidia.com/mig-2g.20gb": "a100"}),
            PodSetPlacement("amd", (("n2", 2),), {"amd.com/gpu": "mi300"}),
        )
    )
    (mark,) = life.happens(110.0, Admit(placement))
    assert [(h.flavor, h.price) for h in mark.held or ()] == [("a100", "spot"), ("mi300", "rest")]
    assert [h.gpus for h in mark.held or ()] == pytest.approx([mig, 8.0])


def test_quota_without_nodes_is_held_at_the_price_of_the_flavor() -> None:
    cloud = {GPU: "cloud"}
    placement = Placement((PodSetPlacement("worker", (), cloud, 3),))
    (mark,) = Life().happens(110.0, Admit(placement))
    assert mark.held == (FlavorGpus("cloud", "spot", 24),)


def test_pods_that_are_done_and_pods_that_moved_change_what_is_held() -> None:
    life = Life()
    life.happens(110.0, Admit(whole(("n1", 4))), PodsReady())
    (done,) = life.happens(120.0, PodsDone(whole(("n1", 1), pods=1)))
    assert done.held == (FlavorGpus("h100", "spot", 9),)
    (moved,) = life.happens(130.0, Repair(whole(("n2", 1), pods=1)))
    assert moved.held == (FlavorGpus("h100", "rest", 8), FlavorGpus("h100", "spot", 1))


@pytest.mark.parametrize(
    "events",
    [
        (Refuse(Reason(Code.WAITING_FOR_QUOTA, "later")),),
        (ObjectChanged("research", "gpus", 7, 33, 5),),
    ],
    ids=["another reason", "another priority"],
)
def test_what_changes_no_charge_leaves_no_mark(events: tuple[Event, ...]) -> None:
    assert Life().happens(110.0, *events) == ()


def test_becoming_ready_leaves_no_mark() -> None:
    life = Life()
    life.happens(110.0, Admit(whole(("n1", 4))))
    assert life.happens(115.0, StartConfirmed()) == ()
    assert life.happens(120.0, PodsReady()) == ()


def test_another_queue_is_another_account() -> None:
    life = Life()
    smaller = (PodSet("worker", 2, PodShape(Resources({GPU: 8}))),)
    life.mirror.apply([Upserted(replace(job(), version=2, queue="other", podsets=smaller))])
    (mark,) = life.happens(110.0, ObjectChanged("other", "cpus", 0, 16, 2))
    assert (mark.phase, mark.gpus) == (UsagePhase.WAITS, 16)
    assert mark.subject is not None
    assert (mark.subject.queue, mark.subject.cluster_queue) == ("other", "cpus")


def test_a_gang_held_by_a_command_neither_waits_nor_holds_quota() -> None:
    life = Life()
    assert [m.phase for m in life.happens(110.0, ask(Action.HOLD))] == [UsagePhase.ASIDE]
    assert [m.phase for m in life.happens(120.0, ask(Action.RELEASE))] == [UsagePhase.WAITS]


def evicted(reason: Reason, record: JobRecord | None = None, ready: bool = True) -> Mark:
    """Started at 110 on 33 GPUs, evicted at 210."""
    life = Life(record)
    life.happens(110.0, Admit(whole(("n1", 4))), *((PodsReady(),) if ready else ()))
    (mark,) = life.happens(210.0, Evict(reason))
    return mark


def test_what_its_pods_saved_is_not_lost() -> None:
    life = Life()
    life.happens(110.0, Admit(whole(("n1", 4))), PodsReady())
    rank = PodRecord("default", "p", "p", 5, owner="u1", attempt=1, checkpoint_at=190.0)
    rank = replace(rank, owner_kind="PyTorchJob")
    life.mirror.apply([Upserted(rank)])
    (mark,) = life.happens(210.0, Evict(Reason(Code.NODE_FAILURES)))
    assert mark.loss == LostWork("NodeFailures", 660.0)


def test_an_eviction_holds_quota_until_the_pods_are_deleted() -> None:
    life = Life()
    life.happens(110.0, Admit(whole(("n1", 4))))
    (leaves,) = life.happens(210.0, Evict(Reason(Code.NODE_FAILURES)))
    assert (leaves.phase, leaves.held) == (UsagePhase.HOLDS, None), "the same as before"
    (gone,) = life.happens(220.0, Drained())
    assert (gone.at, gone.phase, gone.held) == (220.0, UsagePhase.WAITS, ())


@pytest.mark.parametrize(
    ("code", "details", "more", "lost"),
    [
        (Code.PREEMPTED, {"lostGpuSeconds": 77}, {}, 77.0),
        (Code.DEFRAGMENTED, {"lostGpuSeconds": 5}, {}, 5.0),
        (Code.IDLE_RECLAIMED, {"lostGpuSeconds": 60}, {}, 60.0),
        (Code.NODE_FAILURES, {}, {}, 3300.0),
        (Code.NODE_FAILURES, {}, {"checkpoint_at": 190.0}, 660.0),
        (Code.NODE_FAILURES, {}, {"checkpoint_at": 999.0}, 0.0),
        (Code.REQUEUED, {}, {"utilization": 0.5}, 1650.0),
        (Code.PODS_READY_TIMEOUT, {}, {"checkpoint_at": 190.0, "utilization": 0.0}, 3300.0),
    ],
)
def test_what_an_eviction_loses(
    code: Code, details: dict[str, Any], more: dict[str, Any], lost: float
) -> None:
    mark = evicted(Reason(code, "", details), job(**more))
    assert mark.loss == LostWork(code.value, lost)


SHARED = Node(
    "n3", {"nvidia.com/gpu.product": "NVIDIA-H100-SHARED", "nvidia.com/gpu.replicas": "4"}
)


def on_a_shared_node() -> Life:
    """Four pods with a quarter of a GPU each, started at 110 on a node that is deleted then."""
    life = Life(replace(job(), podsets=(PodSet("worker", 4, PodShape(Resources({GPU: 1}))),)))
    life.mirror.apply([Upserted(NodeRecord(SHARED, 2))])
    placement = Placement((PodSetPlacement("worker", (("n3", 4),), H100),))
    (start,) = life.happens(110.0, Admit(placement), PodsReady())
    assert start.held == (FlavorGpus("h100", "rest", 1),)
    life.mirror.apply([Deleted("nodes", "n3", 3)])
    return life


def test_an_eviction_after_the_node_was_deleted_loses_what_was_held() -> None:
    (mark,) = on_a_shared_node().happens(210.0, Evict(Reason(Code.NODE_FAILURES)))
    assert (mark.held, mark.loss) == (None, LostWork("NodeFailures", 100.0))


def test_after_a_restart_an_eviction_loses_what_the_usage_ledger_has_as_held() -> None:
    life = on_a_shared_node()
    entry = life.entry
    assert entry is not None
    held = (FlavorGpus("h100", "rest", 1),)
    meter = Meter(UsagePhase.HOLDS, 1, 4, held, Subject("u1", "", "", "", "", ""))
    life.marker = Marker(life.mirror, lambda: [entry])
    life.marker.learn({"u1": meter, "deleted": meter})
    (mark,) = life.happens(210.0, Evict(Reason(Code.NODE_FAILURES)))
    assert (mark.held, mark.loss) == (None, LostWork("NodeFailures", 100.0))


def test_a_placement_that_was_not_written_does_not_count_for_the_loss() -> None:
    life = Life()
    life.happens(110.0, Admit(whole(("n1", 4))), PodsReady())
    written = life.entry
    life.happens(150.0, PodsDone(whole(("n1", 1), pods=1)))
    life.entry = written
    (mark,) = life.happens(210.0, Evict(Reason(Code.NODE_FAILURES)))
    assert mark.loss == LostWork("NodeFailures", 3300.0)


@pytest.mark.parametrize(
    ("details", "shown"),
    [
        ({}, {"lostGpuSeconds": 3300, "gpus": 33}),
        ({"byAdmin": True}, {"lostGpuSeconds": 3300, "gpus": 33, "byAdmin": True}),
        ({"lostGpuSeconds": 77, "gpus": 8}, {"lostGpuSeconds": 77, "gpus": 8}),
    ],
)
def test_the_line_of_an_eviction_has_what_it_loses_and_frees(
    details: dict[str, Any], shown: dict[str, Any]
) -> None:
    life = Life()
    life.happens(110.0, Admit(whole(("n1", 4))), PodsReady())
    life.happens(210.0, Evict(Reason(Code.HELD, "held by ann", details)))
    assert life.line is not None
    assert life.line.reason == Reason(Code.HELD, "held by ann", shown)
    assert life.entry is not None
    assert life.entry.reason.details == details


def test_the_end_is_a_mark_and_the_mark_of_a_deleted_job_needs_no_object() -> None:
    life = Life()
    life.happens(110.0, Admit(whole(("n1", 4))), PodsReady())
    life.mirror.jobs.clear()
    (mark,) = life.happens(300.0, Ended(JobOutcome.SUCCEEDED))
    assert (mark.at, mark.phase) == (300.0, UsagePhase.GONE)


def test_a_job_that_runs_when_it_is_first_seen_waited_until_it_was_started() -> None:
    life = Life()
    life.entry = None
    marks = life.happens(
        100.0, Submitted(life.record, 0, "gpus"), Adopt(whole(("n1", 4)), 3, started_at=95.0)
    )
    assert [(m.at, m.phase, m.attempt) for m in marks] == [
        (90.999, UsagePhase.WAITS, 3),
        (95.0, UsagePhase.HOLDS, 3),
    ]


def test_after_a_restart_the_next_mark_has_the_user_and_queue_again() -> None:
    life = Life()
    life.marker.forget()
    (mark,) = life.happens(110.0, Admit(whole(("n1", 4))))
    assert mark.subject is not None
    assert mark.subject.user == "ann"


@pytest.mark.parametrize(
    ("flavors", "gpus"),
    [
        (("t4",), 3.0),
        (("slices",), 12 / 7),
        (("t4", "slices"), 12.0),
        (("gone",), 12.0),
        ((), 12.0),
    ],
)
def test_a_gang_waits_for_the_gpus_of_the_flavors_that_its_queue_has(
    flavors: tuple[str, ...], gpus: float
) -> None:
    products = {"t4": "Tesla-T4-SHARED", "slices": "NVIDIA-A100-MIG-1g.5gb"}
    key = "nvidia.com/gpu.product"
    known = {name: ResourceFlavor(name, ((key, of),)) for name, of in products.items()}
    known["gone"] = ResourceFlavor("gone", ((key, "H100"),))
    quotas = tuple(FlavorQuotas(name, {GPU: 8}) for name in flavors)
    queue = ClusterQueue("gpus", (ResourceGroup((GPU,), quotas),))
    config = replace(CONFIG, flavors=known, cluster_queues={"gpus": queue})
    mirror = Mirror({"jobs": "Job"})
    labels = {
        "t4": {key: products["t4"], "nvidia.com/gpu.replicas": "4"},
        "slices": {key: products["slices"]},
    }
    for name, of in labels.items():
        node = Node(name, of, Resources({GPU: 8}))
        mirror.apply([Upserted(NodeRecord(node, 1))])
    podsets = (PodSet("w", 12, PodShape(Resources({GPU: 1}))),)
    asked = JobRecord("Job", "default", "train", "u1", 1, 90.0, "research", podsets)
    assert float(mirror.sized(asked, config).gpus) == gpus
