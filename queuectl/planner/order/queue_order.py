"""The queue order, which gangs must not be planned, and which gangs the heads of StrictFIFO ClusterQueues hold back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from queuectl.domain.queues import (
    WEIGHT_UNIT,
    Backfill,
    ClusterQueue,
    QueueConfig,
    QueueingStrategy,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import UsageFairness
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.objects.configuration.queue_config import inadmissible_reason
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.flavors import Options
from queuectl.planner.problem.problem import Problem

Place: TypeAlias = tuple[int, float, str]
Rank: TypeAlias = tuple[
    int | float | str, ...
]  # smaller is earlier; compared within one kind of order

_Account: TypeAlias = tuple[str, str | None, str | None]
"""Namespace, LocalQueue and user."""

Number = TypeVar("Number", np.float64, npt.NDArray[np.float64])


def stretch(now: float, queued_at: Number, seconds: Number) -> Number:
    """The times from submission to end of gangs that start now, as multiples of their lengths: they grow faster for short gangs.

    The shortest of those that came together is first, and none is passed indefinitely.
    """
    waited = np.maximum(0.0, now - queued_at)
    found: Number = 1.0 + waited / np.maximum(seconds, 1.0)
    return found


def place(workload: Workload) -> Place:
    """Sort key of the queue order where past use does not count: priority first, then time queued, then uid."""
    return -workload.priority, workload.queued_at, workload.uid


def _account(workload: Workload) -> _Account:
    """For whom past use is counted."""
    return workload.namespace, workload.queue, workload.user


def behind(head: str, why: str = "is pending") -> Reason:
    """Why a gang of a StrictFIFO ClusterQueue waits for the head: ``head`` is its ``namespace/name``."""
    text = f"StrictFIFO: it waits behind {head}, which {why}"
    return Reason(Code.WAITING_IN_ORDER, text, {"behind": head})


def no_growth(head: str) -> Reason:
    """Why an elastic gang does not grow: ``head`` is the ``namespace/name`` of a gang before it."""
    text = f"its gang grows only while no gang before it in its queue waits: {head} is pending"
    return Reason(Code.WAITING_IN_ORDER, text, {"behind": head})


def after_rank(lower: Workload) -> Reason:
    """Why a pod is not added to its elastic gang: ``lower`` is the pod of a lower rank, or the gang if it has lost pods."""
    text = f"its gang grows in the order of ranks: {lower.ref} is before it"
    if not lower.grows:
        text = f"the lost pods of its gang {lower.ref} are placed first"
    return Reason(Code.WAITING_IN_ORDER, text, {"behind": lower.ref})


@dataclass(eq=False, slots=True)
class QueueOrder:
    """The queue order with past use, where the rules and a ClusterQueue say that it counts.

    A start of this plan counts against its LocalQueue, user and ClusterQueue at once, by as much as it will after one
    sampling interval. Therefore gangs of equal priority alternate within one cycle too.

    Attributes:
        shortest: ClusterQueues of which the shortest gangs are first now.
    """

    snapshot: Snapshot
    shortest: set[str] = field(default_factory=set)
    _fresh: dict[object, float] = field(default_factory=dict)  # what this plan has added

    def within(self, workload: Workload, queue: ClusterQueue | None) -> Rank:
        """Among gangs of one ClusterQueue."""
        if queue is not None and queue.name in self.shortest:
            return -workload.priority, -self._stretch(workload), workload.queued_at, workload.uid
        return self.of_all_lengths(workload, queue)

    def of_all_lengths(self, workload: Workload, queue: ClusterQueue | None) -> Rank:
        """Among gangs of one ClusterQueue, whether or not the shortest are first now."""
        rule = self._by_use(queue)
        if rule is None:
            return place(workload)
        used = self._of_local_queue(workload), self._of_user(workload)
        if rule.before_priority:
            return *used, *place(workload)
        return -workload.priority, *used, workload.queued_at, workload.uid

    def always_before(self, first: Workload, later: Workload, queue: ClusterQueue | None) -> bool:
        """Whether a gang is before another one of its ClusterQueue whatever was used lately: in this plan and in those after it."""
        rule = self._by_use(queue)
        if rule is None or _account(first) == _account(later):
            return place(first) < place(later)
        return not rule.before_priority and first.priority > later.priority

    def _by_use(self, queue: ClusterQueue | None) -> UsageFairness | None:
        """The rule by which past use counts in a ClusterQueue; None if it does not."""
        counts = queue is not None and queue.usage_fairness
        return self.snapshot.config.rules.usage_fairness if counts else None

    def _stretch(self, workload: Workload) -> float:
        """See :func:`stretch`; the least if its length is unknown, and of a pod of an elastic gang: others are considered before it."""
        duration, now = workload.duration, self.snapshot.now
        if duration is None or workload.grows:
            return 0.0
        return float(stretch(now, np.float64(workload.queued_at), np.float64(duration.seconds)))

    def among(self, workload: Workload, queue: ClusterQueue | None) -> Rank:
        """Among the heads of ClusterQueues that borrow alike: past use of the whole queue breaks ties of priority."""
        name = queue.name if queue is not None else ""
        used = self.snapshot.past_use.cluster_queues.get(name, 0.0) + self._fresh.get(name, 0.0)
        return -workload.priority, used, workload.queued_at, workload.uid

    def start(self, workload: Workload, charges: Mapping[tuple[str, str], int]) -> None:
        """Count what a gang of this plan is charged, by (flavor, resource)."""
        config = self.snapshot.config
        rule = config.rules.usage_fairness
        queue = self.snapshot.queue_of(workload)
        if rule is None or queue is None:
            return
        amounts: dict[str, int] = {}
        for (_, resource), amount in charges.items():
            amounts[resource] = amounts.get(resource, 0) + amount
        fresh = rule.weigh(amounts) * rule.fresh(rule.sampling)
        for key in (queue.name, (workload.namespace, workload.queue), (workload.user,)):
            self._fresh[key] = self._fresh.get(key, 0.0) + fresh

    def _of_local_queue(self, workload: Workload) -> float:
        key = (workload.namespace, workload.queue or "")
        weight = self.snapshot.config.local_queues[key].weight
        if not weight:
            return inf  # behind all others, whatever they used
        fresh = self._fresh.get(key, 0.0) * WEIGHT_UNIT / weight
        return self.snapshot.past_use.local_queues.get(key, 0.0) + fresh

    def _of_user(self, workload: Workload) -> float:
        if workload.user is None:
            return 0.0
        past = self.snapshot.past_use.users.get(workload.user, 0.0)
        return past + self._fresh.get((workload.user,), 0.0)


def inadmissible(snapshot: Snapshot, pending: Pending) -> Reason | None:
    """Why a gang must not be planned, whatever is free; None when it may."""
    workload = pending.workload
    if pending.blocked is not None or workload.queue is None:
        return pending.blocked
    labels = snapshot.namespaces.get(workload.namespace, {})
    return inadmissible_reason(workload.namespace, workload.queue, snapshot.config, labels)


@dataclass(frozen=True, slots=True)
class BlockingHead:
    """A gang of a StrictFIFO queue that waits for capacity: later gangs must not use flavors that it can use.

    Attributes:
        leased: its capacity is reserved.
        put_off: it was not searched for, so whether it needs the capacity is unknown.
    """

    workload: Workload
    flavors: frozenset[str]
    leased: bool
    put_off: bool = False

    @property
    def ref(self) -> str:
        """``namespace/name``."""
        return self.workload.ref


def _add(heads: list[BlockingHead], head: BlockingHead) -> None:
    if not any(head.flavors <= known.flavors for known in heads):
        heads.append(head)


@dataclass(slots=True)
class StrictFifoHeads:
    """The one rule that a waiting head holds back later gangs of its StrictFIFO ClusterQueue from what it waits for.

    Attributes:
        order: inside each ClusterQueue.
        heads: by ClusterQueue, the heads that wait for capacity.
        of_accounts: the same of each account alone: past use does not change their order.
        waiting: by ClusterQueue of any strategy and the flavors that they can use, the first of the gangs that wait for capacity which is
            not held for them. No elastic gang behind them grows on these flavors.
        at_limits: by ClusterQueue and limit, the head that waits for that limit.
        returning: by ClusterQueue, evicted gangs that will queue again at their old places, or whose pods do not exist again yet.
        leaving: the first of these by uid, while they hold capacity.
    """

    problem: Problem
    order: QueueOrder = field(init=False)
    heads: dict[str, list[BlockingHead]] = field(default_factory=dict)
    of_accounts: dict[tuple[str, _Account], list[BlockingHead]] = field(default_factory=dict)
    waiting: dict[str, dict[frozenset[str], BlockingHead]] = field(default_factory=dict)
    at_limits: dict[tuple[str, Hashable], str] = field(default_factory=dict)
    returning: dict[str, list[tuple[Workload, BlockingHead]]] = field(default_factory=dict)
    leaving: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.order = QueueOrder(self.problem.snapshot)
        leaving = [gang for gang in self.problem.usage.leaving if gang.returns]
        self.leaving = frozenset(gang.workload.uid for gang in leaving if gang.lease is None)
        for gang in sorted(leaving, key=lambda gang: place(gang.workload)):
            flavors = frozenset(name for p in gang.placement.podsets for name in p.charged)
            self.keep_place(gang.queued_again, flavors, leased=gang.lease is not None)

    def keep_place(self, workload: Workload, flavors: frozenset[str], *, leased: bool) -> None:
        """Note a gang that is to be in its ClusterQueue again, before the first gang behind it is considered."""
        queue = self.problem.snapshot.queue_of(workload)
        if queue is not None:
            head = BlockingHead(workload, flavors, leased)
            self.returning.setdefault(queue.name, []).append((workload, head))

    def advance_to(self, pending: Pending) -> Iterator[Workload]:
        """Note the gangs that have a place before this gang in its ClusterQueue and are not back in it yet.

        A blocked gang is considered before gangs that are ahead of it.

        Yields:
            Those that still hold capacity, and hold back no gang although they are ahead of it.
        """
        if pending.blocked is not None:
            return
        queue = self.problem.snapshot.queue_of(pending.workload)
        returning = self.returning.get(queue.name) if queue is not None else None
        if not returning:
            return
        here = self.order.within(pending.workload, queue)
        for gang in [g for g in returning if self.order.within(g[0], queue) < here]:
            returning.remove(gang)
            self.wait(queue, gang[1])
            strict = queue is None or queue.strict
            if not strict and gang[0].uid in self.leaving:
                yield gang[0]

    def wait(self, queue: ClusterQueue | None, head: BlockingHead) -> None:
        """Note a gang that waits for capacity."""
        if queue is not None and not head.leased:
            waiting = self.waiting.setdefault(queue.name, {})
            first = waiting.setdefault(head.flavors, head)
            if self._is_before(head, first.workload, queue):  # the shortest are considered first
                waiting[head.flavors] = head
        if queue is not None and queue.strict:
            _add(self.heads.setdefault(queue.name, []), head)
            account = _account(head.workload)
            _add(self.of_accounts.setdefault((queue.name, account), []), head)

    def wait_at_limit(self, queue: ClusterQueue | None, limit: Hashable, ref: str) -> None:
        """Note a gang that waits for a limit: later gangs that count against it wait too."""
        if queue is not None and queue.strict:
            self.at_limits.setdefault((queue.name, limit), ref)

    def ahead_at_limit(self, queue: ClusterQueue | None, limit: Hashable) -> str | None:
        """The head that waits for this limit, or None."""
        return self.at_limits.get((queue.name, limit)) if queue is not None else None

    def ahead(self, queue: ClusterQueue | None, flavors: Iterable[str]) -> BlockingHead | None:
        """The first waiting head that could use one of these flavors."""
        heads = self.heads.get(queue.name, ()) if queue is not None else ()
        return next((head for head in heads if self.holds_back(head, flavors)), None)

    def open(self, queue: ClusterQueue | None, options: Options) -> Options:
        """The flavors of a gang that no head holds back."""
        return options.without(lambda flavor: self.ahead(queue, (flavor,)) is not None)

    def ahead_of_all(self, queue: ClusterQueue | None, options: Options) -> BlockingHead | None:
        """The first waiting head that could use the flavors that a gang prefers; None if some choice of flavors is open to the gang."""
        if options.impossible:
            return None
        head = self.ahead(queue, next(options.choices()).values())
        some_open = bool(options.allowed) and not self.open(queue, options).impossible
        return None if some_open else head

    def ahead_of_lease(
        self, workload: Workload, queue: ClusterQueue | None, flavors: Iterable[str]
    ) -> BlockingHead | None:
        """The first waiting head that could use one of these leased flavors, and is before the gang whatever was used lately."""
        if queue is None:
            return None
        heads = self.heads.get(queue.name, [])
        own = self.of_accounts.get((queue.name, _account(workload)), [])
        return next(
            (
                head
                for head in (*heads, *own)
                if self.order.always_before(head.workload, workload, queue)
                and self.holds_back(head, flavors)
            ),
            None,
        )

    def ahead_of_growth(
        self, workload: Workload, queue: ClusterQueue | None, flavors: Iterable[str]
    ) -> BlockingHead | None:
        """A gang before a pod of an elastic gang that waits for one of these flavors."""
        waiting = self.waiting.get(queue.name, {}) if queue is not None else {}
        before = (h for h in waiting.values() if self._is_before(h, workload, queue))
        return next((head for head in before if self.holds_back(head, flavors)), None)

    def _is_before(
        self, head: BlockingHead, workload: Workload, queue: ClusterQueue | None
    ) -> bool:
        """Whether a gang that waits is before another one, whatever their lengths."""
        rank = self.order.of_all_lengths
        return rank(head.workload, queue) < rank(workload, queue)

    def holds_back(self, head: BlockingHead, flavors: Iterable[str]) -> bool:
        """Whether this head could use one of these flavors."""
        taken = frozenset(flavors)
        return not taken or not head.flavors or self._overlap(taken, head.flavors)

    def _overlap(self, ours: frozenset[str], theirs: frozenset[str]) -> bool:
        """Whether two sets of flavors share one, or share nodes."""
        return bool(ours & theirs) or any(
            self._share_nodes(a, b) for a in sorted(ours) for b in sorted(theirs)
        )

    def _share_nodes(self, ours: str, theirs: str) -> bool:
        flavors = self.problem.snapshot.config.flavors
        a, b = flavors.get(ours), flavors.get(theirs)
        if a is None or b is None or a.topology is None or b.topology is None:
            return False
        index = self.problem.index
        masks = [index.labeled(f.node_labels) for f in (a, b)]
        return bool((masks[0] & masks[1]).any())


# ---- Lines of gangs with planned starts


@dataclass(frozen=True, slots=True)
class PlannedStartQueue:
    """Gangs of which the first that wait have planned starts.

    Attributes:
        name: of the Cohort (``cohort``) or of the ClusterQueue.
        rule: how many planned starts it has, and the order behind them.
    """

    name: str
    cohort: bool
    rule: Backfill


class Lines(dict[str, PlannedStartQueue]):
    """ClusterQueue to its line; ClusterQueues without planned starts are absent."""

    def of(self, queue: str | None) -> PlannedStartQueue | None:
        """The line of a ClusterQueue."""
        return self.get(queue or "")


def lines_of(config: QueueConfig, cache: PlannerCache) -> Lines:
    """The lines of a configuration, found at first use."""
    known = cache.get(config, Lines)
    return known if known is not None else cache.keep(config, find_lines(config))


def find_lines(config: QueueConfig) -> Lines:
    """The lines of a configuration. The highest Cohort that sets a line counts."""
    lines = Lines()
    for name, queue in config.cluster_queues.items():
        cohort = config.backfill_cohort(queue)
        if cohort is not None and cohort.backfill is not None:
            lines[name] = PlannedStartQueue(cohort.name, cohort=True, rule=cohort.backfill)
        elif queue.strategy is QueueingStrategy.BACKFILL:
            lines[name] = PlannedStartQueue(name, cohort=False, rule=queue.backfill)
    return lines
