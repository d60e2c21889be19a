"""The gangs that the plans of a leader leave out because planning fails with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from queuectl.control.contained_plan import ContainedPlan
from queuectl.domain.containment import Boundary, Containment, SetAside
from queuectl.domain.ledger import Entry
from queuectl.domain.plan import Proof, Refusal
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Workload

TRIES: Final = 4
"""Gangs that one plan tries again, each of another namespace."""

_PUT_OFF: Final = Reason(
    Code.PENDING_EVALUATION,
    "not evaluated yet; an internal error of queuectl about another gang delays the plan",
)


class GangsSetAside:
    """Of one leadership.

    Attributes:
        proven: uids of the pending gangs in the last plan that passed.
    """

    def __init__(self, containment: Containment, pending: Callable[[], Iterable[Entry]]) -> None:
        """``pending``: the pending gangs of the ledger."""
        self._containment = containment
        self._pending = pending
        self.proven: frozenset[str] = frozenset()

    def left_out(self, snapshot: Snapshot) -> frozenset[str]:
        """The gangs that the next plan leaves out, by uid. The others that are set aside are tried in it."""
        containment = self._containment
        if not any(one.boundary in (Boundary.GANG, Boundary.COMMIT) for one in containment):
            return frozenset()
        asked = _workloads(snapshot)
        self._set_aside_unproven(snapshot)
        out, tries = set[str](), Counter[str]()
        out |= {u for u, w in asked.items() if containment.waits(Boundary.COMMIT, u, w) is not None}
        for one in containment:
            workload = asked.get(one.key)
            if one.boundary is not Boundary.GANG or workload is None:
                continue
            waits = containment.waits(Boundary.GANG, one.key, workload) is not None
            if waits or tries[one.namespace] or tries.total() >= TRIES:
                out.add(one.key)
            else:
                tries[one.namespace] += 1
        return frozenset(out)

    def without_snapshot(self) -> Iterator[Entry]:
        """The pending gangs that are set aside and that no snapshot contains."""
        return (entry for entry, _ in self._unread())

    def _set_aside_unproven(self, snapshot: Snapshot) -> None:
        """Do not try new gangs of a namespace one by one while many of its gangs fail in the same way."""
        held = self._containment.held(Boundary.GANG)
        if not held:
            return
        for pending in snapshot.pending:
            one = pending.workload
            if one.namespace not in held or one.uid in self.proven:
                continue
            if self._containment.get(Boundary.GANG, one.uid) is None:
                units = [(one.uid, _ref(one), one)]
                self._containment.set_aside_with(held[one.namespace], units)

    def by_place(self) -> Mapping[tuple[str, str], int]:
        """How many gangs of a namespace fail at a place."""
        gangs = (one for one in self._containment if one.boundary is Boundary.GANG)
        return Counter((one.namespace, one.place) for one in gangs)

    def learn(
        self, snapshot: Snapshot, out: Collection[str], contained: ContainedPlan
    ) -> list[Refusal]:
        """Record the result of a plan. Returns the answers for the pending gangs that it leaves out.

        ``out``: as :meth:`left_out` returned it.
        """
        containment, workloads = self._containment, _workloads(snapshot)
        failures: dict[str, SetAside] = {}
        for failure in contained.failures:
            failures[failure.uid] = self._failed(workloads[failure.uid], failure.error)
        for failure, uid in contained.with_them:
            units = [(uid, _ref(workloads[uid]), workloads[uid])]
            containment.set_aside_with(failures[failure.uid], units)
        checked = contained.checked
        if checked is not None and checked.usable:
            planned = {p.workload.uid for p in checked.snapshot.pending}
            self.proven = frozenset(planned) | (self.proven if contained.cohort else frozenset())
            for one in containment:
                tried = one.key in workloads and one.key not in out and one.key not in failures
                left = one.key in contained.put_off or one.key not in planned
                if one.boundary is Boundary.GANG and tried and not left:
                    containment.passed(Boundary.GANG, one.key)
        return self._refusals(snapshot, contained)

    def _failed(self, workload: Workload, error: Exception) -> SetAside:
        return self._containment.failed(
            Boundary.GANG,
            workload.uid,
            error,
            _ref(workload),
            namespace=workload.namespace,
            version=workload,
        )

    def _refusals(self, snapshot: Snapshot, contained: ContainedPlan) -> list[Refusal]:
        checked, refusals = contained.checked, list[Refusal]()
        planned = {p.workload.uid for p in checked.snapshot.pending} if checked is not None else ()
        for pending in snapshot.pending:
            uid = pending.workload.uid
            one = self._containment.get(Boundary.GANG, uid)
            one = one or self._containment.get(Boundary.COMMIT, uid)
            if uid in planned:
                continue
            if one is not None:
                refusals.append(Refusal(uid, (one.reason,), None, Proof.UNDECIDED))
            else:
                refusals.append(Refusal(uid, (_PUT_OFF,), pending.lease, Proof.UNDECIDED))
        for entry, one in self._unread():
            refusals.append(Refusal(entry.uid, (one.reason,), None, Proof.UNDECIDED))
        return refusals

    def _unread(self) -> Iterator[tuple[Entry, SetAside]]:
        for entry in self._pending() if not self._containment.empty else ():
            one = self._containment.get(Boundary.SNAPSHOT, entry.uid, entry.namespace)
            if one is not None:
                yield entry, one


def _workloads(snapshot: Snapshot) -> dict[str, Workload]:
    workloads = {gang.workload.uid: gang.workload for gang in snapshot.admitted}
    return workloads | {gang.workload.uid: gang.workload for gang in snapshot.pending}


def _ref(workload: Workload) -> str:
    return f"{workload.kind}/{workload.ref}"
