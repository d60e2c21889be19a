"""The planner's answers for one snapshot of the corpus."""

from __future__ import annotations

import hashlib
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.mig import fixes
from queuectl.objects.files.refused_plans import plan_bytes, read_plan
from queuectl.planner import StopSignal, plan
from queuectl.planner.explain import diagnose_those
from queuectl.planner.verify import verify
from tests.corpus.features import features_of
from tests.corpus.files import Entry, Recorded, canonical
from tests.corpus.score import diagnosis_score, score_of

NO_CLOCK: Final = 1e6
"""Seconds: the solver's limits of wall time that no plan of the corpus reaches, so that none depends on the clock."""
_ONE_IN: Final = 8  # of the snapshots in which a gang waits, those whose gangs are diagnosed
_DIAGNOSED: Final = 2  # gangs of such a snapshot
_LARGEST: Final = 1 << 21  # bytes of such a snapshot
_LATER: Final = frozenset({"planned", "reserved", "checks", "awaits_nodes"})
"""Fields newer than the corpus. They are not recorded if they are empty."""

Planner = Callable[[Snapshot, StopSignal], Plan]


class Cut(Exception):
    """Planning or diagnosing took longer than it may."""


class Defect(Exception):
    """The planner raised an exception, or the verifier refuses its plan."""


def without_clock(snapshot: Snapshot) -> Snapshot:
    """The snapshot with limits that are counted in the solver's deterministic time alone."""
    return replace(snapshot, limits=replace(snapshot.limits, wall_seconds=NO_CLOCK))


def answer(entry: Entry, *, seconds: float = 600.0, planner: Planner = plan) -> Recorded:
    """Plan the entry's snapshot, score the plan, and diagnose a few of the gangs that wait if it is one of the sample.

    Raises:
        Cut: it takes more than ``seconds``.
        Defect: the planner or a diagnosis raises an exception.
    """
    snapshot = entry.snapshot()
    with _stopped_after(seconds) as stop:
        try:
            made = planner(snapshot, stop)
            if made.cut:
                raise Cut(entry.key)
            diagnoses = dict(_diagnoses(entry, snapshot, made, stop))
        except Cut:
            raise
        except Exception as error:
            raise Defect(_raised(error)) from error
    whole = plain(made)
    return Recorded(
        entry.key,
        digest_of(whole),
        whole,
        score_of(snapshot, made),
        features_of(snapshot, made),
        diagnoses,
    )


def _raised(error: Exception) -> str:
    """The exception and the line that raised it."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"raises {type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"


def verified(entry: Entry, recorded: Recorded) -> None:
    """Verify an answer.

    Raises:
        Defect: the verifier refuses the plan.
    """
    broken = verify(entry.snapshot(), plan_of(recorded))
    if broken:
        raise Defect(f"the verifier refuses its plan: {broken[0]}")


def plain(made: Plan) -> dict[str, Any]:
    """A plan as JSON values: every field, but the newer ones only if they are not empty."""
    fields: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(msgspec.msgpack.decode(plan_bytes(made)))
    )
    whole: dict[str, Any] = _recorded(fields)
    return whole


def _recorded(value: Any) -> Any:
    if isinstance(value, list):
        return [_recorded(item) for item in value]
    if isinstance(value, dict):
        kept = ((name, one) for name, one in value.items() if one or name not in _LATER)
        return {name: _recorded(one) for name, one in kept}
    return value


def digest_of(whole: dict[str, Any]) -> str:
    """SHA-256 of a plan in canonical JSON."""
    return hashlib.sha256(canonical(whole)).hexdigest()


def plan_of(recorded: Recorded) -> Plan:
    """The plan that was recorded; mappings in it are in the order of their keys."""
    return read_plan(msgspec.msgpack.encode(recorded.plan, order="deterministic"))


def _diagnoses(
    entry: Entry, snapshot: Snapshot, made: Plan, stop: StopSignal
) -> Iterator[tuple[str, dict[str, Any]]]:
    if zlib.crc32(entry.key.encode()) % _ONE_IN or len(entry.content) > _LARGEST:
        return
    uids = [refusal.uid for refusal in made.pending if refusal.lease is None][:_DIAGNOSED]
    if not uids:
        return
    for diagnosis in diagnose_those(snapshot, frozenset(uids), stop, made, reconfiguration=fixes):
        if diagnosis.cut or stop.stopped:
            raise Cut(entry.key)
        whole = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(diagnosis)))
        yield diagnosis.uid, {"whole": _recorded(whole), "score": diagnosis_score(diagnosis)}


@contextmanager
def _stopped_after(seconds: float) -> Iterator[StopSignal]:
    stop = StopSignal()
    timer = threading.Timer(seconds, stop.stop)
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()
