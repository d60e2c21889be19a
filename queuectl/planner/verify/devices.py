"""The devices of each node that the plan adds pods to are enough for all pods there; GPUs are shared, and of one vendor, as the gang states.

All orders of the pods and all choices of devices count. Device rows are not read. Pods are allocated one after the other, as kube-scheduler does it, from all states that the pods before
them can leave. Where these are too many, sampled orders and choices are tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil
from random import Random
from typing import Final, TypeAlias

from queuectl.domain.devices import (
    AllocatedDevice,
    CapacityPolicy,
    ClaimSpec,
    Device,
    DeviceConstraint,
    DeviceEffect,
    DeviceId,
    DeviceOption,
    DeviceRequest,
    NodeDevices,
)
from queuectl.domain.errors import QueuectlError
from queuectl.domain.fleet import Node
from queuectl.domain.gpus import SharedGpus
from queuectl.domain.workload import Placement, PodSet, Workload
from queuectl.planner.verify.plan_index import PlacedGang, PlanIndex, PlanRule, PlanViolation

# ---- Conditions of one device

ConstraintValues: TypeAlias = tuple[tuple[object, ...], ...]
"""Per constraint of a claim, the values of its devices."""


def values_with(
    claim: ClaimSpec, request: str, option: str, seen_values: ConstraintValues, device: Device
) -> ConstraintValues | None:
    """The values of constraints with one device more; None where one of them forbids it."""
    after = []
    for constraint, known in zip(claim.constraints, seen_values, strict=True):
        if constraint.requests and not {request, option} & set(constraint.requests):
            after.append(known)
            continue
        value = _value(constraint, device)
        if value is None or (known and (value in known) is constraint.distinct):
            return None
        after.append((*known, value))
    return tuple(after)


def _value(constraint: DeviceConstraint, device: Device) -> object:
    value = dict(device.kind.attributes).get(constraint.attribute)
    return None if value is None or isinstance(value, tuple) else (type(value).__name__, value)


def tolerates(option: DeviceOption, device: Device) -> bool:
    """Whether a request can use the device in spite of its taints."""
    return all(
        taint.effect is DeviceEffect.NONE or any(t.tolerates(taint) for t in option.tolerations)
        for taint in device.kind.taints
    )


def keeps(option: DeviceOption, device: Device) -> bool:
    """Whether a pod keeps the device: each ``NoExecute`` taint has a toleration of this effect without a limit of time."""
    for taint in device.kind.taints:
        if taint.effect is DeviceEffect.NO_EXECUTE and not any(
            t.effect is DeviceEffect.NO_EXECUTE and t.seconds is None and t.tolerates(taint)
            for t in option.tolerations
        ):
            return False
    return True


def amount_consumed(
    capacity: Fraction, requested: Fraction | None, policy: CapacityPolicy
) -> Fraction | None:
    """The amount that is consumed of one capacity; None if the policy forbids it."""
    if requested is None:
        amount = capacity if policy.default is None else policy.default
        return amount if amount <= capacity else None
    if policy.valid_values:
        larger = [each for each in policy.valid_values if each >= requested]
        return larger[0] if larger and larger[0] <= capacity else None
    amount = requested
    if policy.least is not None:
        steps = (
            ceil((ceil(requested) - ceil(policy.least)) / ceil(policy.step)) if policy.step else 0
        )
        amount = policy.least
        if requested > policy.least:
            amount = policy.least + steps * ceil(policy.step) if policy.step else requested
    if amount > capacity or (policy.most is not None and amount > policy.most):
        return None
    return amount


# ---- Allocations of the claims of one pod
#
# Devices that are alike for all claims are one kind of device, of which a number is in use.

Selects: TypeAlias = Callable[[DeviceOption, NodeDevices], Sequence[int]]
Amounts: TypeAlias = tuple[Fraction, ...]
Used: TypeAlias = tuple[Amounts | None, ...]
"""Per device, what is consumed of it; None = it is free. Nothing is consumed of a device that is not shared."""

MOST_STEPS: Final = 20_000
_RESULTS: Final = 32  # devices that the status of a claim can list


class TooMany(Exception):
    """The search has taken too many steps."""


class NodeSelectors:
    """The devices of a node. ``free``: the state in which only other pods hold devices."""

    def __init__(
        self, devices: NodeDevices, held: Sequence[AllocatedDevice], selects: Selects
    ) -> None:
        self._devices = devices
        self._selects = selects
        self._selected: dict[DeviceOption, tuple[int, ...]] = {}
        self._known: dict[tuple[Used, tuple[ClaimSpec, ...]], set[Used]] = {}
        self._steps = MOST_STEPS
        self._alike: list[list[int]] = []
        used: list[Amounts | None] = [None] * len(devices.devices)
        for at, device in enumerate(devices.devices):
            for one in held:
                if one.id == device.id and not one.admin:
                    share = dict(one.share)
                    before = used[at] or (Fraction(0),) * len(device.kind.capacity)
                    used[at] = tuple(
                        b + share.get(name, 0)
                        for b, (name, _) in zip(before, device.kind.capacity, strict=True)
                    )
        self.free: Used = tuple(used)

    def selected(self, option: DeviceOption) -> tuple[int, ...]:
        """The devices that an option selects."""
        if option not in self._selected:
            try:
                self._selected[option] = tuple(self._selects(option, self._devices))
            except QueuectlError:
                self._selected[option] = ()  # the node cannot serve it
        return self._selected[option]

    def passing(self, option: DeviceOption) -> Iterator[DeviceId]:
        """The devices that the option can take, but that the pod can lose later because of a taint."""
        for at in self.selected(option) if option.tolerations else ():
            device = self._devices.devices[at]
            if not keeps(option, device) and self._take(self.free, at, option) is not None:
                yield device.id

    def states_after(self, state: Used, pod: tuple[ClaimSpec, ...]) -> set[Used]:
        """All states that the pod can leave; empty if it cannot be allocated.

        Raises:
            TooMany: there are too many.
        """
        key = (state, pod)
        if key not in self._known:
            found = self._claims(state, pod, 0)
            self._known[key] = {self._sorted(one) for one in found}
        return self._known[key]

    def any_result(self, state: Used, pod: tuple[ClaimSpec, ...], random: Random) -> Used | None:
        """One state that the pod can leave, with devices tried in random order."""
        order = list(range(len(state)))
        random.shuffle(order)
        self._steps = MOST_STEPS
        try:
            return next(self._claims(state, pod, 0, order), None)
        except TooMany:
            return state

    def _claims(
        self, state: Used, pod: tuple[ClaimSpec, ...], at: int, order: list[int] | None = None
    ) -> Iterator[Used]:
        if at == len(pod):
            yield state
            return
        if sum(min(map(self._number, request.options)) for request in pod[at].requests) > _RESULTS:
            return
        values: ConstraintValues = ((),) * len(pod[at].constraints)
        for after in self._requests(state, pod[at], 0, values, order):
            yield from self._claims(after, pod, at + 1, order)

    def _requests(
        self,
        state: Used,
        claim: ClaimSpec,
        at: int,
        seen_values: ConstraintValues,
        order: list[int] | None,
    ) -> Iterator[Used]:
        if at == len(claim.requests):
            yield state
            return
        request = claim.requests[at]
        for number, option in enumerate(request.options):
            name = f"{request.name}/{request.subrequests[number]}" if request.subrequests else ""
            found = False
            for after, seen in self._option(
                state, claim, request, name, option, seen_values, order
            ):
                for result in self._requests(after, claim, at + 1, seen, order):
                    found = True
                    yield result
            if found:
                return

    def _number(self, option: DeviceOption) -> int:
        """The devices that an option gets on an empty node."""
        if option.count is not None:
            return option.count
        return sum(self._amounts(at, option) is not None for at in self.selected(option))

    def _option(
        self,
        state: Used,
        claim: ClaimSpec,
        request: DeviceRequest,
        name: str,
        option: DeviceOption,
        seen_values: ConstraintValues,
        order: list[int] | None,
    ) -> Iterator[tuple[Used, ConstraintValues]]:
        """The states after a request by one of its options."""
        if option.admin:
            yield state, seen_values
            return
        selected = [at for at in self.selected(option) if self._amounts(at, option) is not None]
        number = len(selected) if option.count is None else option.count
        candidates = [at for at in order if at in selected] if order is not None else selected

        def further(
            state: Used, seen_values: ConstraintValues, first: int, left: int
        ) -> Iterator[tuple[Used, ConstraintValues]]:
            if not left:
                yield state, seen_values
                return
            for i in range(first, len(candidates) - left + 1):
                self._steps -= 1
                if self._steps < 0:
                    raise TooMany
                after = self._take(state, candidates[i], option)
                seen = values_with(
                    claim, request.name, name, seen_values, self._devices.devices[candidates[i]]
                )
                if after is not None and seen is not None:
                    yield from further(after, seen, i + 1, left - 1)

        if number:
            yield from further(state, seen_values, 0, number)

    def _take(self, state: Used, at: int, option: DeviceOption) -> Used | None:
        device, used, amounts = self._devices.devices[at], state[at], self._amounts(at, option)
        shared = device.kind.shared
        if amounts is None or (used is not None and not shared) or not tolerates(option, device):
            return None
        if used is None and not self._counters(state, device):
            return None
        total = amounts
        if used is not None:
            total = tuple(a + b for a, b in zip(amounts, used, strict=True))
        if any(a > value for a, (_, value) in zip(total, device.kind.capacity, strict=True)):
            return None
        return (*state[:at], total if shared else (), *state[at + 1 :])

    def _counters(self, state: Used, device: Device) -> bool:
        """Whether the counters of its pool are enough for one device more."""
        pool = (device.id.driver, device.id.pool)
        left = {key: amount for key, amount in self._devices.counters if key[:2] == pool}
        used = [
            d
            for d, amounts in zip(self._devices.devices, state, strict=True)
            if amounts is not None
        ]
        for one in (*used, device) if device.consumes else ():
            if (one.id.driver, one.id.pool) == pool:
                for (counter_set, counter), amount in one.consumes:
                    left[*pool, counter_set, counter] -= amount
        return all(amount >= 0 for amount in left.values())

    def _amounts(self, at: int, option: DeviceOption) -> Amounts | None:
        """The amounts that an allocation consumes; None where the device does not have them."""
        device = self._devices.devices[at]
        asked, policies = dict(option.capacity), dict(device.kind.policies)
        if not asked.keys() <= dict(device.kind.capacity).keys():
            return None
        amounts = tuple(
            amount_consumed(value, asked.get(name), policies.get(name) or CapacityPolicy())
            for name, value in device.kind.capacity
        )
        return tuple(a for a in amounts if a is not None) if None not in amounts else None

    def distinguish(self, pods: Iterable[tuple[ClaimSpec, ...]]) -> object:
        """Find the devices that are alike for these pods. Nodes with equal results are equal for them."""
        claims = [claim for pod in pods for claim in pod]
        options = [o for claim in claims for request in claim.requests for o in request.options]
        attributes = sorted({c.attribute for claim in claims for c in claim.constraints})
        pools: dict[tuple[str, str], int] = {}
        numbers: dict[tuple[str, object], int] = {}
        keys: list[object] = []
        for at, device in enumerate(self._devices.devices):
            own = dict(device.kind.attributes)
            kind = (
                device.kind.capacity,
                device.kind.taints,
                device.kind.shared,
                device.kind.policies,
            )
            seen = (repr(own.get(name)) if name in own else None for name in attributes)
            keys.append(
                (
                    tuple(at in self.selected(option) for option in options),
                    tuple(
                        value and numbers.setdefault((name, value), len(numbers))
                        for name, value in zip(attributes, seen, strict=True)
                    ),
                    kind,
                    pools.setdefault((device.id.driver, device.id.pool), len(pools)),
                    device.consumes,
                    self.free[at],
                )
            )
        alike: dict[object, list[int]] = {}
        for at, key in enumerate(keys):
            alike.setdefault(key, []).append(at)
        self._alike = list(alike.values())
        counters = (
            (pools[key[:2]], *key[2:], n) for key, n in self._devices.counters if key[:2] in pools
        )
        return (tuple(keys), tuple(counters))

    def _sorted(self, state: Used) -> Used:
        """The state with devices that are alike in a fixed order."""
        fixed = list(state)
        for places in self._alike:
            amounts = sorted((state[at] for at in places), key=lambda one: (one is None, one or ()))
            for at, amount in zip(places, amounts, strict=True):
                fixed[at] = amount
        return tuple(fixed)


# ---- Devices of each node

Pod: TypeAlias = tuple[ClaimSpec, ...]
Pods: TypeAlias = Counter[Pod]

MOST_STATES: Final = 2_000
SAMPLES: Final = 20


def check_devices(index: PlanIndex, selects: Selects) -> Iterator[PlanViolation]:
    """Each node that gains pods with devices, now and after the victims have left."""
    yield from _for_long(index, selects)
    inventory = index.snapshot.devices
    verdicts: dict[object, bool] = {}
    for name, views in sorted(_pods(index).items()):
        held = index.snapshot.other_devices.get(name, ())
        node = NodeSelectors(inventory.nodes.get(name, NodeDevices()), held, selects)
        for pods, when in zip(views, ("now", "after the victims left"), strict=True):
            served = Counter[Pod]()
            for pod, number in pods.items():
                served[_by_claims(pod, node, index, name)] += number
            served.pop((), None)
            alike = (node.distinguish(sorted(served, key=repr)), frozenset(served.items()))
            if alike not in verdicts:
                verdicts[alike] = _holds(node, served)
            if not verdicts[alike]:
                total = sum(served.values())
                text = f"its devices are not sure for all of {total} pods with claims {when}"
                yield PlanViolation(PlanRule.DEVICES, name, text)


def _for_long(index: PlanIndex, selects: Selects) -> Iterator[PlanViolation]:
    """No pod starts where it can get a device from which a taint evicts it later."""
    nodes = index.snapshot.devices.nodes
    for claim in (each for each in index.claims if each.now):
        before = _by_node(claim.workload, claim.running.placement) if claim.running else {}
        for name, pods in _by_node(claim.workload, claim.placement).items():
            held = index.snapshot.other_devices.get(name, ())
            node = NodeSelectors(nodes.get(name, NodeDevices()), held, selects)
            added = pods - before.get(name, Counter())
            for option in dict.fromkeys(o for pod in added for o in _options(pod)):
                for device in node.passing(option):
                    text = f"a pod can get device {device}, which it tolerates for a limited time"
                    yield PlanViolation(PlanRule.DEVICES, name, text)


def _options(pod: Pod) -> Iterator[DeviceOption]:
    for claim in pod:
        for request in claim.requests:
            yield from (option for option in request.options if not option.admin)


def _pods(index: PlanIndex) -> dict[str, tuple[Pods, Pods]]:
    """Node to its pods with devices, now and after, for the nodes that gain some."""
    repaired = {claim.workload.uid for claim in index.claims if claim.running is not None}
    views: dict[str, tuple[Pods, Pods]] = {}
    for claim in index.claims:
        for name in _by_node(claim.workload, claim.placement):
            views.setdefault(name, (Counter(), Counter()))
    for gang in index.snapshot.admitted if views else ():
        uid = gang.workload.uid
        for name, pods in _by_node(gang.workload, gang.placement).items():
            if name in views and uid not in repaired:
                views[name][0].update(pods)
                if uid not in index.gone_after:
                    views[name][1].update(pods)
    for claim in index.claims:
        before = _by_node(claim.workload, claim.running.placement) if claim.running else {}
        behind = _by_node(claim.workload, claim.placement)
        for name in before.keys() | behind.keys() if views else ():
            stays, comes = before.get(name, Counter()), behind.get(name, Counter())
            if name in views:
                views[name][0].update(stays | comes if claim.now else stays)
                views[name][1].update(comes)
    return views


def _by_node(workload: Workload, placement: Placement) -> dict[str, Pods]:
    found: dict[str, Pods] = {}
    for podset in workload.podsets:
        placed, devices = placement.of(podset.name), podset.shape.devices
        if placed is not None and devices is not None and devices.claims:
            for name, count in placed.nodes:
                found.setdefault(name, Counter())[devices.claims] += count
    return found


def _by_claims(pod: Pod, node: NodeSelectors, index: PlanIndex, name: str) -> Pod:
    """The claims of a pod for devices, without those that the node's device plugin serves."""
    on = index.nodes.get(name)
    return tuple(
        claim
        for claim in pod
        if claim.requests and (on is None or not _by_plugin(claim.requests[0], node, on))
    )


