"""Gangs of both kinds on a real control plane; every test is audited revision by revision when it ends."""

from __future__ import annotations

import time

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from tests.system.actions import collect, run_command, without_node
from tests.system.installation import RACK, Installation

pytestmark = pytest.mark.system
KINDS = ("Job", "PyTorchJob")


def test_twenty_gangs_submitted_at_once_all_run_and_end(installation: Installation) -> None:
    with installation.workspace(128) as workspace:
        for i in range(20):
            options = {"seconds": 2 + i % 3}
            if i % 2:
                workspace.pytorchjob(f"g{i}", workers=1 + i % 3, gpus=4, **options)
            else:
                required = RACK if i % 4 == 0 else None
                workspace.job(
                    f"g{i}", PodSetManifest(1 + i % 4, gpus=8, required=required), **options
                )
        for i in range(20):
            workspace.until_state(f"g{i}", "Finished")
        assert {workspace.workload(f"g{i}")["reason"]["code"] for i in range(20)} == {"Succeeded"}
        assert {workspace.workload(f"g{i}")["attempt"] for i in range(20)} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_preemptor_starts_when_its_victim_has_left_and_the_victim_runs_again(
    installation: Installation, kind: str
) -> None:
    with installation.workspace(128, strategy="StrictFIFO") as workspace:
        workspace.gang(kind, "low", 16, priority_class="low")
        workspace.until(lambda: len(workspace.running("low")) == 16, "the victim fills the cluster")
        workspace.gang(kind, "high", 8, priority_class="high", seconds=3)
        workspace.job("thief", PodSetManifest(1, gpus=8), priority_class="low")
        workspace.until_state("high", "Finished")
        victim = workspace.until_state("low", "Running")
        assert (victim["evictions"], victim["attempt"]) == (1, 2)
        evicted = next(line for line in workspace.history("low") if line["toState"] == "Evicting")
        assert evicted["reason"]["details"]["lostGpuSeconds"] > 0
        # The victim kept its place: the later gang of the same priority did not slip in before it.
        assert workspace.state("thief") == "Pending"


def test_a_pytorchjob_is_suspended_at_birth_and_gone_through_by_the_real_operator(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        workspace.pytorchjob("train", workers=3, seconds=3)
        path = f"/apis/kubeflow.org/v1/namespaces/{workspace.namespace}/pytorchjobs/train"
        workspace.until_state("train", "Finished")
        stored = workspace.client.get(path)
        conditions = {c["type"]: c["status"] for c in stored["status"]["conditions"]}
        assert conditions["Succeeded"] == "True"
        assert "Suspended" in conditions, "it was suspended first"
        states = [line["toState"] for line in workspace.history("train")]
        assert [s for s, before in zip(states, ["", *states], strict=False) if s != before] == [
            "Pending", "Starting", "Running", "Finished",
        ]  # fmt: skip


def test_a_pytorchjob_does_not_fail_because_of_the_pods_of_its_last_start(
    installation: Installation,
) -> None:
    """A kubelet deletes a pod some time after its containers have failed. A finalizer makes that time longer."""
    with installation.workspace(32) as workspace:
        one = PodSetManifest(1, gpus=8)
        document = m.pytorchjob("train", workspace.namespace, queue="main", master=one, worker=one)
        for replica in document["spec"]["pytorchReplicaSpecs"].values():
            replica["template"]["metadata"]["finalizers"] = ["example.com/keep"]
        workspace.submit(document)
        workspace.until_state("train", "Running")
        run_command(workspace, "train", "requeue")
        workspace.until(
            lambda: workspace.workload("train").get("attempt") == 2, "its second start is planned"
        )
        # An operator that counts the old pods ends the job in this time. Nothing shows that it has ignored them.
        time.sleep(2)
        kept = workspace.pods("train")
        assert {(pod.terminal, pod.attempt) for pod in kept} == {(True, 1)}
        assert workspace.state("train") == "Starting"
        for pod in kept:
            path = f"/api/v1/namespaces/{workspace.namespace}/pods/{pod.name}"
            workspace.client.patch(path, {"metadata": {"finalizers": None}})
        workspace.until_state("train", "Running")
        for pod in workspace.pods("train"):
            path = f"/api/v1/namespaces/{workspace.namespace}/pods/{pod.name}"
            workspace.client.patch(path, {"metadata": {"finalizers": None}})


def test_a_job_without_indexes_runs_too(installation: Installation) -> None:
    with installation.workspace(128) as workspace:
        workspace.job("plain", PodSetManifest(4, gpus=8, required=RACK), indexed=False, seconds=2)
        assert workspace.until_state("plain", "Finished")["reason"]["code"] == "Succeeded"


def test_ranks_sit_in_the_order_of_the_racks(installation: Installation) -> None:
    with installation.workspace(128) as workspace:
        workspace.job("ranks", PodSetManifest(12, gpus=8))
        workspace.until_state("ranks", "Running")
        ranked = sorted((p.rank, p.node) for p in workspace.running("ranks"))
        racks = [str(node).rsplit("-", 1)[0] for _, node in ranked]
        assert racks == sorted(racks)


def test_a_failed_pod_is_replaced_in_its_slot(installation: Installation) -> None:
    with installation.workspace(128) as workspace:
        workspace.job("train", PodSetManifest(4, gpus=8), retries=6)
        workspace.until_state("train", "Running")
        before = {p.rank: p.node for p in workspace.running("train")}
        victim = workspace.running("train")[0]
        workspace.client.delete(f"/api/v1/namespaces/{workspace.namespace}/pods/{victim.name}")
        workspace.until_running("train", 4, lambda p: p.uid != victim.uid, "four run again")
        assert {p.rank: p.node for p in workspace.running("train")} == before
        assert workspace.workload("train")["attempt"] == 1


def test_pods_of_a_lost_node_move_and_the_others_stay(installation: Installation) -> None:
    with installation.workspace(128) as workspace:
        workspace.job("train", PodSetManifest(3, gpus=8, required=RACK), retries=6)
        workspace.until_state("train", "Running")
        lost = workspace.running("train")[0]
        stayed = {p.uid for p in workspace.running("train")} - {lost.uid}
        assert lost.node is not None
        rack = lost.node.rsplit("-", 1)[0]
        with without_node(installation, lost.node):
            collect(workspace.client, workspace.namespace, lost.name)
            workspace.until_running(
                "train", 3, lambda p: p.node != lost.node, "its pod runs elsewhere"
            )
            assert stayed <= {p.uid for p in workspace.running("train")}
            assert {str(p.node).rsplit("-", 1)[0] for p in workspace.running("train")} == {rack}


def test_a_deleted_gang_gives_its_place_to_the_next(installation: Installation) -> None:
    with installation.workspace(64) as workspace:
        workspace.job("first", PodSetManifest(8, gpus=8))
        workspace.until_state("first", "Running")
        workspace.job("second", PodSetManifest(8, gpus=8))
        workspace.until(
            lambda: workspace.workload("second").get("reason", {}).get("code") == "WaitingForQuota",
            "the second has the reason",
        )
        workspace.client.delete(workspace.made[0], propagationPolicy="Background")
        workspace.until_state("second", "Running")
        assert workspace.state("first") == "Finished"
