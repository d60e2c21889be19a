"""The setting of a simulation: nodes and configuration, the jobs of the trace that take part, and those that do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from queuectl.domain.budgets import SpentUnits
from queuectl.domain.errors import BadInput
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import ClusterQueue, QueueConfig, QueueingStrategy
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.words import counted, format_time
from queuectl.simulate.free_gpus import FreeGpus
from queuectl.simulate.trace import NodeEvent, TraceJob, Utilization

LocalQueueKey = tuple[str, str]
"""Namespace and name."""

EARLIEST: Final = 946_684_800.0
"""Unix seconds of the begin of a simulation at the earliest: 2000-01-01. The planner compares times with 0."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that the policies of one comparison share.

    Attributes:
        snapshot: nodes and configuration, as ``queuectl plan`` reads them.
        trace: name of the file of the jobs.
        jobs: that take part, by rank; their queues exist.
        skipped: jobs of unknown queues.
        events: failures and recoveries of nodes.
        priorities: of the jobs, by rank.
        begins: unix seconds of second 0 of the trace; None = it is not stated.
        spent: by the Budgets before second 0, in its month.
    """

    snapshot: Snapshot
    trace: str
    jobs: tuple[TraceJob, ...]
    skipped: tuple[TraceJob, ...]
    events: tuple[NodeEvent, ...]
    priorities: Mapping[int, int]
    begins: float | None = None
    spent: SpentUnits = field(default_factory=SpentUnits)

    @property
    def begin(self) -> float:
        """Unix seconds of second 0 of the trace; if it is not stated, the newest time of the input."""
        return max(EARLIEST, self.snapshot.now if self.begins is None else self.begins)

    @property
    def config(self) -> QueueConfig:
        return self.snapshot.config

    @property
    def fleet(self) -> Fleet:
        return self.snapshot.fleet

    def cluster_queue(self, queue: LocalQueueKey) -> ClusterQueue:
        """The ClusterQueue of a job that takes part."""
        found = self.config.cluster_queue_of(*queue)
        assert found is not None
        return found

    def nodes_of(self, queue: ClusterQueue) -> list[Node]:
        """The nodes with GPUs of the flavors of a ClusterQueue, in the order of their names."""
        flavors = [
            self.config.flavors[quotas.flavor]
            for group in queue.groups
            if GPU in group.covered
            for quotas in group.flavors
            if quotas.flavor in self.config.flavors
        ]
        return [
            node
            for node in self.fleet.nodes
            if node.allocatable[GPU]
            and any(node.has_labels(flavor.node_labels) for flavor in flavors)
        ]

    @property
    def gpus(self) -> int:
        """Of all nodes."""
        return sum(node.allocatable[GPU] for node in self.fleet.nodes)

    def gpus_of(self, queue: LocalQueueKey) -> int:
        """Of all nodes that the jobs of a LocalQueue can use."""
        return sum(node.allocatable[GPU] for node in self.nodes_of(self.cluster_queue(queue)))

    def free_gpus(self) -> FreeGpus:
        """The GPUs of the nodes, none of which is held."""
        largest: dict[str, int] = {}
        for flavor in self.config.flavors.values():
            nodes = [node for node in self.fleet.nodes if node.has_labels(flavor.node_labels)]
            most = max((node.allocatable[GPU] for node in nodes), default=0)
            largest |= {node.name: max(most, largest.get(node.name, 0)) for node in nodes}
        return FreeGpus({node.name: node.allocatable[GPU] for node in self.fleet.nodes}, largest)

    def under(self, strategy: QueueingStrategy) -> Setting:
        """The same, with this strategy in each ClusterQueue, whatever its Cohorts say."""
        queues = {
            name: replace(queue, strategy=strategy)
            for name, queue in self.config.cluster_queues.items()
        }
        cohorts = self.config.cohorts
        if strategy is not QueueingStrategy.BACKFILL:
            cohorts = {n: replace(cohort, backfill=None) for n, cohort in cohorts.items()}
        config = replace(self.config, cluster_queues=queues, cohorts=cohorts)
        return replace(self, snapshot=replace(self.snapshot, config=config))

    def warnings(self) -> Iterator[str]:
        """Jobs of unknown queues, and workloads of the input: the simulation leaves them out."""
        lines: dict[LocalQueueKey, list[int]] = {}
        for job in self.skipped:
            lines.setdefault(job.queue, []).append(job.line)
        for (namespace, name), found in sorted(lines.items()):
            jobs = counted(len(found), "job")
            queue = f"LocalQueue {namespace}/{name}" if name else "a job without a LocalQueue"
            what = f"{queue} does not exist" if name else "the column queue is empty"
            yield f"{self.trace}: line {min(found)}: {what}: {jobs} skipped"
        given = self.snapshot
        if gangs := len(given.pending) + len(given.admitted):
            yield f"the input has {counted(gangs, 'gang')}, which the simulation leaves out"
        if given.other_pods:
            nodes = counted(len(given.other_pods), "node")
            yield f"the input has pods on {nodes}, which the simulation leaves out"
        free = sorted(f.name for f in self.config.flavors.values() if f.topology is None)
        if self.events and free:
            names = ", ".join(free)
            yield f"--events: no event affects jobs in ResourceFlavors without a Topology ({names}): they have no nodes"
        if self.begins is None and (self.config.budgets or self.config.reservations):
            start = format_time(self.begin)
            what = f"for Budgets and Reservations, second 0 of the trace is {start}"
            yield f"{what}; to change it, use --start"


def make_setting(
    snapshot: Snapshot,
    trace: str,
    jobs: Iterable[TraceJob],
    events: Sequence[NodeEvent] = (),
    utilization: Utilization | None = None,
    seed: int = 0,
    begins: float | None = None,
) -> Setting:
    """Divide the jobs of a trace into those that take part and those of unknown queues.

    Args:
        snapshot: nodes and configuration.
        trace: name of the file of the jobs.
        jobs: by rank.
        events: of nodes.
        utilization: of the GPUs of jobs; None = as the trace states it.
        seed: of the random numbers that choose from a distribution of utilization.
        begins: unix seconds of second 0 of the trace; None = the newest time of the input.

    Raises:
        BadInput: naming the file, the line and the column.
    """
    queued: list[TraceJob] = []
    skipped: list[TraceJob] = []
    priorities: dict[int, int] = {}
    draw = Random(seed).random  # noqa: S311 - nothing secret
    for job in jobs:
        queue = snapshot.config.cluster_queue_of(*job.queue)
        if queue is None:
            skipped.append(job)
            continue
        priorities[job.rank] = queue.capped(_priority(job, trace, snapshot.config))
        measured = job if utilization is None else utilization.applied(job, draw)
        queued.append(replace(measured, limit=_limit(job, queue)))
    _check_nodes(events, snapshot.fleet)
    return Setting(
        snapshot, trace, tuple(queued), tuple(skipped), tuple(events), priorities, begins
    )


def _limit(job: TraceJob, queue: ClusterQueue) -> float | None:
    """The limit of the execution time of a job, that of its ClusterQueue included; a limit that it refuses stays as it is."""
    execution = queue.execution
    return job.limit if execution.refuses(job.limit) else execution.limit(job.limit)


def _priority(job: TraceJob, trace: str, config: QueueConfig) -> int:
    if isinstance(job.priority, int):
        return job.priority
    named = config.priority_class_of(job.priority)
    if named is None:
        return 0
    if named not in config.priority_classes:
        what = f"{named!r} is neither an integer nor a WorkloadPriorityClass of the input"
        raise BadInput(f"{trace}: line {job.line}: priority: {what}")
    return config.priority_classes[named]


def _check_nodes(events: Iterable[NodeEvent], fleet: Fleet) -> None:
    unknown = Counter(event.node for event in events if event.node not in fleet.by_name)
    if unknown:
        raise BadInput(f"--events: Node {min(unknown)} is not in the input")
