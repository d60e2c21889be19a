"""Brute force for clusters of a few nodes: the answer by definition, without numpy, solver or any planner code.

- :func:`starts`: the lexicographically greatest set of gangs, in queue order, that can start together.
- :func:`least_victims`: the least legal victim set by the ClusterQueue's layers, over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from queuectl.domain.fleet import Fleet
from queuectl.domain.plan import Cost
from queuectl.domain.queues import ClusterQueue, QueueingStrategy, VictimKey, WithinClusterQueue
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Placement, Workload
from tests.planner.oracle_fit import ANYWHERE, Oracle, SuggestedFix


def queue_order(entry: Pending) -> tuple[int, float, str]:
    return -entry.workload.priority, entry.workload.queued_at, entry.workload.uid


def starts(snapshot: Snapshot) -> dict[str, bool]:
    """The pending gangs that start, by uid in queue order, when no gang may preempt. Kept leases stay reserved.

    A gang that would not start on empty nodes either delays no other gang.
    """
    entries = sorted(snapshot.pending, key=queue_order)
    answer: dict[str, bool] = {}
    kept: list[list[SuggestedFix]] = []
    barred: dict[str, frozenset[str]] = {}
    for entry in entries:
        queue = Oracle(snapshot).queue_of(entry.workload)
        name = queue.name if queue is not None else ""
        promised = [
            (e.workload, e.lease.placement)
            for e in entries
            if e.lease is not None and e is not entry and not answer.get(e.workload.uid, False)
        ]
        oracle = Oracle(snapshot, promised=promised)
        ways = list(_all_ways(oracle, entry, barred.get(name, frozenset())))
        fits = entry.blocked is None and oracle.fits([*kept, ways])
        answer[entry.workload.uid] = fits
        if fits:
            kept.append(ways)
        elif (
            queue is not None
            and queue.strategy is QueueingStrategy.STRICT_FIFO
            and starts_ever(snapshot, entry)
        ):
            barred[name] = barred.get(name, frozenset()) | _could_use(oracle, queue, entry)
    return answer


def starts_ever(snapshot: Snapshot, entry: Pending) -> bool:
    """Whether a gang fits if no other gang and no other pod is there, and all nodes are ready."""
    nodes = (replace(node, ready=True, unschedulable=False) for node in snapshot.fleet.nodes)
    empty = Oracle(replace(snapshot, admitted=(), other_pods={}, fleet=Fleet(tuple(nodes))))
    return empty.fits([list(_all_ways(empty, entry, frozenset()))])


def _all_ways(oracle: Oracle, entry: Pending, banned: frozenset[str]) -> Iterator[SuggestedFix]:
    """Preferred levels never decide whether a gang fits, so only the last relaxation matters."""
    return oracle.ways(entry, banned, step=ANYWHERE)


def _could_use(oracle: Oracle, queue: ClusterQueue, entry: Pending) -> frozenset[str]:
    if entry.blocked is not None:
        return frozenset()
    return frozenset(
        f
        for p in entry.workload.podsets
        for flavors in oracle.flavor_choices(queue, p)
        for f in flavors.values()
    )


def legal_victims(snapshot: Snapshot, preemptor: Workload) -> list[Admitted]:
    """The gangs that the preemptor's ClusterQueue lets it evict."""
    oracle = Oracle(snapshot)
    queue = oracle.queue_of(preemptor)
    if queue is None or queue.within_cluster_queue is WithinClusterQueue.NEVER:
        return []
    newer = queue.within_cluster_queue is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
    return [
        a
        for a in snapshot.admitted
        if a.workload.preemptible
        and not a.leaving
        and oracle.queue_of(a.workload) == queue
        and (
            a.workload.priority < preemptor.priority
            or (
                newer
                and a.workload.priority == preemptor.priority
                and a.workload.queued_at > preemptor.queued_at
            )
        )
    ]


def layers(order: Sequence[VictimKey], costs: Sequence[Cost]) -> tuple[int, ...]:
    """A victim set's place in the order: smaller is better. No victims at all beats everything."""
    value = {
        VictimKey.MAX_PRIORITY: max((c.priority for c in costs), default=-(2**40)),
        VictimKey.LOST_WORK: sum(c.lost_work for c in costs),
        VictimKey.COUNT: len(costs),
    }
    return tuple(value[key] for key in order)


def least_victims(
    snapshot: Snapshot,
    entry: Pending,
    costs: Mapping[str, Cost],
    promised: Sequence[tuple[Workload, Placement]] = (),
    only: Sequence[Mapping[str, str]] | None = None,
) -> tuple[tuple[int, ...], frozenset[str]] | None:
    """The least legal victims after whose exit the gang fits, with their layers; None when no set helps.

    ``only`` fixes the flavors of its podsets. Preferred levels do not count: no gang is evicted for a preference.
    """
    oracle = Oracle(snapshot)
    queue = oracle.queue_of(entry.workload)
    order = queue.victim_order if queue is not None else tuple(VictimKey)
    running = legal_victims(snapshot, entry.workload)
    legal = sorted(a.workload.uid for a in running)
    every = (frozenset(s) for k in range(len(legal) + 1) for s in combinations(legal, k))
    sets = [victims for victims in every if _from_the_highest_rank(victims, running)]
    sets.sort(key=lambda s: (layers(order, [costs[u] for u in s]), sorted(s)))

    # A gang that leaves frees capacity; it adds no node and no flavor.
    ways = list(oracle.ways(entry, step=ANYWHERE, only=only))

    def fits(victims: frozenset[str]) -> bool:
        return Oracle(snapshot, victims, promised).fits([ways], views=(1,))

    chosen = _first_that_fits(sets, fits)
    return None if chosen is None else (layers(order, [costs[u] for u in chosen]), chosen)


def _from_the_highest_rank(victims: frozenset[str], running: Sequence[Admitted]) -> bool:
    """Whether each gang leaves with all pods of higher ranks of its elastic job."""

    def family(gang: Admitted) -> tuple[str, int]:
        growth = gang.workload.growth
        return (gang.workload.uid, -1) if growth is None else (growth.base, growth.rank)

    leaving = [family(gang) for gang in running if gang.workload.uid in victims]
    staying = [family(gang) for gang in running if gang.workload.uid not in victims]
    return not any(a[0] == b[0] and a[1] < b[1] for a in leaving for b in staying)


def fits_without(
    snapshot: Snapshot,
    entry: Pending,
    victims: frozenset[str],
    promised: Sequence[tuple[Workload, Placement]] = (),
    only: Sequence[Mapping[str, str]] | None = None,
) -> bool:
    """Whether a gang fits after these gangs, and all that are leaving already, have left."""
    oracle = Oracle(snapshot, victims, promised)
    return oracle.fits([list(oracle.ways(entry, step=ANYWHERE, only=only))], views=(1,))


def _first_that_fits(
    sets: Sequence[frozenset[str]], fits: Callable[[frozenset[str]], bool]
) -> frozenset[str] | None:
    """The first victim set that helps; no subset of a set that does not help can help."""
    if not fits(max(sets, key=len)):
        return None
    hopeless: list[frozenset[str]] = []
    for victims in sets:
        if any(victims <= known for known in hopeless):
            continue
        if fits(victims):
            return victims
        hopeless.append(victims)
    raise AssertionError("the largest set fits, so the loop ends before")
