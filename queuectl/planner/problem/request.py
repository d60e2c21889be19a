"""The request of a gang: its numbers of pods, its parts, and what it asks for once its flavors are chosen.

A gang is a list of *podset groups*: the podsets of one ``group``, or a single podset. PodSet groups are independent of each other
except for the capacity they compete for; every pod of a podset group is in one domain of its required level.

Pods of one podset that use different flavors of a resource group are its shares. To the planner each share is a separate podset, a
*part*, and the gang asks for all its parts. Code that places, charges or repairs podsets does it for shares too. The constraints of the podset
on all its pods together apply to its parts: they form a group, as podsets that share a domain do. At the end the parts are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from queuectl.domain.fleet import HOSTNAME, NodeRules, Toleration
from queuectl.domain.quantity import total
from queuectl.domain.queues import ClusterQueue, QueueConfig, ResourceFlavor
from queuectl.domain.reasons import Reason
from queuectl.domain.reservations import Occurrence
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.workload import (
    FlavorShare,
    Placement,
    PodSet,
    PodSetPlacement,
    TopologyMode,
    TopologyRequest,
    Workload,
)
from queuectl.planner.problem.flavors import Flavors, Members, members_of
from queuectl.planner.problem.fleet import Ints, Mask, Tree
from queuectl.planner.problem.limit_rows import (
    beside,
    end_from,
    plain,
    reservation_of_row,
    rows_beside,
)
from queuectl.planner.problem.problem import Problem, Shape, Slices

# ---- Fewer pods, and parts


def shrinks(workload: Workload) -> bool:
    """Whether the gang may start with fewer pods than it asks for."""
    return any(len(admissible(podset)) > 1 for podset in workload.podsets)


def admissible(podset: PodSet) -> range:
    """The counts a podset may start with, smallest first."""
    if podset.min_count is None or podset.min_count >= podset.count:
        return range(podset.count, podset.count + 1)
    slices = podset.topology.slices if podset.topology is not None else ()
    step = slices[0].size if slices else 1
    least = -(-max(1, podset.min_count) // step) * step
    return range(least, podset.count + 1, step)


def with_counts(pending: Pending, counts: Sequence[int]) -> Pending:
    """The gang as it would be with so many pods per podset, and no fewer."""
    podsets = tuple(
        podset if podset.min_count is None else replace(podset, count=count, min_count=count)
        for podset, count in zip(pending.workload.podsets, counts, strict=True)
    )
    return replace(pending, workload=replace(pending.workload, podsets=podsets))


def smallest(workload: Workload) -> Workload:
    """The gang with the fewest pods it may start with."""
    if not shrinks(workload):
        return workload
    podsets = (replace(p, count=admissible(p)[0]) for p in workload.podsets)
    return replace(workload, podsets=tuple(podsets))


def as_placed(pending: Pending, placement: Placement) -> Pending:
    """The gang with the counts it was placed with before, where these are still admissible."""
    counts = []
    for podset in pending.workload.podsets:
        placed = placement.of(podset.name)
        given = podset.count if placed is None or placed.pods is None else placed.pods
        counts.append(given if given in admissible(podset) else podset.count)
    return with_counts(pending, counts)


def at_least(why: Reason, choices: Sequence[range]) -> Reason:
    """The reason of the smallest part, as that of the gang."""
    counts = [choice[0] for choice in choices]
    least = f"{' + '.join(map(str, counts))} {'pod' if counts == [1] else 'pods'}"
    return replace(why, message=f"even with the minimum of {least}: {why.message}")


@dataclass(frozen=True, slots=True)
class SplitGang:
    """A gang that is asked in parts.

    Attributes:
        whole: the gang as its user knows it.
        podsets: of each part, the number of its podset; parts are in the podsets' order.
    """

    whole: Workload
    podsets: tuple[int, ...]


def part_of(
    podset: PodSet, number: int, pods: int, flavors: Mapping[str, str], config: QueueConfig
) -> PodSet:
    """Some pods of a podset as a separate podset; ``number`` distinguishes its parts.

    No object of Kubernetes has a ``#`` in its name, so neither name nor group is ever another's.
    """
    request = podset.topology
    group = None
    if request is not None and request.level is not None:
        group = "#".join((podset.name, *topologies(flavors, config)))
    name = f"{podset.name}#{number}"
    return replace(podset, name=name, count=pods, group=group, min_count=None)


def topologies(flavors: Mapping[str, str], config: QueueConfig) -> tuple[str, ...]:
    """Topologies that these flavors name; none means that their pods need no node."""
    named = (flavor.topology for flavor in config.flavors_named(flavors.values()))
    return tuple(dict.fromkeys(name for name in named if name is not None))


def in_parts(
    workload: Workload, placement: Placement, config: QueueConfig
) -> tuple[Workload, Placement, SplitGang | None]:
    """A gang and its placement in parts, one for each share; as they are, and None, where no podset is split."""
    if not any(placed.shares for placed in placement.podsets):
        return workload, placement, None
    podsets: list[PodSet] = []
    placements: list[PodSetPlacement] = []
    numbers: list[int] = []
    for number, podset in enumerate(workload.podsets):
        placed = placement.of(podset.name) or PodSetPlacement(podset.name, ())
        for at, share in enumerate(placed.by_share()):
            part, own = podset, share
            if placed.shares:
                part = part_of(podset, at, share.pods or 0, share.flavors, config)
                own = replace(share, podset=part.name, pods=None)
            podsets.append(part)
            placements.append(own)
            numbers.append(number)
    cut = SplitGang(workload, tuple(numbers))
    return replace(workload, podsets=tuple(podsets)), Placement(tuple(placements)), cut


def cut_running(gang: Admitted, config: QueueConfig) -> tuple[Admitted, SplitGang | None]:
    """A running gang in parts, as :func:`in_parts` makes them; each lost pod belongs to one of them."""
    workload, placement, cut = in_parts(gang.workload, gang.placement, config)
    if cut is None:
        return gang, None
    missing: dict[str, dict[str, int]] = {}
    for name, node, count in gang.lost:
        missing.setdefault(name, {})[node] = count
    lost = [
        (own.podset, node, count)
        for number, own in zip(cut.podsets, placement.podsets, strict=True)
        for node, count in _taken(own, missing.get(gang.workload.podsets[number].name, {}))
    ]
    return replace(gang, workload=workload, placement=placement, lost=tuple(lost)), cut


def _taken(share: PodSetPlacement, missing: dict[str, int]) -> Iterator[tuple[str, int]]:
    """The lost pods of a share; they are taken off ``missing``, what all shares of its podset lost."""
    for node, count in share.by_node.items():
        if taken := min(count, missing.get(node, 0)):
            missing[node] -= taken
            yield node, taken


def joined(
    cut: SplitGang, requested: Sequence[PodSet], parts: Sequence[PodSetPlacement]
) -> Placement:
    """The placement of the whole gang.

    Args:
        cut: how it was cut.
        requested: its parts.
        parts: the placement of each.
    """
    podsets = []
    for number, podset in enumerate(cut.whole.podsets):
        own = [at for at, of in enumerate(cut.podsets) if of == number]
        shares = tuple(FlavorShare(requested[at].count, parts[at].flavors) for at in own)
        podsets.append(
            PodSetPlacement(
                podset.name,
                tuple(slot for at in own for slot in parts[at].nodes),
                shares[0].flavors,
                None if podset.min_count is None else sum(share.pods for share in shares),
                shares if len(shares) > 1 else (),
            )
        )
    return Placement(tuple(podsets))


# ---- Requests

ANYWHERE = -1


@dataclass(frozen=True, slots=True)
class ShapePods:
    """``count`` pods of one shape, of podset number ``podset`` of the gang.

    Attributes:
        size: pods of the podset that each of them represents. More than 1 where slices must be on one node: such a slice
            is one large pod.
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
        """Pods of the podset that they represent."""
        return self.count * self.size


