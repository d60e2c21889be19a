"""The writes and the events of each sort of workload: a job, a group of pods, a pod, an index of an array, an elastic job, a pod added to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import pytest

from queuectl.domain.arrays import index_of, index_uid
from queuectl.domain.events import Drained, Event, Evict
from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.jobs import ArrayStatus, JobRecord, PodGroupMember, PodPhase, PodRecord
from queuectl.domain.ledger import Entry, Intent, Purpose, State
from queuectl.domain.quantity import Resources
from queuectl.domain.reasons import FAILED_START, Code, Reason
from queuectl.domain.rules import Rules
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.lifecycle.outstanding_writes import POD, Write, outstanding_writes
from queuectl.lifecycle.workload_events import ObservationRules, observe
from queuectl.objects.keys import STATUS_ANNOTATION
from queuectl.objects.kinds.pods import POD as SINGLE
from queuectl.objects.kinds.pods import POD_GROUP
from queuectl.objects.kubernetes.node_affinity import pinned, write_required
from tests.unit.test_declared_kinds import kinds

NODES = {"n1": Node("n1", {HOSTNAME: "n1"})}
SHAPE = PodShape(Resources({"nvidia.com/gpu": 8, "pods": 1}))
JOB = JobRecord(
    "Job", "a", "train", "u", 7, 1.0, "q", (PodSet("main", 1, SHAPE),), queue_keys=("key",)
)
ARRAY = replace(JOB, array=ArrayStatus(3, 2))
ELASTIC = replace(JOB, array=ArrayStatus(3, 3, base=1))
GROUP = replace(JOB, of_pods=True, drained=True, kind=POD_GROUP)

PLAIN, PODS, ONE_POD, INDEX, BASE, ADDED = SORTS = (
    "a job",
    "a group of pods",
    "a pod of a Deployment",
    "an index of an array",
    "an elastic job",
    "a pod added to an elastic job",
)
OF_PODS: Final = (PODS, ONE_POD)


@dataclass(frozen=True)
class Seen:
    """A workload as the watch shows it: with one pod, if it is not suspended or consists of pods."""

    sort: str
    suspended: bool
    released: bool
    attempt: int = 1
    notice: str = ""
    at_once: int = 3
    base: int = 1
    pod_exists: bool = True

    @property
    def uid(self) -> str:
        return {INDEX: index_uid("u", 0), ADDED: index_uid("u", 2)}.get(self.sort, "u")

    @property
    def pods(self) -> list[PodRecord]:
        if not self.pod_exists:
            return []
        rank = {INDEX: 0, ADDED: 2, BASE: 0, PLAIN: 0}.get(self.sort)
        pod = PodRecord("a", "pod", "p", 5, owner=self.uid, podset="main", rank=rank)
        member = PodGroupMember(replace(JOB, of_pods=True)) if self.sort in OF_PODS else None
        own = self.attempt if self.released or self.sort in (PLAIN, BASE) else 0
        where = "n1" if self.released else None
        return [replace(pod, gated=not self.released, node=where, attempt=own, member=member)]

    @property
    def record(self) -> JobRecord:
        if self.sort in OF_PODS:
            kind = SINGLE if self.sort == ONE_POD else POD_GROUP
            own = self.attempt if self.released else 0
            return replace(GROUP, kind=kind, suspended=not self.released, attempt=own)
        of = {INDEX: ARRAY, ADDED: ELASTIC, BASE: ELASTIC}.get(self.sort, JOB)
        job = replace(of, suspended=self.suspended, drained=self.suspended, attempt=self.attempt)
        if of is ELASTIC:
            array = ArrayStatus(3, self.at_once, base=self.base)
            job = replace(job, array=array, preempt_requested=self.notice)
        if self.sort in (INDEX, ADDED):
            return index_of(job, 0 if self.sort == INDEX else 2, self.pods)
        return job


def entry(seen: Seen, state: State, intent: Intent | None = None, **changes: Any) -> Entry:
    placed = Placement((PodSetPlacement("main", (("n1", 1),)),))
    held = {"placement": placed} if state.live or state is State.EVICTING else {}
    attempt = 0 if state.waiting else 1
    moving = {"queue_set": "r"} if intent is Intent.MOVE else {}
    given = {"attempt": attempt, "intent": intent, **held, **moving, **changes}
    return Entry(seen.uid, seen.record.kind, "a", seen.record.name, state, "q", **given)


def writes(seen: Seen, of: Entry) -> list[Write]:
    return outstanding_writes(of, seen.record, seen.pods, NODES, {})


def told(write: Write) -> str:
    """A write in words."""
    spec = write.patch.get("spec", {})
    if write.evicts or write.deletes:
        return "evict the pod" if write.evicts else "delete the pod"
    if write.resource == POD:
        released = write.purpose is Purpose.PIN
        return "release the pod" if released else f"{write.purpose} on the pod"
    if "suspend" in spec:
        return "suspend the job" if spec["suspend"] else "resume the job"
    return f"{write.purpose} on the job"


STARTING = (State.STARTING, Intent.START)
RUNNING = (State.RUNNING, None)
LEAVING = (State.EVICTING, Intent.STOP)
MOVING = (State.HELD, Intent.MOVE)

SITUATIONS: Final = {
    # state and intent, what the watch shows, and the writes that each sort of workload owes
    "admitted, and not resumed yet": (
        STARTING, {"suspended": True, "released": False, "attempt": 0, "pod_exists": False},
        ("resume the job", "", "", "resume the job", "resume the job", ""),
    ),
    "admitted, with a pod that waits": (
        STARTING, {"suspended": False, "released": False},
        ("release the pod",) * 6,
    ),
    "suspended by its user before its release was seen": (
        STARTING, {"suspended": True, "released": False},
        ("", "release the pod", "release the pod", "resume the job", "", ""),
    ),
    "suspended by its user while it ran": (
        RUNNING, {"suspended": True, "released": False}, ("",) * 6,
    ),
    "held, requeued, preempted or drained while it ran": (
        LEAVING, {"suspended": False, "released": True},
        ("suspend the job", "delete the pod", "delete the pod", "evict the pod", "suspend the job", "evict the pod"),
    ),
    "the same before its release was seen": (
        LEAVING, {"suspended": False, "released": False},
        ("suspend the job", "stop on the pod", "stop on the pod", "stop on the pod", "suspend the job", "stop on the pod"),
    ),
    "moved while it waits": (
        MOVING, {"suspended": True, "released": False, "attempt": 0},
        ("move on the job", "move on the pod", "move on the pod", "move on the job", "move on the job", ""),
    ),
    "held": (
        (State.HELD, None), {"suspended": True, "released": False, "attempt": 0}, ("",) * 6,
    ),
}  # fmt: skip


def cases() -> Iterator[Any]:
    for name, (of, shown, owed) in SITUATIONS.items():
        for sort, expected in zip(SORTS, owed, strict=True):
            yield pytest.param(sort, of, shown, expected, id=f"{sort}, {name}")


@pytest.mark.parametrize(("sort", "of", "shown", "expected"), list(cases()))
def test_each_workload_owes_the_writes_of_its_sort(
    sort: str, of: tuple[State, Intent | None], shown: dict[str, Any], expected: str
) -> None:
    seen = Seen(sort, **shown)
    found = writes(seen, entry(seen, *of))
    assert [told(write) for write in found] == ([expected] if expected else [])


@pytest.mark.parametrize("sort", [PODS, ONE_POD, INDEX, ADDED])
def test_a_pod_whose_release_is_withdrawn_is_owed_no_further_write(sort: str) -> None:
    seen = Seen(sort, suspended=False, released=False)
    leaving = entry(seen, *LEAVING)
    withdrawn = [replace(pod, attempt=leaving.attempt) for pod in seen.pods]
    assert outstanding_writes(leaving, seen.record, withdrawn, NODES, {}) == []


@pytest.mark.parametrize("sort", OF_PODS)
def test_only_a_gated_pod_of_another_queue_is_moved(sort: str) -> None:
    seen = Seen(sort, suspended=True, released=False, attempt=0)
    (waits,) = seen.pods
    moved = replace(waits, member=PodGroupMember(replace(JOB, of_pods=True, queue="r")))
    runs = replace(waits, gated=False)
    moving = entry(seen, *MOVING)
    assert outstanding_writes(moving, seen.record, [moved, runs], NODES, {}) == []


def test_a_late_pod_of_a_group_is_placed_in_the_slot_that_the_others_leave() -> None:
    seen = Seen(PODS, suspended=False, released=True)
    (first,) = seen.pods
    late = replace(first, name="late", uid="late", gated=True, node=None, attempt=0)
    placed = Placement((PodSetPlacement("main", (("n1", 1), ("n2", 1))),))
    nodes = {**NODES, "n2": Node("n2", {HOSTNAME: "n2"})}
    running = entry(seen, *RUNNING, placement=placed)
    (write,) = outstanding_writes(running, seen.record, [first, late], nodes, {})
    assert (write.uid, write.patch["spec"]["affinity"]) == (
        "late",
        write_required(pinned(None, "n2")),
    )


@pytest.mark.parametrize("sort", SORTS)
def test_a_notice_is_on_the_object_that_is_stopped(sort: str) -> None:
    seen = Seen(sort, suspended=False, released=True)
    notified = entry(seen, *LEAVING, stop_at=100.0)
    where = "job" if sort in (PLAIN, BASE) else "pod"
    assert [told(write) for write in writes(seen, notified)] == [f"notice on the {where}"]


NEVER: Final = {
    # the writes to the Job that the entry of a part of it never owes
    ADDED: {"resume the job", "suspend the job", "move on the job", "notice on the job"},
    INDEX: {"suspend the job", "notice on the job"},
}


@pytest.mark.parametrize("sort", NEVER)
def test_a_part_of_a_job_never_owes_a_write_that_stops_the_others(sort: str) -> None:
    """In each state, with each intent, whatever the watch shows of the Job and the pod."""
    shown = product((True, False), (True, False), (0, 1), ("", "soon"), (1, 3), (True, False))
    for suspended, released, attempt, notice, base, exists in shown:
        seen = Seen(sort, suspended, released, attempt, notice, 3, base, exists)
        for state, intent, stop in product(State, (None, *Intent), (None, 100.0)):
            found = writes(seen, entry(seen, state, intent, stop_at=stop))
            assert not {told(write) for write in found} & NEVER[sort], (seen, state, intent)


def test_an_index_is_moved_with_the_kinds_of_the_process() -> None:
    """Which can declare kinds."""
    known = kinds({})
    array = replace(ARRAY, kind="GangRun", suspended=True, drained=True)
    held = replace(entry(Seen(INDEX, suspended=True, released=False), *MOVING), kind="GangRun")
    (write,) = outstanding_writes(held, index_of(array, 0, []), [], NODES, {}, known)
    assert (write.resource, write.purpose) == ("GangRun", Purpose.MOVE)


@pytest.mark.parametrize("of", [STARTING, LEAVING], ids=["a start", "a stop"])
def test_the_status_of_an_object_controls_no_terminal(of: tuple[State, Intent]) -> None:
    """``kubectl`` prints annotations as they are."""
    seen = Seen(PLAIN, suspended=of is STARTING, released=of is LEAVING, attempt=0)
    reason = Reason(Code.HELD, "held for x\x1b]0;PWNED\x07\x9b2J\u202e")
    (write,) = writes(seen, entry(seen, *of, reason=reason))
    status = write.patch["metadata"]["annotations"][STATUS_ANNOTATION]
    assert r"x\u001b]0;PWNED\u0007\u009b2J\u202e" in status
    assert status.isprintable()


# ---- events


def events(seen: Seen, of: Entry) -> list[Event]:
    terms = ObservationRules(Rules(), 30.0, {"n1": "n1"})
    return list(observe(of, seen.record, seen.pods, 10.0, terms))


@pytest.mark.parametrize(
    ("shown", "sentence"),
    [
        ({"suspended": False}, None),
        ({"suspended": False, "pod_exists": False}, None),
        ({"suspended": True}, "the gang of the first 1 pods does not run"),
        ({"suspended": False, "notice": "soon"}, "the gang of the first 1 pods does not run"),
        ({"suspended": False, "at_once": 2}, "spec.parallelism is 2: the Job has no index 2"),
        ({"suspended": False, "base": 3}, "index 2 is one of the first 3 pods, which start as one gang"),
    ],
    ids=["its gang runs", "its pod is created again", "its gang stops", "its gang has a notice", "it is taken away", "it is of the gang"],
)  # fmt: skip
def test_a_start_of_an_added_pod_ends_without_a_failure_when_its_gang_cannot_have_it(
    shown: dict[str, Any], sentence: str | None
) -> None:
    seen = Seen(ADDED, **{"released": False, **shown})
    starting = replace(entry(seen, *STARTING), started_at=9.0)
    found = [event for event in events(seen, starting) if isinstance(event, Evict)]
    assert [event.reason.message for event in found] == ([sentence] if sentence else [])
    for event in found:
        assert event.reason.code is Code.SUSPENDED_OUTSIDE
        assert event.reason.code not in FAILED_START
        left = entry(seen, *LEAVING)
        assert not any(write.resource == "Job" for write in writes(seen, left))


@pytest.mark.parametrize("ends", [{"terminating": True}, {"phase": PodPhase.FAILED}], ids=str)
@pytest.mark.parametrize("sort", OF_PODS)
def test_a_gated_pod_that_ends_delays_no_eviction(sort: str, ends: dict[str, Any]) -> None:
    """No write withdraws the release of a pod that ends."""
    seen = Seen(sort, suspended=True, released=False)
    ending = [replace(pod, **ends) for pod in seen.pods]
    terms = ObservationRules(Rules(), 30.0, {"n1": "n1"})
    assert list(observe(entry(seen, *LEAVING), seen.record, ending, 10.0, terms)) == [Drained()]


@pytest.mark.parametrize("sort", SORTS)
def test_a_start_that_has_not_taken_effect_continues_while_its_object_is_suspended(
    sort: str,
) -> None:
    """The start resumes the object, or releases the pods. Only an added pod depends on the gang alongside it."""
    seen = Seen(sort, suspended=True, released=False, attempt=0)
    starting = entry(seen, *STARTING, started_at=9.0)
    evicted = any(isinstance(event, Evict) for event in events(seen, starting))
    assert evicted is (sort == ADDED)


@pytest.mark.parametrize("sort", [PLAIN, BASE])
def test_a_job_that_its_user_suspends_before_its_start_is_confirmed_stays_suspended(
    sort: str,
) -> None:
    seen = Seen(sort, suspended=True, released=False, pod_exists=False)
    starting = entry(seen, *STARTING, started_at=9.0)
    assert writes(seen, starting) == []
    (event,) = events(seen, starting)
    assert isinstance(event, Evict)
    assert event.reason.code is Code.SUSPENDED_OUTSIDE


@pytest.mark.parametrize("sort", SORTS)
def test_a_running_workload_whose_pods_are_stopped_by_another_client_queues_again(
    sort: str,
) -> None:
    seen = Seen(sort, suspended=True, released=False)
    running = entry(seen, *RUNNING, started_at=1.0, reason=Reason(Code.PODS_READY))
    (event,) = events(seen, running)
    assert isinstance(event, Evict)
    assert event.reason.code is Code.SUSPENDED_OUTSIDE
    by_others = "without queuectl" in event.reason.message
    assert by_others is (sort != ADDED), "its gang can have been evicted by queuectl"
