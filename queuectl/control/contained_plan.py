"""A plan that one gang or one cohort cannot prevent.

If planning raises, if the verifier refuses the plan, or if the limit of wall time ends it, the same snapshot is planned again without
the gang at fault. An error that does not occur again has no gang at fault. A gang is set aside only if the plan without it passes. The
suspects are the gang whose turn it was and the gangs that the broken rules name. If none of them is at fault, the newest gangs are left
out, as few as possible, and of these the one without which the others pass. The number of plans is limited: beyond it, the gangs that are
left out wait for the next plan.

If planning fails without all of them, the cohorts are planned one by one, each without the others, until a plan passes. The next plan
begins with the next cohort. A running gang that is set aside keeps its capacity and can be evicted. It is not repaired and not moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from queuectl.control.checked_plan import CheckedPlan, checked_plan
from queuectl.domain.containment import TOGETHER, BrokenRules, never_contained, place_of, unit_of
from queuectl.domain.fleet import Fleet
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Placement, Workload
from queuectl.planner import StopSignal
from queuectl.planner.cache import PlannerCache

# ---- Plans without some gangs

MOST_PLANS: Final = 20
"""Plans in one cycle: enough to find one gang among 10,000, and a second one."""
_MOST_COHORTS: Final = 8
"""Cohorts that are planned alone in one cycle, until a plan passes."""
_LONGEST_CHAIN: Final = 6  # suspects that are left out together
_TIME_LIMIT: Final = "time limit"
PlanOnce = Callable[[Snapshot], CheckedPlan]


@dataclass(frozen=True, slots=True)
class Failure:
    """A gang that is at fault: planning fails with it and passes without it. ``refused``: the plan with it, if one was made."""

    uid: str
    error: Exception
    refused: CheckedPlan | None = None


@dataclass(frozen=True, slots=True)
class ContainedPlan:
    """The result of planning.

    Attributes:
        checked: the plan, of the snapshot without the gangs below. Only a plan that was stopped, or that fails without a gang at
            fault, is not usable.
        failures: the gangs that are at fault, in the order in which they were found.
        with_them: gangs of the namespaces of failures that were not tried, because too many of their namespace fail in the same way.
        put_off: gangs that this plan leaves out, and that are not known to be at fault.
        cohort: the cohort whose plan it is; empty = of all cohorts.
        error: why the plan of all cohorts is not usable; None if it is, or if it was stopped.
        plans: how many were made.
    """

    checked: CheckedPlan | None
    failures: tuple[Failure, ...] = ()
    with_them: tuple[tuple[Failure, str], ...] = ()
    put_off: tuple[str, ...] = ()
    cohort: str = ""
    error: Exception | None = None
    plans: int = 1


def without(snapshot: Snapshot, uids: Collection[str]) -> Snapshot:
    """The snapshot without these pending gangs; running ones among them keep their capacity, and are neither repaired nor moved."""
    if not uids:
        return snapshot
    pending = tuple(p for p in snapshot.pending if p.workload.uid not in uids)
    admitted = tuple(_kept(a) if a.workload.uid in uids else a for a in snapshot.admitted)
    return replace(snapshot, pending=pending, admitted=admitted)


def _kept(gang: Admitted) -> Admitted:
    """A running gang that is neither repaired nor moved."""
    return replace(gang, lost=(), restartable=False, lease=None)


def contained_plan(
    snapshot: Snapshot,
    aside: Collection[str],
    plan_once: PlanOnce,
    stop: StopSignal,
    *,
    proven: Collection[str] = (),
    earlier: Mapping[tuple[str, str], int] | None = None,
    last_cohort: str = "",
) -> ContainedPlan:
    """Plan a snapshot, whatever one gang in it does.

    Args:
        snapshot: with all gangs.
        aside: uids of the gangs that are left out from the start.
        plan_once: plans and verifies one snapshot.
        stop: lets another thread end it.
        proven: uids of gangs that were in a plan that passed.
        earlier: how many gangs of a namespace have failed at a place, by (namespace, place).
        last_cohort: the cohort that was planned alone last.
    """
    counts = Counter(earlier or {})
    search = _Search(snapshot, plan_once, stop, set(aside), frozenset(proven), counts, last_cohort)
    return search.run()


def planned_around(
    snapshot: Snapshot, stop: StopSignal | None = None, cache: PlannerCache | None = None
) -> CheckedPlan:
    """The plan of a snapshot for a question: without the gangs with which planning fails, and without a record of them.

    Raises:
        Exception: planning fails, and no gang is found to be at fault.
    """
    stop = stop or StopSignal()
    found = contained_plan(snapshot, (), lambda given: checked_plan(given, stop, cache), stop)
    if found.checked is None:
        assert found.error is not None
        raise found.error
    return found.checked


@dataclass(slots=True)
class _Search:
    """For the gangs at fault in one snapshot."""

    snapshot: Snapshot
    plan_once: PlanOnce
    stop: StopSignal
    out: set[str]
    proven: frozenset[str]
    counts: Counter[tuple[str, str]]
    last_cohort: str
    plans: int = 0
    last: CheckedPlan | None = None  # the last plan that was made, usable or not
    passed: frozenset[str] | None = None  # the gangs that the last plan leaves out, if it is usable
    failures: list[Failure] = field(default_factory=list)
    with_them: list[tuple[Failure, str]] = field(default_factory=list)

    def run(self) -> ContainedPlan:
        error = self._try(self.out)
        if error is not None and not isinstance(error, BrokenRules) and not self._ended:
            error = self._try(self.out)  # one of another thread, for example, does not occur again
        while error is not None and not self._ended:
            if not self._exclude(error):
                return self._given_up(error)
            error = None if self.passed == frozenset(self.out) else self._try(self.out)
        if error is not None:
            return self._given_up(error)
        return self._result(())

    def _exclude(self, error: Exception) -> bool:
        """Leave out gangs that are at fault, and those that are like them; none if planning passes now. False if none is found."""
        refused = self.last
        if self._exclude_named(error):
            return True
        if _timed_out(error) or self._ended:
            return False  # each further plan can take as long
        found = self._newest_at_fault()
        if found is None:
            return False
        self._found(Failure(found, error, refused))
        return True

    def _exclude_named(self, error: Exception) -> bool:
        """Leave out one suspect after the other until a plan passes, then those of them with which planning fails."""
        chain: dict[str, Failure] = {}
        next_error: Exception | None = error
        while next_error is not None and len(chain) < _LONGEST_CHAIN and not self._ended:
            suspect = next((uid for uid in self._suspects(next_error) if uid not in chain), None)
            if suspect is None:
                return False
            chain[suspect] = Failure(suspect, next_error, self.last)
            like = self._like(chain.values())
            next_error = self._try(self.out | chain.keys() | like.keys())
        if next_error is not None:
            return False
        alike = self._like(chain.values())
        for uid, failure in chain.items():
            others = self.out | (chain.keys() - {uid}) | alike.keys()
            if len(chain) == 1 or alike or self._ended or self._try(others) is not None:
                self._found(failure)
        return True

    @property
    def _ended(self) -> bool:
        """Whether no further plan is made."""
        return self.stop.stopped or self.plans >= MOST_PLANS

    def _found(self, failure: Failure) -> None:
        like = self._like((failure,))
        self.failures.append(failure)
        self.out.add(failure.uid)
        self.counts[self._at(failure)] += 1
        self.out |= like.keys()
        self.with_them += [(failure, uid) for uid in like if uid != failure.uid]

    def _like(self, failures: Collection[Failure]) -> dict[str, None]:
        """The gangs that are not tried, because many gangs of their namespace fail at one place."""
        counts = self.counts + Counter(map(self._at, failures))
        alike = {
            self._at(failure)[0] for failure in failures if counts[self._at(failure)] >= TOGETHER
        }
        return {
            p.workload.uid: None
            for p in self.snapshot.pending
            if p.workload.namespace in alike and p.workload.uid not in self.proven | self.out
        }

    def _at(self, failure: Failure) -> tuple[str, str]:
        return self._namespace(failure.uid), place_of(failure.error)

    def _suspects(self, error: Exception) -> Iterator[str]:
        """The gangs that an error names, each once."""
        candidates = self._candidates(self.out)
        named = [unit_of(error), self.stop.turn if _timed_out(error) else None]
        if self.last is not None:
            preemptors = {p.victim: p.preemptor for p in self.last.decided.preempted}
            for violation in self.last.violations:
                named += [preemptors.get(violation.subject), violation.subject]
        suspects = dict.fromkeys(uid for uid in named if uid is not None and uid in candidates)
        yield from suspects

    def _newest_at_fault(self) -> str | None:
        """A gang without which fewer gangs need to be left out: of the fewest newest ones, the oldest.

        Pending gangs are left out before running ones, which belong to gangs that have passed before.
        """
        order = list(self._candidates(self.out))
        low, high = 0, len(order)  # planning fails without the newest ``low`` gangs
        if not order or self._try(self.out | set(order)) is not None:
            return None
        while high - low > 1:
            if self._ended:
                return None
            middle = (low + high) // 2
            if self._try(self.out | set(order[:middle])) is None:
                high = middle
            else:
                low = middle
        return order[high - 1]

    def _candidates(self, out: Collection[str]) -> dict[str, None]:
        """The gangs that can be left out: pending ones, the newest first, then running ones that are repaired or moved."""
        pending = sorted(self.snapshot.pending, key=_newest_first)
        waiting = [p.workload.uid for p in pending]
        changing = [a.workload.uid for a in self.snapshot.admitted if a.lost or a.lease is not None]
        return dict.fromkeys(uid for uid in (*waiting, *changing) if uid not in out)

    def _try(self, out: Collection[str], cohort: str = "") -> Exception | None:
        """Plan without these gangs, or one cohort alone. Returns why the plan is not usable, or None."""
        self.plans += 1
        self.stop.turn = ""
        self.last = self.passed = None
        snapshot = one_cohort(self.snapshot, cohort) if cohort else self.snapshot
        try:
            self.last = checked = self.plan_once(without(snapshot, out))
        except Exception as error:
            if never_contained(error):
                raise
            return error
        if checked.violations:
            rules = ", ".join(sorted({str(v.rule) for v in checked.violations}))
            return BrokenRules(rules, "; ".join(map(str, checked.violations)))
        if checked.decided.cut:
            return BrokenRules(_TIME_LIMIT, "the limit of wall time ended the plan")
        self.passed = frozenset(out)
        return None

    def _namespace(self, uid: str) -> str:
        workloads = [p.workload for p in self.snapshot.pending]
        workloads += [a.workload for a in self.snapshot.admitted]
        return next((one.namespace for one in workloads if one.uid == uid), "")

    def _given_up(self, error: Exception) -> ContainedPlan:
        """No gang at fault is found: the plan without all pending gangs that have not passed before, or that of one cohort."""
        if self.stop.stopped or _timed_out(error):
            return self._result((), error)
        unproven = {
            p.workload.uid for p in self.snapshot.pending if p.workload.uid not in self.proven
        }
        put_off = tuple(uid for uid in self._candidates(self.out) if uid in unproven)
        if put_off and self._try(self.out | set(put_off)) is None:
            return self._result(put_off)
        return self._one_cohort(error) or self._result((), error)

    def _one_cohort(self, error: Exception) -> ContainedPlan | None:
        """The first plan of a cohort alone that passes. The cohorts take turns, so that each is planned whose plan passes."""
        cohorts = cohorts_with_pending(self.snapshot)
        later = [name for name in cohorts if name > self.last_cohort]
        for cohort in (*later, *cohorts[: len(cohorts) - len(later)])[:_MOST_COHORTS]:
            if self.stop.stopped:
                return None
            if self._try(self.out, cohort) is None:
                assert self.last is not None
                planned = {p.workload.uid for p in self.last.snapshot.pending}
                waiting = (p.workload.uid for p in self.snapshot.pending)
                put_off = tuple(u for u in waiting if u not in planned and u not in self.out)
                return self._result(put_off, error, cohort)
        return None

    def _result(
        self, put_off: tuple[str, ...], error: Exception | None = None, cohort: str = ""
    ) -> ContainedPlan:
        return ContainedPlan(
            cohort=cohort,
            checked=self.last,
            failures=tuple(self.failures),
            with_them=tuple(self.with_them),
            put_off=put_off,
            error=error,
            plans=self.plans,
        )


def _timed_out(error: Exception) -> bool:
    return isinstance(error, BrokenRules) and error.rules == _TIME_LIMIT


def _newest_first(pending: Pending) -> tuple[float, str]:
    return -pending.workload.queued_at, pending.workload.uid


# ---- The part of a snapshot that belongs to one cohort


def cohorts_with_pending(snapshot: Snapshot) -> list[str]:
    """The cohorts, each by the name of its root, and the ClusterQueues without a cohort that have pending gangs, in order."""
    waiting = (_root_of(snapshot, p.workload) for p in snapshot.pending if p.blocked is None)
    return sorted({root for root in waiting if root is not None})


def one_cohort(snapshot: Snapshot, root: str) -> Snapshot:
    """A snapshot with the gangs of one cohort.

    The nodes that gangs of other cohorts hold, or that are leased to them, offer nothing. No Budget pays for a gang, because a
    Budget can belong to several cohorts. Thus a plan of this snapshot takes nothing from others.

    Args:
        snapshot: with all gangs.
        root: as :func:`cohorts_with_pending` names it.
    """
    pending = tuple(p for p in snapshot.pending if _root_of(snapshot, p.workload) == root)
    admitted = tuple(a for a in snapshot.admitted if _root_of(snapshot, a.workload) == root)
    ours = {p.workload.uid for p in pending} | {a.workload.uid for a in admitted}
    gangs: list[Pending | Admitted] = [*snapshot.pending, *snapshot.admitted]
    held = {
        node
        for gang in gangs
        if gang.workload.uid not in ours
        for placement in _placements(gang)
        for node in placement.use(gang.workload)
    }
    nodes = tuple(
        replace(node, ready=False) if node.name in held else node for node in snapshot.fleet.nodes
    )
    return replace(
        snapshot,
        pending=pending,
        admitted=admitted,
        fleet=Fleet(nodes),
        budgets=tuple(replace(balance, granted=0) for balance in snapshot.budgets),
    )


def _root_of(snapshot: Snapshot, workload: Workload) -> str | None:
    """None for a gang without a ClusterQueue."""
    queue = snapshot.queue_of(workload)
    if queue is None:
        return None
    root = snapshot.config.root_cohort(queue)
    return f"cohort {root}" if root is not None else f"queue {queue.name}"


def _placements(gang: Pending | Admitted) -> Iterator[Placement]:
    if isinstance(gang, Admitted):
        yield gang.placement
    if gang.lease is not None:
        yield gang.lease.placement
