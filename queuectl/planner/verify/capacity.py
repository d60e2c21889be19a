"""No node over its allocatable, in both views of time; shared GPUs and GPUs of one vendor as the gang states.

- *now*: allocatable less all admitted (leaving ones included) less other pods. Everything that starts must fit here.
- *after*: the same less only those that stay. Everything that starts and every lease must fit here together.

Only the nodes and resources the plan adds to are checked: an excess from outside is not the plan's doing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from queuectl.domain.devices import DeviceOption, NodeDevices
from queuectl.domain.errors import QueuectlError
from queuectl.domain.fleet import Node
from queuectl.domain.gpus import SharedGpus
from queuectl.domain.workload import Placement, PodSet, Workload
from queuectl.planner.verify.devices import Selects
from queuectl.planner.verify.plan_index import PlacedGang, PlanIndex, PlanRule, PlanViolation

# ---- Capacity of nodes

Use = dict[str, dict[str, int]]  # node name -> resource -> amount


def check_capacity(index: PlanIndex) -> Iterator[PlanViolation]:
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


def add_gained(use: Use, claim: PlacedGang) -> None:
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
) -> Iterator[PlanViolation]:
    for name in sorted(asked):
        node = index.nodes.get(name)
        if node is None:
            continue  # reported as not eligible
        for resource, amount in sorted(asked[name].items()):
            free = node.allocatable[resource] - used[name].get(resource, 0)
            if amount > free:
                text = f"{resource}: asks {amount}, free {free} {when}"
                yield PlanViolation(PlanRule.CAPACITY, name, text)


# ---- Shared GPUs


def check_shared_gpus(index: PlanIndex) -> Iterator[PlanViolation]:
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
                        yield PlanViolation(PlanRule.SHARED_GPUS, claim.workload.uid, text)
        for (name, resource), count in alone.items():
            if count > 1 and not _was_there(claim, name, count):
                text = f"{count} pods with shared {resource} on node {name}"
                yield PlanViolation(PlanRule.SHARED_GPUS, claim.workload.uid, text)


def _shared(index: PlanIndex, podset: PodSet, node: Node | None) -> list[str]:
    weights = index.snapshot.config.rules.accounting.gpus
    requests = podset.shape.requests
    return [r for r in requests if node is not None and weights.shared(r, node.labels)]


def _rule(index: PlanIndex, claim: PlacedGang, podset: PodSet) -> SharedGpus:
    queue = index.snapshot.queue_of(claim.workload)
    of_queue = queue.shared_gpus if queue is not None else SharedGpus.ONE_PER_NODE
    return of_queue.unless(podset.shared_gpus)


def _stays(claim: PlacedGang, podset: str) -> dict[str, int]:
    """Pods per node that a repaired gang keeps."""
    placed = claim.running.placement.of(podset) if claim.running is not None else None
    stays = dict(placed.by_node) if placed is not None else {}
    for of, name, count in claim.running.lost if claim.running is not None else ():
        if of == podset:
            stays[name] = stays.get(name, 0) - count
    return stays


def _was_there(claim: PlacedGang, node: str, count: int) -> bool:
    """Whether a repaired gang keeps all of these pods on the node."""
    return sum(_stays(claim, p.name).get(node, 0) for p in claim.workload.podsets) >= count


# ---- Vendors of GPUs

_GPUS: Final = "gpu."  # the drivers of each vendor's GPUs have names that begin so


def check_vendors(index: PlanIndex, selects: Selects) -> Iterator[PlanViolation]:
    """Each claim: no option of a request selects GPUs of two drivers on the nodes of all pods together.

    A gang asks for several vendors by several requests or alternatives. Access for administration takes no device.
    """
    for claim in index.claims:
        for option, drivers in _drivers(index, claim, selects).items():
            if len(drivers) > 1:
                text = f"a request for DeviceClass {option.device_class} can get GPUs of {' and '.join(sorted(drivers))}"
                yield PlanViolation(PlanRule.VENDORS, claim.workload.uid, text)


def _drivers(index: PlanIndex, claim: PlacedGang, selects: Selects) -> dict[DeviceOption, set[str]]:
    """Option of a request to the drivers of the GPUs that it selects on the nodes of its podsets."""
    inventory = index.snapshot.devices.nodes
    found: dict[DeviceOption, set[str]] = {}
    for podset, placed in claim.parts():
        claims = podset.shape.devices.claims if podset.shape.devices is not None else ()
        requests = [request for each in claims for request in each.requests]
        options = dict.fromkeys(o for r in requests for o in r.options if not o.admin)
        for name, _ in placed.nodes if options else ():
            devices = inventory.get(name, NodeDevices())
            for option in options:
                found.setdefault(option, set()).update(_of_node(option, devices, selects))
    return found


def _of_node(option: DeviceOption, devices: NodeDevices, selects: Selects) -> Iterator[str]:
    try:
        chosen = selects(option, devices)
    except QueuectlError:
        return  # the node cannot serve it
    for at in chosen:
        driver = devices.devices[at].kind.driver
        if driver.startswith(_GPUS):
            yield driver
