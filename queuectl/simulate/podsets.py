"""The requests of the jobs of a trace."""

from __future__ import annotations

from typing import Final

from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.workload import PodSet, PodShape, TopologyMode, TopologyRequest
from queuectl.simulate.trace import TraceJob

PODSET: Final = "main"


def podset_of(job: TraceJob) -> PodSet:
    """The request of a job."""
    level = job.topology_level
    topology = TopologyRequest(TopologyMode.REQUIRED, level) if level else None
    shape = PodShape(Resources({GPU: job.gpus_per_pod, PODS: 1}))
    return PodSet(PODSET, job.pods, shape, topology)
