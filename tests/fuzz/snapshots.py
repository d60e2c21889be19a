"""Snapshots that mix features: planned, verified, explained, and judged by code that the planner does not use.

Of each seed there are some cycles of a larger snapshot with all features, and small clusters: one in which something is missing, one with
pods that get no flavor, one with leases, one with gangs that never start, and one for which all answers are tried: the gangs that start
are the greatest set in queue order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Final

from queuectl.control.checked_plan import checked_plan, explained
from queuectl.domain.fleet import Fleet
from queuectl.domain.plan import Plan, Proof
from queuectl.domain.queues import ClusterQueue, WithinClusterQueue
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import PodSet
from tests.fuzz.figures import Result
from tests.fuzz.hopeless import changes, with_hopeless
from tests.fuzz.judge import complaints
from tests.fuzz.leased import leased
from tests.fuzz.unflavored import with_unflavored
from tests.planner.degenerate import degenerate
from tests.planner.feature_counts import FEATURES as GENERATED
from tests.planner.feature_counts import features_of, outcomes_of
from tests.planner.generate_cycles import following
from tests.planner.generate_features import snapshot_of
from tests.planner.mixed import mixed
from tests.planner.oracle import starts

FEATURES = GENERATED
PARTS: Final = (
    FEATURED := "features",
    MISSING := "something missing",
    UNFLAVORED := "pods without a flavor",
    LEASED := "leases",
    HOPELESS := "gangs that never start",
    TRIED := "tried in full",
)
"""Of the stage. The snapshots of a small cluster in which something is missing are of odd seeds, those of the last two parts of even ones."""
_CYCLES: Final = 3
_MOST_PODS: Final = 7  # of a snapshot for which all answers are tried


class Snapshots:
    """The stage, or some of its parts. Each part has its own random numbers, so that it makes the same snapshots without the others."""

    def __init__(self, parts: Collection[str] = PARTS, cycles: int = _CYCLES) -> None:
        """``parts``: those that run, of :data:`PARTS`. ``cycles``: of the larger snapshot."""
        self._parts, self._cycles = parts, cycles

    def __call__(self, seed: int) -> Result:
        result = Result()
        for name, part in self._all().items():
            if name in self._parts:
                part(seed, result)
        return result

    def _all(self) -> dict[str, Callable[[int, Result], None]]:
        return dict(
            zip(
                PARTS,
                (
                    self._features,
                    self._missing,
                    self._unflavored,
                    self._leased,
                    self._hopeless,
                    self._exact,
                ),
                strict=True,
            )
        )

    def _features(self, seed: int, result: Result) -> None:
        features = set[str]()
        rng = random.Random(f"snapshot {seed}")
        snapshot = snapshot_of(seed)
        for _ in range(self._cycles):
            made = self._planned(rng, snapshot, result, FEATURED)
            features |= features_of(snapshot)
            result.counted.update(outcomes_of(snapshot, made))
            snapshot = following(snapshot, made, rng)
        result.features = frozenset(features)

    def _missing(self, seed: int, result: Result) -> None:
        if seed % 2:
            small, _ = degenerate(seed)
            self._planned(random.Random(f"missing {seed}"), small, result, MISSING)

    def _unflavored(self, seed: int, result: Result) -> None:
        rng = random.Random(f"unflavored {seed}")
        small, _ = degenerate(seed)
        self._planned(rng, with_unflavored(rng, small), result, UNFLAVORED, of_all=True)

    def _leased(self, seed: int, result: Result) -> None:
        self._planned(random.Random(f"explained {seed}"), leased(seed), result, LEASED)

    @staticmethod
    def _planned(
        rng: random.Random, snapshot: Snapshot, result: Result, kind: str, *, of_all: bool = False
    ) -> Plan:
        """``of_all``: all gangs that wait are explained, not one of them."""
        checked = checked_plan(snapshot)
        result.counted[f"plans: {kind}"] += 1
        wrong = [
            *(f"verifier: {one}" for one in checked.violations),
            *(f"alarm: {one}" for one in checked.decided.alarms),
        ]
        if kind in (FEATURED, LEASED):
            wrong += [f"judge: {one}" for one in complaints(checked.snapshot, checked.decided)]
        result.defects += [f"{kind}: {one}" for one in wrong]
        waiting = [one.uid for one in checked.decided.pending]
        asked = frozenset(waiting if of_all else rng.sample(waiting, min(1, len(waiting))))
        for found in explained(checked, asked):
            result.counted["diagnoses"] += 1
            assert found.uid in asked
        return checked.decided

    @staticmethod
    def _hopeless(seed: int, result: Result) -> None:
        """Gangs that never start change nothing."""
        if seed % 2:
            return
        snapshot = mixed(seed)
        given = with_hopeless(random.Random(f"hopeless {seed}"), snapshot)
        made = checked_plan(given)
        result.counted[f"plans: {HOPELESS}"] += 1
        result.defects += [f"{HOPELESS}: {one}" for one in made.violations]
        result.defects += changes(checked_plan(snapshot).decided, made.decided)

    def _exact(self, seed: int, result: Result) -> None:
        """The answer by definition."""
        if seed % 2:
            return
        snapshot = small_cluster(seed)
        made = self._planned(random.Random(0), snapshot, result, TRIED)
        if any(one.proof is Proof.UNDECIDED for one in made.pending):
            result.counted["not decided"] += 1
            return
        result.defects += [f"judge: {one}" for one in complaints(snapshot, made)]
        if any(len(_flavors(queue)) > 1 for queue in snapshot.config.cluster_queues.values()):
            return  # a gang keeps the first flavor in which it fits, whatever that costs later gangs
        found = {one.uid for one in made.admitted}
        known = starts(snapshot)
        missed = sorted(uid for uid, fits in known.items() if fits != (uid in found))
        if missed:
            result.defects.append(f"all answers: {known}, the plan starts {sorted(found)}")
        result.counted.update(
            {"tried gangs": len(known), "tried gangs that fit": sum(known.values())}
        )


def _flavors(queue: ClusterQueue) -> set[str]:
    return {quotas.flavor for group in queue.groups for quotas in group.flavors}


def small_cluster(seed: int) -> Snapshot:
    """Up to five nodes and seven pods, without what the trial of all answers does not know."""
    snapshot = mixed(seed)
    config = snapshot.config
    queues = {
        name: replace(
            queue,
            within_cluster_queue=WithinClusterQueue.NEVER,
            cohort=None,
            groups=tuple(
                replace(g, flavors=tuple(replace(q, borrowing={}, lending={}) for q in g.flavors))
                for g in queue.groups
            ),
        )
        for name, queue in config.cluster_queues.items()
    }
    nodes = snapshot.fleet.nodes[:5]
    names = {node.name for node in nodes}
    admitted = tuple(a for a in snapshot.admitted if names.issuperset(a.placement.use(a.workload)))
    return replace(
        snapshot,
        config=replace(config, cluster_queues=queues, cohorts={}),
        fleet=Fleet(nodes),
        admitted=admitted,
        pending=tuple(_few(snapshot.pending)),
    )


def _few(pending: tuple[Pending, ...]) -> Iterator[Pending]:
    left = _MOST_PODS
    for entry in pending:
        podsets = tuple(_fixed(podset) for podset in entry.workload.podsets)
        left -= sum(podset.count for podset in podsets)
        if left < 0:
            return
        yield replace(entry, workload=replace(entry.workload, podsets=podsets))


def _fixed(podset: PodSet) -> PodSet:
    return replace(podset, min_count=None)
