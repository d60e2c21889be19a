"""The jobs of files that depend on others, and cycles of them, of which no job could ever start."""

from __future__ import annotations

from collections.abc import Iterable

from queuectl.domain.dependency_graph import DependencyGraph, JobFound
from queuectl.domain.gates import DependencyStatus, JobName
from queuectl.objects import keys
from queuectl.objects.files.gangs import Gang, unseen
from queuectl.objects.files.workloads import KIND as WORKLOAD


def graph_of(gangs: Iterable[Gang]) -> DependencyGraph:
    """The dependencies of the jobs of the input."""
    return DependencyGraph(
        {
            JobName.of(*gang.job): JobFound(gang.outcome, gang.gates)
            for gang in gangs
            if gang.kind != WORKLOAD
        }
    )


def refuse_cycles(gangs: Iterable[Gang]) -> None:
    """Refuse jobs that were not created yet and wait, directly or not, for themselves.

    Jobs of a cluster are held with this reason instead.

    Raises:
        DocumentError: naming the jobs of the cycle in their order.
    """
    listed = list(gangs)
    graph = graph_of(listed)
    for gang in listed:
        if not gang.gates or not unseen(gang.document, gang.document.body["metadata"].get("uid")):
            continue
        for one in graph.statuses(JobName.of(*gang.job), gang.gates).values():
            if one.status is DependencyStatus.CYCLE:
                field = f"metadata.annotations: {keys.PREFIX}{keys.AFTER}"
                raise gang.document.error(field, f"is {one.cycle_text}")
