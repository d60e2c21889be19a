"""The admissible flavors of each podset of a gang, in order of preference.

Kueue's rules: all resources of a resource group get the same flavor; podsets of one group share it; a flavor counts only
if the pods tolerate its taints and their selectors do not contradict its node labels. A flavor's labels restrict the
nodes, its tolerations are added to the pods. A flavor without topology is quota only: no node is computed for it; alongside
such a one, in its group, a flavor with topology is left to the pods that ask for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from math import prod
from typing import Final, TypeAlias

from queuectl.domain.quantity import PODS, Resources
from queuectl.domain.queues import ClusterQueue, QueueConfig, ResourceFlavor, ResourceGroup
from queuectl.domain.workload import Placement, PodSet, Workload
from queuectl.planner.problem.fleet import misfit
from queuectl.planner.problem.problem import Problem

_LISTED: Final = 512
"""Podset groups in the choices that are judged one by one for a gang: 64 choices for one with 8 podset groups."""

Choice: TypeAlias = Mapping[tuple[int, int], str]  # (podset group, resource group) -> flavor
Members: TypeAlias = tuple[int, ...]  # podsets that share a domain and flavors, by number
Flavors: TypeAlias = tuple[Mapping[str, str], ...]  # per podset, resource -> flavor


@dataclass(slots=True)
class Options:
    """All flavors a gang could take.

    Attributes:
        members: its podset groups.
        allowed: per (podset group, resource group) the admissible flavors, most preferred first.
        refused: flavor to why it is not admissible, for messages.
        uncovered: requested resources no resource group of the queue covers.
        charged: per podset, what one of its pods is charged.
    """

    members: tuple[Members, ...]
    allowed: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    uncovered: tuple[str, ...] = ()
    charged: tuple[Resources, ...] = ()

    @property
    def impossible(self) -> bool:
        """Whether no choice of flavors is admissible at all."""
        return bool(self.uncovered) or any(not names for names in self.allowed.values())

    @property
    def complete(self) -> bool:
        """Whether :meth:`choices` goes through all of them."""
        return prod(len(names) for names in self.allowed.values()) <= self._listed

    @property
    def _listed(self) -> int:
        return max(1, _LISTED // max(1, len(self.members)))

    def choices(self) -> Iterator[Choice]:
        """The first choices in order of preference: the first podset's first flavor before anything else.

        :mod:`queuectl.planner.search.choice_walk` searches the others.
        """
        combinations = product(*self.allowed.values())
        for names in islice(combinations, self._listed):
            yield dict(zip(self.allowed, names, strict=True))

    def without(self, held: Callable[[str], bool]) -> Options:
        """The same without the flavors that are held."""
        allowed = {
            key: tuple(name for name in names if not held(name))
            for key, names in self.allowed.items()
        }
        return replace(self, allowed=allowed)

    def flavors_by_podset(self, choice: Choice, queue: ClusterQueue, workload: Workload) -> Flavors:
        """Per podset, resource to flavor, for what the queue covers of its requests."""
        flavors: list[dict[str, str]] = [{} for _ in workload.podsets]
        for (podset_group, number), name in choice.items():
            for i in self.members[podset_group]:
                for resource in self.charged[i]:
                    if resource in queue.groups[number].covered:
                        flavors[i][resource] = name
        return tuple(flavors)


def members_of(workload: Workload) -> tuple[Members, ...]:
    """PodSet groups of a gang in podset order."""
    podset_groups: dict[tuple[str, str | int], list[int]] = {}
    for number, podset in enumerate(workload.podsets):
        key = ("group", podset.group) if podset.group is not None else ("podset", number)
        podset_groups.setdefault(key, []).append(number)
    return tuple(tuple(numbers) for numbers in podset_groups.values())


def options_of(workload: Workload, queue: ClusterQueue | None, problem: Problem) -> Options:
    """The admissible flavors of a gang in its ClusterQueue, without regard to quota."""
    options = Options(members_of(workload))
    if queue is None:
        return options
    covered = {name for group in queue.groups for name in group.covered} | {PODS}
    rules = problem.snapshot.config.rules
    charged = [rules.charged(podset.shape.requests) for podset in workload.podsets]
    options.charged = tuple(charged)
    if not rules.ignore_undeclared:
        asked = {
            name
            for podset, amounts in zip(workload.podsets, charged, strict=True)
            if podset.count
            for name in amounts
            if name not in podset.shape.incidental
        }
        options.uncovered = tuple(sorted(asked - covered))
    for podset_group, members in enumerate(options.members):
        podsets = [workload.podsets[i] for i in members]
        for number, group in enumerate(queue.groups):
            touching = [
                workload.podsets[i]
                for i in members
                if workload.podsets[i].count and any(name in group.covered for name in charged[i])
            ]
            if touching:
                options.allowed[podset_group, number] = tuple(
                    _admissible(touching, podsets, group, problem, options.refused)
                )
    return options


def _admissible(
    podsets: Sequence[PodSet],
    podset_group: Sequence[PodSet],
    group: ResourceGroup,
    problem: Problem,
    refused: dict[str, str],
) -> Iterator[str]:
    config = problem.snapshot.config
    offered = config.flavors_named(quotas.flavor for quotas in group.flavors)
    mixed = any(flavor.topology is None for flavor in offered)
    for quotas in group.flavors:
        flavor = config.flavors.get(quotas.flavor)
        why = "the ResourceFlavor does not exist" if flavor is None else None
        if flavor is not None:
            why = next(filter(None, (flavor.refusal(p.shape.rules) for p in podsets)), None)
            if why is None and problem.size:
                why = _no_level(podset_group, flavor, group, config)
            if why is None and mixed:
                why = _reserved(podset_group, flavor)
        if why is None:
            yield quotas.flavor
        else:
            refused[quotas.flavor] = why


def _reserved(podset_group: Sequence[PodSet], flavor: ResourceFlavor) -> str | None:
    """In a resource group that has flavors of both kinds, those with a topology are for pods that ask for one."""
    if flavor.topology is None or all(podset.topology is not None for podset in podset_group):
        return None
    return "it is for pods with a topology request"


def _no_level(
    podset_group: Sequence[PodSet],
    flavor: ResourceFlavor,
    group: ResourceGroup,
    config: QueueConfig,
) -> str | None:
    asking = [p for p in podset_group if p.topology is not None and p.topology.levels]
    topology = config.topologies.get(flavor.topology or "")
    if topology is None:
        # Charges of a transformation that the pods do not request themselves need no node.
        on_nodes = {name for p in asking for name in p.shape.requests} - {PODS}
        apart = on_nodes.isdisjoint(group.covered)
        return None if apart else "it has no topology"
    requests = (p.topology for p in asking)
    return next(filter(None, (misfit(r, topology) for r in requests if r is not None)), None)


def admits(
    problem: Problem, workload: Workload, queue: ClusterQueue | None, flavors: Flavors
) -> bool:
    """Whether a gang could be admitted to its ClusterQueue with these flavors, without regard to quota."""
    if queue is None:
        return True
    options = options_of(workload, queue, problem)
    return not options.impossible and all(
        flavors[i].get(resource) in names
        for (members, group), names in options.allowed.items()
        for i in options.members[members]
        for resource in options.charged[i]
        if workload.podsets[i].count and resource in queue.groups[group].covered
    )


def flavors_of(workload: Workload, placement: Placement) -> Flavors:
    """Per podset of a gang, the flavors it was placed with; none for a podset that was not placed."""
    placed = (placement.of(podset.name) for podset in workload.podsets)
    return tuple(dict(p.flavors) if p is not None else {} for p in placed)
