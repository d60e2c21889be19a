"""Gangs of real containers: devices, names, ranks, and the end of a preempted process."""

from __future__ import annotations

import pytest

from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster.nodes import RACK
from tests.real import work
from tests.real.cluster import RealInstallation

pytestmark = pytest.mark.real


def test_the_pods_of_a_gang_have_their_own_devices_and_finish(
    installation: RealInstallation,
) -> None:
    with installation.workspace(8) as workspace:
        work.run(
            workspace,
            "train",
            PodSetManifest(4, gpus=2),
            "echo $NVIDIA_VISIBLE_DEVICES; ls /dev/nvidia*; sleep 2",
        )
        workspace.until_state("train", "Finished")
        for pod in work.pods(workspace, "train"):
            said = work.log(workspace, pod["metadata"]["name"])
            assert said.split() == ["gpu-0,gpu-1", "/dev/nvidia0", "/dev/nvidia1"]
        nodes = [pod["spec"]["nodeName"] for pod in work.pods(workspace, "train")]
        assert nodes == sorted(installation.nodes), "ranks are in the order of the racks"
        assert workspace.workload("train")["reason"]["code"] == "Succeeded"


def test_the_ranks_of_a_gang_reach_each_other_by_name(installation: RealInstallation) -> None:
    with installation.workspace(8) as workspace:
        workspace.submit(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "train", "namespace": workspace.namespace},
                "spec": {
                    "clusterIP": "None",
                    "selector": {"job-name": "train"},
                    # A rank dials the others before all of them are ready.
                    "publishNotReadyAddresses": True,
                    "ports": [{"name": "any", "port": 29500}],
                },
            }
        )
        listen = "s.bind(('', 29500)); s.listen(); c, _ = s.accept(); print(c.recv(9).decode())"
        first = f'python3 -c "import socket; s = socket.socket(); {listen}"'
        dial = (
            "import socket, time\n"
            "while True:\n"
            "    try: s = socket.create_connection(('train-0.train', 29500), 5); break\n"
            "    except OSError as error: print(error, flush=True); time.sleep(0.5)\n"
            "s.sendall(b'from-1')"
        )
        script = f'case $JOB_COMPLETION_INDEX in 0) {first};; 1) python3 -c "{dial}";; esac'
        work.run(
            workspace,
            "train",
            PodSetManifest(2, gpus=2, required=RACK),
            script,
            spec={"subdomain": "train"},
        )
        workspace.until_state("train", "Finished")
        assert work.logs(workspace, "train")[0].strip() == "from-1"


def test_a_preempted_process_has_its_grace_period_and_keeps_its_slots_until_its_end(
    installation: RealInstallation,
) -> None:
    with installation.workspace(8) as workspace:
        stop = "trap 'echo saving; sleep 6; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.2; done"
        work.run(workspace, "low", PodSetManifest(4, gpus=2), stop, grace=30, priority_class="low")
        work.until_written(workspace, "low", 4, "ready")
        work.run(workspace, "high", PodSetManifest(4, gpus=2), "sleep 1", priority_class="high")
        work.until_written(workspace, "low", 4, "saving")
        assert workspace.state("high") in ("Pending", "Reserved"), "the slots are not free yet"
        workspace.until_state("high", "Finished")
        asked, ended = (
            work.first(workspace, "low", lambda pod: pod.terminating),
            work.ends(workspace, "low", 1),
        )
        assert min(one.at for one in ended) - asked.at >= 5, (
            "each process takes the time that it needs"
        )
        started = work.first(workspace, "high", lambda pod: not pod.gated)
        assert started.version > max(one.version for one in ended), "no slot is free before"
        assert workspace.until_state("low", "Running")["attempt"] == 2
