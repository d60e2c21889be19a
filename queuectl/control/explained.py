"""Diagnoses of the pending gangs of a plan, with the fix that removes taints of devices.

The planner sees devices as amounts, so it cannot judge a change of single devices. The snapshot is planned again without the taints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from queuectl.control.checked_plan import CheckedPlan, checked_plan
from queuectl.domain.device_changes import RemoveTaints, TaintedDevice
from queuectl.domain.devices import DeviceTaint
from queuectl.domain.diagnosis import Diagnosis, Remedy, SuggestedFix
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.words import counted
from queuectl.mig import fixes
from queuectl.planner import StopSignal
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import diagnose_those

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
    """The taints without which the gang starts; None if there are none."""
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