@dataclass(frozen=True, slots=True)
class PodSetGroup:
    """Podsets that share one domain.

    Attributes:
        required: level index of the domain all pods must share; ``tree.depth`` = one node; ``ANYWHERE`` = none.
        preferred: level index to try first, then coarser, then anywhere; ``ANYWHERE`` when nothing is preferred.
        bundle: all its pods as one, set where the podset group can be required to be on a single node.
    """

    tree: Tree
    pods: tuple[ShapePods, ...]
    required: int = ANYWHERE
    preferred: int = ANYWHERE
    bundle: ShapePods | None = None

    @property
    def on_one_node(self) -> bool:
        """Whether all its pods must share one node."""
        return self.bundle is not None and self.required == self.tree.depth

    @property
    def to_place(self) -> tuple[ShapePods, ...]:
        """The pods that are placed for it: its pods, or all of them as one where they share a node."""
        return (self.bundle,) if self.on_one_node and self.bundle is not None else self.pods

    def with_pods(self, change: Callable[[ShapePods], ShapePods]) -> PodSetGroup:
        """The same podset group with each kind of its pods changed."""
        pods = tuple(map(change, self.pods))
        bundle = change(self.bundle) if self.bundle is not None else None
        return replace(self, pods=pods, bundle=bundle)

    @property
    def sliced(self) -> bool:
        """Whether pods must keep together in multiples below the podset group's own domain, on more than a node."""
        return any(p.slices for p in self.pods)


