"""A gang with fewer pods (partial admission), and a gang in parts (splits over flavors).

Pods of one podset that use different flavors of a resource group are its shares. To the planner each share is a podset of its own, a
*part*, and the gang asks for all its parts. Code that places, charges or repairs podsets does it for shares too. The constraints of the podset
on all its pods together apply to its parts: they form a group, as podsets that share a domain do. At the end the parts are joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Reason
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.workload import FlavorShare, Placement, PodSet, PodSetPlacement, Workload


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
    """Some pods of a podset as a podset of their own; ``number`` distinguishes its parts.

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
    known = (config.flavors.get(name) for name in flavors.values())
    named = (flavor.topology for flavor in known if flavor is not None)
    return tuple(dict.fromkeys(name for name in named if name is not None))


def cut_running(gang: Admitted, config: QueueConfig) -> tuple[Admitted, SplitGang | None]:
    """A running gang in parts, one for each share; as it is, and None, where no podset is split."""
    if not any(placed.shares for placed in gang.placement.podsets):
        return gang, None
    podsets: list[PodSet] = []
    placements: list[PodSetPlacement] = []
    lost: list[tuple[str, str, int]] = []
    numbers: list[int] = []
    for number, podset in enumerate(gang.workload.podsets):
        placed = gang.placement.of(podset.name) or PodSetPlacement(podset.name, ())
        missing = {node: count for name, node, count in gang.lost if name == podset.name}
        for at, share in enumerate(placed.by_share()):
            part, own = podset, share
            if placed.shares:
                part = part_of(podset, at, share.pods or 0, share.flavors, config)
                own = replace(share, podset=part.name, pods=None)
            podsets.append(part)
            placements.append(own)
            numbers.append(number)
            lost += [(part.name, node, count) for node, count in _taken(own, missing)]
    workload = replace(gang.workload, podsets=tuple(podsets))
    placement = Placement(tuple(placements))
    parts = replace(gang, workload=workload, placement=placement, lost=tuple(lost))
    return parts, SplitGang(gang.workload, tuple(numbers))


def _taken(share: PodSetPlacement, missing: dict[str, int]) -> Iterator[tuple[str, int]]:
    """The lost pods of a share; they are taken off ``missing``, what all shares of its podset lost."""
    for node, count in share.by_node.items():
        if taken := min(count, missing.get(node, 0)):
            missing[node] -= taken
            yield node, taken


def joined(cut: SplitGang, asked: Sequence[PodSet], parts: Sequence[PodSetPlacement]) -> Placement:
    """The placement of the whole gang.

    Args:
        cut: how it was cut.
        asked: its parts.
        parts: the placement of each.
    """
    podsets = []
    for number, podset in enumerate(cut.whole.podsets):
        own = [at for at, of in enumerate(cut.podsets) if of == number]
        shares = tuple(FlavorShare(asked[at].count, parts[at].flavors) for at in own)
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
