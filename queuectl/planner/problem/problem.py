"""Numpy view of one snapshot: fleet, topology, eligibility and what is free.

Layout: matrices are (R, N), R resources (``problem.resources``, sorted by name) by N nodes (``fleet.nodes`` order), int64
in the units of :mod:`queuectl.domain.quantity`; nothing is rounded. Static parts are cached per Fleet identity, and the
use of gangs that stay where they were is carried over from the snapshot before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

from queuectl.domain.devices import DeviceInventory
from queuectl.domain.fleet import NodeRules
from queuectl.domain.quantity import CPU, MEMORY, PODS, Resources
from queuectl.domain.snapshot import Admitted, Snapshot, added_pods
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.fleet import FleetIndex, Ints, Mask, index_of
from queuectl.planner.problem.limit_rows import with_limit_rows
from queuectl.planner.problem.usage import AdmittedUsage, Slots, beside_other_pods, usage_of
from queuectl.planner.quota import FlavorResource, LaterPools, QuotaTree, later_pools_of, pools_of

# ---- Nodes that pods leave to others

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Spared:
    """The nodes that pods of one kind leave to others if they can. Nodes belong to the fleet, perhaps not all of them.

    Attributes:
        avoided: nodes with a device that the pods do not request, where others of their nodes have none; then, of pods without
            devices, nodes with accelerators. Shape (N,) each.
        needs: of pods without devices, for each accelerator and each resource that it needs: both columns, and the amount that one
            device needs on each node, of shape (N,).
    """

    avoided: tuple[Mask, ...]
    needs: tuple[tuple[int, int, Floats], ...] = ()

    def within(self, nodes: Ints) -> Spared:
        """The same for some of the nodes."""
        needs = tuple((device, column, each[nodes]) for device, column, each in self.needs)
        return Spared(tuple(mask[nodes] for mask in self.avoided), needs)

    def beside_devices(self, free: Ints) -> Ints:
        """A free matrix (R, N) less what the free devices of each node need."""
        kept: dict[int, Floats] = {}
        for device, column, each in self.needs:
            need = each * np.maximum(free[device], 0)
            kept[column] = np.maximum(kept[column], need) if column in kept else need
        left = free.copy()
        for column, need in kept.items():
            left[column] -= need.astype(np.int64)
        return left


def published_on(inventory: DeviceInventory, index: FleetIndex) -> Mask:
    """For each driver of ResourceSlices, the nodes for which it has published devices. Shape (drivers, N)."""
    nodes: dict[str, list[int]] = {}
    for name, on_node in inventory.nodes.items():
        for driver in {device.id.driver for device in on_node.devices}:
            if name in index.position:
                nodes.setdefault(driver, []).append(index.position[name])
    found = np.zeros((len(nodes), index.size), dtype=np.bool_)
    for row, at in zip(found, nodes.values(), strict=True):
        row[at] = True
    return found


def spared_by(index: FleetIndex, published: Mask, vector: Ints, eligible: Mask) -> Spared | None:
    """The nodes and amounts that pods with this request (R,) leave to others among their nodes (N,); None = none.

    ``published``: of :func:`published_on`. The index has these devices only while a gang requests them.
    """
    others = [c for c in index.devices if not vector[c]]
    there = index.allocatable[others] > 0
    if len(others) == len(index.devices):
        there = np.vstack([there, published])
    here = there[:, eligible]
    some = np.flatnonzero(here.any(axis=1) & ~here.all(axis=1)).tolist()
    on_some_nodes = [others[i] for i in some if i < len(others)]
    avoided: list[Mask] = [np.any(there[some], axis=0)] if some else []
    if len(others) < len(index.devices):
        return Spared(tuple(avoided)) if avoided else None
    accelerators = [c for c in index.accelerators if here[others.index(c)].any()]
    if accelerators and accelerators != on_some_nodes:
        avoided.append(np.any(index.allocatable[accelerators] > 0, axis=0))
    needs = _needs(index, accelerators, vector)
    return Spared(tuple(avoided), tuple(needs)) if avoided else None


def _needs(
    index: FleetIndex, devices: Sequence[int], vector: Ints
) -> Iterator[tuple[int, int, Floats]]:
    """For each device its part of the CPU and the memory of its node, as far as the pods request them."""
    for name in (CPU, MEMORY):
        column = index.column.get(name)
        if column is not None and vector[column]:
            for device in devices:
                count = np.maximum(index.allocatable[device], 1)
                yield device, column, index.allocatable[column] / count


# ---- The snapshot as numbers

COMMON = frozenset({CPU, MEMORY, PODS, "ephemeral-storage"})
UNBOUNDED: Final = int(np.iinfo(np.int32).max)  # pods that ask for nothing, on a node
T = TypeVar("T")
Args = TypeVarTuple("Args")

Slices: TypeAlias = tuple[tuple[int, int], ...]  # (level, size), coarse to fine
_ShapeKey: TypeAlias = tuple[Resources, NodeRules, frozenset[str], bytes, bool, Slices]


@dataclass(frozen=True, eq=False, slots=True)
class Shape:
    """One kind of pod: its request and its eligible nodes. Interned per problem, so compared by identity.

    Attributes:
        key: stable number within the problem (order of first use).
        requests: amounts, as people read them.
        rules: node rules, those of the flavors merged in.
        vector: the same as a column over the problem's resources, shape (R,).
        columns: indexes of the resources it takes, the scarcest kind (devices) first.
        eligible: nodes it may use, ready and not excluded, shape (N,). Another set of nodes is another shape, with another key.
        slices: what it keeps together in, above the node: (level, size) coarse to fine. In each domain of ``level`` the
            number of pods is a multiple of ``size``; each finer size divides the coarser one. Pods alike but for their
            slices are two shapes.
        spared: what it leaves to other pods where it can choose; None = nothing.
    """

    key: int
    requests: Resources
    rules: NodeRules
    vector: Ints
    columns: tuple[int, ...]
    eligible: Mask
    slices: Slices = ()
    spared: Spared | None = None


@dataclass(eq=False)
class Problem:
    """One snapshot as numbers.

    Attributes:
        now: allocatable - all admitted (leaving ones included) - unmanaged pods, (R, N), read-only. May be negative on a node
            that shrank: then nothing fits there.
        later: the same without what is leaving.
        cache: what it was made with, and what follows from parts of it.
    """

    snapshot: Snapshot
    index: FleetIndex
    usage: AdmittedUsage
    now: Ints
    later: Ints
    cache: PlannerCache
    _shapes: dict[_ShapeKey, Shape] = field(default_factory=dict)
    _eligible: dict[tuple[NodeRules, frozenset[str], bytes, bool], Mask] = field(
        default_factory=dict
    )
    _spares: dict[tuple[int, bytes], Spared | None] = field(default_factory=dict, init=False)
    _derived: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False)

    @property
    def resources(self) -> tuple[str, ...]:
        return self.index.resources

    @property
    def size(self) -> int:
        """Number of nodes."""
        return self.index.size

    @property
    def pools(self) -> QuotaTree:
        """ClusterQueue name to its pool."""
        return pools_of(self.snapshot.config, self.cache)

    def most(self, queue: str, row: FlavorResource) -> int:
        """The most that a ClusterQueue could use now, or can later without a change of the configuration, if nothing were used."""
        times = (self.pools, *(pools for _, pools in self._later))
        return max(pools[queue].most(row) for pools in times)

    def enough_at(self, queue: str, row: FlavorResource, need: int) -> float | None:
        """The unix seconds from which a ClusterQueue can use so much if nothing is used; None: as soon as nodes have recovered."""
        times = [at for at, pools in self._later if pools[queue].most(row) >= need]
        return min((at for at in times if at is not None), default=None)

    @property
    def _later(self) -> LaterPools:
        return later_pools_of(self.snapshot.config, self.cache)

    @cached_property
    def added_pods(self) -> dict[str, list[Admitted]]:
        """By uid of an elastic gang, the running pods that were added to it."""
        return added_pods(self.snapshot)

    def once(self, make: Callable[[Problem, *Args], T], *args: *Args) -> T:
        """The result of ``make`` from this problem and hashable arguments, computed once."""
        key = (make, *args)
        if key not in self._derived:
            self._derived[key] = make(self, *args)
        made: T = self._derived[key]
        return made

    def mask_of(self, nodes: Sequence[int] | Ints) -> Mask:
        """The mask of some nodes, by index. Shape (N,)."""
        mask = np.zeros(self.size, dtype=np.bool_)
        mask[nodes] = True
        return mask

    def use_of(self, gang: Admitted) -> Slots:
        """Node indexes (K,) and amounts (R, K) of a gang's slots on nodes of the fleet."""
        return self.usage.slots(gang)

    def shape(
        self,
        requests: Resources,
        rules: NodeRules,
        excluded: frozenset[str] = frozenset(),
        within: Mask | None = None,
        *,
        lasting: bool = False,
        slices: Slices = (),
    ) -> Shape:
        """The interned shape: equal arguments give the same object.

        Args:
            requests: of one pod.
            rules: its node rules, those of its flavors merged in.
            excluded: nodes it must not use whatever the rules say.
            within: nodes it is confined to, None for all.
            lasting: judge nodes as if all were healthy and uncordoned.
            slices: what its pods keep together in.
        """
        key = (
            requests,
            rules,
            excluded,
            b"" if within is None else within.tobytes(),
            lasting,
            slices,
        )
        known = self._shapes.get(key)
        if known is None:
            known = self._shapes[key] = self._make(len(self._shapes), key, within)
        return known

    def _make(self, number: int, key: _ShapeKey, within: Mask | None) -> Shape:
        requests, rules, _, _, _, slices = key
        vector = self.index.vector(requests)
        if vector is None:
            nowhere = np.zeros(self.size, dtype=np.bool_)
            nothing = np.zeros(len(self.resources), np.int64)
            return Shape(number, requests, rules, nothing, (), nowhere, slices)
        eligible = self._where(key, within)
        columns = _columns(vector, self.resources)
        spared = self._spared(vector, eligible)
        return Shape(number, requests, rules, vector, columns, eligible, slices, spared)

    def _spared(self, vector: Ints, eligible: Mask) -> Spared | None:
        """The nodes and amounts that pods leave to others, one object for all that request the same kinds of resources on the same nodes."""
        if not self.index.devices and not self.snapshot.devices.nodes:
            return None
        key = (id(eligible), (vector > 0).tobytes())
        if key not in self._spares:
            self._spares[key] = spared_by(self.index, self._published, vector, eligible)
        return self._spares[key]

    @cached_property
    def _published(self) -> Mask:
        return published_on(self.snapshot.devices, self.index)

    def _where(self, key: _ShapeKey, within: Mask | None) -> Mask:
        """The nodes that pods of a shape may use; one array for all shapes that may use the same."""
        _, rules, excluded, confined, lasting, _ = key
        known = self._eligible.get((rules, excluded, confined, lasting))
        if known is None:
            index = self.index
            known = index.lasting_mask(rules).copy() if lasting else index.mask(rules) & index.ready
            if within is not None:
                known &= within
            known[[index.position[name] for name in excluded if name in index.position]] = False
            self._eligible[rules, excluded, confined, lasting] = known
        return known


