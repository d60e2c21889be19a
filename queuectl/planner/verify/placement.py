"""Checks of one placement by itself: whole, on eligible nodes, inside its domains, balanced, slices whole, healthy slots kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Final, TypeAlias

from queuectl.domain.fleet import HOSTNAME, Node, NodeRules
from queuectl.domain.plan import ScheduledGang
from queuectl.domain.quantity import CPU, MEMORY, PODS, Resources
from queuectl.domain.queues import ResourceFlavor, Topology, domain_of
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodSetPlacement,
    Slice,
    TopologyMode,
    Workload,
)
from queuectl.planner.verify.order import place, surely_before
from queuectl.planner.verify.plan_index import PlacedGang, PlanIndex, PlanRule, PlanViolation

_Group: TypeAlias = list[tuple[PodSet, PodSetPlacement]]
"""The podsets of a group, or a podset alone, with their placements or the shares of these."""

# ---- Balanced podsets


def check_balance(index: PlanIndex) -> Iterator[PlanViolation]:
    """Of each placement: the numbers of pods in the domains used differ by at most one, or it is listed as uneven."""
    for claim in index.claims:
        yield from _of(index, claim)


def _of(index: PlanIndex, claim: PlacedGang) -> Iterator[PlanViolation]:
    for podset, placed in claim.parts():
        if podset.topology is None or not podset.topology.balanced:
            continue
        listed = (claim.workload.uid, podset.name) in index.plan.uneven
        amounts = _amounts(index, claim, podset, placed)
        whole = all(amount.denominator == 1 for amount in amounts)
        even = whole and max(amounts, default=0) - min(amounts, default=0) <= 1
        if even == listed:
            what = "is listed as uneven" if listed else "is to be balanced"
            text = f"podset {podset.name} {what}: its domains hold {', '.join(map(str, sorted(amounts)))}"
            yield PlanViolation(PlanRule.TOPOLOGY, claim.workload.uid, text)


def _amounts(
    index: PlanIndex, claim: PlacedGang, podset: PodSet, placed: PodSetPlacement
) -> list[Fraction]:
    """Pods, in units of whole slices, in each domain used one level below the one that holds the podset's group."""
    group = [
        (p, own)
        for p, own in claim.parts()
        if p.name == podset.name or (p.group is not None and p.group == podset.group)
    ]
    members = [p for p, _ in group]
    flavors = _flavors_for(index, placed, group)
    levels = _levels(index, claim, flavors, members)
    names = {name for _, own in group for name, _ in own.nodes}
    topologies = index.topologies_for(flavors, levels_asked(members))
    holding = _holding(index, topologies, levels, members, names)
    if holding == len(levels) - 1:
        return []
    slices = podset.topology.slices if podset.topology is not None else ()
    finer = [layer.size for layer in slices if layer.level in levels[holding + 1 :]]
    counts: dict[tuple[str, ...] | str | None, int] = {}
    for name, count in placed.nodes:
        domain = _domain(index, topologies, name, levels[holding + 1])
        counts[domain] = counts.get(domain, 0) + count
    return [Fraction(count, max(finer, default=1)) for count in counts.values()]


def _flavors_for(index: PlanIndex, placed: PodSetPlacement, group: _Group) -> list[ResourceFlavor]:
    """The flavors of a podset; if it has none, those of its group, by whose topology it is placed."""
    return index.flavors_of(placed) or [f for _, own in group for f in index.flavors_of(own)]


def _levels(
    index: PlanIndex,
    claim: PlacedGang,
    flavors: Sequence[ResourceFlavor],
    members: Sequence[PodSet],
) -> list[str]:
    """The levels of the topology that count for a group, coarse to fine; the node is the last."""
    asked = [level for level in levels_asked(members) if index.counts(claim, flavors, level)]
    known = [t for t in index.topologies_for(flavors, asked) if set(asked) <= set(t.levels)]
    if not asked and not flavors:
        known = [t for t in known if _shows_all(index, t)]
    levels = known[0].levels if known else tuple(dict.fromkeys(asked))
    return [*(level for level in levels if level != HOSTNAME), HOSTNAME]


