"""Requests and limits of the containers of one pod, and the sums of the pod.

Requests are counted as kube-scheduler counts them: sum of the containers and sidecars (init containers that restart
always); at least the peak of the init phase, where each init container runs beside the sidecars started before it;
pod-level requests replace the sum; overhead is added. A limit replaces a missing request, as the API server's
defaulting does. ``pods`` is always 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from queuectl.domain.quantity import CPU, MEMORY, PODS, Resources, format_quantity

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
        """Its requests, with limits in the place of those that are missing."""
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
        ("overhead", pod.overhead, template.overhead),
        ("resources.requests", pod.requests, template.requests),
    ):
        more = {n: v for n, v in own if v > dict(others).get(n, 0)}
        if more:
            return f"{field} is {amounts(more)}, more than in its template"
    return ""


def amounts(requests: Mapping[str, int]) -> str:
    """Requests in words."""
    return " + ".join(f"{format_quantity(n, v)} {n}" for n, v in sorted(requests.items()))


@lru_cache(maxsize=4096)
def requested(needs: PodNeeds) -> Resources:
    """Effective requests of the pod, ``pods`` = 1 included."""
    asked = _beside_overhead(needs)
    _grow(asked, dict(needs.overhead))
    return Resources({**asked, PODS: 1})


@lru_cache(maxsize=4096)
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
