"""No node over its allocatable, in both views of time.

- *now*: allocatable less all admitted (leaving ones included) less other pods. Everything that starts must fit here.
- *after*: the same less only those that stay. Everything that starts and every lease must fit here together.

Only the nodes and resources the plan adds to are checked: an excess from outside is not the plan's doing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from queuectl.domain.workload import Placement, Workload
from queuectl.planner.verify.plan_index import Claim, PlanIndex, Rule, Violation

Use = dict[str, dict[str, int]]  # node name -> resource -> amount


def check_capacity(index: PlanIndex) -> Iterator[Violation]:
    """Node by node over what the plan touches."""
    now, after = asked_of(index)
    touched = now.keys() | after.keys()
    used_now, used_after = held_of(index, touched)
    yield from _compare(index, now, used_now, "now")
    added = _added(index)
    beyond = {
        name: {resource: amount for resource, amount in row.items() if added[name].get(resource)}
        for name, row in after.items()
        if name in added
    }
    yield from _compare(index, beyond, used_after, "after the victims left")


def _added(index: PlanIndex) -> Use:
    """The amounts that the plan adds to each node, now and after: of repaired gangs, what the node gains."""
    added: Use = {}
    for claim in index.claims:
        if claim.running is None:
            add_use(added, claim.workload, claim.placement)
        else:
            add_gained(added, claim)
    return added


def asked_of(index: PlanIndex) -> tuple[Use, Use]:
    """The amounts that the plan adds to each node now, and that its claims hold of it after."""
    now: Use = {}
    after: Use = {}
    for claim in index.claims:
        add_use(after, claim.workload, claim.placement)
        if claim.now and claim.running is None:
            add_use(now, claim.workload, claim.placement)
        elif claim.now:
            add_gained(now, claim)
    return now, after


def add_use(use: Use, workload: Workload, placement: Placement) -> None:
    """Add what a gang uses on a placement."""
    for podset in workload.podsets:
        placed = placement.of(podset.name)
        for name, count in placed.nodes if placed is not None else ():
            row = use.setdefault(name, {})
            for resource, amount in podset.shape.requests.items():
                row[resource] = row.get(resource, 0) + amount * count


def add_gained(use: Use, claim: Claim) -> None:
    """Of a repaired gang, only what a node gains: what stays is already counted as admitted."""
    assert claim.running is not None
    before: Use = {}
    behind: Use = {}
    add_use(before, claim.workload, claim.running.placement)
    add_use(behind, claim.workload, claim.placement)
    for name, row in behind.items():
        for resource, amount in row.items():
            gained = amount - before.get(name, {}).get(resource, 0)
            if gained > 0:
                into = use.setdefault(name, {})
                into[resource] = into.get(resource, 0) + gained


def held_of(index: PlanIndex, touched: set[str]) -> tuple[Use, Use]:
    """Use of the touched nodes by admitted gangs and other pods, now and after."""
    now: Use = {name: dict(index.snapshot.other_pods.get(name, {})) for name in touched}
    after: Use = {name: dict(row) for name, row in now.items()}
    repaired = {c.workload.uid for c in index.claims if c.running is not None}
    for gang in index.snapshot.admitted:
        stays = gang.workload.uid not in index.gone_after and gang.workload.uid not in repaired
        for podset in gang.workload.podsets:
            placed = gang.placement.of(podset.name)
            for name, count in placed.nodes if placed is not None else ():
                if name in touched:
                    for resource, amount in podset.shape.requests.items():
                        now[name][resource] = now[name].get(resource, 0) + amount * count
                        if stays:
                            after[name][resource] = after[name].get(resource, 0) + amount * count
    return now, after


def _compare(
    index: PlanIndex, asked: Use, used: Mapping[str, Mapping[str, int]], when: str
) -> Iterator[Violation]:
    for name in sorted(asked):
        node = index.nodes.get(name)
        if node is None:
            continue  # reported as not eligible
        for resource, amount in sorted(asked[name].items()):
            free = node.allocatable[resource] - used[name].get(resource, 0)
            if amount > free:
                text = f"{resource}: asks {amount}, free {free} {when}"
                yield Violation(Rule.CAPACITY, name, text)