def _shows_all(index: PlanIndex, topology: Topology) -> bool:
    return all(set(topology.levels) <= node.labels.keys() for node in index.nodes.values())


def levels_asked(members: Iterable[PodSet]) -> list[str]:
    """Every level that podsets of a group name."""
    return [level for p in members if p.topology is not None for level in p.topology.levels]


def _holding(
    index: PlanIndex,
    topologies: list[Topology],
    levels: Sequence[str],
    members: Sequence[PodSet],
    names: set[str],
) -> int:
    """Index of the level whose one domain holds the group: required, or preferred as far as it is met; -1 for none."""
    finest = {TopologyMode.REQUIRED: -1, TopologyMode.PREFERRED: -1}
    for podset in members:
        request = podset.topology
        if request is not None and request.level in levels and request.mode in finest:
            finest[request.mode] = max(finest[request.mode], levels.index(request.level))
    required = finest[TopologyMode.REQUIRED]
    for level in range(finest[TopologyMode.PREFERRED], required, -1):
        if len({_domain(index, topologies, name, levels[level]) for name in names}) <= 1:
            return level
    return required


def _domain(
    index: PlanIndex, topologies: list[Topology], name: str, level: str
) -> tuple[str, ...] | str | None:
    """Every node is a separate domain at the last level."""
    node = index.nodes.get(name)
    if level == HOSTNAME or node is None:
        return name
    return domain_of(node, level, topologies)


# ---- Placements
#
# A repaired gang keeps its pods where they are, so its request counts as far as its topologies still have the levels.

_Domains: TypeAlias = set[tuple[str, ...] | None]


def check_gangs(index: PlanIndex) -> Iterator[PlanViolation]:
    """Every admission, repair and lease on its own, without its neighbors."""
    verdicts: dict[tuple[NodeRules, tuple[str, ...], str], str | None] = {}
    for claim in index.claims:
        yield from _whole(index, claim)
        yield from _eligible(index, claim, verdicts)
        yield from _topology(index, claim)
        yield from _slices(index, claim)
        if claim.running is not None:
            yield from _repaired(claim)


def _shares(claim: PlacedGang) -> Iterator[tuple[PodSet, PodSetPlacement]]:
    """Each podset with its placement, share by share where it is split over flavors."""
    for podset, placed in claim.parts():
        for share in placed.by_share():
            yield podset, share


def _whole(index: PlanIndex, claim: PlacedGang) -> Iterator[PlanViolation]:
    uid = claim.workload.uid
    names = [p.podset for p in claim.placement.podsets]
    if names != [p.name for p in claim.workload.podsets]:
        yield PlanViolation(
            PlanRule.WHOLE, uid, f"places podsets {names}, not those of the gang in order"
        )
        return
    for podset, placed in claim.parts():
        least = podset.count if podset.min_count is None else podset.min_count
        pods = placed.pods_of(podset)
        if not least <= pods <= podset.count:
            text = f"podset {podset.name}: {pods} pods, may start with {least} to {podset.count}"
            yield PlanViolation(PlanRule.WHOLE, uid, text)
        expected = pods if index.takes_nodes(placed) else 0
        if claim.running is not None:  # its flavors can have become quota only since it started
            before = claim.running.placement.of(podset.name)
            expected = before.count if before is not None else 0
        if placed.count != expected or any(count <= 0 for _, count in placed.nodes):
            yield PlanViolation(
                PlanRule.WHOLE,
                uid,
                f"podset {podset.name}: {placed.count} of {expected} pods placed",
            )


