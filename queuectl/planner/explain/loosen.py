"""Queues whose flavors refuse nobody: what is left when the choice of flavors does not count."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.workload import Workload
from queuectl.planner.problem.flavors import options_of
from queuectl.planner.problem.problem import Problem

_PLENTY: Final = 1 << 50  # of a resource that no group of the queue covers
_ANY_FLAVOR: Final = "any flavor"


def any_flavor(problem: Problem, queue: ClusterQueue | None, workload: Workload) -> QueueConfig:
    """The queues as if flavors had neither labels nor taints, and the gang's queue covered all it asks."""
    config = problem.snapshot.config
    if queue is None:
        return config
    flavors = {
        name: replace(flavor, node_labels=(), node_taints=())
        for name, flavor in config.flavors.items()
    }
    listed = {q.flavor for group in queue.groups for q in group.flavors}
    for name in sorted(listed - flavors.keys()):
        flavors[name] = ResourceFlavor(name)
    uncovered = options_of(workload, queue, problem).uncovered
    if uncovered:
        topology = next((f.topology for n, f in sorted(flavors.items()) if n in listed), None)
        flavors[_ANY_FLAVOR] = ResourceFlavor(_ANY_FLAVOR, topology=topology)
        quotas = FlavorQuotas(_ANY_FLAVOR, dict.fromkeys(uncovered, _PLENTY))
        queue = replace(queue, groups=(*queue.groups, ResourceGroup(uncovered, (quotas,))))
    return replace(
        config, flavors=flavors, cluster_queues={**config.cluster_queues, queue.name: queue}
    )
