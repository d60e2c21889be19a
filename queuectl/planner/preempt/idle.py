"""Which running gangs do not use their GPUs and yield them to a gang that waits, and to whom (``idleReclaim``).

Whether a gang is idle was judged before the snapshot was made (``Admitted.idle_since``); nothing of metrics is known here.
The idle gang's own ClusterQueue decides: a gang of higher priority may have its GPUs, or one of equal priority where the
queue says ``toEqual``, from anywhere in the cohort tree, and whatever the preemption policies of either queue say. In a dry run the
queues count that only want to be told who would go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final

from queuectl.domain.queues import ClusterQueue, ReclaimMode
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Workload
from queuectl.planner.preempt.shield import protected_until
from queuectl.planner.problem.problem import Problem


class Candidates(Enum):
    """Who is asked to leave for a gang that waits."""

    LEGAL = auto()  # whomever the preemption policies name, and who is idle
    IDLE = auto()  # those who are idle, and nobody else
    DRY_RUN = auto()  # the same, with those of queues that do a dry run: to be told, not to be done


NO_PRIORITY: Final = 2**62
"""Higher than any: a gang that yields to nobody."""

_TAKEN: Final = frozenset((ReclaimMode.ON_DEMAND, ReclaimMode.ALWAYS))
_TOLD: Final = _TAKEN | {ReclaimMode.DRY_RUN}


def yields_to(gang: Admitted, queue: ClusterQueue, *, dry: bool = False) -> int:
    """The least priority of a gang that this one yields to for being idle; ``NO_PRIORITY`` if to none.

    Args:
        gang: it runs; what shields it from every eviction is not looked at.
        queue: the ClusterQueue it is charged to.
        dry: count queues that do a dry run, too.
    """
    rule = queue.idle_reclaim
    if gang.idle_since is None or rule.mode not in (_TOLD if dry else _TAKEN):
        return NO_PRIORITY
    return gang.workload.priority + (0 if rule.to_equal else 1)


def least_priorities(problem: Problem, *, dry: bool = False) -> Mapping[str, int]:
    """ClusterQueue to the least priority that some idle gang of it yields to; without queues where nobody yields."""
    return problem.once(_least, dry)


def _least(problem: Problem, dry: bool) -> Mapping[str, int]:
    snapshot = problem.snapshot
    least: dict[str, int] = {}
    modes = _TOLD if dry else _TAKEN
    if not any(q.idle_reclaim.mode in modes for q in snapshot.config.cluster_queues.values()):
        return least
    for gang in problem.usage.idle:
        queue = snapshot.config.cluster_queue_of(gang.workload.namespace, gang.workload.queue)
        if queue is not None and protected_until(gang, queue, snapshot.now) is None:
            priority = yields_to(gang, queue, dry=dry)
            if priority < least.get(queue.name, NO_PRIORITY):
                least[queue.name] = priority
    return least


def in_reach(
    problem: Problem, workload: Workload, queue: ClusterQueue | None, *, dry: bool = False
) -> Iterator[str]:
    """ClusterQueues, of the cohort tree of a gang that waits or its own, with an idle gang that yields to it."""
    least = least_priorities(problem, dry=dry)
    if not least or queue is None:
        return
    queues = problem.pools[queue.name].root.queues
    yield from (n for n in queues if least.get(n, NO_PRIORITY) <= workload.priority)


def anybody_yields(
    problem: Problem, workload: Workload, queue: ClusterQueue | None, *, dry: bool = False
) -> bool:
    """Whether some idle gang yields to one that waits."""
    return any(True for _ in in_reach(problem, workload, queue, dry=dry))


def may_evict(problem: Problem, workload: Workload, queue: ClusterQueue | None) -> bool:
    """Whether a gang that waits may evict anybody at all: by its queue's policies, or somebody who is idle."""
    return queue is not None and (queue.preempts or anybody_yields(problem, workload, queue))