@dataclass(frozen=True, slots=True)
class GangRequest:
    """A gang under one choice of flavors.

    Attributes:
        podset_groups: what must be placed on nodes; empty when it is quota only.
        charges: (flavor, resource) to the amount charged to its ClusterQueue.
        flavors: per podset of the gang, resource to flavor.
        queue: ClusterQueue charged, None when the gang has no quota.
        cut: set where podsets of the gang are asked in parts; ``pending`` is the gang of the parts then.
        checks: names of the admission checks that it needs with these flavors, on nodes that exist.
    """

    pending: Pending
    podset_groups: tuple[PodSetGroup, ...]
    charges: Mapping[tuple[str, str], int] = field(default_factory=dict)
    flavors: tuple[Mapping[str, str], ...] = ()
    queue: str | None = None
    cut: SplitGang | None = None
    checks: tuple[str, ...] = ()

    @property
    def flavor_names(self) -> frozenset[str]:
        """All flavors of its choice."""
        return frozenset(name for chosen in self.flavors for name in chosen.values())

    @property
    def awaited_checks(self) -> tuple[str, ...]:
        """The checks that are not ready. With one, the gang does not start: it is held on its capacity, for an unknown time."""
        return tuple(name for name in self.checks if name not in self.pending.ready_checks)

    @property
    def pods(self) -> tuple[ShapePods, ...]:
        """Of all podset groups, in order."""
        return tuple(p for podset_group in self.podset_groups for p in podset_group.pods)

    @property
    def hardest(self) -> PodSetGroup:
        """Its podset group that is hardest to place: the finest level, then the most pods."""
        return max(self.podset_groups, key=lambda g: (g.required, sum(p.count for p in g.pods)))

    def with_pods(self, change: Callable[[ShapePods], ShapePods]) -> GangRequest:
        """The same request with each kind of its pods changed."""
        podset_groups = tuple(group.with_pods(change) for group in self.podset_groups)
        return replace(self, podset_groups=podset_groups)

    def signature(self) -> tuple[object, ...]:
        """Equal for requests that ask for the same of the same fleet."""
        return tuple(
            (
                (*podset_group.tree.levels, podset_group.tree.node_level),
                podset_group.required,
                tuple(
                    (p.count, p.shape.requests, p.shape.rules, p.slices) for p in podset_group.pods
                ),
            )
            for podset_group in self.podset_groups
        )

    def rows(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """Its charges, as (ClusterQueue, flavor, resource) and amount."""
        if self.queue is not None:
            for (flavor, resource), amount in self.charges.items():
                yield (self.queue, flavor, resource), amount


def request_of(
    problem: Problem,
    pending: Pending,
    queue: ClusterQueue | None,
    flavors: Flavors,
    *,
    lasting: bool = False,
    within: Mapping[int, Mask] | None = None,
    placed: bool = False,
) -> GangRequest:
    """The request of a gang once its flavors are chosen.

    Args:
        problem: of the snapshot.
        pending: the gang.
        queue: ClusterQueue charged; None charges nothing.
        flavors: per podset, resource to flavor.
        lasting: see nodes as if all were healthy, uncordoned and never refused: to prove that a gang never fits.
        within: podset number to the nodes it is confined to, beyond what it asks itself.
        placed: its pods were on nodes. They need nodes even if its flavors are quota only by now, or all nodes are deleted.
    """
    workload = pending.workload
    charges: dict[tuple[str, str], int] = {}
    charged = problem.snapshot.config.rules.charged
    if queue is not None:
        for podset, chosen in zip(workload.podsets, flavors, strict=True):
            per_pod = charged(podset.shape.requests)
            for resource, flavor in chosen.items():
                row = (flavor, resource)
                charges[row] = charges.get(row, 0) + per_pod[resource] * podset.count
    excluded = frozenset[str]() if lasting else pending.excluded
    builder = _PodSetGroups(problem, workload, flavors, excluded, lasting, within or {}, placed)
    podset_groups = (builder.podset_group(members) for members in members_of(workload))
    found = tuple(podset_group for podset_group in podset_groups if podset_group is not None)
    request = GangRequest(pending, found, charges, flavors)
    return request if queue is None else charged_to(request, queue)


def charged_to(request: GangRequest, queue: ClusterQueue) -> GangRequest:
    """A request with the same flavors, charged to this ClusterQueue."""
    on_nodes = bool(request.podset_groups)
    rules = (rule for rule in queue.admission_checks if rule.applies(request.flavor_names))
    checks = tuple(rule.name for rule in rules if not (rule.provisions and on_nodes))
    return replace(request, queue=queue.name, checks=checks)


def quota_only(request: GangRequest) -> GangRequest:
    """The same charges without pods: of a gang whose nodes do not exist yet."""
    return replace(request, podset_groups=())


def on_nodes(request: GangRequest, nodes: Ints) -> GangRequest:
    """A gang of one topology as if only these nodes existed, in topology order: number i is node i of the result."""
    tree = request.podset_groups[0].tree.within(nodes)

    def there(pods: ShapePods) -> ShapePods:
        shape = pods.shape
        spared = None if shape.spared is None else shape.spared.within(nodes)
        return replace(pods, shape=replace(shape, eligible=shape.eligible[nodes], spared=spared))

    podset_groups = request.with_pods(there).podset_groups
    return replace(request, podset_groups=tuple(replace(g, tree=tree) for g in podset_groups))


@dataclass(frozen=True, slots=True)
class _PodSetGroups:
    problem: Problem
    workload: Workload
    flavors: Flavors
    excluded: frozenset[str]
    lasting: bool
    within: Mapping[int, Mask]
    placed: bool

    def podset_group(self, members: Members) -> PodSetGroup | None:
        """One podset group, or None when none of its pods needs a node."""
        numbers = [i for i in members if self._takes_nodes(i)]
        if not numbers:
            return None
        podsets = [self.workload.podsets[i] for i in members]
        tree = self.problem.index.tree(self._levels(members, podsets))
        visible = (
            None if len(tree.order) == self.problem.size else tree.position < self.problem.size
        )
        required = _finest(tree, podsets, TopologyMode.REQUIRED)
        pods = tuple(self._pods(i, visible, tree, required) for i in numbers)
        preferred = _finest(tree, podsets, TopologyMode.PREFERRED)
        bundle = None
        if tree.depth in (required, preferred):
            as_one = as_one_pod(self.problem, [(p.shape, p.count) for p in pods])
            bundle = ShapePods(-1, 1, as_one)
        return PodSetGroup(tree, pods, required, preferred, bundle)

    def _takes_nodes(self, number: int) -> bool:
        if not self.workload.podsets[number].count:
            return False
        if self.placed:
            return True
        chosen = self._chosen((number,))
        return bool(self.problem.size) and (
            not chosen or any(f.topology is not None for f in chosen)
        )

    def _chosen(self, numbers: Iterable[int]) -> list[ResourceFlavor]:
        names = dict.fromkeys(name for i in numbers for name in self.flavors[i].values())
        return self.problem.snapshot.config.flavors_named(names)

    def _levels(self, numbers: Sequence[int], podsets: Sequence[PodSet]) -> tuple[str, ...]:
        config = self.problem.snapshot.config
        for flavor in self._chosen(numbers):
            topology = config.topologies.get(flavor.topology or "")
            if topology is not None:
                return topology.levels
        wanted = [level for p in podsets if p.topology is not None for level in p.topology.levels]
        if not wanted:
            return self._common_levels()
        for topology in config.topologies.values():
            if set(wanted) <= set(topology.levels):
                return topology.levels
        return (*dict.fromkeys(level for level in wanted if level != HOSTNAME), HOSTNAME)

    def _common_levels(self) -> tuple[str, ...]:
        """For a gang that asks for no level: a topology that shows every node, otherwise none."""
        for topology in self.problem.snapshot.config.topologies.values():
            if len(self.problem.index.tree(topology.levels).order) == self.problem.size:
                return topology.levels
        return (HOSTNAME,)

    def _pods(self, number: int, visible: Mask | None, tree: Tree, required: int) -> ShapePods:
        podset = self.workload.podsets[number]
        rules = podset.shape.rules
        for flavor in self._chosen((number,)):
            rules = flavor.rules_of(rules)
        confined = self.within.get(number)
        if confined is not None:
            visible = confined if visible is None else visible & confined
        size, slices = _sliced(tree, podset.topology, required)
        requests = podset.shape.requests if size == 1 else podset.shape.requests * size
        shape = self.problem.shape(
            requests, rules, self.excluded, visible, lasting=self.lasting, slices=slices
        )
        balanced = podset.topology is not None and podset.topology.balanced
        return ShapePods(number, podset.count // size, shape, size, balanced)


def _sliced(tree: Tree, request: TopologyRequest | None, required: int) -> tuple[int, Slices]:
    """Pods of a slice on one node, and the layers above the node in units of it.

    Layers that say nothing are left out: of one pod, at or above the level all pods share, or implied by a finer one.
    """
    kept: list[tuple[int, int]] = []
    for layer in request.slices if request is not None else ():
        level = tree.level_of(layer.level)
        if level is not None and level > required and layer.size > 1:
            kept.append((level, layer.size))
    on_node = max((size for level, size in kept if level == tree.depth), default=1)
    layers: list[tuple[int, int]] = []
    largest = on_node
    for level, size in sorted(kept, reverse=True):
        if level < tree.depth and size > largest:
            layers.append((level, size // on_node))
            largest = size
    return on_node, tuple(reversed(layers))


def _finest(tree: Tree, podsets: Sequence[PodSet], mode: TopologyMode) -> int:
    asked = [
        tree.level_of(p.topology.level)
        for p in podsets
        if p.topology is not None and p.topology.mode is mode and p.topology.level is not None
    ]
    return max((level for level in asked if level is not None), default=ANYWHERE)


def as_one_pod(problem: Problem, pods: Sequence[tuple[Shape, int]]) -> Shape:
    """The shape of some pods that share a node, (shape, count) each, as one pod; equal for equal pods."""
    requests = total(shape.requests * count for shape, count in pods)
    eligible = np.logical_and.reduce([shape.eligible for shape, _ in pods])
    return problem.shape(requests, _ANY_NODE, frozenset(), eligible, lasting=True)


_ANY_NODE = NodeRules(tolerations=(Toleration(operator="Exists"),))


# Alongside other Reservations in advance than those of its podsets: at another time, or without some of them.


def starting_at(
    problem: Problem, request: GangRequest, at: float, latest: float | None = None
) -> GangRequest:
    """The request of a gang that starts at a time, or between two times, in unix seconds."""
    snapshot = problem.snapshot
    if not snapshot.reservations:
        return request
    workload = request.pending.workload
    until = end_from(snapshot, request.pending, at if latest is None else latest)
    return beside_these(problem, request, beside(snapshot, workload, until, at))


def ahead_of(problem: Problem, request: GangRequest) -> Iterator[Occurrence]:
    """The Reservations alongside which it must find its place."""
    names = {reservation_of_row(name) for pods in request.pods for name in pods.shape.requests}
    return (each for each in problem.snapshot.reservations if each.name in names)


def beside_these(
    problem: Problem, request: GangRequest, among: Iterable[Occurrence]
) -> GangRequest:
    """The request alongside these Reservations alone; the same one if its podsets have exactly these."""
    occurrences = tuple(among)
    if {each.name for each in occurrences} == {each.name for each in ahead_of(problem, request)}:
        return request

    def pods_beside(pods: ShapePods) -> ShapePods:
        shape = pods.shape
        alone = plain(shape.requests)
        requests = alone + rows_beside(alone, occurrences)
        shape = problem.shape(requests, shape.rules, within=shape.eligible, slices=shape.slices)
        return replace(pods, shape=shape)

    return request.with_pods(pods_beside)