def _eligible(
    index: PlanIndex,
    claim: PlacedGang,
    verdicts: dict[tuple[NodeRules, tuple[str, ...], str], str | None],
) -> Iterator[PlanViolation]:
    for podset, placed in _shares(claim):
        kept = claim.kept_slots(podset.name)
        flavors = index.flavors_of(placed)
        names = tuple(f.name for f in flavors)
        for name, count in placed.nodes:
            if count <= kept.get(name, 0):
                continue
            key = (podset.shape.rules, names, name)
            if key not in verdicts:
                verdicts[key] = _node_refusal(index, podset, flavors, name)
            why = "excluded for this gang" if name in claim.excluded else verdicts[key]
            if why is not None:
                text = f"podset {podset.name} on node {name}: {why}"
                yield PlanViolation(PlanRule.ELIGIBLE, claim.workload.uid, text)


def _node_refusal(
    index: PlanIndex, podset: PodSet, flavors: list[ResourceFlavor], name: str
) -> str | None:
    node = index.nodes.get(name)
    if node is None:
        return "no such node"
    if not node.ready:
        return "not ready"
    if node.mig is not None and node.mig.phase.active:
        return "its MIG configuration is being changed"
    for flavor in flavors:
        why = _flavor_refusal(index, flavor, node)
        if why is not None:
            return why
    rules = podset.shape.rules
    extra = tuple(t for flavor in flavors for t in flavor.tolerations)
    return NodeRules(rules.selector, rules.affinity, rules.tolerations + extra).refusal(node)


def _flavor_refusal(index: PlanIndex, flavor: ResourceFlavor, node: Node) -> str | None:
    for key, value in flavor.node_labels:
        if node.labels.get(key) != value:
            return f"not of flavor {flavor.name}: {key}={value}"
    topology = index.snapshot.config.topologies.get(flavor.topology or "")
    for level in topology.levels if topology is not None else ():
        if level not in node.labels:
            return f"outside topology {flavor.topology}: no label {level}"
    return None


def _groups(claim: PlacedGang) -> Iterator[tuple[str, _Group]]:
    """The name of each group with the shares of its podsets."""
    groups: dict[tuple[str, str], _Group] = {}
    for podset, placed in _shares(claim):
        key = ("group", podset.group) if podset.group is not None else ("podset", podset.name)
        groups.setdefault(key, []).append((podset, placed))
    for (_, name), members in groups.items():
        yield name, members


def _topology(index: PlanIndex, claim: PlacedGang) -> Iterator[PlanViolation]:
    """A podset alone is a group of one; all of a group share one domain at each level a member requires.

    The labels of nodes can have changed since a gang started. The pods that are placed for a repaired gang join the pods that stay, and
    those that were added to it.
    """
    for name, members in _groups(claim):
        required = {
            podset.topology.level
            for podset, placed in members
            if podset.topology is not None
            and podset.topology.mode is TopologyMode.REQUIRED
            and index.counts(claim, _flavors_for(index, placed, members), podset.topology.level)
        }
        for level in sorted(level for level in required if level is not None):
            stay, come = _domains(index, claim, members, level)
            joined = come <= stay if stay else len(come) <= 1
            if not joined or None in come:
                text = f"{name} requires one {level}, placed in {sorted(map(str, stay | come))}"
                yield PlanViolation(PlanRule.TOPOLOGY, claim.workload.uid, text)


def _slices(index: PlanIndex, claim: PlacedGang) -> Iterator[PlanViolation]:
    """Ranks are handed out in the order of the nodes, so the domain must change only where a slice ends."""
    shares = ((members, *share) for _, members in _groups(claim) for share in members)
    for members, podset, placed in shares:
        flavors = _flavors_for(index, placed, members)
        topologies = index.topologies_for(flavors, levels_asked(p for p, _ in members))
        for layer in podset.topology.slices if podset.topology is not None else ():
            split = _split_slice(index, placed, layer, topologies)
            if split is not None and index.counts(claim, flavors, layer.level):
                text = f"podset {podset.name}: the slice of {layer.size} pods from rank {split} is not in one {layer.level}"
                yield PlanViolation(PlanRule.TOPOLOGY, claim.workload.uid, text)


