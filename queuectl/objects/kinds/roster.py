"""The pods of one group, with what its record needs to know of them: a change of one pod costs the same however many there are."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum, auto

from queuectl.domain.jobs import PodGroupMember, PodPhase, PodRecord

FactValue = str | int | tuple[str, ...]
Place = tuple[float, str, str]
"""The order of creation: time, name and uid."""


class Fact(Enum):
    """A property of a pod that is counted, by its value."""

    MEMBER = auto()  # value: uid of its workload
    ENDED_MEMBER = auto()  # the same of those that have ended
    SUCCEEDED_MEMBER = auto()  # the same of those that succeeded
    SUCCEEDED = auto()  # it succeeded; value: podset
    ENDED = auto()
    ALIVE = auto()
    LEADS = auto()  # it is alive and has rank 0
    FOLLOWS = auto()  # it is alive and has another rank, or none
    STAYS = auto()  # it is alive and is not about to be deleted
    RELEASED = auto()
    WAITING = auto()  # gated and not about to be deleted; value: podset
    NEW = auto()  # gated, and never released
    TERMINATING = auto()
    FINAL = auto()  # no pod follows it after it has failed
    ATTEMPT = auto()
    QUEUE = auto()  # of those that have not ended, as the next two
    TOTAL = auto()
    ERROR = auto()
    STATUS = auto()  # it has the status of the group
    GATES = auto()
    NOTICE = auto()  # of those that are released, as the next one
    READY_TO_STOP = auto()


_IN_ORDER = frozenset(
    {
        Fact.ALIVE,
        Fact.LEADS,
        Fact.FOLLOWS,
        Fact.RELEASED,
        Fact.WAITING,
        Fact.NEW,
        Fact.ERROR,
        Fact.STATUS,
        Fact.MEMBER,
        Fact.GATES,
    }
)
"""The facts of which the first pod is asked for."""


def member_of(pod: PodRecord) -> PodGroupMember:
    """The request of a pod of a workload."""
    assert pod.member is not None
    return pod.member


def _place(pod: PodRecord) -> Place:
    return (member_of(pod).job.created_at, pod.name, pod.uid)


def _facts(pod: PodRecord) -> Iterator[tuple[Fact, FactValue]]:
    member = member_of(pod)
    released = not (pod.gated or pod.terminal)
    yield Fact.MEMBER, member.workload
    yield Fact.ATTEMPT, pod.attempt
    yield Fact.GATES, member.job.gates
    if pod.terminal:
        yield Fact.ENDED, True
        yield Fact.ENDED_MEMBER, member.workload
    else:
        yield Fact.ALIVE, True
        yield (Fact.LEADS if pod.rank == 0 else Fact.FOLLOWS), True
        yield Fact.QUEUE, str(member.job.queue)
        yield Fact.TOTAL, str(member.total)
        if member.job.error is not None:
            yield Fact.ERROR, True
    if pod.phase is PodPhase.SUCCEEDED:
        yield Fact.SUCCEEDED, pod.podset
        yield Fact.SUCCEEDED_MEMBER, member.workload
    if pod.alive:
        yield Fact.STAYS, True
    if pod.waits:
        yield Fact.WAITING, pod.podset
    if pod.gated and not member.workload:
        yield Fact.NEW, True
    if pod.terminating:
        yield Fact.TERMINATING, True
    if not member.retriable:
        yield Fact.FINAL, True
    if member.job.status:
        yield Fact.STATUS, True
    if released:
        yield Fact.RELEASED, True
        yield Fact.NOTICE, pod.preempt_requested
        yield Fact.READY_TO_STOP, pod.preempt_ready


class Roster:
    """Pods in the order of their creation.

    Attributes:
        version: the largest one that any of them had.
    """

    def __init__(self, pods: Iterable[PodRecord] = ()) -> None:
        self.version = 0
        self._pods: dict[str, PodRecord] = {}
        self._facts: dict[str, tuple[Place, tuple[tuple[Fact, FactValue], ...]]] = {}
        self._counts: dict[Fact, Counter[FactValue]] = {fact: Counter() for fact in Fact}
        self._places: list[Place] = []
        self._first: dict[tuple[Fact, FactValue], list[Place]] = {}
        for pod in pods:
            self.put(pod)

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[PodRecord]:
        return (self._pods[uid] for _, _, uid in self._places)

    def __getitem__(self, uid: str) -> PodRecord:
        return self._pods[uid]

    def get(self, uid: str) -> PodRecord | None:
        """A pod, or None."""
        return self._pods.get(uid)

    def put(self, pod: PodRecord) -> None:
        """A pod that is new or has changed."""
        self.version = max(self.version, pod.version)
        facts = _place(pod), tuple(_facts(pod))
        if facts != self._facts.get(pod.uid):
            self._forget(pod.uid)
            self._count(*facts)
            self._facts[pod.uid] = facts
        self._pods[pod.uid] = pod

    def pop(self, uid: str) -> PodRecord:
        """Remove a pod."""
        self._forget(uid)
        return self._pods.pop(uid)

    def count(self, fact: Fact, fact_value: FactValue = True) -> int:
        """The number of pods of which this is so."""
        return self._counts[fact][fact_value]

    def counts(self, fact: Fact) -> Counter[FactValue]:
        """The number of pods by value."""
        return self._counts[fact]

    def distinct(self, fact: Fact) -> list[FactValue]:
        """The different values, in the order of the first pods that have them."""
        return sorted(self._counts[fact], key=lambda value: self._first[fact, value][0])

    def first(self, fact: Fact, fact_value: FactValue = True) -> PodRecord | None:
        """The first pod of which this is so."""
        places = self._first.get((fact, fact_value))
        return self._pods[places[0][2]] if places else None

    @property
    def oldest(self) -> PodRecord:
        """The first of all pods."""
        return self._pods[self._places[0][2]]

    def _count(self, place: Place, facts: Iterable[tuple[Fact, FactValue]]) -> None:
        insort(self._places, place)
        for fact, value in facts:
            self._counts[fact][value] += 1
            if fact in _IN_ORDER:
                insort(self._first.setdefault((fact, value), []), place)

    def _forget(self, uid: str) -> None:
        place, facts = self._facts.pop(uid, (None, ()))
        if place is None:
            return
        del self._places[bisect_left(self._places, place)]
        for fact, value in facts:
            counts = self._counts[fact]
            counts[value] -= 1
            if not counts[value]:
                del counts[value]
            if fact in _IN_ORDER:
                places = self._first[fact, value]
                del places[bisect_left(places, place)]
                if not places:
                    del self._first[fact, value]