def _by_plugin(request: DeviceRequest, node: NodeSelectors, on: Node) -> bool:
    """Whether a request stands for an extended resource of which the node has more than devices.

    Such a request has the resource as its name, which has a slash; names in claims of users have none.
    """
    return "/" in request.name and on.allocatable[request.name] > len(
        node.selected(request.options[0])
    )


def _holds(node: NodeSelectors, pods: Pods) -> bool:
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
                        results = node.states_after(state, kind)
                        if not results:
                            return False
                        following.setdefault(rest, set()).update(results)
            level = following
            if sum(map(len, level.values())) > MOST_STATES:
                return _samples_hold(node, pods)
    except TooMany:
        return _samples_hold(node, pods)
    return True


def _samples_hold(node: NodeSelectors, pods: Pods) -> bool:
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


# ---- Shared GPUs


def check_shared_gpus(index: PlanIndex) -> Iterator[PlanViolation]:
    """Every claim; pods that a repaired gang keeps can stay where they are."""
    for claim in index.claims:
        alone: dict[tuple[str, str], int] = {}
        for podset, placed in claim.parts():
            new = {name: count for name, count in placed.by_node.items() if count}
            for name, count in claim.kept_slots(podset.name).items():
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
    queue = index.queue_of(claim.workload)
    of_queue = queue.shared_gpus if queue is not None else SharedGpus.ONE_PER_NODE
    return of_queue.unless(podset.shared_gpus)


def _was_there(claim: PlacedGang, node: str, count: int) -> bool:
    """Whether a repaired gang keeps all of these pods on the node."""
    return sum(claim.kept_slots(p.name).get(node, 0) for p in claim.workload.podsets) >= count


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


CHECKS: Final = (check_shared_gpus,)
"""The checks of this module that need only the plan."""
