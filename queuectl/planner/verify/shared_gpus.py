"""Check of nodes with shared GPUs: what a gang and its ClusterQueue say about them holds for each pod that gets a place."""

from __future__ import annotations

from collections.abc import Iterator

from queuectl.domain.fleet import Node
from queuectl.domain.gpus import SharedGpus
from queuectl.domain.workload import PodSet
from queuectl.planner.verify.plan_index import Claim, PlanIndex, Rule, Violation


def check_shared_gpus(index: PlanIndex) -> Iterator[Violation]:
    """Every claim; pods that a repaired gang keeps can stay where they are."""
    for claim in index.claims:
        alone: dict[tuple[str, str], int] = {}
        for podset, placed in claim.parts():
            new = {name: count for name, count in placed.by_node.items() if count}
            for name, count in _stays(claim, podset.name).items():
                new[name] = new.get(name, 0) - count
            for name, count in placed.by_node.items():
                for resource in _shared(index, podset, index.nodes.get(name)):
                    rule = _rule(index, claim, podset)
                    if rule is SharedGpus.ONE_PER_NODE:
                        alone[name, resource] = alone.get((name, resource), 0) + count
                    amount = podset.shape.requests[resource]
                    too_much = rule is SharedGpus.NEVER or (
                        rule is SharedGpus.ONE_PER_NODE and amount > 1
                    )
                    if too_much and new.get(name, 0) > 0:
                        text = f"podset {podset.name}: {amount} {resource} on node {name}, where it is shared ({rule})"
                        yield Violation(Rule.SHARED_GPUS, claim.workload.uid, text)
        for (name, resource), count in alone.items():
            if count > 1 and not _was_there(claim, name, count):
                text = f"{count} pods with shared {resource} on node {name}"
                yield Violation(Rule.SHARED_GPUS, claim.workload.uid, text)


def _shared(index: PlanIndex, podset: PodSet, node: Node | None) -> list[str]:
    weights = index.snapshot.config.rules.accounting.gpus
    requests = podset.shape.requests
    return [r for r in requests if node is not None and weights.shared(r, node.labels)]


def _rule(index: PlanIndex, claim: Claim, podset: PodSet) -> SharedGpus:
    queue = index.snapshot.queue_of(claim.workload)
    of_queue = queue.shared_gpus if queue is not None else SharedGpus.ONE_PER_NODE
    return of_queue.unless(podset.shared_gpus)


def _stays(claim: Claim, podset: str) -> dict[str, int]:
    """Pods per node that a repaired gang keeps."""
    placed = claim.running.placement.of(podset) if claim.running is not None else None
    stays = dict(placed.by_node) if placed is not None else {}
    for of, name, count in claim.running.lost if claim.running is not None else ():
        if of == podset:
            stays[name] = stays.get(name, 0) - count
    return stays


def _was_there(claim: Claim, node: str, count: int) -> bool:
    """Whether a repaired gang keeps all of these pods on the node."""
    return sum(_stays(claim, p.name).get(node, 0) for p in claim.workload.podsets) >= count
