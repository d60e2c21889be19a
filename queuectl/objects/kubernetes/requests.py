"""The requests in the spec of one pod. :mod:`queuectl.domain.needs` adds them up.

In-place resizing is not supported: a pod counts with the requests of its spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, Protocol

from queuectl.domain.needs import Amounts, ContainerNeeds, PodNeeds, requested
from queuectl.domain.quantity import (
    PODS,
    QuantityError,
    Resources,
    exact_quantity,
    format_quantity,
    is_quantity,
    parse_quantity,
)
from queuectl.domain.words import shortened
from queuectl.objects.errors import MalformedError, RequestError, under
from queuectl.objects.kubernetes.wire import Container, Needs, Quantity

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
    """A resource list of a pod, rounded up, with zeros, up to :data:`LARGEST`; equal lists share one value.

    Raises:
        MalformedError: naming the resource and the text.
    """
    return _amounts(tuple(amounts.items())) if amounts else ()


@lru_cache(maxsize=4096)
def _amounts(amounts: tuple[tuple[str, Quantity], ...]) -> Amounts:
    return tuple((name, _counted(name, text, round_up=True)) for name, text in amounts)


@lru_cache(maxsize=4096)
def _vector(amounts: tuple[tuple[str, Quantity], ...], round_up: bool) -> Resources:
    return Resources([(name, _counted(name, text, round_up=round_up)) for name, text in amounts])


def read_vector(amounts: Mapping[str, Quantity] | None, *, round_up: bool) -> Resources:
    """A resource list of a pod or a node, up to :data:`LARGEST`; equal lists share one value.

    Raises:
        MalformedError: naming the resource and the text.
    """
    return _vector(tuple(amounts.items()) if amounts else (), round_up)


@lru_cache(maxsize=4096)
def _plain(requests: tuple[tuple[str, Quantity], ...]) -> Resources:
    """For the most frequent pod: one container and nothing else."""
    return Resources({**_vector(requests, True), PODS: 1})


def pod_requests(spec: PodLike) -> Resources:
    """Effective requests of one pod, ``pods`` = 1 included.

    Raises:
        RequestError: naming the container's field and the value.
    """
    containers = spec.containers or ()
    if len(containers) == 1 and not (spec.init_containers or spec.overhead or spec.resources):
        needs = containers[0].resources
        if needs is None:
            return _plain(())
        if needs.limits is None or needs.limits == needs.requests:
            with under("containers[0].resources"):
                return _plain(tuple((needs.requests or {}).items()))
    return requested(read_needs(spec))


def read_needs(spec: PodLike) -> PodNeeds:
    """The requests of the containers of one pod; equal pods share one value.

    Raises:
        RequestError: naming the container's field and the value.
    """
    containers = tuple(
        _container(container, f"containers[{i}].resources")
        for i, container in enumerate(spec.containers or ())
    )
    init = tuple(
        _container(container, f"initContainers[{i}].resources")
        for i, container in enumerate(spec.init_containers or ())
    )
    own = spec.resources or Needs()
    limits = _amounts_at("resources.limits", own.limits)
    requests = _amounts_at("resources.requests", own.requests)
    return shared(
        PodNeeds(containers, init, requests, limits, _amounts_at("overhead", spec.overhead))
    )


@lru_cache(maxsize=4096)
def shared(needs: PodNeeds) -> PodNeeds:
    """One value for equal needs."""
    return needs


def _container(container: Container, path: str) -> ContainerNeeds:
    needs = container.resources or Needs()
    limits = _amounts_at(f"{path}.limits", needs.limits)
    requests = _amounts_at(f"{path}.requests", needs.requests)
    most = dict(limits)
    for name, amount in requests:
        if amount > most.get(name, amount):
            asked, limit = (format_quantity(name, value) for value in (amount, most[name]))
            raise RequestError(f"{path}.requests.{name}: {asked} is above its limit {limit}")
    return ContainerNeeds(requests, limits, container.restart_policy == "Always")


def _amounts_at(path: str, amounts: Mapping[str, Quantity] | None) -> Amounts:
    with under(path):
        return read_amounts(amounts)
