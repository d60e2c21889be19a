"""Gangs of both kinds on a real control plane; every test is audited revision by revision when it ends."""

from __future__ import annotations

import pytest

from queuectl.demo.manifests import Pods
from tests.system.acts import collect, without_node
from tests.system.house import RACK, House

pytestmark = pytest.mark.system
KINDS = ("Job", "PyTorchJob")


def test_twenty_gangs_submitted_at_once_all_run_and_end(home: House) -> None:
    with home.room(128) as room:
        for i in range(20):
            options = {"seconds": 2 + i % 3}
            if i % 2:
                room.pytorchjob(f"g{i}", workers=1 + i % 3, gpus=4, **options)
            else:
                required = RACK if i % 4 == 0 else None
                room.job(f"g{i}", Pods(1 + i % 4, gpus=8, required=required), **options)
        for i in range(20):
            room.until_state(f"g{i}", "Finished")
        assert {room.workload(f"g{i}")["reason"]["code"] for i in range(20)} == {"Succeeded"}
        assert {room.workload(f"g{i}")["attempt"] for i in range(20)} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_preemptor_starts_when_its_victim_has_left_and_the_victim_runs_again(
    home: House, kind: str
) -> None:
    with home.room(128, strategy="StrictFIFO") as room:
        room.gang(kind, "low", 16, priority_class="low")
        room.until(lambda: len(room.running("low")) == 16, "the victim fills the cluster")
        room.gang(kind, "high", 8, priority_class="high", seconds=3)
        room.job("thief", Pods(1, gpus=8), priority_class="low")
        room.until_state("high", "Finished")
        victim = room.until_state("low", "Running")
        assert (victim["evictions"], victim["attempt"]) == (1, 2)
        evicted = next(line for line in room.history("low") if line["toState"] == "Evicting")
        assert evicted["reason"]["details"]["lostGpuSeconds"] > 0
        # The victim kept its place: the later gang of the same priority did not slip in before it.
        assert room.state("thief") == "Pending"


def test_a_pytorchjob_is_suspended_at_birth_and_gone_through_by_the_real_operator(
    home: House,
) -> None:
    with home.room(128) as room:
        room.pytorchjob("train", workers=3, seconds=3)
        path = f"/apis/kubeflow.org/v1/namespaces/{room.namespace}/pytorchjobs/train"
        room.until_state("train", "Finished")
        stored = room.client.get(path)
        conditions = {c["type"]: c["status"] for c in stored["status"]["conditions"]}
        assert conditions["Succeeded"] == "True"
        assert "Suspended" in conditions, "it was suspended first"
        states = [line["toState"] for line in room.history("train")]
        assert [s for s, before in zip(states, ["", *states], strict=False) if s != before] == [
            "Pending", "Starting", "Running", "Finished",
        ]  # fmt: skip


def test_a_job_without_indexes_runs_too(home: House) -> None:
    with home.room(128) as room:
        room.job("plain", Pods(4, gpus=8, required=RACK), indexed=False, seconds=2)
        assert room.until_state("plain", "Finished")["reason"]["code"] == "Succeeded"


def test_ranks_sit_in_the_order_of_the_racks(home: House) -> None:
    with home.room(128) as room:
        room.job("ranks", Pods(12, gpus=8))
        room.until_state("ranks", "Running")
        ranked = sorted((p.rank, p.node) for p in room.running("ranks"))
        racks = [str(node).rsplit("-", 1)[0] for _, node in ranked]
        assert racks == sorted(racks)


def test_a_failed_pod_is_replaced_in_its_slot(home: House) -> None:
    with home.room(128) as room:
        room.job("train", Pods(4, gpus=8), retries=6)
        room.until_state("train", "Running")
        before = {p.rank: p.node for p in room.running("train")}
        victim = room.running("train")[0]
        room.client.delete(f"/api/v1/namespaces/{room.namespace}/pods/{victim.name}")
        room.until(
            lambda: (
                len(room.running("train")) == 4
                and victim.uid not in {p.uid for p in room.running("train")}
            ),
            "four run again",
        )
        assert {p.rank: p.node for p in room.running("train")} == before
        assert room.workload("train")["attempt"] == 1


def test_pods_of_a_lost_node_move_and_the_others_stay(home: House) -> None:
    with home.room(128) as room:
        room.job("train", Pods(3, gpus=8, required=RACK), retries=6)
        room.until_state("train", "Running")
        lost = room.running("train")[0]
        stayed = {p.uid for p in room.running("train")} - {lost.uid}
        assert lost.node is not None
        rack = lost.node.rsplit("-", 1)[0]
        with without_node(home, lost.node):
            collect(room.client, room.namespace, lost.name)
            room.until(
                lambda: (
                    len(room.running("train")) == 3
                    and lost.node not in {p.node for p in room.running("train")}
                ),
                "its pod runs elsewhere",
            )
            assert stayed <= {p.uid for p in room.running("train")}
            assert {str(p.node).rsplit("-", 1)[0] for p in room.running("train")} == {rack}


def test_a_deleted_gang_gives_its_place_to_the_next(home: House) -> None:
    with home.room(64) as room:
        room.job("first", Pods(8, gpus=8))
        room.until_state("first", "Running")
        room.job("second", Pods(8, gpus=8))
        room.until(
            lambda: room.workload("second").get("reason", {}).get("code") == "WaitingForQuota",
            "the second has the reason",
        )
        room.client.delete(room.made[0], propagationPolicy="Background")
        room.until_state("second", "Running")
        assert room.state("first") == "Finished"
