"""Holds, drains, time-outs and limits on a real control plane, with the controller killed on the way.

Each test names the moments at which the controller is killed by SIGKILL. Every room is audited when it ends: all pods of a
gang start or none, no node is overcommitted, and no gang starts twice.
"""

from __future__ import annotations

import pytest

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Pods
from tests.system.acts import ask, die, reason, remove, rules, stop_queue, until_empty, until_reason
from tests.system.house import House

pytestmark = pytest.mark.system
KINDS = ("Job", "PyTorchJob")


@pytest.mark.parametrize("kind", KINDS)
def test_a_gang_is_held_and_released_while_the_controller_is_killed(home: House, kind: str) -> None:
    with home.room(32) as room:
        room.gang(kind, "train", 4)
        room.until_state("train", "Running")
        ask(room, "train", "hold")
        die(room)
        room.until_state("train", "Held")
        until_empty(room, "train")
        assert room.workload("train")["reason"]["message"] == "held by alice"
        die(room)
        room.gang(kind, "other", 4, seconds=2)
        room.until_state("other", "Finished")
        assert room.state("train") == "Held", "only a user releases it"
        ask(room, "train", "release")
        die(room)
        again = room.until_state("train", "Running")
        assert (again["attempt"], again["evictions"]) == (2, 1)
        told = [line["reason"]["message"] for line in room.history("train")]
        assert (told.count("held by alice"), told.count("released by alice")) == (2, 1)


def test_a_drained_queue_resumes_in_order(home: House) -> None:
    with home.room(32) as room:
        for name, kind in zip(
            ("first", "second", "third"), ("PyTorchJob", "Job", "PyTorchJob"), strict=True
        ):
            room.gang(kind, name, 4)
            room.until_state(name, "Running" if name == "first" else "Pending")
        stop_queue(room, 32, "HoldAndDrain")
        die(room)
        for name in ("first", "second", "third"):
            until_reason(room, name, "Pending", "ClusterQueueStopped")
        until_empty(room, "first")
        die(room)
        until_reason(room, "second", "Pending", "ClusterQueueStopped")
        stop_queue(room, 32, "None")
        die(room)
        for name, follower in (("first", "second"), ("second", "third")):
            room.until_state(name, "Running")
            assert room.state(follower) == "Pending"
            remove(room, name)
        room.until_state("third", "Running")
        assert [room.workload(n)["attempt"] for n in ("first", "second", "third")] == [2, 1, 1]


def test_running_gangs_of_a_stopped_queue_continue(home: House) -> None:
    with home.room(32) as room:
        room.job("runs", Pods(4, gpus=8), seconds=6)
        room.until_state("runs", "Running")
        stop_queue(room, 32, "Hold")
        room.job("waits", Pods(1, gpus=8), seconds=1)
        until_reason(room, "waits", "Pending", "ClusterQueueStopped")
        die(room)
        room.until_state("runs", "Finished")
        assert room.workload("runs")["attempt"] == 1
        assert reason(room, "waits") == ("Pending", "ClusterQueueStopped")
        stop_queue(room, 32, "None")
        room.until_state("waits", "Finished")


@pytest.mark.parametrize("kind", KINDS)
def test_a_gang_is_stopped_when_it_has_run_too_long(home: House, kind: str) -> None:
    with home.room(32) as room:
        room.gang(kind, "other", 4)
        room.until_state("other", "Running")
        pods = Pods(4, gpus=8)
        document = (
            m.job("long", room.namespace, "main", pods)
            if kind == "Job"
            else m.pytorchjob(
                "long", room.namespace, "main", master=Pods(1, gpus=8), worker=Pods(3, gpus=8)
            )
        )
        document["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = "4"
        room.submit(document)
        room.until_state("long", "Pending")
        ask(room, "other", "hold")
        room.until(lambda: room.workload("long").get("attempt") == 1, "it has started")
        die(room)
        until_reason(room, "long", "Deactivated", "MaximumExecutionTimeExceeded")
        assert not [p for p in room.pods("long") if not p.terminal]
        room.until(
            lambda: "MaximumExecutionTimeExceeded" in {code for code, _ in room.events("long")},
            "an Event",
        )
        die(room)
        until_reason(room, "long", "Deactivated", "MaximumExecutionTimeExceeded")


@pytest.mark.parametrize("kind", KINDS)
def test_a_victim_gets_notice_before_its_eviction(home: House, kind: str) -> None:
    with home.room(32) as room, rules(room, queuectl={"evictionGrace": "1h"}):
        room.gang(kind, "low", 4, priority_class="low")
        room.until_state("low", "Running")
        path = room.made[-1]
        room.gang(kind, "high", 4, priority_class="high", seconds=2)

        def requested() -> str | None:
            annotations = room.client.get(path)["metadata"].get("annotations", {})
            found: str | None = annotations.get("queuectl.dev/preempt-requested")
            return found

        room.until(requested, "the request to save")
        first = requested()
        die(room)
        room.until_state("high", "Reserved")
        assert requested() == first, "the deadline outlives the controller"
        assert len(room.running("low")) == 4
        ready = {"metadata": {"annotations": {"queuectl.dev/preempt-ready": "true"}}}
        room.client.patch(path, ready)
        die(room)
        room.until_state("high", "Finished")
        room.until_state("low", "Running")
        assert requested() is None
