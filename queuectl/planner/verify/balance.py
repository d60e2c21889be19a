"""Podsets that asked to be balanced are balanced, or the plan lists them as uneven; and it lists no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.queues import Topology
from queuectl.domain.workload import PodSet, PodSetPlacement, TopologyMode
from queuectl.planner.verify.plan_index import Claim, PlanIndex, Rule, Violation


def check_balance(index: PlanIndex) -> Iterator[Violation]:
    """Of each placement: the numbers of pods in the domains used differ by at most one, or it is listed as uneven."""
    for claim in index.claims:
        yield from _of(index, claim)


def _of(index: PlanIndex, claim: Claim) -> Iterator[Violation]:
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
            yield Violation(Rule.TOPOLOGY, claim.workload.uid, text)


def _amounts(
    index: PlanIndex, claim: Claim, podset: PodSet, placed: PodSetPlacement
) -> list[Fraction]:
    """Pods, in units of whole slices, in each domain used one level below the one that holds the podset's group."""
    group = [
        (p, own)
        for p, own in claim.parts()
        if p.name == podset.name or (p.group is not None and p.group == podset.group)
    ]
    members = [p for p, _ in group]
    levels = _levels(index, claim, placed, members)
    names = {name for _, own in group for name, _ in own.nodes}
    topologies = index.topologies_for(placed, levels_asked(members))
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


def _levels(
    index: PlanIndex, claim: Claim, placed: PodSetPlacement, members: Sequence[PodSet]
) -> list[str]:
    """The levels of the topology that count for a group, coarse to fine; the node is the last."""
    asked = [level for level in levels_asked(members) if index.counts(claim, placed, level)]
    known = [t for t in index.topologies_for(placed, asked) if set(asked) <= set(t.levels)]
    if not asked and not index.flavors_of(placed):
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
    """Every node is a domain of its own at the last level."""
    node = index.nodes.get(name)
    if level == HOSTNAME or node is None:
        return name
    return index.domain(node, level, topologies)
