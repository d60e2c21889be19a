"""Gangs that are equal except for name, priority, age and length. A proof for one holds for those with no more rights to evict and no shorter run."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, TypeAlias

from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Workload
from queuectl.planner.order.pending_gangs import ClassKey, class_key, length_of
from queuectl.planner.order.queue_order import lines_of
from queuectl.planner.preempt.running import any_may_evict
from queuectl.planner.problem.flavors import Choice, Options, options_of
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest, admissible, charged_to, request_of
from queuectl.planner.reasons import refusals

EvictionRank: TypeAlias = tuple[float, float]
"""Priority and age of a gang: one with a higher rank may evict all gangs that one with a lower rank may, and perhaps more."""
_HIGHEST: Final[EvictionRank] = (inf, inf)


@dataclass(frozen=True, slots=True)
class Refutation:
    """A proof for gangs of a class: for those of a rank up to ``rank`` that run for at least ``seconds``."""

    why: tuple[Reason, ...]
    rank: EvictionRank = _HIGHEST
    seconds: float = 0.0


Proved: TypeAlias = tuple[Refutation | None, Refutation | None]
"""Of a class: ``refusal`` and ``delays``."""


@dataclass(slots=True)
class GangClass:
    """Known results for all gangs of one kind.

    Attributes:
        requests: what they ask under each choice of flavors, in order of preference; if there are many, under the first ones.
        flavors: all flavors of all choices; in a StrictFIFO queue, those of which it could ever get enough.
        evicts: whether they may evict other gangs. Past use and lengths can order a gang before one with a higher rank.
        no_turn: those of up to this priority fit nowhere at the end of any time slice, as far as that is proved.
        never: whether none of them would fit empty nodes and unused quota; None = not asked yet.
        refusal: why none of them fits, once proved.
        delays: why none of them starts alongside the planned starts, once proved.
        undecided: the largest budget under which the search ended without an answer, -1 if none did.
        undecided_from: the shortest run in seconds for which a search did.
        alarm: what broke in that search, if anything did.
    """

    options: Options
    requests: list[tuple[Choice, GangRequest]]
    flavors: frozenset[str]
    evicts: bool = False
    no_turn: float = -inf
    never: bool | None = None
    refusal: Refutation | None = None
    delays: Refutation | None = None
    undecided: int = -1
    undecided_from: float = inf
    alarm: str = ""

    def rank_of(self, workload: Workload) -> EvictionRank:
        """The rank of a gang of the class; the same for all of a class that evicts no gang."""
        return (workload.priority, -workload.queued_at) if self.evicts else _HIGHEST

    def refused(self, workload: Workload) -> tuple[Reason, ...] | None:
        """Why a gang of the class fits nowhere, whatever its length, as far as that is proved."""
        return self._holds(self.refusal, workload)

    def refuted(self, workload: Workload) -> tuple[Reason, ...] | None:
        """Why a gang of the class does not start, as far as that is proved."""
        return self.refused(workload) or self._holds(self.delays, workload)

    def _holds(self, proof: Refutation | None, workload: Workload) -> tuple[Reason, ...] | None:
        if proof is None or length_of(workload) < proof.seconds:
            return None
        return proof.why if self.rank_of(workload) <= proof.rank else None

    def open(self, pending: Pending) -> bool:
        """Whether a search with its budget ended without an answer, for a gang that runs no longer."""
        length = length_of(pending.workload)
        return pending.budget <= self.undecided and length >= self.undecided_from

    def refute(self, workload: Workload, why: tuple[Reason, ...]) -> None:
        """Keep a proof: that a gang of known length delays a planned start does not hold for shorter ones."""
        rank = _HIGHEST if why[0].never_fits else self.rank_of(workload)
        if workload.duration is None or all(r.code is not Code.WOULD_DELAY for r in why):
            self.refusal = Refutation(why, rank)
        elif self._holds(self.delays, workload) is None:
            self.delays = Refutation(why, rank, length_of(workload))

    def leave_open(self, pending: Pending, alarm: str, least: float) -> None:
        """Keep that a search ended without an answer, for gangs that run for at least ``least`` seconds."""
        self.undecided, self.alarm = max(self.undecided, pending.budget), alarm
        self.undecided_from = min(self.undecided_from, least)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pending gang when the cycle considers it.

    Attributes:
        queue: its ClusterQueue; None without quota.
        gang_class: what is known of all gangs of its class.
    """

    pending: Pending
    queue: ClusterQueue | None
    gang_class: GangClass

    @property
    def uid(self) -> str:
        return self.pending.workload.uid

    @property
    def grows(self) -> bool:
        """Whether it is a pod that extends an elastic gang: it holds back no gang."""
        return self.pending.workload.grows

    @property
    def requests(self) -> list[GangRequest]:
        """Those of its class, which name the gang that made the class, as its own."""
        return [replace(template, pending=self.pending) for _, template in self.gang_class.requests]

    @property
    def ready(self) -> bool:
        """Whether its admission checks are ready under some choice of flavors, so that it starts if it fits."""
        return any(set(r.checks) <= self.pending.ready_checks for _, r in self.gang_class.requests)

    @property
    def refusal(self) -> tuple[Reason, ...] | None:
        """Why it does not start, as far as that is proved."""
        return self.gang_class.refuted(self.pending.workload)