def _columns(vector: Ints, resources: tuple[str, ...]) -> tuple[int, ...]:
    """Requested columns, devices before the resources every node has."""
    asked = [int(i) for i in np.flatnonzero(vector)]
    return tuple(sorted(asked, key=lambda i: (resources[i] in COMMON, i)))


def survey(snapshot: Snapshot, cache: PlannerCache | None = None) -> Problem:
    """Make the problem of a snapshot; ``cache``: of earlier calls."""
    cache = cache or PlannerCache()
    snapshot = with_limit_rows(snapshot, cache)
    index = index_of(snapshot.fleet, cache)
    usage = usage_of(snapshot, cache)
    now = beside_other_pods(usage.free, snapshot, index)
    same = usage.later is usage.free
    later = now if same else beside_other_pods(usage.later, snapshot, index)
    return Problem(snapshot, index, usage, now, later, cache)


def caps(free: Ints, shape: Shape, nodes: Ints | None = None, eligible: Mask | None = None) -> Ints:
    """Pods of a shape that fit each node of a free matrix, 0 where it is not eligible.

    Args:
        free: (R, N), or any columns of it when ``eligible`` is given for them.
        shape: the pods.
        nodes: count only these columns, given as node indexes.
        eligible: of the columns of ``free``, where they are not the nodes of the fleet in order.
    """
    if eligible is None:
        eligible = shape.eligible if nodes is None else shape.eligible[nodes]
    return np.where(eligible, most_pods(free, shape.vector, shape.columns, nodes), 0)


def most_pods(free: Ints, vector: Ints, columns: Iterable[int], nodes: Ints | None = None) -> Ints:
    """Pods that fit each node of a free matrix (R, N), one by one resource; at most ``UNBOUNDED``.

    Args:
        free: can be negative.
        vector: what each pod asks for. Shape (R,).
        columns: the resources of which it asks for anything.
        nodes: count only these columns of ``free``.
    """
    most: Ints | None = None
    for column in columns:
        row = free[column] if nodes is None else free[column, nodes]
        amount = vector[column]
        fits = row if amount == 1 else row // amount
        most = fits if most is None else np.minimum(most, fits)
    if most is None:
        return np.full(free.shape[1] if nodes is None else len(nodes), UNBOUNDED)
    return np.maximum(most, 0)


def most_pods_of_node(free: Sequence[int], vector: Sequence[int]) -> int:
    """The same of one node, in integers of Python: a model asks this so often that arrays of one element are too slow."""
    return max(0, min((f // a for f, a in zip(free, vector, strict=True) if a), default=UNBOUNDED))
