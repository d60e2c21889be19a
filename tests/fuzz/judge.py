"""The judge of a plan: what must hold of it, counted from the snapshot alone. It shares no code with the planner and its verifier.

It uses the records of ``queuectl.domain`` only. Quota is computed as Kueue documents it: of each ClusterQueue and Cohort, a part is kept and the
rest is lent, and what a member uses beyond its own part it takes from its parent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queuectl.domain.fleet import HOSTNAME, Node, NodeRules
from queuectl.domain.plan import Admission, Plan
from queuectl.domain.queues import FlavorQuotas, QueueConfig, QueueingStrategy, ResourceGroup
from queuectl.domain.reasons import NEVER_FITS, Code
from queuectl.domain.snapshot import Pending, Snapshot, queue_of
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodSetPlacement,
    TopologyMode,
    TopologyRequest,
    Workload,
)

Row = tuple[str, str]  # flavor, resource
Use = dict[tuple[str, str, str], int]  # ClusterQueue, flavor, resource
Complaints = Iterator[str]

_PASSED: Final = NEVER_FITS | {
    *(Code.RESOURCE_QUOTA_EXCEEDED, Code.MAX_PER_USER, Code.BUDGET_SPENT, Code.WAITING_FOR_CHECKS),
}
"""Reasons of gangs that hold back no gang, or only those with the same limit in addition to quota."""


def complaints(snapshot: Snapshot, plan: Plan) -> Complaints:
    """The defects of the plan, one sentence for each."""
    yield from _partition(snapshot, plan)
    starts = _starts(snapshot, plan)
    for workload, admission in starts:
        yield from _whole(snapshot, workload, admission)
        yield from _together(snapshot, workload, admission)
    yield from _capacity(snapshot, plan)
    yield from _quota(snapshot, [(w, a) for w, a in starts if not a.repaired])
    yield from _order(snapshot, plan)


def _partition(snapshot: Snapshot, plan: Plan) -> Complaints:
    """Each pending gang has one decision, and only running gangs are evicted."""
    decided = Counter(
        [a.uid for a in plan.admitted if not a.repaired] + [r.uid for r in plan.pending]
    )
    running = {gang.workload.uid for gang in snapshot.admitted}
    for entry in snapshot.pending:
        if decided[entry.workload.uid] != 1:
            yield f"{entry.workload.uid} is {decided[entry.workload.uid]} times in the plan"
    known = {entry.workload.uid for entry in snapshot.pending} | running
    yield from (f"{uid} is not in the snapshot" for uid in decided if uid not in known)
    gone = [p.victim for p in plan.preempted] + [m.uid for m in plan.moved]
    for uid, count in Counter(gone).items():
        gang = next((one for one in snapshot.admitted if one.workload.uid == uid), None)
        if gang is None or gang.leaving or count > 1:
            yield f"{uid} is evicted {count} times, and does not run"


def _starts(snapshot: Snapshot, plan: Plan) -> list[tuple[Workload, Admission]]:
    known = {p.workload.uid: p.workload for p in snapshot.pending}
    known |= {a.workload.uid: a.workload for a in snapshot.admitted}
    return [(known[a.uid], a) for a in plan.admitted if a.uid in known]


# ---- whole gangs


def _pods(podset: PodSet, placed: PodSetPlacement) -> int:
    """The pods with which a podset starts."""
    return podset.count if placed.pods is None else placed.pods


def _whole(snapshot: Snapshot, workload: Workload, admission: Admission) -> Complaints:
    """Each podset has all its pods, on nodes that it can use."""
    placement = admission.placement
    names = [placed.podset for placed in placement.podsets]
    if names != [podset.name for podset in workload.podsets]:
        yield f"{workload.uid} has places for {names}"
        return
    nodes = {node.name: node for node in snapshot.fleet.nodes}
    for podset, placed in zip(workload.podsets, placement.podsets, strict=True):
        pods = _pods(podset, placed)
        least = podset.count if podset.min_count is None else podset.min_count
        if not least <= pods <= podset.count:
            yield f"{workload.uid}/{podset.name} starts with {pods} of {least} to {podset.count}"
        if placed.awaits_nodes:
            yield f"{workload.uid}/{podset.name} starts without nodes"
        if placed.nodes and sum(count for _, count in placed.nodes) != pods:
            yield f"{workload.uid}/{podset.name} has {placed.nodes} for {pods} pods"
        if not placed.nodes and pods and _on_nodes(snapshot, placed):
            yield f"{workload.uid}/{podset.name} has no nodes"
        for name, count in placed.nodes:
            if count <= 0 or name not in nodes:
                yield f"{workload.uid}/{podset.name} has {count} pods on {name}"
            elif not admission.repaired and not _usable(snapshot, podset, placed, nodes[name]):
                yield f"{workload.uid}/{podset.name} cannot use {name}"


def _on_nodes(snapshot: Snapshot, placed: PodSetPlacement) -> bool:
    flavors = [snapshot.config.flavors[name] for name in placed.charged]
    return not flavors or any(flavor.topology for flavor in flavors)


def _usable(snapshot: Snapshot, podset: PodSet, placed: PodSetPlacement, node: Node) -> bool:
    """Whether a node is ready, has the labels of its flavors, and is not refused by rules of the pods."""
    flavors = [snapshot.config.flavors[name] for name in placed.charged]
    rules = podset.shape.rules
    tolerations = rules.tolerations + tuple(t for f in flavors for t in f.tolerations)
    allowed = NodeRules(rules.selector, rules.affinity, tolerations).refusal(node) is None
    if placed.shares:
        return allowed and node.usable
    labels = [pair for flavor in flavors for pair in flavor.node_labels]
    return allowed and node.usable and all(node.labels.get(k) == v for k, v in labels)


# ---- topology


def _together(snapshot: Snapshot, workload: Workload, admission: Admission) -> Complaints:
    """Required levels and slices hold: a podset is inside one domain, a group too, and a slice is whole in its domain.

    A running gang is repaired although its topology has lost a level since it started.
    """
    nodes = {node.name: node for node in snapshot.fleet.nodes}
    domains: dict[tuple[str, str], set[object]] = defaultdict(set)
    for podset, placed in zip(workload.podsets, admission.placement.podsets, strict=True):
        request, levels = podset.topology, _levels(snapshot, placed)
        if request is None or not placed.nodes or any(n not in nodes for n, _ in placed.nodes):
            continue
        if missing := _missing(request, levels):
            if not admission.repaired:
                yield f"{workload.uid}/{podset.name} requires {missing}, of {levels}"
            continue
        if request.mode is TopologyMode.REQUIRED and request.level is not None:
            unit = f"group {podset.group}" if podset.group else f"podset {podset.name}"
            for name, _ in placed.nodes:
                domains[unit, request.level].add(_domain(nodes[name], levels, request.level))
        for layer in request.slices:
            counts: Counter[object] = Counter()
            for name, count in placed.nodes:
                counts[_domain(nodes[name], levels, layer.level)] += count
            if any(count % layer.size for count in counts.values()):
                yield f"{workload.uid}/{podset.name}: slices of {layer} in {dict(counts)}"
    for (unit, level), found in domains.items():
        if len(found) > 1:
            yield f"{workload.uid}: {unit} is in {len(found)} domains of {level}"


def _missing(request: TopologyRequest, levels: Sequence[str]) -> list[str]:
    """The levels without which the gang cannot start, and that its topology does not have."""
    needed = [layer.level for layer in request.slices]
    if request.mode is TopologyMode.REQUIRED and request.level is not None:
        needed.append(request.level)
    return [level for level in needed if level not in levels]


def _levels(snapshot: Snapshot, placed: PodSetPlacement) -> Sequence[str]:
    for name in sorted(placed.charged):
        flavor = snapshot.config.flavors[name]
        topology = snapshot.config.topologies.get(flavor.topology or "")
        if topology is not None:
            return topology.levels
    return next((t.levels for t in snapshot.config.topologies.values()), ())


def _domain(node: Node, levels: Sequence[str], level: str) -> tuple[str | None, ...]:
    upto = levels[: levels.index(level) + 1]
    return tuple(node.hostname if key == HOSTNAME else node.labels.get(key) for key in upto)


# ---- capacity


def _capacity(snapshot: Snapshot, plan: Plan) -> Complaints:
    """No node is used more than it has by what runs, what leaves, and what starts; one that is over already gets no pods."""
    before: dict[str, Counter[str]] = defaultdict(Counter)
    after: dict[str, Counter[str]] = defaultdict(Counter)
    for name, amounts in snapshot.other_pods.items():
        before[name].update(amounts)
        after[name].update(amounts)
    repaired = {a.uid: a.placement for a in plan.admitted if a.repaired}
    for gang in snapshot.admitted:
        _fill(before, gang.workload, gang.placement)
        _fill(after, gang.workload, repaired.get(gang.workload.uid, gang.placement))
    for workload, admission in _starts(snapshot, plan):
        if not admission.repaired:
            _fill(after, workload, admission.placement)
    for node in snapshot.fleet.nodes:
        for resource, amount in after[node.name].items():
            grown = amount > before[node.name][resource]
            if grown and amount > node.allocatable.get(resource, 0):
                yield f"{node.name}: {amount} {resource} of {node.allocatable.get(resource, 0)}"


def _fill(use: Mapping[str, Counter[str]], workload: Workload, placement: Placement) -> None:
    by_name = {podset.name: podset for podset in workload.podsets}
    for placed in placement.podsets:
        for name, count in placed.nodes:
            for resource, amount in by_name[placed.podset].shape.requests.items():
                use[name][resource] += amount * count


# ---- quota, as Kueue computes it


@dataclass
class _Member:
    """A ClusterQueue or a Cohort in the tree."""

    name: str
    groups: Sequence[ResourceGroup]
    parent: str | None
    queue: bool

    def of(self, row: Row) -> FlavorQuotas | None:
        for group in self.groups:
            for quotas in group.flavors:
                if quotas.flavor == row[0] and row[1] in group.covered:
                    return quotas
        return None


class Quota:
    """The tree of one configuration, and the use of one moment."""

    def __init__(self, config: QueueConfig, use: Use) -> None:
        self.queues = {
            name: _Member(name, queue.groups, queue.cohort, queue=True)
            for name, queue in config.cluster_queues.items()
        }
        self.cohorts = {
            name: _Member(name, cohort.groups, cohort.parent, queue=False)
            for name, cohort in config.cohorts.items()
        }
        for member in [*self.queues.values(), *self.cohorts.values()]:
            if member.parent is not None and member.parent not in self.cohorts:
                self.cohorts[member.parent] = _Member(member.parent, (), None, queue=False)
        self.use = use

    def below(self, member: _Member) -> Iterator[_Member]:
        if not member.queue:
            every = [*self.queues.values(), *self.cohorts.values()]
            yield from (one for one in every if one.parent == member.name)

    def subtree(self, member: _Member, row: Row) -> int:
        """Its own quota and what its members lend."""
        quotas = member.of(row)
        own = quotas.nominal.get(row[1], 0) if quotas is not None else 0
        below = self.below(member)
        return own + sum(self.subtree(one, row) - self.kept(one, row) for one in below)

    def kept(self, member: _Member, row: Row) -> int:
        """The part that it does not lend."""
        quotas = member.of(row)
        limit = quotas.lending.get(row[1]) if quotas is not None else None
        return 0 if limit is None else max(0, self.subtree(member, row) - limit)

    def used(self, member: _Member, row: Row) -> int:
        if member.queue:
            return self.use.get((member.name, *row), 0)
        return sum(max(0, self.used(m, row) - self.kept(m, row)) for m in self.below(member))

    def available(self, member: _Member, row: Row) -> int:
        """The amount that can be used in addition."""
        subtree, used, kept = (f(member, row) for f in (self.subtree, self.used, self.kept))
        if member.parent is None:
            return subtree - used
        above = self.available(self.cohorts[member.parent], row)
        quotas = member.of(row)
        limit = quotas.borrowing.get(row[1]) if quotas is not None else None
        if limit is not None:
            above = min(above, subtree - kept - max(0, used - kept) + limit)
        return max(0, kept - used) + above

    def root(self, queue: str) -> _Member:
        member = self.queues[queue]
        while member.parent is not None:
            member = self.cohorts[member.parent]
        return member


def charges(config: QueueConfig, workload: Workload, placement: Placement) -> Use:
    """The quota that a gang uses. A running gang uses quota of the ClusterQueue that it started in, wherever its LocalQueue leads now."""
    queue = queue_of(workload, config)
    found: Use = defaultdict(int)
    by_name = {podset.name: podset for podset in workload.podsets}
    for placed in placement.podsets if queue is not None else ():
        podset = by_name[placed.podset]
        pods = sum(n for _, n in placed.nodes) if placed.nodes else _pods(podset, placed)
        for resource, flavor, count in placed.charges(pods):
            name = queue.name if queue is not None else ""
            found[name, flavor, resource] += podset.shape.requests.get(resource, 0) * count
    return dict(found)


def _quota(snapshot: Snapshot, starts: Sequence[tuple[Workload, Admission]]) -> Complaints:
    """Each start fits the quota that is left, one after the other."""
    use: Use = defaultdict(int)
    for gang in snapshot.admitted:
        for key, amount in charges(snapshot.config, gang.workload, gang.placement).items():
            use[key] += amount
    quota = Quota(snapshot.config, use)
    for workload, admission in starts:
        found = charges(snapshot.config, workload, admission.placement)
        for (queue, flavor, resource), amount in found.items():
            row = flavor, resource
            root = quota.root(queue)
            over = quota.subtree(root, row) < quota.used(root, row)
            left = quota.available(quota.queues[queue], row)
            if amount and amount > left and not over:
                yield f"{workload.uid} takes {amount} of {left} {resource} of {flavor} in {queue}"
        for key, amount in found.items():
            use[key] += amount


# ---- order


def _order(snapshot: Snapshot, plan: Plan) -> Complaints:
    """In a StrictFIFO queue with one flavor, no gang starts while one that was queued before it and can start later waits."""
    config, waiting = snapshot.config, {r.uid: r for r in plan.pending}
    started = {a.uid for a in plan.admitted}
    heads: dict[str, Pending] = {}
    if config.rules.fair_sharing or config.rules.usage_fairness is not None:
        return
    for entry in sorted(snapshot.pending, key=_position):
        workload = entry.workload
        queue = config.cluster_queue_of(workload.namespace, workload.queue)
        if queue is None or queue.strategy is not QueueingStrategy.STRICT_FIFO:
            continue
        if len({q.flavor for g in queue.groups for q in g.flavors}) != 1:
            continue
        head = heads.get(queue.name)
        if workload.uid in started and head is not None and workload.growth is None:
            yield f"{workload.uid} starts before {head.workload.uid}, which is before it in {queue.name}"
        refusal = waiting.get(workload.uid)
        passed = refusal is not None and refusal.reasons[0].code in _PASSED
        if head is None and refusal is not None and not passed and _blocks(entry):
            heads[queue.name] = entry


def _position(entry: Pending) -> tuple[float, float, str]:
    return -entry.workload.priority, entry.workload.queued_at, entry.workload.uid


def _blocks(entry: Pending) -> bool:
    """Whether a gang at the head blocks the gangs behind it."""
    return entry.blocked is None and entry.workload.growth is None and entry.lease is None
