"""Marks into hours: what the usage ledger is made by.

A mark that comes after its time was already accounted for takes back what was accounted wrongly: every amount is a rate
times a span of time, and a span that runs backwards counts negative. So the sums do not depend on when the folding happens,
or how often, or who does it.

Samples exist only at intervals (:mod:`queuectl.domain.measured`): they split the allocated amount,
and a part without a sample is unknown, never idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final
from uuid import UUID

from queuectl.domain.accounting import (
    HOUR,
    UNITS,
    AccountingTerms,
    Amounts,
    ClusterAmounts,
    ClusterGpus,
    HourKey,
    LossKey,
    LostWork,
    LostWorkSum,
    Mark,
    Meter,
    Subject,
    UsagePhase,
    by_hour,
    hour_of,
)
from queuectl.domain.budgets import Spender
from queuectl.domain.gpus import in_parts, summed
from queuectl.domain.measured import pieces
from queuectl.domain.use_curve import UseCurve, UseSpan
from queuectl.domain.utilization import GangUse, UseState, used_share

_CURVE_PARTS: Final = 8


class Accounts:
    """Ids of subjects, kept from fold to fold: to find one takes longer than to account for a workload."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Subject, str, UUID]] = {}
        self.new: dict[UUID, Subject] = {}
        self._by_id: dict[UUID, Subject] = {}

    def of(self, subject: Subject, cohort: str) -> UUID:
        """Id of the subject with this cohort; one that is asked for the first time is among ``new``."""
        known = self._known.get(subject.uid)
        if known is not None and known[0] is subject and known[1] == cohort:
            return known[2]
        full = replace(subject, cohort=cohort)
        number = full.id
        self._known[subject.uid] = (subject, cohort, number)
        self._by_id[number] = full
        self.new[number] = full
        return number

    def subject(self, number: UUID) -> Subject:
        """The subject with this id, of which an amount was accounted for since the last settlement."""
        return self._by_id[number]

    def settle(self, gone: Iterable[str]) -> None:
        """The new amounts are stored; these workloads have ended."""
        self.new.clear()
        for uid in gone:
            self._known.pop(uid, None)
        self._by_id = {number: subject for subject, _, number in self._known.values()}


