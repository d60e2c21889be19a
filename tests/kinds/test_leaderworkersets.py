"""LeaderWorkerSets run by their operator: each group is a gang, which keeps its nodes while the operator creates its pods again."""

from __future__ import annotations

import pytest

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.jobs import PodRecord
from queuectl.localcluster import ApiServerError
from tests.support.leaderworkersets import leaderworkerset
from tests.system.actions import configured, until_empty, until_reason
from tests.system.installation import RACK, Installation, Workspace

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(900)]

WHOLE = PodSetManifest(4, gpus=8, required=RACK)
"""Of a group: each pod takes a node, all of them in one rack."""


def rack(node: str | None) -> str:
    return str(node).rsplit("-", 1)[0]


def places(workspace: Workspace, name: str) -> dict[int | None, str | None]:
    return {pod.rank: pod.node for pod in workspace.running(name)}


def delete(workspace: Workspace, pod: PodRecord) -> None:
    workspace.client.delete(f"/api/v1/namespaces/{workspace.namespace}/pods/{pod.name}")


def test_a_group_that_loses_a_pod_is_created_again_in_its_places(
    installation: Installation,
) -> None:
    """With the default restartPolicy. Another group of the set waits for quota, and does not take the places."""
    with installation.workspace(64, strategy="StrictFIFO") as workspace:
        made = leaderworkerset("serve", workspace.namespace, WHOLE, replicas=2)
        workspace.submit(made)
        for group in ("serve-0", "serve-1"):
            started = workspace.until_state(group, "Running")
            assert (started["kind"], started["pods"]) == ("LeaderWorkerSet", 4)
        # Groups become whole in any order, so the one that waits is created later.
        scale = f"{workspace.client.path_of(made)}/scale"
        workspace.client.patch(scale, {"spec": {"replicas": 3}})
        until_reason(workspace, "serve-2", "Pending", "WaitingForQuota")
        before = places(workspace, "serve-0")
        old = {pod.uid for pod in workspace.running("serve-0")}
        delete(workspace, workspace.running("serve-0")[-1])
        workspace.until_running("serve-0", 4, lambda p: p.uid not in old, "the group is made again")
        assert places(workspace, "serve-0") == before
        again = workspace.until_state("serve-0", "Running")
        assert (again["attempt"], again["evictions"]) == (1, 0)
        assert workspace.state("serve-2") == "Pending"


