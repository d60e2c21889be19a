"""Deletes pods that a dead node keeps Terminating, if an administrator has configured it.

It deletes only pods of evicting gangs, and only after their node was deleted or not ready for the whole time-out. Each leader measures
the time itself: a new leader waits for the whole time-out again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

import structlog

from queuectl.control.ports import Cluster
from queuectl.domain.errors import ClusterError, ObjectGone, WriteConflict
from queuectl.domain.ledger import Entry, State
from queuectl.domain.pod_records import PodRecord
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

log = structlog.get_logger()

POLL_SECONDS = 1.0
REASON = "PodForceDeleted"


class ForceDeletion:
    """Of one leadership."""

    def __init__(
        self, cluster: Cluster, mirror: Mirror, ledger: Callable[[], Ledger], dead_seconds: float
    ) -> None:
        """``dead_seconds``: seconds for which a node must be deleted or not ready."""
        self._cluster = cluster
        self._mirror = mirror
        self._ledger = ledger
        self._dead_seconds = dead_seconds
        self._dead_since: dict[str, float] = {}  # by node, on the event loop's clock

    async def run(self) -> None:
        """Check periodically until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            for entry, pod in list(self.due(clock())):
                await self._delete(entry, pod)
            await asyncio.sleep(POLL_SECONDS)

    def due(self, now: float) -> Iterator[tuple[Entry, PodRecord]]:
        """Pods to delete at ``now`` (monotonic seconds), with their gangs."""
        stuck = list(self._stuck(self._ledger().entries(State.EVICTING)))
        nodes = {pod.node for _, pod in stuck if pod.node is not None}
        self._dead_since = {node: self._dead_since.get(node, now) for node in nodes}
        for entry, pod in stuck:
            if pod.node is not None and now - self._dead_since[pod.node] >= self._dead_seconds:
                yield entry, pod

    def _stuck(self, leaving: Iterable[Entry]) -> Iterator[tuple[Entry, PodRecord]]:
        nodes = self._mirror.nodes
        for entry in leaving:
            for pod in self._mirror.pods_of(entry):
                if pod.terminating and not pod.terminal and pod.node is not None:
                    record = nodes.get(pod.node)
                    if record is None or not record.node.ready:
                        yield entry, pod

    async def _delete(self, entry: Entry, pod: PodRecord) -> None:
        where = f"{pod.namespace}/{pod.name}"
        try:
            await self._cluster.delete_pod(pod.namespace, pod.name, pod.uid, pod.version)
        except (ObjectGone, WriteConflict):
            return  # the watch shows its current state
        except ClusterError as error:
            log.warning("pod_not_force_deleted", pod=where, node=pod.node, error=str(error))
            return
        log.warning("pod_force_deleted", pod=where, node=pod.node)
        job = self._mirror.jobs.get(entry.uid)
        if job is not None and job.has_object:
            text = f"pod {pod.name} did not terminate on node {pod.node}, which is deleted or not ready"
            try:
                await self._cluster.create_event(job, "Warning", REASON, text)
            except ClusterError as error:
                log.info("event_not_written", workload=entry.ref, error=str(error))
