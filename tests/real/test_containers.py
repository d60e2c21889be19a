"""Containers of a gang that start late, restart, or never start: images, init containers, exits, memory and disk."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster.client import get_plain
from tests.real import images, work
from tests.real.cluster import RealInstallation
from tests.real.settings import NODE_DISK
from tests.system.actions import configured, until_reason
from tests.system.installation import Workspace

pytestmark = pytest.mark.real

FOREVER = "echo ready; exec sleep 600"
ALLOCATE = "exec python3 -c \"held = [b'x' * (1 << 20) for _ in range({mib})]; import time; time.sleep(300)\""
FILL = "dd if=/dev/zero of={path} bs=1M count={mib} 2>/dev/null; sleep 300"


def starting(within: str) -> Document:
    strategy = {"backoffBaseSeconds": 600, "backoffLimitCount": 5}
    return {"timeout": within, "requeuingStrategy": strategy}


def reasons(workspace: Workspace, name: str) -> set[str]:
    """The reasons of its pods in the REST API."""
    path = f"/api/v1/namespaces/{workspace.namespace}/workloads/{name}/pods"
    answer = get_plain(workspace.installation.controller.api + path)
    return {pod["reason"] for pod in answer.json().get("items", ())}


def test_a_gang_whose_image_is_missing_leaves_its_nodes_after_the_start_timeout(
    installation: RealInstallation,
) -> None:
    with (
        installation.workspace(8) as workspace,
        configured(workspace, waitForPodsReady=starting("20s")),
    ):
        work.run(workspace, "typo", PodSetManifest(4, gpus=2), "exit 0", image="localhost/absent:1")
        pulling = {"ErrImagePull", "ImagePullBackOff"}
        workspace.until(
            lambda: reasons(workspace, "typo") & pulling, "the reason is in the REST API"
        )
        assert workspace.state("typo") == "Starting"
        work.run(workspace, "next", PodSetManifest(4, gpus=2), "exit 0")
        late = until_reason(workspace, "typo", "Backoff", "Backoff")
        assert "PodsReadyTimeout" in late["reason"]["message"]
        workspace.until_state("next", "Finished")


def test_a_gang_is_running_when_its_init_containers_have_ended(
    installation: RealInstallation,
) -> None:
    with installation.workspace(8) as workspace:
        first = {"name": "fetch", "image": images.BASE.name, "command": ["sleep", "5"]}
        work.run(
            workspace, "train", PodSetManifest(2, gpus=2), FOREVER, spec={"initContainers": [first]}
        )
        workspace.until(
            lambda: reasons(workspace, "train") == {"PodInitializing"}, "both initialize"
        )
        assert workspace.state("train") == "Starting"
        workspace.until_state("train", "Running")
        for pod in work.pods(workspace, "train"):
            (status,) = pod["status"]["initContainerStatuses"]
            assert status["state"]["terminated"]["reason"] == "Completed"


def test_a_gang_with_a_failing_init_container_fails(installation: RealInstallation) -> None:
    with installation.workspace(8) as workspace:
        first = {"name": "fetch", "image": images.BASE.name, "command": ["sh", "-c", "exit 3"]}
        work.run(
            workspace, "train", PodSetManifest(2, gpus=2), FOREVER, spec={"initContainers": [first]}
        )
        assert workspace.until_state("train", "Finished")["reason"]["code"] == "Failed"


def test_a_restarted_container_keeps_its_pod_its_slot_and_its_attempt(
    installation: RealInstallation,
) -> None:
    with installation.workspace(8) as workspace:
        script = "test -e /work/again && exec sleep 600; touch /work/again; exit 7"
        volume = {"name": "work", "emptyDir": {}}
        mount = {"volumeMounts": [{"name": "work", "mountPath": "/work"}]}
        work.run(
            workspace,
            "train",
            PodSetManifest(2, gpus=2),
            script,
            spec={"restartPolicy": "OnFailure", "volumes": [volume]},
            container=mount,
            retries=6,
        )
        workspace.until(
            lambda: [pod.restarts for pod in workspace.running("train")] == [1, 1], "both restarted"
        )
        train = workspace.until_state("train", "Running")
        assert (train["attempt"], train["evictions"]) == (1, 0)


@pytest.mark.parametrize(
    ("misbehavior", "limits", "why"),
    [
        pytest.param(ALLOCATE.format(mib=600), {"memory": "200Mi"}, "OOMKilled", id="memory limit"),
        pytest.param(
            FILL.format(path="/tmp/file", mib=120),
            {"ephemeral-storage": "50Mi"},
            "Evicted",
            id="disk limit",
        ),
        pytest.param(ALLOCATE.format(mib=3500), {}, "Evicted", id="memory of the node"),
        pytest.param(
            FILL.format(path="/scratch/file", mib=NODE_DISK * 6 // 7 >> 20),
            {},
            "Evicted",
            id="disk of the node",
        ),
    ],
)
def test_a_pod_that_takes_too_much_is_replaced_in_its_slot(
    installation: RealInstallation, misbehavior: str, limits: Mapping[str, str], why: str
) -> None:
    """Rank 1 takes too much once. The folder of the node shows its replacement that it did so."""
    with installation.workspace(8) as workspace:
        once = {
            "name": "once",
            "hostPath": {"path": f"/run/{workspace.namespace}", "type": "DirectoryOrCreate"},
        }
        script = (
            'if test "$JOB_COMPLETION_INDEX" = 1 && ! test -e /once/done; '
            f"then touch /once/done; {misbehavior}; exit 1; fi; {FOREVER}"
        )
        document = work.job(
            workspace,
            "train",
            PodSetManifest(2, gpus=2),
            script,
            retries=6,
            spec={"volumes": [once, {"name": "scratch", "emptyDir": {}}]},
            container={
                "volumeMounts": [
                    {"name": name, "mountPath": f"/{name}"} for name in ("once", "scratch")
                ]
            },
        )
        resources = document["spec"]["template"]["spec"]["containers"][0]["resources"]
        # The queue has no quota for these resources.
        resources["requests"] = resources["requests"] | dict.fromkeys(limits, "0")
        resources["limits"] = resources["limits"] | limits
        workspace.submit(document)
        workspace.until(lambda: why in failed(workspace, "train"), f"rank 1 is {why}", seconds=150)
        workspace.until(lambda: len(workspace.running("train")) == 2, "both run", seconds=150)
        train = workspace.until_state("train", "Running")
        assert (train["attempt"], train["evictions"]) == (1, 0)
        slots = {
            pod.node for _, pod in work.events(workspace, "train") if pod.rank == 1 and pod.node
        }
        assert len(slots) == 1, "the replacement runs on the same node"


def failed(workspace: Workspace, name: str) -> set[str]:
    """Why the failed pods of a job have failed."""
    found = set()
    for pod in work.pods(workspace, name):
        status = pod["status"]
        if status.get("phase") == "Failed":
            ended = [one["state"].get("terminated", {}) for one in status["containerStatuses"]]
            found |= {status.get("reason"), *(one.get("reason") for one in ended)}
    return {why for why in found if why}
