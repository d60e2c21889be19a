"""Small snapshots with known run times, and the starts of one draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.durations.expectations import RunTimes
from queuectl.estimates.forward import Forward
from queuectl.estimates.scene import Scene, scene_of
from queuectl.planner.cache import PlannerCache
from tests.planner.build import NOW

MANY = 1000


def certain(seconds: float) -> RunTimes:
    """A run time that is known."""
    return RunTimes((seconds,), certain=True)


def scene(snapshot: Snapshot, most: int = MANY) -> Scene:
    return scene_of(snapshot, PlannerCache(), most)


def starts(snapshot: Snapshot, seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds from now until each gang starts. ``seconds``: for which each gang runs; without one it never ends."""
    gangs: Sequence[Pending | Admitted] = (*snapshot.pending, *snapshot.admitted)
    lengths = {uid_of(gang.workload): seconds.get(gang.workload.uid, inf) for gang in gangs}
    found = Forward(scene(snapshot), lengths, lambda: None).run()
    return {uid: at - NOW for uid, at in found.items()}


def uid_of(workload: Workload) -> str:
    return workload.uid
