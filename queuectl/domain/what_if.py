"""The result of a what-if question: two plans of one moment, without the change and with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.plan import Eviction, Plan
from queuectl.domain.snapshot import Snapshot


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
        warnings: what was read and not honoured, and names that lead nowhere.
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
