"""Groups of pods whose pods are deleted: what counts as succeeded, as failed and as deleted, with the final phases that a kubelet writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queuectl.cluster.resources import watched
from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobOutcome, JobRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.records import Deleted, Upserted
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.lifecycle.outstanding_writes import outstanding_writes
from queuectl.lifecycle.user_commands import move_refusal
from queuectl.objects.kinds import KINDS
from queuectl.state.mirror import Mirror

READ: Any = {resource.name: resource.read for resource in watched()}["pods"]
GATE = "queuectl.dev/placement"


class World:
    """A mirror with the pods of one group, which has the name ``g``.

    ``controller``: uid of the StatefulSet that creates the pods; "" = a user does. ``annotations``: of each pod.
    """

    def __init__(
        self, total: int, restarts: str = "Always", controller: str = "", **annotations: str
    ) -> None:
        self.mirror = Mirror.of(KINDS)
        self.total, self.restarts, self.controller = total, restarts, controller
        self.annotations, self.queue, self.cpu = annotations, "main", "1"
        self.version = 0
        self.uids: dict[int, str] = {}

    def make(self, number: int) -> None:
        """A new pod, with its gate."""
        self.uids[number] = f"u{self.version}"
        self._put(number, gated=True)

    def run(self, number: int) -> None:
        """The pod as queuectl releases it."""
        self._put(number, phase="Running")

    def end(self, number: int, phase: str, grace: int | None = None) -> None:
        """The pod has this final phase. ``grace``: seconds that a deletion leaves it; None = it is not deleted."""
        self._put(number, phase=phase, grace=grace)

    def delete(self, number: int) -> None:
        self.version += 1
        self.mirror.apply([Deleted("pods", self.uids.pop(number), self.version)])

    def running(self) -> None:
        """All pods of the group run."""
        for number in range(self.total):
            self.make(number)
        for number in range(self.total):
            self.run(number)

    def enter(self, state: State, uid: str = "", **fields: Any) -> Entry:
        """The entry of the group in the ledger is in this state."""
        uid = uid or self.group().uid
        stated = {"pods": self.total, "attempt": 1, **fields}
        entry = Entry(uid, "PodGroup", "t", "g", state, **stated)
        self.mirror.recognize([entry])
        return entry

    def start_again(self, entry: Entry) -> None:
        """A new process with this entry in its ledger. It sees no pods yet."""
        self.mirror = Mirror.of(KINDS)
        self.mirror.recognize([entry], read=True, all_of_them=True)

    def group(self) -> JobRecord:
        [record] = self.mirror.jobs.values()
        return record

    def _put(
        self, number: int, *, gated: bool = False, phase: str = "Pending", grace: int | None = None
    ) -> None:
        self.version += 1
        labels = {"queuectl.dev/queue-name": self.queue, "queuectl.dev/pod-group-name": "g"}
        if not gated:
            uid = self.group().uid
            labels |= {"queuectl.dev/attempt": "1", "queuectl.dev/workload": uid}
        stated = {
            "queuectl.dev/submitted-by": "a",
            "queuectl.dev/pod-group-total-count": str(self.total),
            **{f"queuectl.dev/{key.replace('_', '-')}": text for key, text in self.annotations.items()},
        }  # fmt: skip
        owner = {
            "kind": "StatefulSet",
            "name": "g",
            "uid": self.controller,
            "controller": True,
        }
        metadata: dict[str, Any] = {
            "name": f"g-{number}",
            "namespace": "t",
            "uid": self.uids[number],
            "resourceVersion": str(self.version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
            "annotations": stated,
            "ownerReferences": [owner] if self.controller else [],
        }
        if grace is not None:
            metadata["deletionTimestamp"] = "2026-01-02T00:00:00Z"
            metadata["deletionGracePeriodSeconds"] = grace
        document = {
            "metadata": metadata,
            "spec": {
                "schedulingGates": [{"name": GATE}] if gated else [],
                "containers": [{"name": "m", "resources": {"requests": {"cpu": self.cpu}}}],
                "restartPolicy": self.restarts,
            },
            "status": {"phase": phase},
        }
        self.mirror.apply([Upserted(READ(json.dumps(document).encode()))])


def asks(record: JobRecord) -> tuple[int, JobOutcome | None]:
    return record.pods, record.outcome


@pytest.mark.parametrize("restarts", ["Always", "Never"])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_deleted_pod_that_ends_is_needed_again(restarts: str, phase: str) -> None:
    """A server that exits with 0 when it is stopped has not succeeded."""
    world = World(3, restarts)
    world.running()
    uid = world.group().uid
    for number in (2, 1, 0):
        world.end(number, phase, grace=30)
        assert asks(world.group()) == (3, None)
        world.delete(number)
        assert asks(world.group()) == (3, None)
        world.make(number)
        world.run(number)
        assert asks(world.group()) == (3, None)
    assert world.group().uid == uid


def test_a_pod_that_always_restarts_has_not_succeeded_when_a_finalizer_keeps_it() -> None:
    world = World(2)
    world.running()
    world.end(0, "Succeeded", grace=0)
    world.delete(0)
    assert asks(world.group()) == (2, None)


def test_a_pod_that_succeeded_before_its_deletion_stays_counted_while_a_finalizer_keeps_it() -> (
    None
):
    world = World(2, "Never")
    world.running()
    world.end(0, "Succeeded")
    world.end(0, "Succeeded", grace=0)
    world.delete(0)
    assert asks(world.group()) == (1, None)
    world.end(1, "Succeeded")
    assert world.group().outcome is JobOutcome.SUCCEEDED


@pytest.mark.parametrize("restarts", ["Always", "Never"])
def test_an_evicted_group_asks_for_all_its_pods_again_however_they_end(restarts: str) -> None:
    world = World(3, restarts)
    world.running()
    world.enter(State.RUNNING)
    world.enter(State.EVICTING)
    for number, phase in enumerate(("Succeeded", "Failed", "Succeeded")):
        world.end(number, phase, grace=30)
    stopped = world.group()
    assert (stopped.suspended, asks(stopped)) == (True, (3, None))
    for number in range(3):
        world.delete(number)
        world.make(number)
    again = world.group()
    assert (again.uid, again.awaits, asks(again)) == (stopped.uid, "", (3, None))


def test_pods_that_an_eviction_ends_do_not_fail_a_group_that_a_failed_pod_ends() -> None:
    world = World(2, "Never", retriable_in_group="false")
    world.running()
    world.enter(State.RUNNING)
    world.enter(State.EVICTING)
    for number in range(2):
        world.end(number, "Failed", grace=30)
    assert (world.group().suspended, world.group().outcome) == (True, None)


def test_a_pod_that_failed_before_an_eviction_ends_a_group_that_a_failed_pod_ends() -> None:
    world = World(2, "Never", retriable_in_group="false")
    world.running()
    world.enter(State.RUNNING)
    world.end(0, "Failed")
    world.enter(State.EVICTING)
    world.end(1, "Failed", grace=30)
    assert world.group().outcome is JobOutcome.FAILED


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_group_whose_pods_are_deleted_is_without_pods_as_soon_as_they_have_ended(
    phase: str,
) -> None:
    world = World(1)
    world.running()
    world.enter(State.RUNNING)
    world.end(0, phase, grace=30)
    assert world.group().absent


def test_a_group_moves_to_another_queue_if_no_controller_creates_its_pods() -> None:
    refusals = []
    for controller in ("", "store"):
        world = World(2, controller=controller)
        world.make(0)
        refusals.append(move_refusal(world.enter(State.PENDING), world.group(), lambda _: None))
    text = (
        "a StatefulSet creates the pods of t/g with its own queue: "
        "change the queue label of that StatefulSet"
    )
    assert refusals == [None, text]


@pytest.mark.parametrize("queue", ["main", "other"])
def test_a_pod_with_another_queue_takes_no_place_of_a_group_that_runs(queue: str) -> None:
    world = World(2)
    world.running()
    [podset] = world.group().podsets
    placement = Placement((PodSetPlacement(podset.name, (("n", 2),), {}),))
    entry = world.enter(State.RUNNING, placement=placement)
    world.delete(1)
    world.queue = queue
    world.make(1)
    group = world.group()
    nodes = {"n": Node("n", allocatable=podset.shape.requests)}
    writes = outstanding_writes(entry, group, list(world.mirror.pods_of(group)), nodes, {})
    assert [write.name for write in writes] == (["g-1"] if queue == "main" else [])
    assert (group.error is None) == (queue == "main")


@pytest.mark.parametrize(
    ("restarts", "attempt"), [("Never", 0), ("Always", 1)], ids=["never started", "servers"]
)
def test_a_group_that_is_created_again_with_more_pods_while_no_leader_watches_waits_for_all(
    restarts: str, attempt: int
) -> None:
    """None of its pods can have succeeded before."""
    world = World(2, restarts)
    world.make(0)
    entry = world.enter(State.PENDING, attempt=attempt)
    world.total = 4
    world.start_again(entry)
    for number in range(4):
        world.make(number)
        expected = "" if number == 3 else f"{number + 1} of 4 pods of the group exist"
        assert (world.group().pods, world.group().awaits) == (4, expected)


def test_a_new_leader_counts_the_pods_that_had_succeeded_before_an_eviction() -> None:
    world = World(3, "Never")
    world.make(0)
    entry = world.enter(State.PENDING, pods=2)
    world.start_again(entry)
    world.make(0)
    world.make(1)
    assert (world.group().pods, world.group().awaits) == (2, "")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_statefulset_of_one_pod_keeps_its_place_while_its_pod_is_created_again(
    phase: str,
) -> None:
    world = World(1, controller="set")
    world.running()
    before = world.group()
    [podset] = before.podsets
    placement = Placement((PodSetPlacement(podset.name, (("n", 1),), {}),))
    entry = world.enter(State.RUNNING, placement=placement)
    world.end(0, phase, grace=30)
    world.delete(0)
    without = world.group()
    assert (without.absent, without.suspended, without.attempt) == (True, False, 1)
    world.make(0)
    again = world.group()
    assert (again.uid, again.absent, again.suspended, again.attempt) == (
        before.uid,
        False,
        False,
        1,
    )
    nodes = {"n": Node("n", allocatable=podset.shape.requests)}
    [write] = outstanding_writes(entry, again, list(world.mirror.pods_of(again)), nodes, {})
    assert (write.name, write.node) == ("g-0", "n")


@pytest.mark.parametrize(
    "change", [{"controller": "another"}, {"queue": "other"}, {"total": 2}, {"cpu": "2"}, {}]
)
def test_only_the_same_pods_of_the_same_statefulset_take_the_place_of_deleted_pods(
    change: dict[str, Any],
) -> None:
    world = World(1, controller="set")
    world.running()
    world.enter(State.RUNNING)
    world.delete(0)
    for name, value in change.items():
        setattr(world, name, value)
    world.make(0)
    assert world.group().suspended is bool(change)


@pytest.mark.parametrize("controller", ["", "set"])
def test_a_group_that_queuectl_evicts_does_not_keep_its_place(controller: str) -> None:
    world = World(1, controller=controller)
    world.running()
    world.enter(State.RUNNING)
    world.enter(State.EVICTING)
    world.delete(0)
    assert (world.group().absent, world.group().suspended) == (True, True)
