"""No gang starts that a ResourceQuota of its namespace, the limit of its user, a budget or a shared ResourceClaim does not allow beside the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from queuectl.domain.budgets import UNKNOWN_RUN, BudgetBalance, WhenSpent
from queuectl.domain.limits import QuotaLimit
from queuectl.domain.quantity import CPU, MEMORY
from queuectl.domain.spending import Spending
from queuectl.domain.workload import Placement, PodSet, Workload, gpus_of
from queuectl.planner.verify.plan_index import PlacedGang, PlanIndex, PlanRule, PlanViolation
from queuectl.planner.verify.quota import charges


def check_allowances(index: PlanIndex) -> Iterator[PlanViolation]:
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
                    yield PlanViolation(PlanRule.RESOURCE_QUOTA, namespace, text)


def _counts(podset: PodSet, line: QuotaLimit) -> int:
    amounts = podset.limits if line.key.startswith("limits.") else podset.shape.requests
    return amounts[line.resource]


def _best_effort(podset: PodSet) -> bool:
    return {CPU, MEMORY}.isdisjoint(podset.shape.requests)


def check_budgets(index: PlanIndex) -> Iterator[PlanViolation]:
    """No gang starts, or gets a lease, that a budget cannot pay beside the others, in whatever order they are decided.

    The last of them under ``wholeRun: false`` needs a rest of any size. Therefore all but the largest such gang must leave one.
    """
    snapshot = index.snapshot
    spending = Spending(snapshot)
    for balance in snapshot.budgets:
        if balance.budget.when_spent is not WhenSpent.HOLD:
            continue
        name, added = balance.budget.name, []
        held = balance.spent + balance.ended
        for gang in snapshot.admitted:
            if balance in spending.of(gang.workload):
                ends = snapshot.now + UNKNOWN_RUN
                if gang.ends_at is not None and gang.ends_at > snapshot.now:
                    ends = gang.ends_at
                ends = snapshot.now if gang.leaving else ends
                held += balance.cost(gang.gpus, max(gang.started_at, balance.counted), ends)
        for claim in index.claims:
            if claim.workload.uid in index.running or balance not in spending.of(claim.workload):
                continue  # counted where it is
            cost = _cost(index, balance, claim)
            held += cost if _had(index, claim) else 0
            added += [cost] if cost and not _had(index, claim) else []
        spare = 0 if balance.budget.whole_run else max(added, default=0) - 1
        if added and held + sum(added) - spare > balance.granted:
            text = f"{held} + {sum(added)} units for gangs that start, or get a lease, {balance.granted} are granted"
            yield PlanViolation(PlanRule.BUDGET, name, text)


def _had(index: PlanIndex, claim: PlacedGang) -> bool:
    """Whether it is a lease that its gang had before this plan."""
    lease = index.pending[claim.workload.uid].lease
    return not claim.now and lease is not None and lease.placement == claim.placement


def _cost(index: PlanIndex, balance: BudgetBalance, claim: PlacedGang) -> int:
    run, now = claim.workload.duration, index.snapshot.now
    pods = [(podset, placed.pods_of(podset)) for podset, placed in claim.parts()]
    return balance.cost(gpus_of(pods), now, now + (run.seconds if run else UNKNOWN_RUN))


def check_claims(index: PlanIndex) -> Iterator[PlanViolation]:
    """Each ResourceClaim that pods share serves one gang; gangs that ran with one claim before do not count."""
    users: dict[tuple[str, str], set[str]] = {}
    holding = [gang.workload for gang in index.snapshot.admitted]
    for workload in (*holding, *(claim.workload for claim in index.claims)):
        for name in workload.claims:
            users.setdefault((workload.namespace, name), set()).add(workload.uid)
    for claim in index.claims:
        workload = claim.workload
        if workload.uid in index.running or _had(index, claim):
            continue
        for name in workload.claims:
            if others := users[workload.namespace, name] - {workload.uid}:
                text = f"{sorted(others)} use ResourceClaim {name}"
                yield PlanViolation(PlanRule.RESOURCE_CLAIM, workload.uid, text)


_Row = tuple[str, str, str]  # ClusterQueue, user and resource


def check_users(index: PlanIndex) -> Iterator[PlanViolation]:
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
            yield PlanViolation(PlanRule.MAX_PER_USER, user, text)


def _rows(index: PlanIndex, workload: Workload, placement: Placement) -> Counter[_Row]:
    """The charges of a gang, over its flavors; nothing where it has no user."""
    amounts: Counter[_Row] = Counter()
    if workload.user is not None:
        for (queue, _, resource), amount in charges(index, workload, placement):
            amounts[queue, workload.user, resource] += amount
    return amounts
