"""Gangs that are equal except for name, priority and age: what is proved of one holds for all."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from queuectl.domain.queues import ClusterQueue, QueueingStrategy
from queuectl.domain.reasons import NEVER_FITS, Reason
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Workload
from queuectl.planner.order.lines import lines_of
from queuectl.planner.order.pending_gangs import ClassKey, class_key
from queuectl.planner.problem.flavors import Choice, Options, options_of
from queuectl.planner.problem.parts import admissible
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.reasons import refusals


@dataclass(slots=True)
class GangClass:
    """Known results for all gangs of one kind.

    Attributes:
        requests: what they ask under each choice of flavors, in order of preference.
        flavors: all flavors of these choices; in a StrictFIFO queue, those of which it could ever get enough.
        refusal: why none of them fits, once proved.
        undecided: the largest budget under which the search ended without an answer, -1 if none did.
        alarm: what broke in that search, if anything did.
    """

    options: Options
    requests: list[tuple[Choice, GangRequest]]
    flavors: frozenset[str]
    refusal: tuple[Reason, ...] | None = None
    undecided: int = -1
    alarm: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pending gang when the cycle considers it.

    Attributes:
        queue: its ClusterQueue; None without quota.
        known: what is known of all gangs of its class.
    """

    pending: Pending
    queue: ClusterQueue | None
    known: GangClass

    @property
    def uid(self) -> str:
        return self.pending.workload.uid


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
        requests = [(choice, replace(d, queue=queue.name)) for choice, d in alike.requests]
        impossible = alike.options.impossible
        refusal = (refusals.no_flavor(queue, alike.options),) if impossible else None
        flavors = alike.flavors
        if queue.strategy is QueueingStrategy.STRICT_FIFO and not queue.split_flavors:
            flavors &= self._usable(pending.workload, queue, alike.options)
        return GangClass(alike.options, requests, flavors, refusal)

    def _usable(self, workload: Workload, queue: ClusterQueue, options: Options) -> frozenset[str]:
        """Flavors of which some podset, with the fewest pods it may start with, would get enough if nothing were used."""
        pool = self.problem.pools[queue.name]

        def enough(podset: int, number: int, flavor: str) -> bool:
            least = admissible(workload.podsets[podset])[0]
            return all(
                least * amount <= pool.most((flavor, resource))
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
        taken = frozenset(name for choice, _ in requests for name in choice.values())
        return GangClass(options, requests, taken)

    def set_aside(self) -> dict[ClassKey, tuple[Reason, ...]]:
        """Take out what was proved on the present capacity, to search with more of it."""
        proved = {k: known.refusal for k, known in self._known.items() if known.refusal is not None}
        for kind in proved:
            self._known[kind].refusal = None
        return proved

    def put_back(self, proved: Mapping[ClassKey, tuple[Reason, ...]]) -> None:
        """Restore results that were kept, on the same capacity."""
        for kind, refusal in proved.items():
            self._known[kind].refusal = refusal

    def forget_refusals(self) -> None:
        """Drop what was proved on less capacity than there is now; what never fits stays refused."""
        self.reopened += 1
        for known in self._known.values():
            if known.refusal is not None and known.refusal[0].code not in NEVER_FITS:
                known.refusal = None


def _by_offers(_: Problem) -> dict[Hashable, GangClass]:
    """Requests of gangs in a problem, by flavors: empty at first. No state of a cycle is in it."""
    return {}
