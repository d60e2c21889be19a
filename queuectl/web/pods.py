"""The pods of a workload as its page shows them: those that do not run first, and never more than a hundred rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.domain.ledger import Entry

MOST: Final = 100  # rows


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod.

    Attributes:
        phase: ``Terminating`` while the pod is being deleted.
        reason: why it does not run; "" where nothing is wrong, or its status names no reason.
        runs: it is ready, or it has succeeded.
    """

    name: str
    phase: str
    node: str
    restarts: int
    reason: str
    runs: bool
    logs: str
    describe: str


@dataclass(frozen=True, slots=True)
class PodTable:
    """The pods of the current attempt, and those of earlier attempts that still exist.

    Attributes:
        rows: at most :data:`MOST`.
        phases: number of pods by phase, the most frequent phase first.
        total: number of pods.
        broken: number of pods that do not run, or are not ready.
    """

    rows: tuple[PodRow, ...]
    phases: tuple[tuple[str, int], ...]
    total: int
    broken: int


def pod_table(entry: Entry, pods: Iterable[PodRecord]) -> PodTable:
    """The table of a workload's pods: those that do not run, then by PodSet, rank and name."""
    listed = sorted(pods, key=_order)
    phases = Counter(_phase(pod) for pod in listed)
    rows = tuple(_row(entry, pod) for pod in listed[:MOST])
    broken = sum(not _runs(pod) for pod in listed)
    return PodTable(rows, tuple(phases.most_common()), len(listed), broken)


def _order(pod: PodRecord) -> tuple[bool, str, bool, int, str]:
    return (_runs(pod), pod.podset, pod.rank is None, pod.rank or 0, pod.name)


def _runs(pod: PodRecord) -> bool:
    return pod.phase is PodPhase.SUCCEEDED or (pod.ready and not pod.terminating)


def _phase(pod: PodRecord) -> str:
    return "Terminating" if pod.terminating and not pod.terminal else str(pod.phase)


def _row(entry: Entry, pod: PodRecord) -> PodRow:
    reason = pod.status_reason
    if pod.attempt != entry.attempt:
        reason = f"{reason}; of start {pod.attempt}".removeprefix("; ")
    return PodRow(
        name=pod.name,
        phase=_phase(pod),
        node=pod.node or "",
        restarts=pod.restarts,
        reason=reason,
        runs=_runs(pod),
        logs=f"kubectl logs -n {pod.namespace} {pod.name} --all-containers",
        describe=f"kubectl describe pod -n {pod.namespace} {pod.name}",
    )
