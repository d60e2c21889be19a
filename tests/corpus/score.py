"""The score of a plan as plain JSON values, and the comparison of two scores.

A score has what a change of the planner may not make worse: which gangs start and with how many pods, over how many domains
of each level they spread, what evictions and moves lose, the reason codes of gangs that wait, leases and proofs. Node names,
sentences and the work of the solver are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.plan import Cost, Move, Plan, Preemption
from queuectl.domain.queues import DEFAULT_VICTIM_ORDER, QueueConfig, VictimKey
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Placement, PodSetPlacement, Workload

Score = dict[str, Any]


def score_of(snapshot: Snapshot, plan: Plan) -> Score:
    """The score of a plan made from the snapshot."""
    lookup = _Lookup(snapshot)
    return {
        "proof": plan.proof.value,
        "cut": plan.cut,
        "alarms": len(plan.alarms),
        "admitted": {
            a.uid: {
                **lookup.placed(a.uid, a.placement),
                "repaired": a.repaired,
                "proof": a.proof.value,
            }
            for a in plan.admitted
        },
        "pending": {
            r.uid: {"codes": [reason.code.value for reason in r.reasons], "proof": r.proof.value}
            for r in plan.pending
        },
        "leases": {
            r.uid: lookup.placed(r.uid, r.lease.placement)
            for r in plan.pending
            if r.lease is not None
        },
        "victims": lookup.evictions(plan.preempted),
        "spared": lookup.evictions(plan.spared),
        "moves": _moves(lookup, plan.moved),
        "evicted": {e.uid: e.code.value for e in plan.evicted},
        "returning": sorted(plan.returning),
        "uneven": sorted(map(list, plan.uneven)),
    }


def diagnosis_score(diagnosis: Diagnosis) -> Score:
    """The kinds of a gang's blocking constraints and suggested fixes."""
    return {
        "conflict": sorted(obstacle.limit.value for obstacle in diagnosis.conflict),
        "suggested_fixes": [[fix.remedy.value, fix.least] for fix in diagnosis.suggested_fixes],
        "proof": diagnosis.proof.value,
        "cut": diagnosis.cut,
    }


class _Lookup:
    """A snapshot's gangs, nodes and rules."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._config: QueueConfig = snapshot.config
        self._labels = {node.name: node.labels for node in snapshot.fleet.nodes}
        gangs = [p.workload for p in snapshot.pending] + [a.workload for a in snapshot.admitted]
        self._workloads: Mapping[str, Workload] = {gang.uid: gang for gang in gangs}

    def placed(self, uid: str, placement: Placement) -> Score:
        """Pods of each podset, and the domains and nodes used, summed over podsets; those of one group count together."""
        workload = self._workloads[uid]
        asked = {podset.name: podset for podset in workload.podsets}
        groups: dict[str, set[tuple[str, ...]]] = {}
        for podset in placement.podsets:
            group = asked[podset.podset].group
            name = f"podset {podset.podset}" if group is None else f"group {group}"
            groups.setdefault(name, set()).update(self._domains(podset))
        domains: dict[str, int] = {}
        for level, *_ in (domain for used in groups.values() for domain in used):
            domains[level] = domains.get(level, 0) + 1
        pods = {p.podset: p.pods_of(asked[p.podset]) for p in placement.podsets}
        return {"pods": pods, "domains": domains}

    def _domains(self, placed: PodSetPlacement) -> Iterable[tuple[str, ...]]:
        """(level, path of labels from the top) of every domain that it uses."""
        for part in placed.by_share():
            charged = (self._config.flavors.get(flavor) for flavor in sorted(part.charged))
            named = [f.topology for f in charged if f is not None and f.topology is not None]
            topology = self._config.topologies.get(named[0]) if named else None
            for node in part.by_node:
                yield "nodes", node
                labels = self._labels.get(node, {})
                path: tuple[str, ...] = ()
                for level in topology.levels if topology is not None else ():
                    path = (*path, labels.get(level, ""))
                    yield level, *path

    def evictions(self, preempted: Sequence[Preemption]) -> Score:
        """By preemptor: the layers that its ClusterQueue compares victims by."""
        found = {}
        for preemptor, each in groupby(sorted(preempted, key=_preemptor), key=_preemptor):
            victims = list(each)
            found[preemptor] = {
                "layers": _layers(self._victim_order(preemptor), [v.cost for v in victims]),
                "reasons": sorted({v.reason for v in victims}),
                "proof": max((v.proof.value for v in victims), key=_RANKS.index),
            }
        return found

    def _victim_order(self, preemptor: str) -> Sequence[VictimKey]:
        workload = self._workloads.get(preemptor)
        if workload is None:
            return DEFAULT_VICTIM_ORDER
        queue = self._config.cluster_queue_of(workload.namespace, workload.queue)
        return queue.victim_order if queue is not None else DEFAULT_VICTIM_ORDER

    def pods(self, uid: str) -> int:
        return self._workloads[uid].pods


_RANKS = ("optimal", "feasible", "undecided")


def _preemptor(preemption: Preemption) -> str:
    return preemption.preemptor


def _layers(order: Sequence[VictimKey], costs: Sequence[Cost]) -> list[int]:
    values = {
        VictimKey.MAX_PRIORITY: max(cost.priority for cost in costs),
        VictimKey.LOST_WORK: sum(cost.lost_work for cost in costs),
        VictimKey.COUNT: len(costs),
    }
    return [values[key] for key in order]


def _moves(lookup: _Lookup, moved: Sequence[Move]) -> Score:
    """By beneficiary: lost work, gangs and pods that move."""
    found = {}
    ordered = sorted(moved, key=lambda move: move.beneficiary)
    for beneficiary, each in groupby(ordered, key=lambda move: move.beneficiary):
        moves = list(each)
        lost = sum(move.cost.lost_work for move in moves)
        found[beneficiary] = {
            "layers": [lost, len(moves), sum(lookup.pods(move.uid) for move in moves)],
            "proof": max((move.proof.value for move in moves), key=_RANKS.index),
        }
    return found
