"""Flavors are charged as the ClusterQueue's resource groups say, and quotas hold up the cohorts, now and after."""

from __future__ import annotations

from collections.abc import Iterator

from queuectl.domain.fleet import Effect
from queuectl.domain.quantity import PODS
from queuectl.domain.queues import ClusterQueue, ResourceFlavor, ResourceGroup
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, Workload
from queuectl.planner.verify.cohorts import Row, excesses, trees_of
from queuectl.planner.verify.plan_index import PlacedGang, PlanIndex, PlanRule, PlanViolation


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
        for row, amount in charges(index, claim.workload, claim.placement):
            after[row] = after.get(row, 0) + amount
            if claim.now:
                now[row] = now.get(row, 0) + amount
    used_now, used_after = _used(index, {row[0] for row in (*now, *after)})
    yield from _compare(index, now, used_now, "now")
    yield from _compare(index, after, used_after, "after the victims left")
    yield from _borrowers(index, used_now, used_after)


def _borrowers(
    index: PlanIndex, used_now: dict[Row, int], used_after: dict[Row, int]
) -> Iterator[PlanViolation]:
    """Gangs that must not borrow yet: with what runs, they fit the nominal quota of their ClusterQueue."""
    no_borrowing = {uid for uid, p in index.pending.items() if not p.may_borrow(index.snapshot.now)}
    now, after = dict(used_now), dict(used_after)
    asked: dict[Row, str] = {}
    for claim in index.claims:
        uid = claim.workload.uid
        if uid not in no_borrowing or claim.running is not None:
            continue
        for row, amount in charges(index, claim.workload, claim.placement):
            after[row] = after.get(row, 0) + amount
            if claim.now:
                now[row] = now.get(row, 0) + amount
            if amount:
                asked[row] = uid
    for row, uid in sorted(asked.items()):
        member = index.members[row[0]]
        nominal = member.quota(*row[1:])
        used = max(use.get(row, 0) for use in ((now, after) if uid in index.started else (after,)))
        if member.parent is not None and used > nominal:
            text = f"borrows too early: {used} used of {row[1]}/{row[2]}, {nominal} nominal"
            yield PlanViolation(PlanRule.QUOTA, uid, text)


def _used(index: PlanIndex, touched: set[str]) -> tuple[dict[Row, int], dict[Row, int]]:
    """Use by admitted gangs, now and after, of the touched ClusterQueues and of those they share quota with."""
    now: dict[Row, int] = {}
    after: dict[Row, int] = {}
    queues = trees_of(index.members, touched)
    for gang in index.snapshot.admitted:
        queue = index.queue_of(gang.workload)
        if queue is None or queue.name not in queues:
            continue
        stays = gang.workload.uid not in index.gone_after
        for row, amount in charges(index, gang.workload, gang.placement):
            now[row] = now.get(row, 0) + amount
            if stays:
                after[row] = after.get(row, 0) + amount
    return now, after


def _compare(
    index: PlanIndex, asked: dict[Row, int], used: dict[Row, int], when: str
) -> Iterator[PlanViolation]:
    total = dict(used)
    for row, amount in asked.items():
        total[row] = total.get(row, 0) + amount
    for name, text in excesses(index.members, used, total, asked):
        yield PlanViolation(PlanRule.QUOTA, name, f"{when}: {text}")


def charges(
    index: PlanIndex, workload: Workload, placement: Placement
) -> Iterator[tuple[Row, int]]:
    """The charges of a gang on a placement."""
    queue = index.queue_of(workload)
    if queue is None:
        return
    for podset in workload.podsets:
        placed = placement.of(podset.name)
        if placed is None:
            continue
        pods = index.pods_charged(podset, placed)
        for resource, flavor, share in placed.charges(pods):
            if amount := index.charged(podset)[resource] * share:
                yield (queue.name, flavor, resource), amount
