"""Whether a plan is right although users have edited the configuration since it was made.

The plan is verified again under the newest configuration. Edits wait until the commit has ended, so nothing is committed that the newest
configuration forbids. The snapshot stays that of the plan. Therefore only parts of the configuration can differ that the verifier itself
reads: quotas, Cohorts, and LocalQueues. The decisions for gangs of other queues that differ, or that break a rule, are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, replace
from typing import Final, TypeAlias

from queuectl.control.checked_plan import CheckedPlan
from queuectl.control.contained_plan import without
from queuectl.domain.errors import BadInput
from queuectl.domain.node_quota import quota_from_nodes
from queuectl.domain.queries import ConfigChanges
from queuectl.domain.queues import QueueConfig, StopPolicy, in_force
from queuectl.objects.configuration.catalog import Catalog
from queuectl.planner.verify import PlanViolation, verify

LONGEST_CHECK: Final = 2.0
"""Seconds for one verification. Edits wait for it, and fail after the lock timeout of the database, 5 seconds."""
_QUEUES: Final = ("cluster_queues", "cohorts", "overrides", "later")
_OF_QUEUES: Final = (*_QUEUES, "local_queues", "revision")

_Place: TypeAlias = tuple[str, str]
"""Namespace and name of a LocalQueue."""


class ConfigurationTolerance:
    """Decides it for one try to commit a plan.

    Attributes:
        faulty: LocalQueues without whose gangs the plan can be right; empty if it is wrong anyway, or before the decision.
        error: with which the decision failed.
    """

    def __init__(
        self,
        catalog: Catalog,
        checked: CheckedPlan,
        concerned: Collection[_Place],
        dropped: Collection[_Place],
        *,
        whole: bool,
    ) -> None:
        """Decide nothing yet.

        Args:
            catalog: of the plan.
            checked: the plan.
            concerned: LocalQueues of the gangs that the changes serve.
            dropped: LocalQueues whose gangs are left out already.
            whole: the plan has all decisions, on the snapshot of all gangs. Otherwise it cannot be verified again.
        """
        self.faulty: frozenset[_Place] = frozenset()
        self.error: Exception | None = None
        self._catalog = catalog
        self._checked = checked
        self._concerned = frozenset(concerned) - frozenset(dropped)
        self._dropped = frozenset(dropped)
        self._whole = whole

    async def spare(self, changes: ConfigChanges) -> bool:
        """Whether the changes permit the plan. A verification that fails or takes too long does not permit it."""
        try:
            async with asyncio.timeout(LONGEST_CHECK):
                right, self.faulty = await asyncio.to_thread(self._judged, changes)
        except TimeoutError:
            return False
        except Exception as error:  # noqa: BLE001 - contained by the caller
            self.error = error
            return False
        return right

    def _judged(self, changes: ConfigChanges) -> tuple[bool, frozenset[_Place]]:
        """Whether the plan is right, and ``faulty``."""
        snapshot = self._checked.snapshot
        before = snapshot.config
        catalog = self._catalog.copy()
        catalog.follow(changes)
        try:
            stated = in_force(catalog.config(changes.revision), snapshot.now)
        except BadInput:  # a manual change in the database
            return False, frozenset()
        after = quota_from_nodes(stated, snapshot.fleet)
        others = (f.name for f in fields(QueueConfig) if f.name not in _OF_QUEUES)
        if not _same(before, after, others):
            return False, frozenset()
        changed = self._changed(before, after)
        if not changed.isdisjoint(self._repaired()):
            return False, frozenset()  # a decision for a running gang is not left out
        if faulty := changed & self._concerned:
            return False, faulty
        running = {(gang.workload.namespace, gang.workload.queue) for gang in snapshot.admitted}
        if _same(before, after, _QUEUES) and changed.isdisjoint(running):
            return True, frozenset()
        if not self._whole:
            return False, frozenset()
        violations = self._violations(after, changed | self._dropped)
        return not violations, self._at_fault(violations, after) - self._dropped

    def _changed(self, before: QueueConfig, after: QueueConfig) -> frozenset[_Place]:
        """LocalQueues whose gangs are not decided as before: they lead elsewhere or are stopped, or policies of their ClusterQueue differ."""
        known = before.cluster_queues
        names = {
            name
            for name, queue in after.cluster_queues.items()
            if name in known and not queue.has_policies_of(known[name])
        }
        names |= self._taking_from(names) if names else set()
        places = before.local_queues.keys() | after.local_queues.keys()
        moved = {place for place in places if _target(before, place) != _target(after, place)}
        return _behind(names, before) | _behind(names, after) | moved

    def _taking_from(self, names: Collection[str]) -> set[str]:
        """ClusterQueues of the gangs for which gangs of these ClusterQueues are evicted."""
        snapshot = self._checked.snapshot
        gangs = [gang.workload for gang in snapshot.pending]
        gangs += [gang.workload for gang in snapshot.admitted]
        queues = {gang.uid: queue.name for gang in gangs if (queue := snapshot.queue_of(gang))}
        return {
            queues[taker]
            for victim, taker in self._evicted()
            if queues.get(victim) in names and taker in queues
        }

    def _repaired(self) -> set[_Place]:
        """LocalQueues of the running gangs for which the plan evicts others."""
        takers = {taker for _, taker in self._evicted()}
        running = (gang.workload for gang in self._checked.snapshot.admitted)
        return {
            (gang.namespace, gang.queue)
            for gang in running
            if gang.uid in takers and gang.queue is not None
        }

    def _evicted(self) -> Iterator[tuple[str, str]]:
        """The gangs that the plan evicts for others, and these."""
        plan = self._checked.decided
        yield from ((one.victim, one.preemptor) for one in plan.preempted)
        yield from ((one.uid, one.beneficiary) for one in plan.moved)

    def _violations(
        self, after: QueueConfig, left_out: Collection[_Place]
    ) -> tuple[PlanViolation, ...]:
        """The rules that the plan without the gangs of some LocalQueues breaks under another configuration."""
        checked, snapshot = self._checked, self._checked.snapshot
        gangs = (gang.workload for gang in snapshot.pending)
        out = {gang.uid for gang in gangs if (gang.namespace, gang.queue) in left_out}
        now = without(replace(snapshot, config=after), out)
        return verify(now, checked.decided.without(out), checked.selects)

    def _at_fault(
        self, violations: Iterable[PlanViolation], after: QueueConfig
    ) -> frozenset[_Place]:
        """LocalQueues of the pending gangs, ClusterQueues and Cohorts that break a rule."""
        takers = dict(self._evicted())
        names = {takers.get(one.subject, one.subject) for one in violations}
        for gang in self._checked.snapshot.pending:
            queue = after.cluster_queue_of(gang.workload.namespace, gang.workload.queue)
            if gang.workload.uid in names and queue is not None:
                names.add(queue.name)
        return _behind(names, after)


def _same(before: QueueConfig, after: QueueConfig, parts: Iterable[str]) -> bool:
    return all(getattr(before, part) == getattr(after, part) for part in parts)


def _target(config: QueueConfig, place: _Place) -> tuple[str, StopPolicy, bool] | None:
    """The ClusterQueue of a LocalQueue, whether it exists, and whether the LocalQueue admits gangs."""
    local = config.local_queues.get(place)
    if local is None:
        return None
    return local.cluster_queue, local.stop_policy, local.cluster_queue in config.cluster_queues


def _behind(names: Collection[str], config: QueueConfig) -> frozenset[_Place]:
    """LocalQueues of these ClusterQueues and Cohorts, and of the ClusterQueues that are one line with them."""
    known = config.cluster_queues
    lines = {line.name for n in names if n in known and (line := config.backfill_cohort(known[n]))}
    concerned = lines.union(names)
    queues = {
        queue.name
        for queue in (known.values() if concerned else ())
        if not concerned.isdisjoint((queue.name, *config.cohorts_above(queue)))
    }
    locals_ = config.local_queues.items()
    return frozenset(place for place, local in locals_ if local.cluster_queue in queues)