@dataclass(slots=True)
class GangClasses:
    """The classes of the gangs of one cycle so far.

    Attributes:
        keys: of the gangs of the snapshot, by id.
        reopened: how often refutations were dropped.
    """

    problem: Problem
    keys: Mapping[int, ClassKey] = field(default_factory=dict)
    reopened: int = 0
    _known: dict[ClassKey, GangClass] = field(default_factory=dict)

    def of(self, pending: Pending, queue: ClusterQueue | None) -> GangClass:
        kind = self.keys.get(id(pending)) or class_key(
            pending,
            queue.name if queue is not None else None,
            lines_of(self.problem.snapshot.config, self.problem.cache),
        )
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = self._make(pending, kind, queue)
        return known

    def candidate(self, pending: Pending, queue: ClusterQueue | None) -> Candidate:
        """A gang in its ClusterQueue, with what is known of its class."""
        return Candidate(pending, queue, self.of(pending, queue))

    def _make(self, pending: Pending, kind: ClassKey, queue: ClusterQueue | None) -> GangClass:
        if queue is None:
            request = request_of(self.problem, pending, None, ({},) * len(pending.workload.podsets))
            return GangClass(
                options_of(pending.workload, None, self.problem), [({}, request)], frozenset()
            )
        offers = tuple((g.covered, tuple(q.flavor for q in g.flavors)) for g in queue.groups)
        known = self.problem.once(_by_offers)
        alike = known.get((kind.asks, offers))
        if alike is None:
            alike = known[kind.asks, offers] = self._charged(pending, queue)
        requests = [(choice, charged_to(d, queue)) for choice, d in alike.requests]
        impossible = alike.options.impossible
        refusal = Refutation((refusals.no_flavor(queue, alike.options),)) if impossible else None
        flavors = alike.flavors
        if queue.strict and not queue.split_flavors:
            flavors &= self._usable(pending.workload, queue, alike.options)
        evicts = pending.workload.evicts and any_may_evict(self.problem, queue)
        return GangClass(alike.options, requests, flavors, evicts, refusal=refusal)

    def _usable(self, workload: Workload, queue: ClusterQueue, options: Options) -> frozenset[str]:
        """Flavors of which some podset, with the fewest pods it may start with, could ever get enough if nothing is used."""

        def enough(podset: int, number: int, flavor: str) -> bool:
            least = admissible(workload.podsets[podset])[0]
            return all(
                least * amount <= self.problem.most(queue.name, (flavor, resource))
                for resource, amount in options.charged[podset].items()
                if resource in queue.groups[number].covered
            )

        return frozenset(
            name
            for (podset_group, number), names in options.allowed.items()
            for name in names
            if all(enough(podset, number, name) for podset in options.members[podset_group])
        )

    def _charged(self, pending: Pending, queue: ClusterQueue) -> GangClass:
        """The request of a gang to any ClusterQueue that offers the same flavors."""
        options = options_of(pending.workload, queue, self.problem)
        requests = []
        for choice in options.choices() if not options.impossible else ():
            flavors = options.flavors_by_podset(choice, queue, pending.workload)
            requests.append((choice, request_of(self.problem, pending, queue, flavors)))
        taken = frozenset(name for names in options.allowed.values() for name in names)
        return GangClass(options, requests, taken if requests else frozenset())

    def set_aside(self) -> dict[ClassKey, Proved]:
        """Take out what was proved on the current capacity, to search with more of it; what never fits stays refused."""
        proved: dict[ClassKey, Proved] = {}
        for kind, known in self._known.items():
            never = known.refusal is not None and known.refusal.why[0].never_fits
            if not never and (known.refusal is not None or known.delays is not None):
                proved[kind] = known.refusal, known.delays
                known.refusal = known.delays = None
        return proved

    def put_back(self, proved: Mapping[ClassKey, Proved]) -> None:
        """Restore results that were kept, on the same capacity."""
        for kind, (refusal, delays) in proved.items():
            known = self._known[kind]
            known.refusal, known.delays = refusal, delays

    def forget_refusals(self) -> None:
        """Drop what was proved on less capacity than there is now."""
        self.reopened += 1
        self.set_aside()


def _by_offers(_: Problem) -> dict[Hashable, GangClass]:
    """Requests of gangs in a problem, by flavors: empty at first. No state of a cycle is in it."""
    return {}
