"""Requests that the API server refuses for each pod, after it has set what is missing.

It also checks them in the template of a Job, but not in the templates of other kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from queuectl.domain.needs import LIMITED, ContainerNeeds, PodNeeds, together
from queuectl.domain.quantity import (
    CPU,
    GPU,
    MEMORY,
    format_quantity,
    is_quantity,
    parse_quantity,
)

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
    """Field and reason of each request of a container above its limit, as both are written: a LimitRange has reasons of its own."""
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
