"""Idle gangs are evicted by the policy of their queue: measured by a real Prometheus, on a real control plane."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from queuectl.localcluster.client import get_plain
from queuectl.planner.preempt.cost import RESTART_COST
from tests.system.house import Room
from tests.system.measured import Measured, judged_quickly, playing

pytestmark = pytest.mark.system

GRACE = 3


def lines(room: Room, name: str, event: str) -> list[dict[str, Any]]:
    """Of the history of a workload, those of one sort."""
    return [line for line in room.history(name) if line["event"] == event]


def told(room: Room, name: str) -> list[str]:
    """Reasons of the Events on a job that are about idleness."""
    known = ("IdleGPUs", "IdleReclaimed", "WouldReclaim")
    return sorted(reason for reason, _ in room.events(name) if reason in known)


def counted(measured: Measured, room: Room) -> dict[str, float]:
    """The exported counts of outcomes of idle gangs of a queue; without those that are 0."""
    text = get_plain(f"{measured.home.controller.metrics}/metrics").text
    queue = re.escape(room.namespace)
    pattern = rf'^queuectl_idle_reclaim_total{{cluster_queue="{queue}",result="(\w+)"}} (\S+)$'
    found = re.findall(pattern, text, re.MULTILINE)
    return {result: float(value) for result, value in found if float(value)}


def idle_beside_busy(measured: Measured, room: Room) -> None:
    """All GPUs are held, half of them by a gang that does nothing, and one more gang waits; all of the same priority."""
    room.job("idle", playing("idle"), priority_class="low")
    room.until_state("idle", "Running")
    room.job("busy", playing("busy"), priority_class="low")
    room.until_state("busy", "Running")
    room.job("next", playing("busy"), seconds=12, priority_class="low")
    room.until(
        lambda: measured.gangs(room.namespace) == {"Idle": 1.0, "Active": 1.0},
        "one idle and one active gang",
    )
    assert measured.alarms() == {}


def test_on_demand_the_idle_gang_is_evicted_for_one_of_its_priority_and_runs_again(
    measured: Measured,
) -> None:
    with measured.home.room(32) as room:
        queue = judged_quickly(
            room.namespace, 32, "OnDemand", graceSeconds=GRACE, yieldsToEqualPriority=True
        )
        room.rest.apply([queue])
        idle_beside_busy(measured, room)
        room.until_state("next", "Running")
        (preempted,) = lines(room, "idle", "Preempted")
        assert preempted["reason"]["details"]["why"] == "IdleReclaim"
        assert preempted["reason"]["details"]["lostGpuSeconds"] == RESTART_COST
        assert counted(measured, room)["on_demand"] == 1
        room.until(lambda: room.workload("idle")["attempt"] == 2, "the idle one runs again")
        assert room.workload("busy")["attempt"] == 1
        assert lines(room, "busy", "IdleGPUs") == []


def test_a_dry_run_evicts_no_gang_and_records_victim_and_preemptor(measured: Measured) -> None:
    with measured.home.room(32) as room:
        queue = judged_quickly(
            room.namespace, 32, "DryRun", graceSeconds=GRACE, yieldsToEqualPriority=True
        )
        room.rest.apply([queue])
        idle_beside_busy(measured, room)
        room.until(lambda: lines(room, "idle", "WouldReclaim"), "the record")
        room.until(lambda: "WouldReclaim" in told(room, "idle"), "an Event on the job")
        time.sleep(2 * GRACE)  # several cycles and samples, none of which adds a line
        (line,) = lines(room, "idle", "WouldReclaim")
        assert (
            f"for {room.namespace}/next; this loses {RESTART_COST} GPU" in line["reason"]["message"]
        )
        assert counted(measured, room) == {"warned": 2, "would_reclaim": 1}
        assert [room.state(name) for name in ("idle", "busy", "next")] == [
            "Running",
            "Running",
            "Pending",
        ]
        assert room.workload("idle")["attempt"] == 1


def test_always_an_idle_gang_is_warned_twice_evicted_and_runs_again(measured: Measured) -> None:
    with measured.home.room(32) as room:
        queue = judged_quickly(
            room.namespace, 32, "Always", graceSeconds=2 * GRACE, cooldownSeconds=20
        )
        room.rest.apply([queue])
        room.job("idle", playing("idle"))
        room.until_state("idle", "Backoff")
        first, second = lines(room, "idle", "IdleGPUs")
        (taken,) = lines(room, "idle", "IdleReclaimed")
        assert first["at"] < second["at"] < taken["at"]
        assert taken["reason"]["details"]["lostGpuSeconds"] == RESTART_COST
        room.until(
            lambda: told(room, "idle") == ["IdleGPUs", "IdleGPUs", "IdleReclaimed"],
            "two warnings and the eviction as Events",
        )
        assert counted(measured, room) == {"warned": 2, "always": 1}
        room.until_state("idle", "Running")
        assert room.workload("idle")["attempt"] == 2


def test_without_metrics_no_gang_is_evicted_and_cycles_continue(measured: Measured) -> None:
    with measured.home.room(32) as room:
        room.rest.apply([judged_quickly(room.namespace, 32, "Always", graceSeconds=10)])
        room.job("idle", playing("idle"))
        room.until(lambda: lines(room, "idle", "IdleGPUs"), "a warning")
        measured.prometheus.pause()
        try:
            room.until(
                lambda: measured.gangs(room.namespace) == {"Unknown": 1.0}, "nothing to be known"
            )
            assert measured.alarms().keys() == {"unreachable"}
            use = room.workload("idle")["use"]
            assert (use["state"], use["utilization"], use["covered"]) == ("Unknown", None, 0.0)
            assert use["message"]
            room.job("next", playing("busy"))
            room.until_state("next", "Running")
            time.sleep(12)  # longer than the grace
            assert lines(room, "idle", "IdleReclaimed") == []
            assert room.workload("idle")["attempt"] == 1
            assert room.state("idle") == "Running"
        finally:
            measured.prometheus.resume()
        room.until(lambda: measured.alarms() == {}, "Prometheus back")