def _split_slice(
    index: PlanIndex, placed: PodSetPlacement, layer: Slice, topologies: list[Topology]
) -> int | None:
    """First rank of the first slice that does not lie in one domain, None when all do."""
    before: tuple[str, ...] | None = None
    rank = 0
    for name, count in placed.nodes:
        domain = index.domain_of(name, layer.level, topologies)
        if domain is None or (domain != before and rank % layer.size):
            return rank - rank % layer.size
        before = domain
        rank += count
    return rank - rank % layer.size if rank % layer.size else None


def _domains(
    index: PlanIndex, claim: PlacedGang, members: _Group, level: str
) -> tuple[_Domains, _Domains]:
    """The domains of pods that stay where they are, and of pods that are placed."""
    stay: _Domains = set()
    come: _Domains = set()
    asked = levels_asked(podset for podset, _ in members)
    for podset, placed in members:
        topologies = index.topologies_for(_flavors_for(index, placed, members), asked)
        kept = claim.kept_slots(podset.name)
        for name, count in placed.nodes:
            domain = index.domain_of(name, level, topologies)
            if kept.get(name, 0) > 0:
                stay.add(domain)
            if count > kept.get(name, 0):
                come.add(domain)
        if claim.running is not None and not placed.shares:
            for name in index.added.get(claim.workload.uid, {}).get(podset.name, ()):
                stay.add(index.domain_of(name, level, topologies))
    return stay, come


def _repaired(claim: PlacedGang) -> Iterator[PlanViolation]:
    assert claim.running is not None
    uid = claim.workload.uid
    if claim.running.leaving or not claim.running.lost:
        yield PlanViolation(PlanRule.REPAIR, uid, "repaired, but it is leaving or has lost nothing")
    for podset, placed in claim.parts():
        slots = placed.by_node
        for name, count in claim.kept_slots(podset.name).items():
            if slots.get(name, 0) < count:
                text = f"podset {podset.name} leaves {count} healthy slots of node {name}"
                yield PlanViolation(PlanRule.REPAIR, uid, text)
        before = claim.running.placement.of(podset.name)
        if before is not None and _flavors(before) != _flavors(placed):
            yield PlanViolation(PlanRule.REPAIR, uid, f"podset {podset.name} changes its flavors")


def _flavors(placed: PodSetPlacement) -> list[tuple[int | None, dict[str, str]]]:
    return [(p.pods if placed.shares else None, dict(p.flavors)) for p in placed.by_share()]


def check_shares(index: PlanIndex) -> Iterator[PlanViolation]:
    """Every share of every claim; whether its flavors are legal and its nodes theirs is checked with all others."""
    for claim in index.claims:
        uid = claim.workload.uid
        for podset, placed in claim.parts():
            if not placed.shares:
                continue
            if (why := _forbidden(index, claim, podset)) is not None:
                yield PlanViolation(
                    PlanRule.FLAVOR, uid, f"podset {podset.name} is split, but {why}"
                )
            if (why := _share_counts(placed, podset)) is not None:
                yield PlanViolation(PlanRule.WHOLE, uid, f"podset {podset.name}: {why}")
            if (why := _torn(index, podset, placed)) is not None:
                yield PlanViolation(PlanRule.TOPOLOGY, uid, f"podset {podset.name}: {why}")


def _forbidden(index: PlanIndex, claim: PlacedGang, podset: PodSet) -> str | None:
    queue = index.queue_of(claim.workload)
    if podset.group is not None:
        return "podsets of a group share their flavors"
    if claim.running is not None:
        return None  # it keeps its flavors, whatever the queue allows by now
    if queue is None or not queue.split_flavors:
        return "its queue does not let podsets be split"
    return None


def _share_counts(placed: PodSetPlacement, podset: PodSet) -> str | None:
    pods = [share.pods for share in placed.shares]
    if len(pods) < 2 or min(pods) < 1 or sum(pods) != placed.pods_of(podset):
        return f"shares of {pods} pods do not make up its {placed.pods_of(podset)}"
    flavors = [sorted(share.flavors.items()) for share in placed.shares]
    if any(row in flavors[:at] for at, row in enumerate(flavors)):
        return "two shares have the same flavors"
    if dict(placed.flavors) != dict(placed.shares[0].flavors):
        return "its flavors are not those of its first share"
    return None


