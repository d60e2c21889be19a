"""What-if questions and their results: two plans of one moment, and the cost of an eviction by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.gpus import Gpus
from queuectl.domain.ignored import Ignored
from queuectl.domain.plan import Cost, Eviction, Plan
from queuectl.domain.queries import DocumentKey
from queuectl.domain.snapshot import Snapshot

# ---- What-if questions


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The changes of a question, all together.

    Attributes:
        submit: manifests of jobs, and the runtimes of TrainJobs; fields of a server are removed.
        config: configuration objects to apply.
        delete: configuration objects to delete.
        drain: names of nodes that are cordoned and lose their pods.
        add: (name of a node, how many more like it).
    """

    submit: Sequence[Mapping[str, Any]] = ()
    config: Sequence[Mapping[str, Any]] = ()
    delete: Sequence[DocumentKey] = ()
    drain: Sequence[str] = ()
    add: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """Nothing of it is ever carried out.

    Attributes:
        before, without: the snapshot of now, and its plan.
        after, plan: the snapshot with the change, and its plan.
        submitted: uids of the gangs that came with the change.
        evicted: gangs that leave because the change drains their queue.
        excesses: quotas that running gangs exceed after the change, and did not before.
        diagnoses: why submitted gangs wait, by uid, as far as these were diagnosed.
        warnings: what was read and not honored, and names that lead nowhere.
        ignored: submitted documents without effect.
    """

    before: Snapshot
    without: Plan
    after: Snapshot
    plan: Plan
    submitted: tuple[str, ...] = ()
    evicted: tuple[Eviction, ...] = ()
    excesses: tuple[Excess, ...] = ()
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    ignored: tuple[Ignored, ...] = ()


# ---- The cost of an eviction or a drain


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect of one action on one gang.

    Attributes:
        cost: None for a gang that holds nothing, so that nothing is evicted.
        notice: seconds in which the gang can save its work.
        starts: uids of the gangs that could start then and cannot now, in queue order; the gang itself is among them if it
            starts again. None when the planner had not enough time.
    """

    cost: Cost | None
    notice: float
    starts: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True)
class DrainCost:
    """The gangs that the drain of a queue would evict now.

    Attributes:
        gangs: that hold places by the queue and are not being evicted yet.
        pods, gpus: of these gangs together.
        lost_work: GPU-seconds of work that they lose.
    """

    gangs: int
    pods: int
    gpus: Gpus
    lost_work: int
