"""Kueue's ``status.admission``: the flavors and the hosts of a running workload.

Hosts have two forms: a list of domains (v1beta1) or slices with factored-out names (v1beta2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queuectl.domain.fleet import HOSTNAME
from queuectl.objects.errors import RequestError, under
from queuectl.objects.kubernetes.wire import Wire

_MOST_DOMAINS: Final = 100_000


class IndividualValues(Wire):
    prefix: str | None = None
    suffix: str | None = None
    roots: list[str] | None = None


class LevelValues(Wire):
    universal: str | None = None
    individual: IndividualValues | None = None


class PodCounts(Wire):
    universal: int | None = None
    individual: list[int] | None = None


class AssignmentSlice(Wire):
    domain_count: int = 0
    values_per_level: list[LevelValues] | None = None
    pod_counts: PodCounts | None = None


class AssignmentDomain(Wire):
    values: list[str] | None = None
    count: int = 0


class TopologyAssignment(Wire):
    levels: list[str] | None = None
    slices: list[AssignmentSlice] | None = None
    domains: list[AssignmentDomain] | None = None


class PodSetAssignment(Wire):
    name: str = "main"
    flavors: dict[str, str] | None = None
    count: int | None = None
    resource_usage: Any = None
    topology_assignment: TopologyAssignment | None = None


class AdmissionStatus(Wire):
    cluster_queue: str = ""
    pod_set_assignments: list[PodSetAssignment] | None = None


@dataclass(frozen=True, slots=True)
class Assigned:
    """The flavors and hosts of one podset.

    Attributes:
        count: number of admitted pods, None if not stated.
        flavors: resource to flavor.
        hosts: (hostname label, pods) in order; None if only quota was assigned, or if the assignment ends above the host.
        coarse: the assignment ends above the host.
        domains: (level label to value, pods) in order, of an assignment that ends above the host.
    """

    count: int | None = None
    flavors: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[tuple[str, int], ...] | None = None
    coarse: bool = False
    domains: tuple[tuple[Mapping[str, str], int], ...] = ()


def read_admission(admission: AdmissionStatus) -> dict[str, Assigned]:
    """By podset.

    Raises:
        RequestError: naming the field and value.
    """
    read: dict[str, Assigned] = {}
    for i, assignment in enumerate(admission.pod_set_assignments or ()):
        path = f"status.admission.podSetAssignments[{i}]"
        if assignment.name in read:
            raise RequestError(f"{path}.name: {assignment.name!r} occurs twice")
        if assignment.count is not None and assignment.count < 0:
            raise RequestError(f"{path}.count: {assignment.count} is negative")
        topology = assignment.topology_assignment
        levels = topology.levels or [""] if topology is not None else [HOSTNAME]
        coarse = levels[-1] != HOSTNAME
        hosts: tuple[tuple[str, int], ...] | None = None
        domains: tuple[tuple[Mapping[str, str], int], ...] = ()
        if topology is not None:
            with under(f"{path}.topologyAssignment", "."):
                found = tuple(_domains(topology, levels))
                hosts = None if coarse else tuple((values[-1], count) for values, count in found)
                domains = tuple(_labeled(levels, found)) if coarse else ()
        read[assignment.name] = Assigned(
            assignment.count, assignment.flavors or {}, hosts, coarse, domains
        )
    return read


def _labeled(
    levels: list[str], counts: Iterable[tuple[tuple[str, ...], int]]
) -> Iterator[tuple[Mapping[str, str], int]]:
    for values, count in counts:
        yield {level: v for level, v in zip(levels, values, strict=False) if level}, count


def _domains(
    assignment: TopologyAssignment, levels: list[str]
) -> Iterator[tuple[tuple[str, ...], int]]:
    """The values of each domain, coarse to fine, and its pods."""
    for i, domain in enumerate(assignment.domains or ()):
        if not domain.values or domain.count < 0:
            raise RequestError(f"domains[{i}]: needs values and a count of at least 0")
        if len(levels) not in (1, len(domain.values)):
            raise RequestError(f"domains[{i}].values: not as many as levels")
        yield tuple(domain.values), domain.count
    for i, part in enumerate(assignment.slices or ()):
        size = part.domain_count
        if not 1 <= size <= _MOST_DOMAINS:
            raise RequestError(f"slices[{i}].domainCount: {size} is not 1 to {_MOST_DOMAINS}")
        names = [_names(values, size) for values in part.values_per_level or [LevelValues()]]
        counts = _counts(part.pod_counts or PodCounts(), size)
        if {len(counts), *map(len, names)} != {size}:
            raise RequestError(f"slices[{i}]: values or counts are not as many as domainCount")
        if min(counts) < 0:
            raise RequestError(f"slices[{i}]: {min(counts)} pods are negative")
        yield from zip(zip(*names, strict=True), counts, strict=True)


def _names(level_values: LevelValues, size: int) -> list[str]:
    if level_values.universal is not None:
        return [level_values.universal] * size
    each = level_values.individual or IndividualValues()
    return [f"{each.prefix or ''}{root}{each.suffix or ''}" for root in each.roots or ()]


def _counts(counts: PodCounts, size: int) -> list[int]:
    return [counts.universal] * size if counts.universal is not None else counts.individual or []
