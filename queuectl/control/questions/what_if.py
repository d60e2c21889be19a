"""What-if: changes on a copy of the current snapshot. The planner of the loop decides, and nothing is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import structlog

from queuectl.control.checked_plan import CheckedPlan, explained
from queuectl.control.contained_plan import planned_around
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.control.questions.viewer import ClusterView
from queuectl.devices.gpu_sizes import with_sizes
from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.errors import TookTooLong, UnreadableConfiguration
from queuectl.domain.ledger import Document
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.what_if import WhatIf, WhatIfResult
from queuectl.offline.what_if import ChangedSnapshot, ReadingContext, changed
from queuectl.planner import StopSignal
from queuectl.planner.cache import PlannerCache
from queuectl.reports.over_quota import over_quota
from queuectl.state.mirror import Mirror

TIMEOUT_SECONDS: Final = 20.0  # for one what-if, without the wait for other questions
MOST_DIAGNOSED: Final = 3  # submitted gangs that stay pending and get a diagnosis

_log = structlog.get_logger()


class ConfigurationSource(Protocol):
    """The store of the configuration."""

    async def configuration(self) -> tuple[int, tuple[Document, ...]]:
        """Revision and all documents. Can raise StoreUnavailable."""


class WhatIfPlanner:
    """Answers what-if questions of one process."""

    def __init__(
        self,
        read_view: Callable[[], Awaitable[ClusterView | None]],
        store: ConfigurationSource,
        mirror: Mirror,
        throttle: PlannerThrottle,
        cache: PlannerCache,
    ) -> None:
        """``read_view``: returns the current snapshot."""
        self._read_view = read_view
        self._store = store
        self._mirror = mirror
        self._throttle = throttle
        self._cache = cache

    async def try_out(self, question: WhatIf) -> WhatIfResult | None:
        """The plans with and without the changes; None until this process has a snapshot.

        Raises:
            BadInput: a change is invalid.
            UnreadableConfiguration: a stored document is invalid. The log names it.
            TookTooLong: the time of the planner was too short, or too many requests wait.
            StoreUnavailable: no response from the database.
        """
        async with self._throttle.turn():
            return await self._answer(question)

    async def _answer(self, question: WhatIf) -> WhatIfResult | None:
        seen = await self._read_view()
        if seen is None:
            return None
        _, documents = await self._store.configuration()
        mirror = self._mirror
        uids = (pending.workload.uid for pending in seen.snapshot.pending)
        jobs = {uid: mirror.jobs[uid] for uid in uids if uid in mirror.jobs}
        around = ReadingContext(mirror.requests(), jobs, mirror.kinds)
        work = partial(_worked_out, seen.snapshot, documents, question, around, self._cache)
        try:
            trial = await self._throttle.work_out(work, TIMEOUT_SECONDS)
        except UnreadableConfiguration as error:
            _log.exception("configuration_unreadable", error=str(error), previous_in_force=True)
            raise
        if trial is None:
            raise TookTooLong("the planner did not finish in time")
        return trial


def _worked_out(
    snapshot: Snapshot,
    documents: Iterable[Mapping[str, Any]],
    question: WhatIf,
    around: ReadingContext,
    cache: PlannerCache,
    stop: StopSignal,
) -> WhatIfResult | None:
    """The result; None after a timeout."""
    cache = cache.fork()
    changed_snapshot = changed(snapshot, documents, question, around, lambda: stop.stopped)
    without = _checked(snapshot, cache, stop)
    after = _checked(with_sizes(changed_snapshot.snapshot), cache, stop)
    if without is None or after is None:
        return None
    excesses = over_quota(after.snapshot, after.snapshot.config)
    old = set(over_quota(without.snapshot, snapshot.config))
    return WhatIfResult(
        before=without.snapshot,
        without=without.plan,
        after=after.snapshot,
        plan=after.plan,
        submitted=changed_snapshot.submitted,
        evicted=changed_snapshot.evicted,
        excesses=tuple(excess for excess in excesses if excess not in old),
        diagnoses=_diagnoses(changed_snapshot, after, cache, stop),
        warnings=changed_snapshot.warnings,
        ignored=changed_snapshot.ignored,
    )


def _checked(snapshot: Snapshot, cache: PlannerCache, stop: StopSignal) -> CheckedPlan | None:
    """A plan that the loop would commit; None after a timeout."""
    checked = planned_around(snapshot, stop, cache)
    if checked.decided.cut or stop.stopped:
        return None
    for violation in checked.violations:
        _log.error("plan_refused", violation=str(violation))
    assert checked.usable, "the plan failed its verification"
    return checked


def _diagnoses(
    changed_snapshot: ChangedSnapshot, after: CheckedPlan, cache: PlannerCache, stop: StopSignal
) -> dict[str, Diagnosis]:
    """Diagnoses of the first submitted gangs that stay pending, without those that wait for evicted gangs only."""
    new = set(changed_snapshot.submitted)
    waits = [r.uid for r in after.decided.pending if r.uid in new and r.lease is None][
        :MOST_DIAGNOSED
    ]
    if not waits:
        return {}
    found = explained(after, frozenset(waits), stop, cache)
    return {diagnosis.uid: diagnosis for diagnosis in found if not diagnosis.cut}
