"""Whether a gang fits the nodes that can be made for its flavors: the placement of real nodes, on those of ``nodeTemplate``.

All nodes of the templates are taken as existing and empty, and the proof that a gang never fits is the same as for real ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from queuectl.domain.fleet import Fleet, Node, NodeTemplate
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.reasons import Reason
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.words import counted
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.state import open_state
from queuectl.planner.problem.flavors import Flavors, members_of
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.problem.request import request_of
from queuectl.planner.search.flavor_choice import FlavorChooser
from queuectl.planner.solver.solver import Solver


class _Fleets(dict[tuple[str, ...], Fleet]):
    """By names of flavors, the nodes that can be made for them."""


def never_fits_templates(
    problem: Problem,
    pending: Pending,
    queue: ClusterQueue,
    flavors: Flavors,
    made: Collection[str],
    solver: Solver,
) -> Reason | None:
    """Why the nodes that can be made for a gang can never hold it; None if they can, or if this is not known.

    Args:
        problem: of the cycle.
        pending: the gang.
        queue: its ClusterQueue.
        flavors: per podset, resource to flavor.
        made: flavors for which a check makes nodes. PodSets with another flavor, or with one that has no template, are not judged.
        solver: of the plan.
    """
    described = _described(problem.snapshot.config, flavors, made)
    judged = list(_judged(problem.snapshot.config, pending.workload, flavors, described))
    if not judged:
        return None
    podsets = tuple(_of_new_nodes(pending.workload.podsets[number]) for number in judged)
    pending = replace(pending, workload=replace(pending.workload, podsets=podsets))
    flavors = tuple(flavors[number] for number in judged)
    there = problem.once(_with_templates, tuple(sorted(described)))
    chooser = FlavorChooser(there, open_state(there), solver)
    reason = chooser.never(request_of(there, pending, queue, flavors), queue)
    return _named(reason, described) if reason is not None else None


def _described(
    config: QueueConfig, flavors: Flavors, made: Collection[str]
) -> dict[str, NodeTemplate]:
    """The templates of the flavors of a gang for which nodes are made, by name of the flavor."""
    names = {name for chosen in flavors for name in chosen.values() if name in made}
    known = {name: config.flavors.get(name) for name in sorted(names)}
    return {
        name: flavor.node_template
        for name, flavor in known.items()
        if flavor is not None and flavor.node_template is not None
    }


def _judged(
    config: QueueConfig, workload: Workload, flavors: Flavors, described: Collection[str]
) -> Iterator[int]:
    """The podsets that go on nodes of templates only, by number: whole groups of podsets."""
    known = config.flavors

    def on_described(number: int) -> bool:
        chosen = set(flavors[number].values())
        on_nodes = {name for name in chosen if name in known and known[name].topology is not None}
        return bool(on_nodes) and on_nodes <= set(described)

    for members in members_of(workload):
        if all(map(on_described, members)):
            yield from members


def _of_new_nodes(podset: PodSet) -> PodSet:
    """Without the planner's own resources of present nodes, whose names have a space: Reservations, limits on shared GPUs."""
    requests = podset.shape.requests
    asked = Resources({name: amount for name, amount in requests.items() if " " not in name})
    return replace(podset, shape=replace(podset.shape, requests=asked))


def _named(reason: Reason, described: Mapping[str, NodeTemplate]) -> Reason:
    parts = [
        f"flavor {name} (at most {counted(template.maximum, 'node')})"
        for name, template in described.items()
    ]
    text = (
        f"no nodes are requested, because it does not fit the nodeTemplate of {' and '.join(parts)}"
    )
    details = {**reason.details, "flavors": list(described)}
    return Reason(reason.code, f"{text}: {reason.message}", details)


def _with_templates(problem: Problem, names: tuple[str, ...]) -> Problem:
    """The problem of the nodes that can be made for these flavors, all of them empty."""
    snapshot, cache = problem.snapshot, problem.cache
    fleet = _fleet(snapshot.config, names, cache)
    return survey(Snapshot(snapshot.now, fleet, snapshot.config, limits=snapshot.limits), cache)


def _fleet(config: QueueConfig, names: tuple[str, ...], cache: PlannerCache) -> Fleet:
    fleets = cache.get(config, _Fleets) or cache.keep(config, _Fleets())
    if names not in fleets:
        nodes: list[Node] = []
        for name in names:
            flavor = config.flavors[name]
            topology = config.topologies.get(flavor.topology or "")
            assert flavor.node_template is not None
            levels = topology.levels if topology is not None else ()
            nodes += flavor.node_template.nodes(
                name, levels, dict(flavor.node_labels), flavor.node_taints
            )
        fleets[names] = Fleet(tuple(sorted(nodes, key=lambda node: node.name)))
    return fleets[names]