def test_workers_that_come_after_their_leader_have_their_nodes_from_the_start(
    installation: Installation,
) -> None:
    """Leader and workers have their own templates, and are in one domain."""
    with installation.workspace(128) as workspace:
        workers = PodSetManifest(3, gpus=8, required=RACK, group="all")
        leader = PodSetManifest(1, gpus=4, required=RACK, group="all")
        late = leaderworkerset(
            "late", workspace.namespace, workers, leader=leader, startupPolicy="LeaderReady"
        )
        gates = [{"name": "example.com/loaded"}]
        late["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["schedulingGates"] = gates
        workspace.submit(late)
        workspace.until(
            lambda: [(p.gated, p.attempt) for p in workspace.pods("late-0")] == [(False, 1)],
            "the leader is placed",
        )
        assert workspace.workload("late-0")["pods"] == 3
        workspace.submit(leaderworkerset("other", workspace.namespace, PodSetManifest(14, gpus=8)))
        until_reason(workspace, "other-0", "Pending", "WaitingForQuota")
        path = f"/api/v1/namespaces/{workspace.namespace}/pods/late-0"
        workspace.client.patch(path, {"spec": {"schedulingGates": []}})
        workspace.until_state("late-0", "Running")
        placed = workspace.running("late-0")
        assert sorted((pod.podset, pod.rank) for pod in placed) == [
            ("leader", 0), ("worker", 1), ("worker", 2),
        ]  # fmt: skip
        assert len({rack(pod.node) for pod in placed}) == 1


def test_a_group_that_is_made_again_while_queuectl_does_not_run_keeps_its_places(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        workspace.submit(leaderworkerset("serve", workspace.namespace, WHOLE))
        started = workspace.until_state("serve-0", "Running")
        before = places(workspace, "serve-0")
        installation.controller.kill()
        old = {pod.uid for pod in workspace.running("serve-0")}
        delete(workspace, workspace.running("serve-0")[0])
        workspace.until(
            lambda: (
                len([p for p in workspace.pods("serve-0") if p.gated and p.uid not in old]) == 4
            ),
            "the group is made again",
        )
        installation.controller.restart()
        workspace.until_running("serve-0", 4, lambda p: p.uid not in old, "all run again")
        assert places(workspace, "serve-0") == before
        again = workspace.until_state("serve-0", "Running")
        assert (again["uid"], again["attempt"]) == (started["uid"], 1)


def test_the_end_of_groups_is_that_of_their_set(installation: Installation) -> None:
    with installation.workspace(96) as workspace:
        made = leaderworkerset("serve", workspace.namespace, WHOLE, replicas=3)
        workspace.submit(made)
        for number in range(3):
            workspace.until_state(f"serve-{number}", "Running")
        first = workspace.workload("serve-2")["uid"]

        def found() -> list[Document]:
            """Also of gangs that have ended, with the names of others."""
            every = workspace.rest.workloads().values()
            return [one for one in every if one["namespace"] == workspace.namespace]

        path = workspace.client.path_of(made)
        workspace.client.patch(f"{path}/scale", {"spec": {"replicas": 2}})
        assert workspace.until_state("serve-2", "Finished")["uid"] == first
        until_empty(workspace, "serve-2")
        workspace.client.patch(f"{path}/scale", {"spec": {"replicas": 3}})
        workspace.until(
            lambda: ("Running", False) in [(w["state"], w["uid"] == first) for w in found()],
            "it is another gang",
        )
        assert {workspace.workload(f"serve-{n}")["attempt"] for n in (0, 1)} == {1}
        workspace.client.delete(path, propagationPolicy="Background")
        workspace.until(lambda: {w["state"] for w in found()} == {"Finished"}, "all have ended")


def test_a_rollout_replaces_the_pods_of_each_group_in_their_places(
    installation: Installation,
) -> None:
    with installation.workspace(96) as workspace:
        made = leaderworkerset("serve", workspace.namespace, WHOLE, replicas=2)
        workspace.submit(made)
        groups = ("serve-0", "serve-1")
        for group in groups:
            workspace.until_state(group, "Running")
        before = {group: places(workspace, group) for group in groups}
        old = {pod.uid for pod in workspace.running("serve")}
        path = workspace.client.path_of(made)
        template = {"metadata": {"annotations": {"example.com/version": "2"}}}
        workspace.client.patch(
            path, {"spec": {"leaderWorkerTemplate": {"workerTemplate": template}}}
        )
        workspace.until_running("serve", 8, lambda p: p.uid not in old, "all pods are new")
        assert {group: places(workspace, group) for group in groups} == before
        for group in groups:
            assert workspace.until_state(group, "Running")["attempt"] == 1


def test_other_requests_in_a_rollout_are_planned_again(installation: Installation) -> None:
    pauses = {"requeuingStrategy": {"backoffBaseSeconds": 1}}
    with (
        installation.workspace(96) as workspace,
        configured(workspace, waitForPodsReady=pauses),
    ):
        small = PodSetManifest(4, gpus=4, required=RACK)
        made = leaderworkerset("serve", workspace.namespace, small)
        workspace.submit(made)
        workspace.until_state("serve-0", "Running")
        template = WHOLE.template("main", None, restart="Always")
        workspace.client.patch(
            workspace.client.path_of(made),
            {"spec": {"leaderWorkerTemplate": {"workerTemplate": template}}},
        )
        workspace.until(
            lambda: workspace.workload("serve-0").get("attempt") == 2, "it is planned again"
        )
        workspace.until_state("serve-0", "Running")
        workspace.until_running(
            "serve-0", 4, lambda p: p.requests.get("nvidia.com/gpu") == 8, "all have 8 GPUs"
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"leaderWorkerTemplate": {"size": 3}}, "the size of the groups"),
        (
            {
                "leaderWorkerTemplate": {
                    "leaderTemplate": WHOLE.template("main", None, restart="Always")
                }
            },
            "whether their leaders have their own template",
        ),
    ],
    ids=["size", "leader"],
)
def test_the_pods_of_a_group_change_only_without_replicas(
    installation: Installation, change: Document, message: str
) -> None:
    with installation.workspace(32) as workspace:
        made = leaderworkerset("serve", workspace.namespace, WHOLE)
        workspace.submit(made)
        path = workspace.client.path_of(made)
        with pytest.raises(ApiServerError, match=message):
            workspace.client.patch(path, {"spec": change})
        workspace.client.patch(path, {"spec": {"replicas": 0}})
        workspace.client.patch(path, {"spec": change})