def _torn(index: PlanIndex, podset: PodSet, placed: PodSetPlacement) -> str | None:
    """The parts that must stay in one piece and do not."""
    for layer in podset.topology.slices if podset.topology is not None else ():
        if any(share.pods % layer.size for share in placed.shares):
            return f"a share ends within a slice of {layer.size} pods"
    parts = placed.by_share()
    if len({index.takes_nodes(part) for part in parts}) > 1:
        return "some shares need nodes and others do not"
    required = podset.topology is not None and podset.topology.mode is TopologyMode.REQUIRED
    asked = levels_asked((podset,))
    named = [
        [t.name for t in index.topologies_for(index.flavors_of(part), asked)] for part in parts
    ]
    if required and any(names != named[0] for names in named):
        return f"requires one domain, but its flavors name the topologies {named}"
    return None


# ---- Whole free nodes
#
# Only what is certain in each order of the decisions is checked: a gang that is alone on its node, and a planned start of its own ClusterQueue
# before it.

_MARGIN: Final = 4.0  # of the longest run of earlier gangs
_NO_DEVICES: Final = frozenset({CPU, MEMORY, PODS, "ephemeral-storage"})


def check_whole_nodes(index: PlanIndex) -> Iterator[PlanViolation]:
    """Gangs with a learned end that start on a whole free node, although a planned start on several nodes can need it."""
    wide = [p for p in index.planned if len(_nodes(p.start.placement)) > 1]
    if not wide:
        return
    holders = _holders(index)
    for admission in index.plan.admitted:
        uid, entry = admission.uid, index.pending.get(admission.uid)
        nodes = _nodes(admission.placement)
        if entry is None or entry.lease is not None or len(nodes) != 1:
            continue
        node = nodes.pop()
        if holders.get(node) != {uid}:
            continue
        first = next((p for p in wide if _passes(index, entry, p)), None)
        if first is not None:
            text = f"takes the whole free node {node} before {first.uid} has started"
            yield PlanViolation(PlanRule.PLANNED_START, uid, text)


def _passes(index: PlanIndex, entry: Pending, planned: ScheduledGang) -> bool:
    """Whether a gang is behind a planned start, and its end is not early enough for it."""
    workload, first = entry.workload, index.pending[planned.uid].workload
    queue = index.queue_of(workload)
    if queue is None or queue is not index.queue_of(first) or place(workload) < place(first):
        return False
    if not surely_before(index, queue, first, workload):
        return False
    longest = workload.duration.longest if workload.duration is not None else None
    return longest is not None and index.snapshot.now + _MARGIN * longest > planned.start.at


def _holders(index: PlanIndex) -> dict[str, set[str]]:
    """Node to the gangs with devices there, now or from now on, and "" for other pods."""
    found: dict[str, set[str]] = {}
    for name, amounts in index.snapshot.other_pods.items():
        if _devices(amounts):
            found.setdefault(name, set()).add("")
    for gang in index.snapshot.admitted:
        for node in _device_nodes(gang.workload, gang.placement):
            found.setdefault(node, set()).add(gang.workload.uid)
    for claim in index.claims:
        for node in _device_nodes(claim.workload, claim.placement) if claim.now else ():
            found.setdefault(node, set()).add(claim.workload.uid)
    return found


def _device_nodes(workload: Workload, placement: Placement) -> Iterator[str]:
    for podset in workload.podsets:
        placed = placement.of(podset.name)
        if placed is not None and _devices(podset.shape.requests):
            yield from (name for name, _ in placed.nodes)


def _devices(amounts: Resources) -> bool:
    return any(amount for name, amount in amounts.items() if name not in _NO_DEVICES)


def _nodes(placement: Placement) -> set[str]:
    return {name for placed in placement.podsets for name, _ in placed.nodes}


CHECKS: Final = (
    check_gangs,
    check_balance,
    check_shares,
    check_whole_nodes,
)
"""The checks of this module that need only the plan."""
