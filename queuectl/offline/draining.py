"""The gangs that run in queues which are drained."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace

from queuectl.domain.plan import Eviction
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.configuration.admissibility import drain


def drained(snapshot: Snapshot) -> Iterator[Eviction]:
    """The gangs that ``stopPolicy: HoldAndDrain`` evicts."""
    for gang in snapshot.admitted:
        workload = gang.workload
        why = drain(workload.namespace, workload.queue or "", snapshot.config)
        if why is not None and not gang.leaving:
            yield Eviction(workload.uid, why.code, why.message)


def leaving(snapshot: Snapshot, out: AbstractSet[str]) -> Snapshot:
    """The snapshot in which these gangs are being evicted. Each keeps its place in the queue."""
    admitted = tuple(
        replace(gang, leaving=True, returns=True, lost=()) if gang.workload.uid in out else gang
        for gang in snapshot.admitted
    )
    return replace(snapshot, admitted=admitted)
