"""Which slot of a placement each gated pod gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from queuectl.domain.fleet import Node
from queuectl.domain.jobs import PodRecord
from queuectl.domain.workload import PodSet, PodSetPlacement, slots_left


def slots_of(podset: PodSetPlacement) -> list[tuple[str | None, Mapping[str, str]]]:
    """Node and flavors (by resource) of each slot, in the order of ranks.

    A placement of quota only has slots without nodes: one for each pod of each share, or one slot if it is not split, because
    the pods are then equal.
    """
    slots: list[tuple[str | None, Mapping[str, str]]] = []
    for share in podset.by_share():
        nodes = share.nodes or ((None, share.pods or 1),)
        slots += [(node, share.flavors) for node, count in nodes for _ in range(count)]
    return slots


def slot_numbers(
    placed: PodSetPlacement, requested: PodSet | None, ended: Collection[int]
) -> Callable[[int], int]:
    """The number of the slot of each rank.

    The slots of a gang that has started again are those of the ranks that had not ended, in their order, and of the others in
    their slices. Slots without a pod are freed later.
    """
    size = len(slots_of(placed))
    if requested is not None and ended:
        for group in (requested.slice_size, 1):
            places = slots_left(requested.count, ended, group)
            if len(places) * group == size:
                return lambda rank: places.get(rank // group, 0) * group + rank % group
    return lambda rank: rank % size


def assign(
    podset: PodSetPlacement,
    pods: Collection[PodRecord],
    waiting: Iterable[PodRecord],
    nodes: Mapping[str, Node],
    slot: Callable[[int], int] | None = None,
) -> list[tuple[PodRecord, int]]:
    """Assign a slot (its number) to each gated pod: the placement minus the slots that pods hold, by rank if the pods have ranks.

    A pod holds its slot until it is terminal. Thus a replacement stays gated while its predecessor terminates. A rank stays gated
    even if its slot is on another node in the meantime: its predecessor can still run on a node that does not answer. Slots on
    nodes that are deleted, not ready or cordoned stay empty. Pods of a placement of quota only hold no slots: they can run on
    each node, and without ranks their names decide the share of each.

    ``slot``: of each rank, as :func:`slot_numbers` gives it; None = ranks are numbers of slots.
    """
    running = {pod.rank for pod in pods if not (pod.gated or pod.terminal)} - {None}
    ranked = sorted((pod for pod in waiting if pod.rank not in running), key=_by_rank_and_name)
    slots = slots_of(podset)
    slot = slot or slot_numbers(podset, None, ())
    if not podset.nodes:
        living = sorted((pod for pod in pods if not pod.terminal), key=_by_rank_and_name)
        place = {pod.uid: number for number, pod in enumerate(living)}
        return [
            (pod, place.get(pod.uid, 0) % len(slots) if pod.rank is None else slot(pod.rank))
            for pod in ranked
        ]
    names = {nodes[node].hostname: node for node, _ in podset.nodes if node in nodes}
    tolerations = ranked[0].tolerations if ranked else ()
    with_ranks: set[int] = set()  # slots of the pods with ranks
    held: Counter[str | None] = Counter()  # slots of the other pods, by node
    for pod in pods:
        if not pod.gated and not pod.terminal:
            node = pod.node or names.get(pod.pin or "", "")
            own = slot(pod.rank) if pod.rank is not None else -1
            if own >= 0 and own not in with_ranks and slots[own][0] == node:
                with_ranks.add(own)
            else:
                held[node] += 1
    free: set[int] = set()
    for number, (name, _) in reversed(list(enumerate(slots))):
        if number in with_ranks:
            continue
        if held[name] > 0:  # all slots of a node are equal
            held[name] -= 1
        elif name is not None and name in nodes and nodes[name].takes(tolerations):
            free.add(number)
    return _by_rank(ranked, free, slot)


def _by_rank_and_name(pod: PodRecord) -> tuple[bool, int, str]:
    return pod.rank is None, pod.rank or 0, pod.name


def _by_rank(
    ranked: list[PodRecord], free: set[int], slot: Callable[[int], int]
) -> list[tuple[PodRecord, int]]:
    given: dict[str, int] = {}
    for pod in ranked:
        if pod.rank is not None and (own := slot(pod.rank)) in free:
            given[pod.uid] = own
            free.remove(own)
    rest = [pod for pod in ranked if pod.uid not in given]
    given.update({pod.uid: number for pod, number in zip(rest, sorted(free), strict=False)})
    return [(pod, given[pod.uid]) for pod in ranked if pod.uid in given]
