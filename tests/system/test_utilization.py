"""What gangs do with their GPUs, measured by a real Prometheus on a real control plane, and what is made of it."""

from __future__ import annotations

import pytest

from queuectl.planner.cost import RESTART_COST
from tests.system.measured import Measured, judged_quickly, playing
from tests.system.transcript import Page, shell

pytestmark = pytest.mark.system


def test_of_two_gangs_the_one_that_does_nothing_makes_room_and_runs_again_later(
    measured: Measured,
) -> None:
    with measured.home.room(32) as room:
        room.rest.apply([judged_quickly(room.namespace, 32)])
        # The idle one has run longer: counted as if it worked, it would lose more.
        room.job("idle", playing("idle"), priority_class="low")
        room.until_state("idle", "Running")
        room.job("busy", playing("busy"), priority_class="low")
        room.until_state("busy", "Running")
        room.until(
            lambda: measured.gangs(room.namespace) == {"Idle": 1.0, "Active": 1.0},
            "one idle and one active gang",
        )
        assert measured.alarms() == {}
        assert f"{room.namespace}/idle" in dict(measured.called_idle())
        uses = {name: one["use"] for name, one in room.workloads().items()}
        assert {name: use["state"] for name, use in uses.items()} == {
            "idle": "Idle",
            "busy": "Active",
        }
        assert uses["idle"]["utilization"] < 0.02 < 0.5 < uses["busy"]["utilization"]
        with shell({"QUEUECTL_SERVER": measured.home.controller.api}) as typed:
            page = Page("utilization.md", typed)
            page.type("queuectl explain", instead={"team-b/idle-64": f"{room.namespace}/idle"})
            page.end()
        room.job("urgent", playing("busy for 20; idle"), seconds=12, priority_class="high")
        room.until_state("urgent", "Running")
        assert room.state("busy") == "Running"
        assert room.state("idle") != "Running"
        (preempted,) = (line for line in room.history("idle") if line["event"] == "Preempted")
        assert preempted["reason"]["details"]["lostGpuSeconds"] == RESTART_COST
        room.until_state("idle", "Running")
        assert room.workload("busy")["attempt"] == 1
