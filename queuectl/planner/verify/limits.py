"""No gang starts that a ResourceQuota of its namespace, or the limit of its user, does not allow beside the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from queuectl.domain.quantity import CPU, MEMORY
from queuectl.domain.resource_quota import Limit
from queuectl.domain.workload import Placement, PodSet, Workload
from queuectl.planner.verify.plan_index import PlanIndex, Rule, Violation
from queuectl.planner.verify.quota import charges


def check_allowances(index: PlanIndex) -> Iterator[Violation]:
    """Each line of each quota that a start adds to; an excess that exists without the plan does not count."""
    starting: dict[str, list[tuple[PodSet, int]]] = {}
    for claim in index.claims:
        if claim.now and claim.running is None:
            pods = [(podset, placed.pods_of(podset)) for podset, placed in claim.parts()]
            starting.setdefault(claim.workload.namespace, []).extend(pods)
    for namespace, pods in sorted(starting.items()):
        for quota in index.snapshot.allowances.get(namespace, ()):
            counted = [
                (podset, count)
                for podset, count in pods
                if quota.best_effort is None or quota.best_effort == _best_effort(podset)
            ]
            for i, line in enumerate(quota.limits):
                asked = sum(n * _counts(podset, line) for podset, n in counted)
                used = line.used + (quota.promised[i] if quota.promised else 0)
                if asked and used + asked > line.hard:
                    text = (
                        f"{line.key} of ResourceQuota {quota.name}: {used} + {asked} > {line.hard}"
                    )
                    yield Violation(Rule.RESOURCE_QUOTA, namespace, text)


def _counts(podset: PodSet, line: Limit) -> int:
    amounts = podset.limits if line.key.startswith("limits.") else podset.shape.requests
    return amounts[line.resource]


def _best_effort(podset: PodSet) -> bool:
    return {CPU, MEMORY}.isdisjoint(podset.shape.requests)


_Row = tuple[str, str, str]  # ClusterQueue, user and resource


def check_users(index: PlanIndex) -> Iterator[Violation]:
    """The amounts that a user holds already, leaving gangs and leases included; an excess that exists without the plan does not count."""
    queues = index.snapshot.config.cluster_queues
    if not any(queue.max_per_user for queue in queues.values()):
        return
    held: Counter[_Row] = Counter()
    added: set[_Row] = set()
    for gang in index.snapshot.admitted:
        held += _rows(index, gang.workload, gang.placement)
    preemptors = {preemption.preemptor for preemption in index.plan.preempted}
    for claim in index.claims:
        if claim.workload.uid in index.running:
            continue  # counted where it is
        rows = _rows(index, claim.workload, claim.placement)
        held += rows
        if claim.now or claim.workload.uid in preemptors:
            added.update(rows)
    for name, user, resource in sorted(added):
        most = dict(queues[name].max_per_user).get(resource)
        amount = held[name, user, resource]
        if most is not None and amount > most:
            text = f"user {user} would hold {amount} {resource} in {name}, {most} are allowed"
            yield Violation(Rule.MAX_PER_USER, user, text)


def _rows(index: PlanIndex, workload: Workload, placement: Placement) -> Counter[_Row]:
    """The charges of a gang, over its flavors; nothing where it has no user."""
    amounts: Counter[_Row] = Counter()
    if workload.user is not None:
        for (queue, _, resource), amount in charges(index, workload, placement):
            amounts[queue, workload.user, resource] += amount
    return amounts
