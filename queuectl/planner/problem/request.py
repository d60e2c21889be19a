"""What one gang asks of the arena once its flavors are chosen: shapes as vectors, units that share a domain.

A gang is a list of *units*: the podsets of one ``group``, or a single podset. Units are independent of each other
except for the capacity they compete for; every pod of a unit lies in one domain of its required level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from queuectl.domain.fleet import NodeRules
from queuectl.domain.quantity import Resources
from queuectl.domain.snapshot import Pending
from queuectl.planner.problem.parts import Cut
from queuectl.planner.problem.topology import Ints, Mask, Tree

ANYWHERE = -1

Slices: TypeAlias = tuple[tuple[int, int], ...]  # (level, size), coarse to fine


@dataclass(frozen=True, eq=False, slots=True)
class Shape:
    """One kind of pod: what it takes and where it may go. Interned per arena, so compared by identity.

    Attributes:
        key: stable number within the arena (order of first use).
        requests: amounts, as people read them.
        rules: node rules, those of the flavors merged in.
        vector: the same as a column over the arena's resources, shape (R,).
        columns: indexes of the resources it takes, the scarcest kind (devices) first.
        eligible: nodes it may use, ready and not excluded, shape (N,).
        slices: what it keeps together in, above the node: (level, size) coarse to fine. In each domain of ``level`` the
            number of pods is a multiple of ``size``; each finer size divides the coarser one. Pods alike but for their
            slices are two shapes.
    """

    key: int
    requests: Resources
    rules: NodeRules
    vector: Ints
    columns: tuple[int, ...]
    eligible: Mask
    slices: Slices = ()


@dataclass(frozen=True, slots=True)
class Pods:
    """``count`` pods of one shape, of podset number ``podset`` of the gang.

    Attributes:
        size: pods of the podset that each of them stands for. More than 1 where slices must sit on one node: such a slice
            is one large pod, and nothing else needs to know.
        balanced: to be spread evenly one level below the domain that holds them, if there is a way.
    """

    podset: int
    count: int
    shape: Shape
    size: int = 1
    balanced: bool = False

    @property
    def slices(self) -> Slices:
        """Of their shape; sizes are counted in these pods."""
        return self.shape.slices

    @property
    def total(self) -> int:
        """Pods of the podset they stand for."""
        return self.count * self.size


@dataclass(frozen=True, slots=True)
class Unit:
    """Podsets that share one domain.

    Attributes:
        required: level index of the domain all pods must share; ``tree.depth`` = one node; ``ANYWHERE`` = none.
        preferred: level index to try first, then coarser, then anywhere; ``ANYWHERE`` when nothing is preferred.
        bundle: all its pods as one, set where the unit may have to sit on a single node.
    """

    tree: Tree
    pods: tuple[Pods, ...]
    required: int = ANYWHERE
    preferred: int = ANYWHERE
    bundle: Pods | None = None

    @property
    def on_one_node(self) -> bool:
        """Whether all its pods must share one node."""
        return self.bundle is not None and self.required == self.tree.depth

    @property
    def sliced(self) -> bool:
        """Whether pods must keep together in multiples below the unit's own domain, on more than a node."""
        return any(p.slices for p in self.pods)


@dataclass(frozen=True, slots=True)
class GangRequest:
    """A gang under one choice of flavors.

    Attributes:
        units: what must be placed on nodes; empty when it is quota only.
        charges: (flavor, resource) to the amount charged to its ClusterQueue.
        flavors: per podset of the gang, resource to flavor.
        queue: ClusterQueue charged, None when the gang has no quota.
        cut: set where podsets of the gang are asked in parts; ``pending`` is the gang of the parts then.
    """

    pending: Pending
    units: tuple[Unit, ...]
    charges: Mapping[tuple[str, str], int] = field(default_factory=dict)
    flavors: tuple[Mapping[str, str], ...] = ()
    queue: str | None = None
    cut: Cut | None = None

    @property
    def pods(self) -> tuple[Pods, ...]:
        """Of all units, in order."""
        return tuple(p for unit in self.units for p in unit.pods)

    def signature(self) -> tuple[object, ...]:
        """Equal for demands that ask the same of the same fleet."""
        return tuple(
            (
                (*unit.tree.levels, unit.tree.node_level),
                unit.required,
                tuple((p.count, p.shape.requests, p.shape.rules, p.slices) for p in unit.pods),
            )
            for unit in self.units
        )

    def rows(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """What it charges, as (ClusterQueue, flavor, resource) and amount."""
        if self.queue is not None:
            for (flavor, resource), amount in self.charges.items():
                yield (self.queue, flavor, resource), amount
