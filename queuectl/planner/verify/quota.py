"""Flavors are charged as the ClusterQueue's resource groups say, quotas hold up the cohorts, now and after, and so do other limits in amounts.

No gang starts that a ResourceQuota of its namespace, the limit of its user, a budget or a shared ResourceClaim does not allow alongside the
others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from queuectl.domain.budgets import UNKNOWN_RUN, BudgetBalance, WhenSpent
from queuectl.domain.devices import CLAIM_PODSET, ClaimSpec, DeviceClass
from queuectl.domain.fleet import Effect
from queuectl.domain.limits import QuotaLimit
from queuectl.domain.quantity import CPU, MEMORY, PODS
from queuectl.domain.queues import ClusterQueue, ResourceFlavor, ResourceGroup
from queuectl.domain.spending import Spending
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, Workload, gpus_of
from queuectl.planner.verify.cohorts import Row, add_rows, excesses
from queuectl.planner.verify.plan_index import PlacedGang, PlanIndex, PlanRule, PlanViolation

# ---- Flavors and quota


def check_quota(index: PlanIndex) -> Iterator[PlanViolation]:
    """Flavor choice of each claim, then each quota row the plan adds to."""
    for claim in index.claims:
        queue = index.queue_of(claim.workload)
        if queue is not None and claim.running is None:  # a repaired gang keeps its flavors
            yield from _flavors(index, queue, claim)
    yield from _rows(index)


def _flavors(index: PlanIndex, queue: ClusterQueue, claim: PlacedGang) -> Iterator[PlanViolation]:
    uid = claim.workload.uid
    for podset, placed in claim.parts():
        covered: set[str] = set()
        for group in queue.groups:
            covered.update(group.covered)
            for share in placed.by_share():
                why = _group_refusal(index, group, podset, share)
                if why is not None:
                    yield PlanViolation(PlanRule.FLAVOR, uid, f"podset {podset.name}: {why}")
        missing = sorted(set(index.charged(podset)) - covered - {PODS} - podset.shape.incidental)
        if missing and not index.snapshot.config.rules.ignore_undeclared:
            text = f"podset {podset.name} asks {missing}, which {queue.name} does not cover"
            yield PlanViolation(PlanRule.FLAVOR, uid, text)


def _group_refusal(
    index: PlanIndex, group: ResourceGroup, podset: PodSet, placed: PodSetPlacement
) -> str | None:
    asked = [r for r in group.covered if index.charged(podset)[r]]
    chosen = {placed.flavors.get(r) for r in asked}
    if not asked:
        return None
    if len(chosen) != 1:
        return f"{asked} need one flavor, got {sorted(map(str, chosen))}"
    name = chosen.pop()
    if name not in {f.flavor for f in group.flavors}:
        return f"flavor {name} is not of the group that covers {asked}"
    flavor = index.snapshot.config.flavors.get(name or "")
    return flavor_refusal(group, flavor, podset, index) if flavor else f"no flavor {name}"


def flavor_refusal(
    group: ResourceGroup, flavor: ResourceFlavor, podset: PodSet, index: PlanIndex
) -> str | None:
    """Why ``podset`` may not use ``flavor`` on any node: its taints, or labels the podset selects otherwise."""
    rules = podset.shape.rules
    tolerations = rules.tolerations + flavor.tolerations
    for taint in flavor.node_taints:
        if taint.effect is not Effect.PREFER_NO_SCHEDULE and not any(
            t.tolerates(taint) for t in tolerations
        ):
            return f"flavor {flavor.name}: taint {taint.key} is not tolerated"
    labels = dict(flavor.node_labels)
    for key, value in rules.selector:
        if labels.get(key, value) != value:
            return f"flavor {flavor.name}: the podset selects {key}={value}"
    if index.snapshot.fleet.nodes and not _has_levels(group, flavor, podset, index):
        return f"flavor {flavor.name}: it has no topology with the levels of the podset, in their order"
    if podset.topology is None and flavor.topology is not None:
        known = index.snapshot.config.flavors
        others = [known[quotas.flavor] for quotas in group.flavors if quotas.flavor in known]
        if any(other.topology is None for other in others):
            return f"flavor {flavor.name}: the podset asks for no topology, and others have none"
    return None


def _has_levels(
    group: ResourceGroup, flavor: ResourceFlavor, podset: PodSet, index: PlanIndex
) -> bool:
    request = podset.topology
    if request is None or not request.levels:
        return True
    topology = index.snapshot.config.topologies.get(flavor.topology or "")
    if topology is None:  # resources that only a transformation charges need no node
        return not any(r in group.covered for r in podset.shape.requests if r != PODS)
    known = topology.levels
    if not set(request.levels) <= set(known):
        return False
    order = [known.index(layer.level) for layer in request.slices]
    first = known.index(request.level) if request.level is not None else 0
    return order == sorted(set(order)) and all(first <= at for at in order)


def _rows(index: PlanIndex) -> Iterator[PlanViolation]:
    now: dict[Row, int] = {}
    after: dict[Row, int] = {}
    for claim in index.claims:
        if claim.running is not None:
            continue  # a repaired gang is charged already
        rows = index.charges(claim.workload, claim.placement)
        add_rows(after, rows)
        if claim.now:
            add_rows(now, rows)
    used_now, used_after = _used(index)
    yield from _compare(index, now, used_now, "now")
    yield from _compare(index, after, used_after, "after the victims left")
    yield from _borrowers(index, used_now, used_after)


def _borrowers(
    index: PlanIndex, used_now: Mapping[Row, int], used_after: Mapping[Row, int]
) -> Iterator[PlanViolation]:
    """Gangs that must not borrow yet: with what runs, they fit the nominal quota of their ClusterQueue."""
    now, after = dict(used_now), dict(used_after)
    takers: dict[Row, str] = {}
    for claim in index.claims:
        uid = claim.workload.uid
        waiting = index.pending.get(uid)
        if waiting is None or waiting.may_borrow(index.snapshot.now) or claim.running is not None:
            continue
        rows = index.charges(claim.workload, claim.placement)
        add_rows(after, rows)
        if claim.now:
            add_rows(now, rows)
        takers.update((row, uid) for row, _ in rows)
    for row, uid in sorted(takers.items()):
        member = index.members[row[0]]
        nominal = member.quota(*row[1:])
        used = max(use.get(row, 0) for use in ((now, after) if uid in index.started else (after,)))
        if member.parent is not None and used > nominal:
            text = f"borrows too early: {used} used of {row[1]}/{row[2]}, {nominal} nominal"
            yield PlanViolation(PlanRule.QUOTA, uid, text)


def _used(index: PlanIndex) -> tuple[Mapping[Row, int], dict[Row, int]]:
    """Use by running gangs, now and after."""
    now = index.running_use.quota
    after = dict(now)
    for uid in index.gone_after & index.running.keys():
        gang = index.running[uid]
        add_rows(after, index.charges(gang.workload, gang.placement), -1)
    return now, after


def _compare(
    index: PlanIndex, added: dict[Row, int], used: Mapping[Row, int], when: str
) -> Iterator[PlanViolation]:
    total = dict(used)
    add_rows(total, added.items())
    for name, text in excesses(index.members, used, total, added):
        yield PlanViolation(PlanRule.QUOTA, name, f"{when}: {text}")


# ---- Other limits in amounts


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
                if quota.best_effort in (None, _best_effort(podset))
                and quota.terminating in (None, podset.has_deadline)
            ]
            for i, line in enumerate(quota.limits):
                classes = None if quota.scoped else index.snapshot.devices.classes
                asked = sum(n * _counts(podset, line, classes) for podset, n in counted)
                used = line.used + (quota.promised[i] if quota.promised else 0)
                if asked and used + asked > line.hard:
                    text = (
                        f"{line.key} of ResourceQuota {quota.name}: {used} + {asked} > {line.hard}"
                    )
                    yield PlanViolation(PlanRule.RESOURCE_QUOTA, namespace, text)


def _counts(podset: PodSet, line: QuotaLimit, classes: Mapping[str, DeviceClass] | None) -> int:
    """``classes``: None = the quota counts no claims, because it has scopes."""
    if podset.name.startswith(CLAIM_PODSET):
        return 0  # the use has the claims that exist
    if line.key == "count/resourceclaims.resource.k8s.io":
        return len([reference for reference in podset.claims if reference.claim is None])
    if line.key.startswith("limits."):
        return podset.limits[line.resource]
    own = podset.shape.requests[line.resource] - podset.shape.charged[line.resource]
    if classes is None or podset.shape.devices is None:
        return own
    return own + sum(_of_claim(each, line.key, classes) for each in podset.shape.devices.claims)


def _of_claim(claim: ClaimSpec, key: str, classes: Mapping[str, DeviceClass]) -> int:
    """The amount that Kubernetes adds for a claim: by class, and then by the names of the class."""
    devices: Counter[str] = Counter()
    for request in claim.requests:
        if "/" in request.name:
            continue  # kube-scheduler makes the claim for an extended resource
        largest: dict[str, int] = {}
        for one in request.options:
            count = 32 if one.count is None else one.count
            largest[one.device_class] = max(largest.get(one.device_class, 0), count)
        devices.update(largest)
    found = 0
    for name, count in devices.items():
        known = classes.get(name)
        keys = {f"{name}.deviceclass.resource.k8s.io/devices"}
        if known is not None:
            keys.add(f"requests.deviceclass.resource.kubernetes.io/{name}")
            keys.add(f"requests.{known.extended_resource}")
        found = max(found, count if key in keys else 0)
    return found


def _best_effort(podset: PodSet) -> bool:
    own = (amounts - podset.overhead for amounts in (podset.shape.requests, podset.limits))
    return all(amounts[name] <= 0 for amounts in own for name in (CPU, MEMORY))


def check_budgets(index: PlanIndex) -> Iterator[PlanViolation]:
    """No gang starts, or gets a lease, that a budget cannot pay alongside the others, in whatever order they are decided.

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
                begins = max(gang.started_at, balance.counted)
                if gang.held:  # it has not started
                    run, begins = gang.workload.duration, snapshot.now
                    ends = begins + (run.seconds if run is not None else UNKNOWN_RUN)
                held += balance.cost(gang.gpus, begins, ends)
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
    """Whether it is a lease that its gang had before this plan, and that has not expired."""
    lease = index.pending[claim.workload.uid].lease
    if claim.now or lease is None or lease.expires_at <= index.snapshot.now:
        return False
    return lease.placement == claim.placement


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
            users.setdefault((workload.namespace, name), set()).add(workload.family)
    for claim in index.claims:
        workload = claim.workload
        if workload.uid in index.running or _had(index, claim):
            continue
        for name in workload.claims:
            if others := users[workload.namespace, name] - {workload.family}:
                text = f"{sorted(others)} use ResourceClaim {name}"
                yield PlanViolation(PlanRule.RESOURCE_CLAIM, workload.uid, text)


