"""No gang is started whose pods its namespace's ResourceQuotas would not let in, beside the others that start."""

from __future__ import annotations

from collections.abc import Iterator

from queuectl.domain.allowance import Limit
from queuectl.domain.quantity import CPU, MEMORY
from queuectl.domain.workload import PodSet
from queuectl.planner.verify.books import Books
from queuectl.planner.verify.report import Rule, Violation


def check_allowances(books: Books) -> Iterator[Violation]:
    """Each line of each quota that a start adds to; what exceeds it already, without the plan, is nobody's fault."""
    starting: dict[str, list[tuple[PodSet, int]]] = {}
    for claim in books.claims:
        if claim.now and claim.running is None:
            pods = [(podset, placed.pods_of(podset)) for podset, placed in claim.parts()]
            starting.setdefault(claim.workload.namespace, []).extend(pods)
    for namespace, pods in sorted(starting.items()):
        for quota in books.snapshot.allowances.get(namespace, ()):
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
