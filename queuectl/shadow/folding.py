"""From two observations that follow each other to sums over the time between them.

A gang counts between two observations only if both show it in the same state, with the smaller of its two amounts. The sums are therefore too
small rather than too large. Two observations that are too far apart, or of which one has no verified plan, add nothing: the time between them is
not observed. A change of the leader loses no more than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from queuectl.domain.accounting import by_hour
from queuectl.domain.shadow import (
    GangName,
    GangRecord,
    GangState,
    LastObservation,
    Observation,
    ShadowFold,
    ShadowSums,
)


def last_observation(observation: Observation) -> LastObservation:
    """The part of an observation that the next one is compared with."""
    decided = observation.decided
    return LastObservation(
        at=observation.at,
        gpus=observation.gpus,
        free=observation.free,
        decided=decided,
        fits={
            one.gang.uid: one.fits
            for one in observation.waiting
            if decided and one.fits is not None
        },
        waits={one.gang.uid: one.gang.gpus for one in observation.waiting},
        unbound={one.gang.uid: one.gpus for one in observation.unbound},
        left_out=observation.left_out,
    )


def fold(
    before: LastObservation | None,
    observation: Observation,
    records: Mapping[str, GangRecord],
    longest: float,
) -> ShadowFold:
    """The changes of all records by an observation.

    Args:
        before: the observation before; None without one.
        observation: the new one.
        records: the records so far of the gangs of both observations, by uid.
        longest: seconds between two observations, above which the time between them is not observed.
    """
    last = last_observation(observation)
    span = _Span.of(before, last, longest)
    sums = span.sums(observation)
    parts = dict(by_hour(last.at - span.seconds, last.at))
    hours = {hour: sums.times(part / sum(parts.values())) for hour, part in parts.items()}
    gangs = {one.gang.uid: one for one in _waiting(observation, records, span)}
    gangs |= {one.gang.uid: one for one in _unbound(observation, {**records, **gangs}, span)}
    earlier = (before.waits.keys() | before.unbound.keys()) if before is not None else frozenset()
    for uid in sorted((earlier - gangs.keys()) & records.keys()):
        gone = replace(records[uid], fits_since=None, unbound_since=None)
        gangs[uid] = replace(gone, state=GangState.ELSEWHERE)
    return ShadowFold(last, hours, tuple(gangs.values()))


@dataclass(frozen=True)
class _Span:
    """The time between two observations.

    Attributes:
        seconds: 0 if it is not observed.
        fits, waits, unbound: uid to GPUs of the gangs that both observations show, each with the smaller amount.
    """

    seconds: float
    gpus: float
    free: float
    fits: Mapping[str, float]
    waits: Mapping[str, float]
    unbound: Mapping[str, float]

    @classmethod
    def of(cls, before: LastObservation | None, last: LastObservation, longest: float) -> _Span:
        if before is None:
            return cls(0.0, 0.0, 0.0, {}, {}, {})
        seconds = last.at - before.at
        if not (0.0 < seconds <= longest and before.decided and last.decided):
            seconds = 0.0
        return cls(
            seconds,
            min(before.gpus, last.gpus),
            min(before.free, last.free),
            _both(before.fits, last.fits),
            _both(before.waits, last.waits),
            _both(before.unbound, last.unbound),
        )

    def sums(self, observation: Observation) -> ShadowSums:
        """The sums over the time between the observations. ``observation``: the second one."""
        seconds = self.seconds
        reasons: dict[str, float] = {}
        for one in observation.waiting:
            if one.code and one.gang.uid in self.waits:
                reasons[one.code] = reasons.get(one.code, 0.0) + seconds
        startable = min(sum(self.fits.values()), self.free)
        return ShadowSums(
            observed=seconds,
            fitting=seconds if self.fits else 0.0,
            gpus=seconds * self.gpus,
            free=seconds * self.free,
            free_while_fitting=seconds * self.free if self.fits else 0.0,
            startable=seconds * startable,
            waiting=seconds * len(self.waits),
            waiting_gpus=seconds * sum(self.waits.values()),
            unbound=seconds * len(self.unbound),
            unbound_gpus=seconds * sum(self.unbound.values()),
            reasons=reasons,
        )


def _both(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {uid: min(first[uid], gpus) for uid, gpus in second.items() if uid in first}


def _waiting(
    observation: Observation, records: Mapping[str, GangRecord], span: _Span
) -> Iterator[GangRecord]:
    for gang in observation.waiting:
        uid = gang.gang.uid
        record = _present(gang.gang, records, observation.at)
        if uid in span.waits and gang.code:
            before = record.reasons.get(gang.code, 0.0)
            record = replace(record, reasons={**record.reasons, gang.code: before + span.seconds})
        fitted = span.seconds if uid in span.fits else 0.0
        continues = fitted > 0.0 and record.fits_since is not None
        fits = observation.decided and gang.fits is not None
        yield replace(
            record,
            state=GangState.WAITING,
            waited=record.waited + (span.seconds if uid in span.waits else 0.0),
            fitted=record.fitted + fitted,
            startable=record.startable + fitted * span.fits.get(uid, 0.0),
            fits_since=(record.fits_since if continues else observation.at) if fits else None,
            unbound_since=None,
            message=gang.message,
        )


def _unbound(
    observation: Observation, records: Mapping[str, GangRecord], span: _Span
) -> Iterator[GangRecord]:
    for one in observation.unbound:
        uid = one.gang.uid
        record = _present(one.gang, records, observation.at)
        seconds = span.seconds if uid in span.unbound else 0.0
        yield replace(
            record,
            state=GangState.UNBOUND,
            unbound=record.unbound + seconds,
            unbound_gpus=record.unbound_gpus + seconds * span.unbound.get(uid, 0.0),
            unbound_since=one.admitted_at,
            fits_since=None,
            message="",
        )


def _present(gang: GangName, records: Mapping[str, GangRecord], at: float) -> GangRecord:
    """The record of a gang that an observation shows, before the observation is counted."""
    record = records.get(gang.uid) or GangRecord(gang, at, at)
    return replace(record, gang=gang, last_at=at)