_UserRow = tuple[str, str, str]  # ClusterQueue, user and resource


def check_users(index: PlanIndex) -> Iterator[PlanViolation]:
    """The amounts that a user holds already, leaving gangs and leases included; an excess that exists without the plan does not count."""
    queues = index.snapshot.config.cluster_queues
    if not any(queue.max_per_user for queue in queues.values()):
        return
    held: Counter[_UserRow] = Counter()
    added: set[_UserRow] = set()
    for gang in index.snapshot.admitted:
        held += _charged_to_user(index, gang.workload, gang.placement)
    preemptors = {preemption.preemptor for preemption in index.plan.preempted}
    for claim in index.claims:
        if claim.workload.uid in index.running:
            continue  # counted where it is
        rows = _charged_to_user(index, claim.workload, claim.placement)
        held += rows
        if claim.now or claim.workload.uid in preemptors:
            added.update(rows)
    for name, user, resource in sorted(added):
        most = dict(queues[name].max_per_user).get(resource)
        amount = held[name, user, resource]
        if most is not None and amount > most:
            text = f"user {user} would hold {amount} {resource} in {name}, {most} are allowed"
            yield PlanViolation(PlanRule.MAX_PER_USER, user, text)


def _charged_to_user(
    index: PlanIndex, workload: Workload, placement: Placement
) -> Counter[_UserRow]:
    """The charges of a gang, over its flavors; nothing where it has no user."""
    amounts: Counter[_UserRow] = Counter()
    if workload.user is not None:
        for (queue, _, resource), amount in index.charges(workload, placement):
            amounts[queue, workload.user, resource] += amount
    return amounts


CHECKS: Final = (
    check_quota,
    check_allowances,
    check_users,
    check_budgets,
    check_claims,
)
"""The checks of this module that need only the plan."""
