"""The requests of one pod. :mod:`queuectl.domain.request_rules` adds them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, Protocol

from queuectl.domain.quantity import (
    NOTHING,
    QuantityError,
    Resources,
    exact_quantity,
    is_quantity,
    parse_quantity,
)
from queuectl.domain.request_rules import Amounts, ContainerNeeds, PodNeeds, overcommits, requested
from queuectl.domain.words import shortened
from queuectl.objects.errors import MalformedError, RequestError, under
from queuectl.objects.kubernetes.cached import CachedReader
from queuectl.objects.kubernetes.wire import (
    Container,
    ContainerStatus,
    Needs,
    PodSpec,
    PodStatus,
    Quantity,
)

LARGEST: Final = 2**50
"""The most of a resource with which a pod or a node counts, in the units of :mod:`queuectl.domain.quantity`: more than any machine has.

The API server accepts 2^63 - 1 of each. With this limit, the sums over the pods of a node and over the nodes of a cluster have 64 bits.
"""

_LARGEST_SUM: Final = 2**63 - 1


class PodLike(Protocol):
    """Spec of a live pod or of a template."""

    @property
    def containers(self) -> Sequence[Container] | None: ...
    @property
    def init_containers(self) -> Sequence[Container] | None: ...
    @property
    def overhead(self) -> dict[str, Quantity] | None: ...
    @property
    def resources(self) -> Needs | None: ...


def read_amount(resource: str, text: Quantity, *, round_up: bool) -> int:
    """One quantity, not negative.

    Raises:
        MalformedError: naming the resource and the text; RequestError where it is a quantity, but too large to count.
    """
    amount = _unbounded(resource, text, round_up=round_up)
    if amount > _LARGEST_SUM:
        raise RequestError(f"{resource}: {shortened(repr(text))} is too large")
    return amount


def read_limit(resource: str, text: Quantity, *, round_up: bool) -> int:
    """One quantity of a ResourceQuota, not negative; 2^63 - 1 if it is larger.

    Raises:
        MalformedError: naming the resource and the text.
    """
    return min(_unbounded(resource, text, round_up=round_up), _LARGEST_SUM)


def _unbounded(resource: str, text: Quantity, *, round_up: bool) -> int:
    written = _quantity(resource, text)
    try:
        amount = parse_quantity(resource, written, round_up=round_up)
    except QuantityError as error:
        raise MalformedError(str(error)) from None
    if amount < 0:
        raise MalformedError(f"{resource}: {written!r} is negative")
    return amount


def _counted(resource: str, text: Quantity, *, round_up: bool) -> int:
    return min(_unbounded(resource, text, round_up=round_up), LARGEST)


def read_factor(resource: str, text: Quantity) -> Fraction:
    """One quantity of any sign, in whole units and exact.

    Raises:
        MalformedError: naming the resource and the text.
    """
    return Fraction(exact_quantity(resource, _quantity(resource, text)))


def _quantity(resource: str, text: Quantity) -> str:
    written = str(text)
    if not is_quantity(written):
        raise MalformedError(f"{resource}: {shortened(repr(written))} is not a quantity")
    return written


def read_amounts(amounts: Mapping[str, Quantity] | None) -> Amounts:
    """A resource list of a pod, rounded up, with zeros, up to :data:`LARGEST`.

    Raises:
        MalformedError: naming the resource and the text.
    """
    if not amounts:
        return ()
    return tuple([(name, _counted(name, text, round_up=True)) for name, text in amounts.items()])


def _read_vector(amounts: Mapping[str, Quantity], round_up: bool) -> Resources:
    listed = amounts.items()
    return Resources([(name, _counted(name, text, round_up=round_up)) for name, text in listed])


_vector: Final = CachedReader[Mapping[str, Quantity], Resources](_read_vector)


def read_vector(amounts: Mapping[str, Quantity] | None, *, round_up: bool) -> Resources:
    """A resource list of a pod or a node, up to :data:`LARGEST`; equal lists share one value.

    Raises:
        MalformedError: naming the resource and the text.
    """
    return _vector(amounts or {}, round_up)


def held_requests(spec: PodSpec, status: PodStatus) -> Resources:
    """The requests of a pod, as kube-scheduler counts them while the kubelet resizes the pod in place.

    Each container, and the pod as a whole, counts with the most of the requests in its spec, those that its node has accepted, and those
    in effect. The requests of the spec do not count if they do not fit the node.

    Raises:
        RequestError: naming the field and the value.
    """
    needs, of_spec = read_pod_needs(spec)
    listed = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    statuses = {one.name: one for one in listed if one.resources is not None}
    whole = _resized_as_whole(spec, status)
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    if not whole and all(_as_asked(one, statuses.get(one.name)) for one in containers):
        return of_spec
    fits = not _does_not_fit(status)

    def held(container: ContainerNeeds) -> ContainerNeeds:
        if container.name not in statuses:
            return container
        with under(f"status of container {container.name}"):
            most = _most(container.effective_requests, statuses[container.name], fits=fits)
        return replace(container, requests=tuple(most.items()), limits=())

    running = tuple(map(held, needs.containers))
    init = tuple([held(one) if one.stays else one for one in needs.init])
    needs = replace(needs, containers=running, init=init)
    if whole:
        with under("status"):
            most = _most(dict(needs.requests), status, fits=fits)
        needs = replace(needs, requests=tuple([(name, most[name]) for name, _ in needs.requests]))
    return requested(needs)


def _resized_as_whole(spec: PodSpec, status: PodStatus) -> bool:
    """Whether kube-scheduler counts the status of the pod itself: it has pod-level requests."""
    own = spec.resources.requests if spec.resources is not None else None
    return bool(own) and status.resources is not None


def _as_asked(container: Container, status: ContainerStatus | None) -> bool:
    """Whether a container, like most, is not being resized."""
    given = (container.resources or Needs()).requests or {}
    if status is None:
        return True
    in_effect = status.resources.requests if status.resources is not None else None
    return all(known is None or known == given for known in (status.allocated_resources, in_effect))


def _most(
    of_spec: Mapping[str, int], status: ContainerStatus | PodStatus, *, fits: bool
) -> Resources:
    """The most of the requests in a spec, if they fit its node, those that the node has accepted, and those in effect."""
    in_effect = status.resources.requests if status.resources is not None else None
    with under("allocatedResources"):
        accepted = read_vector(status.allocated_resources, round_up=True)
    with under("resources.requests"):
        held = read_vector(in_effect, round_up=True).at_least(accepted)
    return held.at_least(Resources(of_spec)) if fits else held


def repeated_overhead(spec: PodSpec, status: PodStatus) -> Resources:
    """The overhead that the requests of a pod contain twice.

    The kubelet writes the pod-level requests with the overhead into the status, and kube-scheduler adds the overhead to them.

    Raises:
        RequestError: naming the field and the value.
    """
    if not spec.overhead or not _resized_as_whole(spec, status):
        return NOTHING
    asked = dict(read_needs(spec).requests)
    return read_vector({n: v for n, v in spec.overhead.items() if n in asked}, round_up=True)


def _does_not_fit(status: PodStatus) -> bool:
    pending = (c.reason for c in status.conditions or () if c.type == "PodResizePending")
    return next(pending, None) == "Infeasible"


def read_pod_needs(spec: PodLike) -> tuple[PodNeeds, Resources]:
    """The requests of the containers of one pod, and of the pod with ``pods`` = 1; equal pods share one value.

    Raises:
        RequestError: naming the container's field and the value.
    """
    return _pod_needs(_needs_of(spec))


def read_new_pod_needs(spec: PodLike) -> tuple[PodNeeds, Resources]:
    """The same, for a caller that keeps the values of equal pods itself."""
    return _read_pod_needs(_needs_of(spec))


def read_needs(spec: PodLike) -> PodNeeds:
    """The requests of the containers of one pod; equal pods share one value.

    Raises:
        RequestError: naming the container's field and the value.
    """
    return read_pod_needs(spec)[0]


_Containers = Sequence[Container] | None
_Needs = tuple[_Containers, _Containers, dict[str, Quantity] | None, Needs | None]


def _needs_of(spec: PodLike) -> _Needs:
    return spec.containers, spec.init_containers, spec.overhead, spec.resources


def _read_pod_needs(spec: _Needs) -> tuple[PodNeeds, Resources]:
    given, initial, overhead, of_pod = spec
    containers = tuple(
        _container(container, f"containers[{i}].resources")
        for i, container in enumerate(given or ())
    )
    init = tuple(
        _container(container, f"initContainers[{i}].resources")
        for i, container in enumerate(initial or ())
    )
    own = of_pod or Needs()
    limits = _amounts_at("resources.limits", own.limits)
    requests = _amounts_at("resources.requests", own.requests)
    asked = {name for one in (*containers, *init) for name in one.effective_requests}
    asked |= dict(requests).keys()
    # As in a container, a limit is the request, unless the containers have one.
    requests += tuple((name, value) for name, value in limits if name not in asked)
    needs = PodNeeds(containers, init, requests, limits, _amounts_at("overhead", overhead))
    return needs, requested(needs)


_pod_needs: Final = CachedReader[_Needs, tuple[PodNeeds, Resources]](_read_pod_needs)


def _container(container: Container, path: str) -> ContainerNeeds:
    needs = container.resources or Needs()
    limits = _amounts_at(f"{path}.limits", needs.limits)
    requests = _amounts_at(f"{path}.requests", needs.requests)
    stays = container.restart_policy == "Always"
    named = {**(needs.limits or {}), **(needs.requests or {})}
    fractions = tuple([name for name, text in named.items() if _is_fraction(name, text)])
    return ContainerNeeds(requests, limits, stays, name=container.name, fractions=fractions)


def _is_fraction(resource: str, text: Quantity) -> bool:
    """Whether a resource that only has whole units is requested in parts of one."""
    if overcommits(resource) or str(text).isdecimal():
        return False
    return read_factor(resource, text).denominator != 1


def _amounts_at(path: str, amounts: Mapping[str, Quantity] | None) -> Amounts:
    with under(path):
        return read_amounts(amounts)