class Fold:
    """The hours of one span of time.

    Attributes:
        hours, losses, cluster: what is to be added to the ledger; ``cluster`` by the start of the hour.
        accounts: of all that ``hours`` and ``losses`` refer to.
        meters: those that changed; None = the workload has ended.
        spans: the time in which each workload held GPUs, by uid.
        curves: the utilization over time that is to be stored, by uid.
    """

    def __init__(
        self,
        since: float,
        until: float,
        terms: AccountingTerms,
        accounts: Accounts | None = None,
        *,
        oldest: float = -inf,
        begins: float = -inf,
    ) -> None:
        """All times are unix seconds.

        Args:
            since: until when all known meters are accounted for.
            until: until when they will be.
            terms: the rules of accounting.
            accounts: of the folds before; None = there were none.
            oldest: nothing counts before; a workload can be older than the hours that are kept.
            begins: of the ledger. Nothing is known about the cluster before, so its GPUs are those that gangs held.
        """
        self._since = since
        self._until = until
        self._oldest = oldest
        self._begins = begins
        self._terms = terms
        self.accounts = accounts or Accounts()
        self.hours: dict[HourKey, Amounts] = {}
        self.losses: dict[LossKey, LostWorkSum] = {}
        self.meters: dict[str, Meter | None] = {}
        self.cluster: dict[int, ClusterAmounts] = {}
        self.spans: dict[str, list[UseSpan]] = {}
        self.curves: dict[str, UseCurve] = {}

    def spent(self) -> Iterator[tuple[int, Spender, int]]:
        """Start of the hour, spender and units of all GPU time that this folding adds. Call it before ``accounts.settle``."""
        for (hour, account, _, _), amounts in self.hours.items():
            if amounts.allocated:
                subject = self.accounts.subject(account)
                names = (subject.cluster_queue, subject.namespace, subject.queue, subject.user)
                yield hour, Spender(*names), amounts.allocated

    def divide(self, gpus: ClusterGpus) -> None:
        """Divide all GPUs of the cluster, as they are at the end of the span. Call it once, after all workloads.

        GPUs that no gang holds are what the exact allocated time leaves, also where a late mark corrects an earlier hour.
        """
        for hour, span in by_hour(self._since, self._until):
            row = self.cluster.setdefault(hour, ClusterAmounts())
            row.physical += span * in_parts(gpus.physical)
            row.unmanaged += span * in_parts(gpus.unmanaged)
            row.unhealthy += span * in_parts(gpus.unhealthy)
            row.unallocated += span * (
                in_parts(gpus.physical) - in_parts(gpus.unmanaged) - in_parts(gpus.unhealthy)
            )
        for (hour, _, _, _), amounts in self.hours.items():
            if amounts.allocated:
                self.cluster.setdefault(hour, ClusterAmounts()).unallocated -= amounts.allocated

    def draw(self, curves: dict[str, UseCurve]) -> None:
        """Add the spans to the utilization over time of their workloads. Call it once, after all workloads.

        A curve is stored when it has grown by a point, and by an eighth of its points, because its row is written as a whole; and at each
        mark of its workload, so a correction is never lost. If the process ends before, the time since then is in none of its sums.

        Args:
            curves: of the workloads that are known, by uid. It gets those that begin.
        """
        for uid, spans in self.spans.items():
            curve = curves.get(uid)
            if curve is None:
                curve = curves[uid] = UseCurve(spans[0].start)
            size, spacing = curve.size, curve.spacing
            curve.add(spans)
            step = max(1, curve.size // _CURVE_PARTS)
            if size // step != curve.size // step or spacing != curve.spacing:
                self.curves[uid] = curve
        self.curves |= {uid: curves[uid] for uid in self.meters if uid in curves}

    def workload(
        self,
        meter: Meter | None,
        marks: Iterable[Mark] = (),
        samples: Sequence[GangUse] = (),
        *,
        at_start: bool = False,
    ) -> None:
        """Account for one workload.

        Args:
            meter: as it was when the span began; None for a new workload.
            marks: of this workload, in the order in which they were written.
            samples: what was measured of it, oldest first.
            at_start: there are hours of an earlier life of it; those are not waited for again.
        """
        at, recreated_at = self._since, -inf
        uid = ""
        for mark in marks:
            uid = mark.uid
            if at_start and meter is None:
                recreated_at = mark.written_at
            begins = max(mark.at, recreated_at, self._oldest)
            if meter is not None:
                self._accrue(meter, at, begins, samples)
            if mark.loss is not None and meter is not None:
                self._lose(meter, mark.loss, begins)
            meter, at, at_start = _next(meter, mark), begins, True
        if meter is not None:
            self._accrue(meter, at, self._until, samples)
        if uid:
            self.meters[uid] = meter

    def _accrue(self, meter: Meter, start: float, end: float, samples: Sequence[GangUse]) -> None:
        if meter.phase is UsagePhase.WAITS:
            parts = in_parts(meter.gpus)
            for hour, span in by_hour(start, end):
                row = self._row(meter, hour, "", "")
                row.waiting += span
                row.waited += span * parts
        elif meter.phase is UsagePhase.HOLDS:
            gpus = float(summed(each.gpus for each in meter.held))
            for begins, ends, sample in pieces(start, end, samples, meter.attempt, self._since):
                if gpus and begins != ends:
                    held = UseSpan(begins, ends, gpus, used_share(sample))
                    self.spans.setdefault(meter.subject.uid, []).append(held)
                for hour, span in by_hour(begins, ends):
                    self._hold(meter, hour, span, sample)
            if min(start, end) < self._begins:
                self._hold_before(meter, min(start, self._begins), min(end, self._begins))

    def _hold(self, meter: Meter, hour: int, span: int, sample: GangUse | None) -> None:
        for held in meter.held:
            row = self._row(meter, hour, held.flavor, held.price)
            amount = span * in_parts(held.gpus)
            _allocate(row, amount, sample, self._terms.prices.get(held.price))

    def _hold_before(self, meter: Meter, start: float, end: float) -> None:
        """Count the GPUs that a workload held before the ledger began; ``divide`` takes them from those that are unallocated."""
        parts = sum(in_parts(held.gpus) for held in meter.held)
        for hour, span in by_hour(start, end):
            row = self.cluster.setdefault(hour, ClusterAmounts())
            row.physical += span * parts
            row.unallocated += span * parts

    def _row(self, meter: Meter, hour: int, flavor: str, price: str) -> Amounts:
        key = (hour, self._account(meter), flavor, price)
        row = self.hours.get(key)
        if row is None:
            row = self.hours[key] = Amounts()
        return row

    def _account(self, meter: Meter) -> UUID:
        subject = meter.subject
        return self.accounts.of(subject, self._terms.cohorts.get(subject.cluster_queue, ""))

    def _lose(self, meter: Meter, loss: LostWork, at: float) -> None:
        """On account of the hour of the eviction, over the flavors as they were held."""
        gpus = summed(held.gpus for held in meter.held)
        hour = hour_of(at)
        for number, held in enumerate(meter.held):
            key = (hour, self._account(meter), held.flavor, loss.reason)
            row = self.losses.setdefault(key, LostWorkSum())
            row.gpu_seconds += loss.gpu_seconds * float(held.gpus / gpus)
            row.evictions += number == 0


def _next(meter: Meter | None, mark: Mark) -> Meter | None:
    subject = mark.subject or (meter.subject if meter is not None else None)
    if mark.phase is UsagePhase.GONE or subject is None:
        return None
    held = mark.held
    if held is None:
        held = meter.held if meter is not None else ()
    return Meter(mark.phase, mark.attempt, mark.gpus, held, subject)


def _allocate(row: Amounts, amount: int, sample: GangUse | None, price: float | None) -> None:
    row.allocated += amount
    share = used_share(sample)
    if sample is None or share is None:
        row.unknown += amount
    else:
        row.used += round(amount * share)
        row.stuck += amount if sample.state is UseState.STUCK else 0
        row.idle += amount if sample.state is UseState.IDLE else 0
    if price is None:
        row.unpriced += amount
    else:
        row.cost += amount * price / (HOUR * UNITS)
