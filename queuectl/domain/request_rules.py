"""Requests that the API server refuses for each pod, after it has set what is missing.

It checks them in the template of a Job, too, and in the templates of no other kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from queuectl.domain.needs import PodNeeds, together
from queuectl.domain.quantity import CPU, MEMORY, format_quantity

_HUGE_PAGES: Final = "hugepages-"


def overcommits(resource: str) -> bool:
    """Whether a limit of the resource can be above the request: not of extended resources and hugepages."""
    native = "/" not in resource or "kubernetes.io/" in resource
    return native and not resource.startswith(_HUGE_PAGES)


def invalid(needs: PodNeeds, *, limits: bool) -> Iterator[tuple[str, str]]:
    """Field and reason of each request that is refused. ``limits``: whether missing limits are refused, too."""
    for place, containers in (("containers", needs.containers), ("initContainers", needs.init)):
        for i, one in enumerate(containers):
            where = f"{place}[{i}].resources"
            for name in one.fractions:
                yield f"{where}.requests.{name}", "must be a whole number"
            if limits:
                yield from _limits(where, one.effective_requests, dict(one.limits))
    yield from _whole(needs)


def _limits(
    where: str, requests: Mapping[str, int], limits: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    for name, amount in requests.items():
        if overcommits(name):
            continue
        asked = format_quantity(name, amount)
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
