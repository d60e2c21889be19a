"""The devices of each node that the plan adds pods to are enough for all pods there, in each order and with each choice.

Device rows are not read. Pods are allocated one after the other, as kube-scheduler does it, from all states that the pods before
them can leave. Where these are too many, sampled orders and choices are tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Final, TypeAlias

from queuectl.domain.devices import ClaimSpec, DeviceOption, DeviceRequest, NodeDevices
from queuectl.domain.fleet import Node as FleetNode
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.verify.allocations import Node, Selects, TooMany, Used
from queuectl.planner.verify.plan_index import PlanIndex, Rule, Violation

Pod: TypeAlias = tuple[ClaimSpec, ...]
Pods: TypeAlias = Counter[Pod]

MOST_STATES: Final = 2_000
SAMPLES: Final = 20


def check_devices(index: PlanIndex, selects: Selects) -> Iterator[Violation]:
    """Each node that gains pods with devices, now and after the victims have left."""
    yield from _for_long(index, selects)
    inventory = index.snapshot.devices
    known: dict[object, bool] = {}
    for name, views in sorted(_pods(index).items()):
        held = index.snapshot.other_devices.get(name, ())
        node = Node(inventory.nodes.get(name, NodeDevices()), held, selects)
        for pods, when in zip(views, ("now", "after the victims left"), strict=True):
            served = Counter[Pod]()
            for pod, number in pods.items():
                served[_by_claims(pod, node, index, name)] += number
            served.pop((), None)
            alike = (node.distinguish(sorted(served, key=repr)), frozenset(served.items()))
            if alike not in known:
                known[alike] = _holds(node, served)
            if not known[alike]:
                total = sum(served.values())
                text = f"its devices are not sure for all of {total} pods with claims {when}"
                yield Violation(Rule.DEVICES, name, text)


def _for_long(index: PlanIndex, selects: Selects) -> Iterator[Violation]:
    """No pod starts where it can get a device from which a taint evicts it later."""
    nodes = index.snapshot.devices.nodes
    for claim in (each for each in index.claims if each.now):
        before = _by_node(claim.workload, claim.running.placement) if claim.running else {}
        for name, pods in _by_node(claim.workload, claim.placement).items():
            held = index.snapshot.other_devices.get(name, ())
            node = Node(nodes.get(name, NodeDevices()), held, selects)
            added = pods - before.get(name, Counter())
            for option in dict.fromkeys(o for pod in added for o in _options(pod)):
                for device in node.passing(option):
                    text = f"a pod can get device {device}, which it tolerates for a limited time"
                    yield Violation(Rule.DEVICES, name, text)


def _options(pod: Pod) -> Iterator[DeviceOption]:
    for claim in pod:
        for request in claim.requests:
            yield from (option for option in request.options if not option.admin)


def _pods(index: PlanIndex) -> dict[str, tuple[Pods, Pods]]:
    """Node to its pods with devices, now and after, for the nodes that gain some."""
    repaired = {claim.workload.uid for claim in index.claims if claim.running is not None}
    found: dict[str, tuple[Pods, Pods]] = {}
    for claim in index.claims:
        for name in _by_node(claim.workload, claim.placement):
            found.setdefault(name, (Counter(), Counter()))
    for gang in index.snapshot.admitted if found else ():
        uid = gang.workload.uid
        for name, pods in _by_node(gang.workload, gang.placement).items():
            if name in found and uid not in repaired:
                found[name][0].update(pods)
                if uid not in index.gone_after:
                    found[name][1].update(pods)
    for claim in index.claims:
        before = _by_node(claim.workload, claim.running.placement) if claim.running else {}
        behind = _by_node(claim.workload, claim.placement)
        for name in before.keys() | behind.keys() if found else ():
            stays, comes = before.get(name, Counter()), behind.get(name, Counter())
            if name in found:
                found[name][0].update(stays | comes if claim.now else stays)
                found[name][1].update(comes)
    return found


def _by_node(workload: Workload, placement: Placement) -> dict[str, Pods]:
    found: dict[str, Pods] = {}
    for podset in workload.podsets:
        placed, devices = placement.of(podset.name), podset.shape.devices
        if placed is not None and devices is not None and devices.claims:
            for name, count in placed.nodes:
                found.setdefault(name, Counter())[devices.claims] += count
    return found


def _by_claims(pod: Pod, node: Node, index: PlanIndex, name: str) -> Pod:
    """The claims of a pod for devices, without those that the node's device plugin serves."""
    on = index.nodes.get(name)
    return tuple(
        claim
        for claim in pod
        if claim.requests and (on is None or not _by_plugin(claim.requests[0], node, on))
    )


def _by_plugin(request: DeviceRequest, node: Node, on: FleetNode) -> bool:
    """Whether a request stands for an extended resource of which the node has more than devices.

    Such a request has the resource as its name, which has a slash; names in claims of users have none.
    """
    return "/" in request.name and on.allocatable[request.name] > len(
        node.selected(request.options[0])
    )


def _holds(node: Node, pods: Pods) -> bool:
    """Whether each order of the pods and each choice of devices leaves devices for all of them."""
    kinds = sorted(pods, key=repr)
    start = tuple(pods[kind] for kind in kinds)
    level: dict[tuple[int, ...], set[Used]] = {start: {node.free}}
    try:
        for _ in range(sum(start)):
            following: dict[tuple[int, ...], set[Used]] = {}
            for left, states in level.items():
                for i, kind in enumerate(kinds):
                    rest = (*left[:i], left[i] - 1, *left[i + 1 :])
                    for state in states if left[i] else ():
                        results = node.results(state, kind)
                        if not results:
                            return False
                        following.setdefault(rest, set()).update(results)
            level = following
            if sum(map(len, level.values())) > MOST_STATES:
                return _samples_hold(node, pods)
    except TooMany:
        return _samples_hold(node, pods)
    return True


def _samples_hold(node: Node, pods: Pods) -> bool:
    """Some orders and choices, the same ones in each run."""
    random = Random(0)  # noqa: S311 - no secret depends on it
    for _ in range(SAMPLES):
        state = node.free
        order = sorted(pods.elements(), key=repr)
        random.shuffle(order)
        for pod in order:
            after = node.any_result(state, pod, random)
            if after is None:
                return False
            state = after
    return True
