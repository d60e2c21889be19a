"""Gangs alike in everything but name, priority and age: what is known of one is known of all."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from queuectl.domain.queues import ClusterQueue
from queuectl.domain.snapshot import Pending
from queuectl.planner import explain
from queuectl.planner.arena import Arena
from queuectl.planner.asking import demand_of
from queuectl.planner.demand import Demand
from queuectl.planner.explain import Explained
from queuectl.planner.flavors import Choice, Options, options_of
from queuectl.planner.partial import admissible


@dataclass(slots=True)
class Class:
    """What is known of all gangs of one kind.

    Attributes:
        demands: what they ask under each choice of flavors, in order of preference.
        flavors: all flavors of these choices.
        refusal: why none of them fits, once proved.
        undecided: the largest budget under which the search ended without an answer, -1 if none did.
        alarm: what broke in that search, if anything did.
    """

    options: Options
    demands: list[tuple[Choice, Demand]]
    flavors: frozenset[str]
    refusal: tuple[Explained, ...] | None = None
    undecided: int = -1
    alarm: str = ""


@dataclass(slots=True)
class Classes:
    """The classes met so far in one walk."""

    arena: Arena
    _known: dict[Hashable, Class] = field(default_factory=dict)

    def of(self, pending: Pending, queue: ClusterQueue | None) -> Class:
        workload = pending.workload
        key = (
            queue.name if queue is not None else None,
            tuple((p.count, p.shape, p.topology, p.group, admissible(p)) for p in workload.podsets),
            pending.excluded,
        )
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._make(pending, queue)
        return known

    def _make(self, pending: Pending, queue: ClusterQueue | None) -> Class:
        options = options_of(pending.workload, queue, self.arena)
        if queue is None:
            demand = demand_of(self.arena, pending, None, ({},) * len(pending.workload.podsets))
            return Class(options, [({}, demand)], frozenset())
        if options.impossible:
            return Class(options, [], frozenset(), (explain.no_flavor(queue, options),))
        demands = []
        for choice in options.choices():
            flavors = options.flavors_by_podset(choice, queue, pending.workload)
            demands.append((choice, demand_of(self.arena, pending, queue, flavors)))
        taken = frozenset(name for choice, _ in demands for name in choice.values())
        return Class(options, demands, taken)

    def forget_refusals(self) -> None:
        """Drop what was proved on less capacity than there is now."""
        for known in self._known.values():
            if known.demands:
                known.refusal = None
