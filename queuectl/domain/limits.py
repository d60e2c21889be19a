"""Limits of a namespace: the defaults and bounds of its LimitRanges, and its ResourceQuotas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final, TypeAlias

from queuectl.domain.devices import (
    IMPLICIT_RESOURCE,
    MOST_RESULTS,
    ClaimSpec,
    DeviceClass,
    DeviceOption,
    stands_for_claims,
)
from queuectl.domain.quantity import CPU, MEMORY, format_quantity
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.request_rules import Amounts, ContainerNeeds, PodNeeds, together
from queuectl.domain.workload import PodSet

# ---- LimitRanges
#
# The API server applies them when a pod is created, so the template of a job does not contain the result. A gang whose pods would be
# refused must not be resumed: it would hold its nodes without running.


class BoundKind(StrEnum):
    """The type of objects of a bound, with the name in a LimitRange."""

    MIN = "min"
    MAX = "max"
    RATIO = "maxLimitRequestRatio"


@dataclass(frozen=True, slots=True)
class LimitRangeBound:
    """One line of a LimitRange.

    Attributes:
        kind: min and max in the resource's unit; of a ratio, limit over request.
        whole: it bounds the containers of a pod together, not each of them.
    """

    kind: BoundKind
    resource: str
    amount: Fraction
    whole: bool = False


@dataclass(frozen=True, slots=True)
class LimitRange:
    """``requests``, ``limits``: given to each container that leaves them out; ``bounds``: in the order of the document."""

    name: str
    requests: Amounts = ()
    limits: Amounts = ()
    bounds: tuple[LimitRangeBound, ...] = ()


Ranges: TypeAlias = Sequence[LimitRange]
"""The LimitRanges of one namespace, in the order of their names."""
_Found: TypeAlias = tuple[
    str, str, Mapping[str, str]
]  # LimitRange that refuses, reason, and details


def refusal(podsets: Iterable[PodSet], namespace: str, ranges: Ranges) -> Reason | None:
    """The first bound of a LimitRange that pods of a podset violate, or None."""
    for podset in podsets if ranges else ():
        needs = filled(podset.needs, ranges) if podset.needs is not None else PodNeeds()
        for who, why, details in (*_bounds_broken(needs, ranges), *_limits_broken(needs)):
            text = f"{who} of namespace {namespace}: podset {podset.name}: {why}"
            where = {"namespace": namespace, "podSet": podset.name}
            return Reason(Code.LIMIT_RANGE_VIOLATED, text, {**where, **details})
    return None


def _bounds_broken(needs: PodNeeds, ranges: Ranges) -> Iterator[_Found]:
    for limit_range in ranges:
        for bound in limit_range.bounds:
            details = {
                "limitRange": limit_range.name,
                "type": "Pod" if bound.whole else "Container",
                "field": str(bound.kind),
                "resource": bound.resource,
            }
            for why in _broken(needs, bound):
                yield f"LimitRange {limit_range.name}", why, details


def _limits_broken(needs: PodNeeds) -> Iterator[_Found]:
    """Requests above a limit that is filled in."""
    for place, one in _each(needs):
        limits = dict(one.limits)
        for name, amount in one.requests:
            most = limits.get(name, amount)
            if amount > most:
                why = f"{place}: the request of {_quantity(name, amount)} {name} is above the default limit"
                why += f" of {_quantity(name, most)}"
                yield "LimitRanges", why, {"field": "default", "resource": name}


def _each(needs: PodNeeds) -> Iterator[tuple[str, ContainerNeeds]]:
    """Its containers, with their places in its spec."""
    for place, containers in (("containers", needs.containers), ("initContainers", needs.init)):
        for i, one in enumerate(containers):
            yield f"{place}[{i}]", one


def filled(needs: PodNeeds, ranges: Ranges) -> PodNeeds:
    """The needs with the defaults of LimitRanges. For each resource, the first LimitRange by name with a default counts."""
    if not any(one.requests or one.limits for one in ranges):
        return needs

    def full(container: ContainerNeeds) -> ContainerNeeds:
        requests, limits = container.effective_requests, dict(container.limits)
        for one in ranges:
            limits = {**dict(one.limits), **limits}
            requests = {**dict(one.requests), **requests}
        return replace(container, requests=tuple(requests.items()), limits=tuple(limits.items()))

    return replace(
        needs,
        containers=tuple(map(full, needs.containers)),
        init=tuple(map(full, needs.init)),
    )


def _broken(needs: PodNeeds, bound: LimitRangeBound) -> Iterator[str]:
    """Violations of a bound, by container or for the whole pod."""
    if bound.whole:
        requests = together(needs, lambda container: container.effective_requests) | dict(
            needs.requests
        )
        limits = together(needs, lambda container: dict(container.limits)) | dict(needs.limits)
        yield from _violations(bound, "all containers together", requests, limits)
        return
    for place, one in _each(needs):
        yield from _violations(bound, place, one.effective_requests, dict(one.limits))


def _violations(
    bound: LimitRangeBound, who: str, requests: Mapping[str, int], limits: Mapping[str, int]
) -> Iterator[str]:
    name = bound.resource
    requested, most = requests.get(name), limits.get(name)
    field = f"{bound.kind} of {name}"
    if bound.kind is BoundKind.RATIO:
        if not requested or not most:
            yield f"{who} must set a request and a limit for {name}, because {bound.kind} is set"
        elif Fraction(most, requested) > bound.amount:
            ratio = f"limit {_quantity(name, most)} over request {_quantity(name, requested)}"
            yield f"{who}: {ratio} is more than the {field} ({float(bound.amount):g})"
        return
    needed = requested if bound.kind is BoundKind.MIN else most
    if needed is None:
        word = _REQUIRED_FIELD[bound.kind]
        yield f"{who} must set a {word} for {name}: the {field} is {_quantity(name, bound.amount)}"
        return
    for word, amount in (("request", requested), ("limit", most)):
        if amount is not None and _beyond(bound, amount):
            than = "less" if bound.kind is BoundKind.MIN else "more"
            problem = f"the {word} of {_quantity(name, amount)} is {than} than the {field}"
            yield f"{who}: {problem} ({_quantity(name, bound.amount)})"


def _beyond(bound: LimitRangeBound, amount: int) -> bool:
    return amount < bound.amount if bound.kind is BoundKind.MIN else amount > bound.amount


def _quantity(resource: str, amount: int | Fraction) -> str:
    return format_quantity(resource, int(amount))


_REQUIRED_FIELD: Final = {BoundKind.MIN: "request", BoundKind.MAX: "limit"}


# ---- ResourceQuotas
#
# A gang whose pods would exceed a ResourceQuota must not be resumed: its controller could not create all pods, and the gang would hold
# its nodes without running.

Coming: TypeAlias = tuple[PodSet, int]  # number of pods of a podset that are still to be created


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """One resource of a ResourceQuota; amounts as in :mod:`queuectl.domain.quantity`.

    Attributes:
        key: its key in the quota, for example ``requests.nvidia.com/gpu``.
        resource: the resource of a pod that counts against it, for example ``nvidia.com/gpu``.
        hard: the limit.
        used: the use that the API server counts.
        of_limits: whether limits of the pods count, not requests.
        classes: the DeviceClasses whose devices in claims count.
    """

    key: str
    resource: str
    hard: int
    used: int
    of_limits: bool = False
    classes: tuple[str, ...] = ()

    def per_pod(self, podset: PodSet) -> int:
        """The amount that one pod counts against it, with the claims that are made for the pod."""
        if stands_for_claims(podset.name):
            return 0  # they exist, so the use has them
        if self.of_limits:
            return podset.limits[self.resource]
        shape = podset.shape
        own = shape.requests[self.resource] - shape.charged[self.resource]
        return own + self._of_claims(podset)

    def _of_claims(self, podset: PodSet) -> int:
        if self.key == CLAIMS:
            return sum(one.template is not None for one in podset.claims)
        claims = podset.shape.devices.claims if podset.shape.devices is not None else ()
        # If several classes have one extended resource, Kubernetes counts the devices of any one of them.
        return sum(max((_devices(one, c) for c in self.classes), default=0) for one in claims)


REQUESTS: Final = "requests."
CLAIMS: Final = "count/resourceclaims.resource.k8s.io"
DEVICES_OF_CLASS: Final = ".deviceclass.resource.k8s.io/devices"
"""Keys of a ResourceQuota that count claims, and their devices of the class before this ending."""


def counting_classes(key: str, classes: Mapping[str, DeviceClass]) -> tuple[str, ...]:
    """The DeviceClasses whose devices in claims count against a resource of a quota."""
    if key.endswith(DEVICES_OF_CLASS):
        return (key.removesuffix(DEVICES_OF_CLASS),)
    if not key.startswith(REQUESTS):
        return ()
    resource = key.removeprefix(REQUESTS)
    return tuple(
        name
        for name, one in sorted(classes.items())
        if resource in (one.extended_resource, f"{IMPLICIT_RESOURCE}{name}")
    )


def _devices(claim: ClaimSpec, device_class: str) -> int:
    """The largest number of devices of a class. The name of a request with a slash is an extended resource, for which no claim is made with the pod."""
    return sum(
        max((_count(o) for o in request.options if o.device_class == device_class), default=0)
        for request in claim.requests
        if "/" not in request.name
    )


def _count(option: DeviceOption) -> int:
    # Kubernetes counts the most that a claim can have for a request for all devices.
    return MOST_RESULTS if option.count is None else option.count


@dataclass(frozen=True, slots=True)
class Allowance:
    """One ResourceQuota of a namespace.

    Attributes:
        name: of the quota.
        limits: its resources, in the order of their keys.
        best_effort: True = only pods without CPU and memory requests count, False = only the others, None = all.
        terminating: True = only pods with a deadline count, False = only the others, None = all.
        promised: for each limit, the amount for pods of started gangs that do not exist yet; empty = none.
        scoped: it has scopes, so no claim counts.
    """

    name: str
    limits: tuple[QuotaLimit, ...]
    best_effort: bool | None = None
    terminating: bool | None = None
    promised: tuple[int, ...] = ()
    scoped: bool = False

    def covers(self, podset: PodSet) -> bool:
        """Whether the pods of a podset count."""
        best_effort, deadline = is_best_effort(podset), podset.has_deadline
        return self.best_effort in (None, best_effort) and self.terminating in (None, deadline)


def is_best_effort(podset: PodSet) -> bool:
    """Kubernetes' quality of service class: no container has a request or a limit of CPU or memory. The overhead does not count."""
    return not any(
        amounts[name] > podset.overhead[name]
        for amounts in (podset.shape.requests, podset.limits)
        for name in (CPU, MEMORY)
    )


def with_classes(quota: Allowance, classes: Mapping[str, DeviceClass]) -> Allowance:
    """The quota with the DeviceClasses whose devices in claims count."""
    if quota.scoped:
        return quota
    limits = tuple(replace(one, classes=counting_classes(one.key, classes)) for one in quota.limits)
    return replace(quota, limits=limits) if limits != quota.limits else quota


def with_promises(quota: Allowance, coming: Iterable[Coming]) -> Allowance:
    """The quota with these future pods."""
    counted = [(podset, count) for podset, count in coming if quota.covers(podset)]
    if not counted:
        return quota
    promised = tuple(
        sum(count * limit.per_pod(podset) for podset, count in counted) for limit in quota.limits
    )
    return replace(quota, promised=promised)
