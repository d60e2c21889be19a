"""The reference rule of published simulators: best fit on nodes, and FIFO, shortest job first or naive backfill per ClusterQueue.

A job with as many GPUs as one node can have, or fewer, gets the node with the fewest free GPUs on which it fits. A larger job
gets completely free nodes. StrictFIFO and SJF stop at the first job that does not fit. BestEffortFIFO starts each job of the queue that
fits, in queue order (naive backfill). The rule knows no cohorts, no preemption and no topology.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from queuectl.domain.errors import BadInput
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import ClusterQueue
from queuectl.simulate.free_gpus import FreeGpus
from queuectl.simulate.setting import Setting
from queuectl.simulate.simulation import Order, Run, World
from queuectl.simulate.trace import NodeEvent, TraceJob

NodeGpus = list[tuple[str, int]]
"""Node and GPUs of each part of a job."""


class Pool:
    """The nodes of one or more ClusterQueues, by their free GPUs."""

    def __init__(self, sizes: Mapping[str, int], free: FreeGpus) -> None:
        """``sizes``: GPUs of each node, in the order in which equal nodes are taken; ``free``: of the simulation."""
        self.sizes = sizes
        self._names = list(sizes)
        self._numbers = {name: number for number, name in enumerate(sizes)}
        self._by_free: list[tuple[int, int]] = []
        self._whole: list[tuple[int, int]] = []
        free.watch(sizes, self._count)

    @property
    def largest(self) -> int:
        """GPUs of the largest node."""
        return max(self.sizes.values(), default=0)

    def could_fit(self, job: TraceJob) -> bool:
        """Whether a job fits if all nodes are up and free."""
        if job.gpus <= self.largest:
            return bool(self.sizes)
        return sum(size // job.gpus_per_pod for size in self.sizes.values()) >= job.pods

    def find(self, job: TraceJob) -> NodeGpus | None:
        """Nodes for a job; None if it does not fit now."""
        return self._one(job.gpus) if job.gpus <= self.largest else self._several(job)

    def _one(self, gpus: int) -> NodeGpus | None:
        at = bisect_left(self._by_free, (gpus, -1))
        return [(self._names[self._by_free[at][1]], gpus)] if at < len(self._by_free) else None

    def _several(self, job: TraceJob) -> NodeGpus | None:
        left, found = job.pods, []
        for size, node in self._whole:
            here = min(-size // job.gpus_per_pod, left)
            if here == 0:
                break
            found.append((self._names[node], here * job.gpus_per_pod))
            left -= here
            if left == 0:
                return found
        return None

    def _count(self, node: str, free: int, sign: int) -> None:
        """A node has so many free GPUs from now on (1), or no longer (-1)."""
        number, size = self._numbers[node], self.sizes[node]
        lists = [(self._by_free, (free, number))]
        if free == size:
            lists.append((self._whole, (-size, number)))
        for nodes, place in lists:
            if sign > 0:
                insort(nodes, place)
            else:
                del nodes[bisect_left(nodes, place)]


Key = tuple[float, ...]
"""A place in a queue: a smaller one is earlier."""


@dataclass(slots=True)
class Queue:
    """The waiting jobs of a ClusterQueue. Jobs of one shape are in one line: if the first does not fit, none of them does.

    Attributes:
        pool: its nodes.
        order: its strategy.
        quota: the most GPUs that its jobs can hold.
    """

    name: str
    pool: Pool
    order: Order
    quota: int
    held: int = 0
    _lines: dict[tuple[int, int], list[tuple[Key, Run]]] = field(default_factory=dict)

    def never_fits(self, job: TraceJob) -> bool:
        """Whether a job is larger than the quota or the nodes."""
        return job.gpus > self.quota or not self.pool.could_fit(job)

    def add(self, run: Run, priority: int) -> None:
        """A job waits."""
        job = run.job
        size = job.declared if self.order is Order.SJF else 0.0
        key = (-priority, size, job.rank)
        heappush(self._lines.setdefault((job.pods, job.gpus_per_pod), []), (key, run))

    def start(self, world: World) -> None:
        """Start the jobs that the strategy allows, one after the other."""
        closed: set[tuple[int, int]] = set()
        while True:
            heads = [
                (line[0][0], shape) for shape, line in self._lines.items() if shape not in closed
            ]
            if not heads:
                return
            _, shape = min(heads)
            run = self._lines[shape][0][1]
            taken = self.pool.find(run.job) if self.held + run.job.gpus <= self.quota else None
            if taken is None:
                if self.order is not Order.BEST_EFFORT_FIFO:
                    return
                closed.add(shape)
                continue
            heappop(self._lines[shape])
            if not self._lines[shape]:
                del self._lines[shape]
            self.held += run.job.gpus
            world.start(run, taken)


class BestFit:
    """The scheduler of the reference rule."""

    def __init__(self, setting: Setting, order: Order | None, world: World) -> None:
        """``order``: of each ClusterQueue; None = its own strategy.

        Raises:
            BadInput: two ClusterQueues share some of their nodes.
        """
        self._world = world
        self._queues = _queues(setting, order, world.free)
        self._queue_of = {
            queue: self._queues[setting.cluster_queue(queue).name]
            for queue in {job.queue for job in setting.jobs}
        }
        self._priorities = setting.priorities
        self._due: set[int] = set()  # ids of the pools in which something has changed

    def never_fits(self, job: TraceJob) -> bool:
        """See :class:`queuectl.simulate.simulation.Scheduler`."""
        return self._queue_of[job.queue].never_fits(job)

    def submitted(self, run: Run) -> None:
        """See :class:`queuectl.simulate.simulation.Scheduler`."""
        self._wait(run)

    def ended(self, run: Run) -> None:
        """See :class:`queuectl.simulate.simulation.Scheduler`."""
        self._free(run)

    def node_changed(self, event: NodeEvent) -> None:
        """The jobs of a failed node wait again, at their place in the queue."""
        for pool in {id(queue.pool): queue.pool for queue in self._queues.values()}.values():
            if event.node not in pool.sizes:
                continue
            self._due.add(id(pool))
            if not event.up:
                self._evict_from(pool, event.node)

    def decide(self) -> None:
        """See :class:`queuectl.simulate.simulation.Scheduler`."""
        for queue in self._queues.values():
            if id(queue.pool) in self._due:
                queue.start(self._world)
        self._due.clear()

    def _wait(self, run: Run) -> None:
        queue = self._queue_of[run.job.queue]
        queue.add(run, self._priorities[run.job.rank])
        self._due.add(id(queue.pool))

    def _free(self, run: Run) -> None:
        queue = self._queue_of[run.job.queue]
        queue.held -= run.job.gpus
        self._due.add(id(queue.pool))

    def _evict_from(self, pool: Pool, node: str) -> None:
        for run, placed in list(self._world.placed.items()):
            if self._queue_of[run.job.queue].pool is pool and any(at == node for at, _ in placed):
                self._world.evict(run)
                self._free(run)
                self._wait(run)


def _queues(setting: Setting, order: Order | None, free: FreeGpus) -> dict[str, Queue]:
    """By name. ClusterQueues with the same nodes share a pool."""
    pools: dict[tuple[str, ...], Pool] = {}
    owner: dict[str, tuple[str, Pool]] = {}
    queues = {}
    for name, queue in sorted(setting.config.cluster_queues.items()):
        nodes = setting.nodes_of(queue)
        names = tuple(node.name for node in nodes)
        if names not in pools:
            pools[names] = Pool({node.name: node.allocatable[GPU] for node in nodes}, free)
        for node in names:
            other, pool = owner.setdefault(node, (name, pools[names]))
            if pool is not pools[names]:
                what = (
                    f"ClusterQueues {other} and {name} share Node {node}, but not all their nodes"
                )
                raise BadInput(f"--placement best-fit: {what}")
        own = Order(queue.strategy) if order is None else order
        if own is Order.BACKFILL:
            raise BadInput(f"ClusterQueue {name}: Backfill needs the planner: --placement planner")
        queues[name] = Queue(name, pools[names], own, _quota(queue))
    return queues


def _quota(queue: ClusterQueue) -> int:
    """GPUs of its nominal quota."""
    return sum(
        quotas.nominal.get(GPU, 0)
        for group in queue.groups
        if GPU in group.covered
        for quotas in group.flavors
    )
