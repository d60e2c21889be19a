"""Requests and limits of the containers of one pod, their sums, and the requests that the API server refuses.

Requests are counted as kube-scheduler counts them: sum of the containers and sidecars (init containers that restart
always); at least the peak of the init phase, where each init container runs alongside the sidecars started before it;
pod-level requests replace the sum; overhead is added. A limit replaces a missing request, as the API server's
defaulting does. ``pods`` is always 1.

The API server refuses some requests for each pod, after it has set what is missing. It checks them in the template of a Job as well, but
not in the templates of other kinds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from queuectl.domain.quantity import (
    CPU,
    GPU,
    MEMORY,
    PODS,
    Resources,
    format_quantity,
    is_quantity,
    parse_quantity,
)

# ---- Sums

Amounts: TypeAlias = tuple[tuple[str, int], ...]
"""By resource, in the units of :mod:`queuectl.domain.quantity`. Unlike in Resources, an explicit zero is kept."""
LIMITED: Final = frozenset({CPU, MEMORY, "ephemeral-storage"})
"""Resources whose limits a ResourceQuota can restrict; it also counts these by their plain names."""


@dataclass(frozen=True, slots=True)
class ContainerNeeds:
    """One container as its template has it.

    Attributes:
        name: empty for one that its operator adds.
        requests, limits: as written.
        stays: an init container that restarts always.
        incidental: machinery around the pod adds it; its user knows nothing of it.
        fractions: extended resources of which it requests no whole number.
    """

    requests: Amounts = ()
    limits: Amounts = ()
    stays: bool = False
    incidental: bool = False
    name: str = ""
    fractions: tuple[str, ...] = ()

    @property
    def effective_requests(self) -> dict[str, int]:
        """Its requests, with limits instead of those that are missing."""
        return {**dict(self.limits), **dict(self.requests)}


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """``requests``, ``limits``: of the pod as a whole, where it states them; ``overhead``: of its RuntimeClass, which it names."""

    containers: tuple[ContainerNeeds, ...] = ()
    init: tuple[ContainerNeeds, ...] = ()
    requests: Amounts = ()
    limits: Amounts = ()
    overhead: Amounts = ()
    runtime_class: str = ""

    @property
    def all_containers(self) -> tuple[ContainerNeeds, ...]:
        return (*self.containers, *self.init)


def excess(pod: PodNeeds, template: PodNeeds) -> str:
    """The first part of a pod that requests more than its template, in words; "" if none does."""
    given = {container.name: container.effective_requests for container in template.all_containers}
    added = [one.effective_requests for one in template.all_containers if not one.name]
    for one in pod.all_containers:
        asked = one.effective_requests
        more = {n: v for n, v in asked.items() if v > given.get(one.name, {}).get(n, 0)}
        if more and one.name in given:
            return f"container {one.name} requests {amounts(more)}, more than in its template"
        if more and asked not in added:
            return f"container {one.name}, which is not in its template, requests {amounts(more)}"
    for field, own, others in (
        ("overhead", pod.overhead, dict(template.overhead)),
        ("resources.requests", pod.requests, dict(template.requests)),
    ):
        more = {n: v for n, v in own if v > others.get(n, 0)}
        if more:
            return f"{field} is {amounts(more)}, more than in its template"
    return ""


def amounts(requests: Mapping[str, int]) -> str:
    """Requests in words."""
    return " + ".join(f"{format_quantity(n, v)} {n}" for n, v in sorted(requests.items()))


def requested(needs: PodNeeds) -> Resources:
    """Effective requests of the pod, ``pods`` = 1 included."""
    asked = _beside_overhead(needs)
    _grow(asked, dict(needs.overhead))
    return Resources({**asked, PODS: 1})


def limited(needs: PodNeeds) -> Resources:
    """The most CPU, memory and ephemeral storage the pod may use, counted as a ResourceQuota does."""
    most = together(needs, lambda container: dict(container.limits))
    most.update(needs.limits)
    _grow(most, {name: value for name, value in needs.overhead if name in most})
    return Resources({name: value for name, value in most.items() if name in LIMITED})


def incidental(needs: PodNeeds) -> frozenset[str]:
    """Resources that only machinery around the pod asks for: containers that others add, and its RuntimeClass."""
    ours = {name for c in needs.all_containers if c.incidental for name in c.effective_requests}
    users = {
        name for c in needs.all_containers if not c.incidental for name in c.effective_requests
    }
    ours |= dict(needs.overhead).keys()
    return frozenset(ours - users - dict(needs.requests).keys())


def _beside_overhead(needs: PodNeeds) -> dict[str, int]:
    asked = together(needs, lambda container: container.effective_requests)
    asked.update(needs.requests)
    return asked


def together(needs: PodNeeds, of: Callable[[ContainerNeeds], Mapping[str, int]]) -> dict[str, int]:
    """The result of ``of`` for each container, over those that run at the same time."""
    running: dict[str, int] = {}
    for container in needs.containers:
        _grow(running, of(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in needs.init:
        moment = dict(sidecars)
        _grow(moment, of(container))
        if container.stays:
            sidecars = moment
        peak = _most(peak, moment)
    _grow(running, sidecars)
    return _most(running, peak)


def _grow(total: dict[str, int], by: Mapping[str, int]) -> None:
    for name, value in by.items():
        total[name] = total.get(name, 0) + value


def _most(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in (*a, *b)}


# ---- Refused requests

_HUGE_PAGES: Final = "hugepages-"
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = re.compile(
    rf"(?=[^/]{{1,244}}/){_LABEL}(\.{_LABEL})*/(?=.{{1,63}}$)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z"
)
"""Names of extended resources. 244 characters: the API server puts ``requests.`` before the domain, which has at most 253."""


def overcommits(resource: str) -> bool:
    """Whether a limit of the resource can be above the request: not of extended resources and hugepages."""
    native = "/" not in resource or "kubernetes.io/" in resource
    return native and not resource.startswith(_HUGE_PAGES)


def above_limits(needs: PodNeeds) -> Iterator[tuple[str, str]]:
    """Field and reason of each request of a container above its limit, as both are written: a LimitRange has its own reasons."""
    for place, containers in (("containers", needs.containers), ("initContainers", needs.init)):
        for i, one in enumerate(containers):
            limits = dict(one.limits)
            for name, amount in one.requests:
                if overcommits(name) and amount > limits.get(name, amount):
                    asked, limit = (format_quantity(name, v) for v in (amount, limits[name]))
                    field = f"{place}[{i}].resources.requests.{name}"
                    yield field, f"{asked} is above its limit {limit}"


def invalid(needs: PodNeeds, *, limits: bool) -> Iterator[tuple[str, str]]:
    """Field and reason of each request that is refused. ``limits``: also check names, limits and hugepages."""
    for place, containers in (("containers", needs.containers), ("initContainers", needs.init)):
        for i, one in enumerate(containers):
            where = f"{place}[{i}].resources"
            for name in one.fractions:
                yield f"{where}.requests.{name}", "must be a whole number"
            if limits:
                yield from _names(where, one)
                yield from _limits(where, one.effective_requests, dict(one.limits))
                yield from _hugepages(where, one.effective_requests)
    yield from _whole(needs)


def _names(where: str, container: ContainerNeeds) -> Iterator[tuple[str, str]]:
    for field, given in (("requests", container.requests), ("limits", container.limits)):
        for name, _ in given:
            if "/" not in name and name not in LIMITED and not name.startswith(_HUGE_PAGES):
                text = f"is not a container resource; use {', '.join(sorted(LIMITED))}, hugepages-SIZE, "
                yield f"{where}.{field}.{name}", f"{text}or DOMAIN/NAME, for example {GPU}"
            elif "/" in name and (not _QUALIFIED.match(name) or name.startswith("requests.")):
                yield f"{where}.{field}.{name}", "is not a resource name of the form DOMAIN/NAME"


def _hugepages(where: str, requests: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for name, amount in requests.items():
        if not name.startswith(_HUGE_PAGES):
            continue
        if CPU not in requests and MEMORY not in requests:
            yield f"{where}.requests.{name}", "hugepages require a request of cpu or memory"
        size = name.removeprefix(_HUGE_PAGES)
        page = parse_quantity(name, size, round_up=True) if is_quantity(size) else 0
        if page <= 0:
            yield f"{where}.requests.{name}", f"{size} is not a page size"
        elif amount % page:
            asked = format_quantity(name, amount)
            yield f"{where}.requests.{name}", f"{asked} is not a multiple of the page size"


def _limits(
    where: str, requests: Mapping[str, int], limits: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    for name, amount in requests.items():
        asked = format_quantity(name, amount)
        if overcommits(name):
            continue
        if name not in limits:
            yield f"{where}.limits.{name}", f"is required, and must be equal to the request {asked}"
        elif limits[name] != amount:
            limit = format_quantity(name, limits[name])
            yield f"{where}.requests.{name}", f"{asked} must be equal to its limit {limit}"


def _whole(needs: PodNeeds) -> Iterator[tuple[str, str]]:
    """Of the requests and limits of the pod as a whole."""
    limits, requests = dict(needs.limits), dict(needs.requests)
    for field, given in (("limits", limits), ("requests", requests)):
        for name in given:
            if name not in (CPU, MEMORY) and not name.startswith(_HUGE_PAGES):
                text = "a pod as a whole can request cpu, memory and hugepages only; state it in a container"
                yield f"resources.{field}.{name}", text
    for name, amount in requests.items():
        asked = format_quantity(name, amount)
        if amount > limits.get(name, amount):
            limit = format_quantity(name, limits[name])
            yield f"resources.requests.{name}", f"{asked} is above its limit {limit}"
    together_asked = together(needs, lambda container: container.effective_requests)
    for name, amount in requests.items():
        if together_asked.get(name, 0) > amount:
            total = format_quantity(name, together_asked[name])
            text = f"{format_quantity(name, amount)} is less than its containers request together, {total}"
            yield f"resources.requests.{name}", text
    for one in needs.all_containers:
        for name, amount in one.limits:
            if amount > limits.get(name, amount):
                text = (
                    f"{format_quantity(name, limits[name])} is less than the limit of a container"
                )
                yield f"resources.limits.{name}", text
