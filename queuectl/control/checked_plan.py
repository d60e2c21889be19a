"""From a snapshot to a plan that is checked: the leader, standbys, what-ifs, previews and ``queuectl plan`` all plan with this module.

Devices are added to the snapshot as amounts, the planner decides, independent code verifies the decisions, and the podsets that
stand for shared claims are removed from them. All snapshots of a process share the device rows, so that they see the same nodes.

The planner sees devices as amounts, so it cannot judge a change of single devices. For the diagnoses of pending gangs, the snapshot is
planned again without the taints of devices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from queuectl.devices.lower import DeviceCache, for_reports, with_devices
from queuectl.devices.reading import Selects
from queuectl.devices.shared import snapshot_without_claim_podsets, without_claim_podsets
from queuectl.domain.device_changes import RemoveTaints, TaintedDevice
from queuectl.domain.devices import DeviceTaint
from queuectl.domain.diagnosis import Diagnosis, Remedy, SuggestedFix
from queuectl.domain.pending_limits import with_reasons
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.words import counted
from queuectl.mig import fixes
from queuectl.planner import StopSignal, plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import diagnose_those
from queuectl.planner.verify import KnownUse, PlanViolation, verify

# ---- Plans


class DeviceRows:
    """Threads can share it."""

    def __init__(self) -> None:
        self._cache = DeviceCache()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, cache: PlannerCache) -> DeviceRows:
        """Those of the process with this cache."""
        return cache.latest(cls) or cache.keep_latest(cls())

    def added(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with device rows, for reports; the same object if no gang requests devices."""
        with self._lock:
            return for_reports(snapshot, self._cache)

    def lowered(self, snapshot: Snapshot) -> tuple[Snapshot, Selects]:
        """The snapshot with device rows, for plans, and the devices that requests select in it."""
        with self._lock:
            return with_devices(snapshot, self._cache), self._cache.selects


class PlanStep(StrEnum):
    """The steps of a plan, in order."""

    PLAN = "plan"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class CheckedPlan:
    """A plan with its input.

    Attributes:
        original: the snapshot as users know it.
        snapshot: the snapshot that was planned: with device rows, and with podsets for shared claims.
        decided: the decisions for ``snapshot``. Questions to the planner about it use them.
        plan: the same decisions as users know them. Everything that leaves the planner uses them.
        violations: what is wrong in the decisions.
        selects: the devices that requests select; None if the decisions are not verified.
    """

    original: Snapshot
    snapshot: Snapshot
    decided: Plan
    plan: Plan
    violations: tuple[PlanViolation, ...]
    selects: Selects | None = None

    @property
    def usable(self) -> bool:
        """Whether it is complete and correct."""
        return not self.decided.cut and not self.violations


def checked_plan(
    original: Snapshot,
    stop: StopSignal | None = None,
    cache: PlannerCache | None = None,
    within: Callable[[PlanStep], AbstractContextManager[object]] = nullcontext,
) -> CheckedPlan:
    """Plan a snapshot.

    Args:
        original: without device rows.
        stop: lets another thread end the planning early.
        cache: of the process.
        within: the context of each step.
    """
    cache = cache if cache is not None else PlannerCache()
    with within(PlanStep.PLAN):
        snapshot, selects = DeviceRows.of(cache).lowered(with_reasons(original))
        decided = plan(snapshot, stop, cache)
    with within(PlanStep.VERIFY):
        config = snapshot.config
        known = cache.get(config, KnownUse) or cache.keep(config, KnownUse())
        violations = verify(snapshot, decided, selects, known)
        plain = without_claim_podsets(decided)
        return CheckedPlan(original, snapshot, decided, plain, violations, selects)


def planned_again(snapshot: Snapshot) -> CheckedPlan:
    """Plan the snapshot of a :class:`CheckedPlan` once more, without verification."""
    decided = plan(snapshot)
    original = snapshot_without_claim_podsets(snapshot)
    return CheckedPlan(original, snapshot, decided, without_claim_podsets(decided), ())


# ---- Diagnoses

_TRIED: Final = 8  # nodes that are tried one by one whether their taints can stay


def explained(
    checked: CheckedPlan,
    uids: frozenset[str],
    stop: StopSignal | None = None,
    cache: PlannerCache | None = None,
) -> Iterator[Diagnosis]:
    """Why gangs do not start, and the changes that would start them, in queue order.

    The fix that removes taints is left out if the other thread stops its search.

    Args:
        checked: the plan in which they are pending.
        uids: of the gangs.
        stop: lets another thread end it early.
        cache: of the process.
    """
    diagnoses = diagnose_those(
        checked.snapshot, uids, stop, checked.decided, cache, reconfiguration=fixes
    )
    for found in diagnoses:
        fix = _removed_taints(checked.original, found, stop) if not found.cut else None
        yield replace(found, suggested_fixes=(fix, *found.suggested_fixes)) if fix else found


def _removed_taints(
    snapshot: Snapshot, diagnosis: Diagnosis, stop: StopSignal | None
) -> SuggestedFix | None:
    """The taints without which the gang starts, or None."""
    devices = tuple(_tainted(snapshot, diagnosis))
    cache = PlannerCache()

    def starts(left: Sequence[TaintedDevice]) -> bool:
        after = checked_plan(RemoveTaints(tuple(left)).apply(snapshot), stop, cache)
        return after.usable and any(one.uid == diagnosis.uid for one in after.decided.admitted)

    if not devices or not starts(devices):
        return None
    for name in list(dict.fromkeys(one.node for one in devices))[:_TRIED]:
        fewer = tuple(one for one in devices if one.node != name)
        if fewer and starts(fewer):
            devices = fewer
    listed = [
        {"node": o.node, "device": str(o.device), "taints": list(map(str, o.taints))}
        for o in devices
    ]
    change = RemoveTaints(devices)
    text = "; ".join(_sentences(devices))
    return SuggestedFix(Remedy.REMOVE_TAINTS, text, {"devices": listed}, (change,))


def _tainted(snapshot: Snapshot, diagnosis: Diagnosis) -> Iterator[TaintedDevice]:
    """The devices that the blocking constraints name."""
    for obstacle in diagnosis.conflict:
        for one in obstacle.details.get("taintedDevices", ()):
            for device in snapshot.devices.nodes[one["node"]].devices:
                if str(device.id) == one["device"]:
                    taints = tuple(t for t in device.kind.taints if str(t) in one["taints"])
                    yield TaintedDevice(one["node"], device.id, taints)


def _sentences(devices: Sequence[TaintedDevice]) -> Iterator[str]:
    """One for each taint of each node."""
    by_taint: dict[tuple[str, DeviceTaint], list[TaintedDevice]] = {}
    for one in devices:
        for taint in one.taints:
            by_taint.setdefault((one.node, taint), []).append(one)
    for (node, taint), found in by_taint.items():
        first = found[0].device
        of = f"device {first}" if len(found) == 1 else counted(len(found), "device")
        where = (
            "" if taint.rule else f" (ResourceSlice of driver {first.driver}, pool {first.pool})"
        )
        yield f"remove the taint {taint} of {of} on {node}{where}"
