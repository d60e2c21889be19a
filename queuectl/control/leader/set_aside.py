"""Gangs and objects that the leader sets aside after an unexpected error.

Plans leave out the gangs with which planning fails. Objects of units that are set aside are stored, so that the defect can be found;
nothing depends on them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import structlog

from queuectl.control.contained_plan import ContainedPlan
from queuectl.db.ports import LeaderStore
from queuectl.domain.containment import (
    KEPT_OBJECTS,
    Boundary,
    Containment,
    Received,
    SetAside,
    SetAsideObject,
)
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.ledger import Entry
from queuectl.domain.plan import Proof, Refusal
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Workload
from queuectl.objects.files.set_aside_objects import File, pack
from queuectl.state.mirror import Mirror

# ---- Gangs

_TRIES: Final = 4
"""Gangs that one plan tries again, each of another namespace."""
_PUT_OFF: Final = Reason(
    Code.PENDING_EVALUATION,
    "not evaluated yet; an internal error of queuectl about another gang delays the plan",
)


class GangsSetAside:
    """The gangs that one leadership sets aside.

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
            if waits or tries[one.namespace] or tries.total() >= _TRIES:
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
        containment = self._containment
        all_passed = containment.empty and not contained.failures
        workloads = {} if all_passed else _workloads(snapshot)
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
        if checked is not None and checked.original is snapshot and self._containment.empty:
            return refusals
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


# ---- Objects

log = structlog.get_logger()
PAUSE_SECONDS: Final = 10.0
"""Between two rounds of writes. A round writes at most as many objects as are kept."""
_REST: Final = 19.0
"""Seconds of rest for each second of redaction, so that a storm of large objects takes at most a twentieth of a core."""
_MOST_PODS: Final = 100
_KEEP: Final = "store set-aside objects"
_WITHOUT_OBJECT: Final = frozenset({Boundary.TASK, Boundary.QUESTION})
"""The snapshot of a question is stored as that of a plan that fails."""


class SetAsideObjects:
    """Stores the newest object of each unit that a leader sets aside, redacted."""

    def __init__(
        self, store: LeaderStore, mirror: Mirror, entry: Callable[[str], Entry | None], epoch: int
    ) -> None:
        """``entry(uid)``: of the ledger."""
        self._store = store
        self._mirror = mirror
        self._entry = entry
        self._epoch = epoch
        self._due: dict[tuple[Boundary, str], SetAside] = {}
        self._noted = asyncio.Event()

    def note(self, failure: SetAside) -> None:
        """Store the object of this unit soon. It does not wait, and raises nothing."""
        if failure.boundary in _WITHOUT_OBJECT:
            return
        unit = failure.boundary, failure.key
        self._due.pop(unit, None)
        self._due[unit] = failure
        if len(self._due) > KEPT_OBJECTS:
            del self._due[next(iter(self._due))]
        self._noted.set()

    async def run(self) -> None:
        """Store objects until canceled, first those of units that were set aside before this process led.

        Raises:
            Fenced: another leader has taken over.
        """
        for found in self._mirror.containment:
            self.note(found)
        while True:
            await self._noted.wait()
            self._noted.clear()
            due, self._due = list(self._due.values()), {}
            for found in due:
                began = time.perf_counter()
                with self._mirror.containment.unit(Boundary.TASK, _KEEP):
                    await self._keep(found)
                await asyncio.sleep(_REST * (time.perf_counter() - began))
            await asyncio.sleep(PAUSE_SECONDS)

    async def _keep(self, failure: SetAside) -> None:
        given = self._mirror.containment.inputs.get(failure.boundary, failure.key)
        received = given if isinstance(given, Received) else None
        records = self._records(failure.key) if given is None else [given]
        if received is None and not records:
            return
        file = await asyncio.to_thread(pack, failure, received, records)
        try:
            await self._store.keep_set_aside(self._about(failure, file), file.content)
        except StoreUnavailable as error:
            log.warning("set_aside_object_not_stored", unit=failure.ref, error=str(error))

    def _about(self, failure: SetAside, file: File) -> SetAsideObject:
        return SetAsideObject(
            id=0,
            at=failure.since,
            epoch=self._epoch,
            boundary=str(failure.boundary),
            key=failure.key,
            ref=failure.ref,
            error=failure.error,
            place=failure.place,
            size=file.size,
            truncated=file.truncated,
        )

    def _records(self, uid: str) -> list[object]:
        """The job, its line of the ledger and its pods."""
        known = [one for one in (self._mirror.jobs.get(uid), self._entry(uid)) if one is not None]
        pods = sorted(self._mirror.pods_of(known[0]), key=lambda pod: pod.name) if known else []
        return [*known, *pods[:_MOST_PODS]]
