"""What one pod asks for, counted as kube-scheduler counts it.

Sum of the containers and sidecars (init containers that restart always); at least the peak of the init phase, where each
init container runs beside the sidecars started before it; pod-level requests replace the sum; overhead comes on top. A
limit stands in for a missing request, as the API server's defaulting does. ``pods`` is always 1.

In-place resizing is not followed: a pod counts with what its spec asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, Protocol

from queuectl.domain.quantity import (
    CPU,
    MEMORY,
    PODS,
    QuantityError,
    Resources,
    exact_quantity,
    format_quantity,
    parse_quantity,
)
from queuectl.objects.errors import MalformedError, RequestError
from queuectl.objects.wire import Container, Needs, Quantity

# The grammar of Kubernetes, with the exponent kept to two digits: more is no amount of anything.
_QUANTITY: Final = re.compile(
    r"[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,2}|[numkMGTPE]|[KMGTPE]i)?"
)
_LARGEST: Final = 2**63 - 1
LIMITED: Final = frozenset({CPU, MEMORY, "ephemeral-storage"})
"""What a ResourceQuota may restrict the limits of; these it also counts by their plain names."""


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
    written = _quantity(resource, text)
    try:
        amount = parse_quantity(resource, written, round_up=round_up)
    except QuantityError as error:
        raise MalformedError(str(error)) from None
    if amount < 0:
        raise MalformedError(f"{resource}: {written!r} is negative")
    if amount > _LARGEST:
        raise RequestError(f"{resource}: {written!r} is too large")
    return amount


def read_factor(resource: str, text: Quantity) -> Fraction:
    """One quantity of any sign, in whole units and exact.

    Raises:
        MalformedError: naming the resource and the text.
    """
    return Fraction(exact_quantity(resource, _quantity(resource, text)))


def _quantity(resource: str, text: Quantity) -> str:
    written = str(text)
    if not _QUANTITY.fullmatch(written):
        raise MalformedError(f"{resource}: {written!r} is not a quantity")
    return written


@lru_cache(maxsize=4096)
def _vector(amounts: tuple[tuple[str, Quantity], ...], round_up: bool) -> Resources:
    return Resources([(name, read_amount(name, text, round_up=round_up)) for name, text in amounts])


def read_vector(amounts: Mapping[str, Quantity] | None, *, round_up: bool) -> Resources:
    """A resource list; equal lists share one value.

    Raises:
        MalformedError: naming the resource and the text.
    """
    return _vector(tuple(amounts.items()) if amounts else (), round_up)


Amounts = tuple[tuple[str, Quantity], ...]


@lru_cache(maxsize=4096)
def _plain(requests: Amounts) -> Resources:
    """Of the usual pod: one container, nothing else."""
    return _add_pod(_vector(requests, True))


def _add_pod(vector: Resources) -> Resources:
    return Resources({**vector, PODS: 1})


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
            try:
                return _plain(tuple((needs.requests or {}).items()))
            except RequestError as error:
                raise error.under("containers[0].resources") from None
    return _add_pod(_full(spec))


def pod_limits(spec: PodLike) -> Resources:
    """The most CPU, memory and ephemeral storage one pod may use, counted as a ResourceQuota does.

    Raises:
        RequestError: naming the container's field and the value.
    """
    containers = spec.containers or ()
    if len(containers) == 1 and not (spec.init_containers or spec.overhead or spec.resources):
        return _limited(_limits(containers[0].resources, "containers[0].resources"))
    most = _together(spec, _limits)
    if spec.resources is not None:
        most.update(_guarded(spec.resources.limits, "resources.limits"))
    overhead = _guarded(spec.overhead, "overhead")
    _grow(most, {name: value for name, value in overhead.items() if name in most})
    return _limited(Resources(most))


@lru_cache(maxsize=4096)
def _limited(most: Resources) -> Resources:
    return Resources({name: value for name, value in most.items() if name in LIMITED})


def _limits(needs: Needs | None, path: str) -> Resources:
    return _guarded(needs.limits if needs is not None else None, f"{path}.limits")


def _full(spec: PodLike) -> Resources:
    asked = _together(spec, _needs)
    asked.update(_pod_level(spec.resources, asked))
    _grow(asked, _guarded(spec.overhead, "overhead"))
    return Resources(asked)


def _together(
    spec: PodLike, read: Callable[[Needs | None, str], Mapping[str, int]]
) -> dict[str, int]:
    """What ``read`` finds in each container, over the containers that run at the same time."""
    running: dict[str, int] = {}
    for i, container in enumerate(spec.containers or ()):
        _grow(running, read(container.resources, f"containers[{i}].resources"))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for i, container in enumerate(spec.init_containers or ()):
        needs = read(container.resources, f"initContainers[{i}].resources")
        if container.restart_policy == "Always":
            _grow(sidecars, needs)
            moment = dict(sidecars)
        else:
            moment = dict(sidecars)
            _grow(moment, needs)
        peak = _most(peak, moment)
    _grow(running, sidecars)
    return _most(running, peak)


def _guarded(amounts: Mapping[str, Quantity] | None, path: str) -> Resources:
    try:
        return read_vector(amounts, round_up=True)
    except RequestError as error:
        raise error.under(path) from None


def _needs(needs: Needs | None, path: str) -> Resources:
    if needs is None:
        return _guarded(None, path)
    limits = _guarded(needs.limits, f"{path}.limits")
    for name, amount in _guarded(needs.requests, f"{path}.requests").items():
        if name in limits and amount > limits[name]:
            asked, most = (format_quantity(name, value) for value in (amount, limits[name]))
            raise RequestError(f"{path}.requests.{name}: {asked} is above its limit {most}")
    return _guarded({**(needs.limits or {}), **(needs.requests or {})}, path)


def _pod_level(needs: Needs | None, asked: Mapping[str, int]) -> Mapping[str, int]:
    """Pod-level requests; a limit without one stands in only for what no container asks."""
    if needs is None:
        return {}
    limits = _guarded(needs.limits, "resources.limits")
    standing_in = {name: value for name, value in limits.items() if name not in asked}
    return {**standing_in, **_guarded(needs.requests, "resources.requests")}


def _grow(total: dict[str, int], by: Mapping[str, int]) -> None:
    for name, value in by.items():
        total[name] = total.get(name, 0) + value


def _most(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in (*a, *b)}
