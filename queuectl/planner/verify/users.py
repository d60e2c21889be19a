"""No gang starts, or evicts others, that brings its user over what the ClusterQueue lets one user hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from queuectl.domain.workload import Placement, Workload
from queuectl.planner.verify.books import Books
from queuectl.planner.verify.quota import charges
from queuectl.planner.verify.report import Rule, Violation

_Row = tuple[str, str, str]  # ClusterQueue, user and resource


def check_users(books: Books) -> Iterator[Violation]:
    """What a user holds already, leaving gangs and leases included; more than allowed without the plan is nobody's fault."""
    queues = books.snapshot.config.cluster_queues
    if not any(queue.max_per_user for queue in queues.values()):
        return
    held: Counter[_Row] = Counter()
    added: set[_Row] = set()
    for gang in books.snapshot.admitted:
        held += _rows(books, gang.workload, gang.placement)
    preemptors = {preemption.preemptor for preemption in books.plan.preempted}
    for claim in books.claims:
        if claim.workload.uid in books.running:
            continue  # counted where it is
        rows = _rows(books, claim.workload, claim.placement)
        held += rows
        if claim.now or claim.workload.uid in preemptors:
            added.update(rows)
    for name, user, resource in sorted(added):
        most = dict(queues[name].max_per_user).get(resource)
        amount = held[name, user, resource]
        if most is not None and amount > most:
            text = f"user {user} would hold {amount} {resource} in {name}, {most} are allowed"
            yield Violation(Rule.MAX_PER_USER, user, text)


def _rows(books: Books, workload: Workload, placement: Placement) -> Counter[_Row]:
    """What a gang is charged, over its flavors; nothing where it has no user."""
    amounts: Counter[_Row] = Counter()
    if workload.user is not None:
        for (queue, _, resource), amount in charges(books, workload, placement):
            amounts[queue, workload.user, resource] += amount
    return amounts
