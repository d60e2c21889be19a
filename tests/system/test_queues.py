"""Queues that lend, reclaim and share on a real control plane, gates and quotas of others, with the controller killed on the way.

Every workspace is audited when it ends.
"""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.quantity import GPU, Resources
from queuectl.localcluster.nodes import KUBELET
from tests.system.actions import (
    cohort,
    configured,
    finish,
    reason,
    remove,
    restart_controller,
    restart_in_test_faults,
    run_command,
    until_empty,
    until_reason,
)
from tests.system.installation import SECONDS, Installation, Workspace

pytestmark = [pytest.mark.system, pytest.mark.kills]
KINDS = ("Job", "PyTorchJob")


def evictions(workspace: Workspace, name: str) -> list[dict[str, Any]]:
    """Lines of a workload's history with the reasons of its evictions."""
    return [line for line in workspace.history(name) if line["toState"] == "Evicting"]


def starts(workspace: Workspace, name: str) -> list[dict[str, Any]]:
    return [line for line in workspace.history(name) if line["event"] == "Admitted"]


def test_what_was_lent_is_reclaimed_and_lent_again(installation: Installation) -> None:
    lent = [f"a{i}" for i in range(4)]
    lender = {"policy": {"reclaimPatienceSeconds": 2}}
    borrower = {"policy": {"borrowBackoffSeconds": 0}}
    specs = {"team-a": borrower, "team-b": lender}
    with cohort(installation, {"team-a": 32, "team-b": 32}, **specs) as workspace:
        workspace.limits[workspace.namespace, "team-b"] = Resources({GPU: 32})
        for i, name in enumerate(lent):
            workspace.gang(KINDS[i % 2], name, 2, queue="team-a")
            workspace.until_state(name, "Running")
        restart_in_test_faults(workspace)

        workspace.gang("PyTorchJob", "b0", 2, queue="team-b")
        until_reason(workspace, "b0", "Pending", "WaitingToReclaim")
        restart_in_test_faults(workspace)
        workspace.until(lambda: out(workspace, lent), "a borrower must leave")
        restart_controller(workspace)
        workspace.until_state("b0", "Running")
        assert len(out(workspace, lent)) == 1, "it reclaims only the GPUs that it needs"
        workspace.gang("Job", "b1", 2, queue="team-b")
        workspace.until_state("b1", "Running")
        restart_in_test_faults(workspace)
        workspace.until(lambda: len(out(workspace, lent)) == 2, "it takes back the rest")
        workspace.gang("Job", "b2", 2, queue="team-b")
        until_reason(workspace, "b2", "Pending", "WaitingForQuota")
        first, second = out(workspace, lent)  # in the order in which they were submitted
        for name in (first, second):
            until_empty(workspace, name)
            (line,) = evictions(workspace, name)
            assert line["reason"]["code"] == "Preempted"
            assert line["reason"]["details"]["why"] == "InCohortReclamation"

        workspace.audit()
        # From here on jobs are deleted; their quota is free at once, while their last pods still terminate.
        del workspace.limits[workspace.namespace, "team-b"]
        # Freed quota is team-b's first, then that of the borrower that queued first.
        for leaves, follows, waits in (("b0", "b2", first), ("b1", first, second)):
            remove(workspace, leaves)
            restart_in_test_faults(workspace)
            workspace.until_state(follows, "Running")
            assert workspace.state(waits) == "Pending"
        remove(workspace, "b2")
        workspace.until_state(second, "Running")
        assert {n: len(starts(workspace, n)) for n in lent} == {
            n: 2 if n in (first, second) else 1 for n in lent
        }


def out(workspace: Workspace, names: list[str]) -> list[str]:
    """Those of these gangs that were evicted so far."""
    found = workspace.workloads()
    return [name for name in names if name in found and found[name]["evictions"]]


def test_after_a_burst_each_team_holds_its_share(installation: Installation) -> None:
    """The 96 GPUs of the pool belong to no team's quota; teams of weight 1, 2 and 3 share them, in any order of arrival."""
    weights = {"one": 1, "two": 2, "three": 3}
    specs = {team: {"fairSharing": {"weight": weight}} for team, weight in weights.items()}
    teams = {"pool": 96} | dict.fromkeys(weights, 0)
    with (
        cohort(installation, teams, **specs) as workspace,
        configured(workspace, fairSharing={"enable": True}),
    ):
        rush = {"one": 12, "two": 7, "three": 7}
        gangs = {team: [f"{team}{i}" for i in range(count)] for team, count in rush.items()}
        for i, name in enumerate(gangs["one"]):
            workspace.gang(KINDS[i % 2], name, 2, gpus=4, queue="one")
        for name in gangs["one"]:
            workspace.until_state(name, "Running")  # alone, it can hold everything
        restart_in_test_faults(workspace)
        for i in range(7):
            for team in ("two", "three"):
                workspace.gang(KINDS[i % 2], gangs[team][i], 2, gpus=4, queue=team)
        workspace.until(lambda: out(workspace, gangs["one"]), "the first must leave")
        restart_in_test_faults(workspace)
        shares = {"one": 2, "two": 4, "three": 6}

        def held() -> dict[str, int]:
            running = {n for n, w in workspace.workloads().items() if w["state"] == "Running"}
            return {team: len(running.intersection(names)) for team, names in gangs.items()}

        workspace.until(lambda: held() == shares, "each holds its share", seconds=2 * SECONDS)
        restart_in_test_faults(workspace)
        workspace.until(workspace.workloads, "the controller answers")
        evicted = {n: w["evictions"] for n, w in workspace.workloads().items()}
        assert {w for n in gangs["one"] for w in whys(workspace, n)} == {"InCohortFairSharing"}
        # The shares are stable: one more of each is refused, without an eviction.
        for team in weights:
            workspace.gang("Job", f"late-{team}", 2, gpus=4, queue=team)
        for team in weights:
            until_reason(workspace, f"late-{team}", "Pending", "WaitingForQuota")
        assert held() == shares
        assert {
            n: w["evictions"] for n, w in workspace.workloads().items() if n in evicted
        } == evicted


def whys(workspace: Workspace, name: str) -> list[str]:
    """By which rule a workload was preempted, each time."""
    return [str(line["reason"]["details"].get("why")) for line in evictions(workspace, name)]


def test_a_gang_waits_until_its_gates_are_removed(installation: Installation) -> None:
    gate = "kueue.x-k8s.io/admission-gated-by"
    with installation.workspace(32) as workspace:
        workspace.gang(
            "PyTorchJob", "train", 2, annotations={gate: "example.com/data,example.com/paid"}
        )
        until_reason(workspace, "train", "Held", "AdmissionGated")
        restart_in_test_faults(workspace)
        lift(workspace, gate, "example.com/paid")
        workspace.until(
            lambda: workspace.workload("train").get("gates") == ["example.com/paid"],
            "one gate is left",
        )
        assert reason(workspace, "train") == ("Held", "AdmissionGated")
        lift(workspace, gate, None)
        restart_in_test_faults(workspace)
        workspace.until_state("train", "Running")


def test_a_gang_starts_after_the_jobs_that_it_depends_on(installation: Installation) -> None:
    """It is held while the first runs, and while the second does not exist, also across restarts."""
    annotations = {"queuectl.dev/after": "PyTorchJob/prep, Job/data:any"}
    with installation.workspace(64) as workspace:
        workspace.gang("PyTorchJob", "prep", 2)
        workspace.gang("Job", "train", 2, annotations=annotations)
        workspace.until_state("prep", "Running")
        until_reason(workspace, "train", "Held", "Dependency")
        end(workspace, "prep")
        workspace.until(
            lambda: workspace.workload("train").get("after") == ["Job/data:any"], "one job is left"
        )
        restart_in_test_faults(workspace)
        workspace.gang("Job", "data", 2)
        workspace.until_state("data", "Running")
        assert reason(workspace, "train") == ("Held", "Dependency")
        end(workspace, "data")
        workspace.until_state("train", "Running")


def end(workspace: Workspace, name: str) -> None:
    """Let all pods of a job succeed."""
    for pod in workspace.pods(name):
        finish(workspace, pod.name)


def lift(workspace: Workspace, annotation: str, left: str | None) -> None:
    """Leave these admission gates on the only job of a workspace."""
    workspace.client.patch(workspace.made[0], {"metadata": {"annotations": {annotation: left}}})


def starting(within: int, retries: int | None = None) -> dict[str, Any]:
    """waitForPodsReady: so many seconds for a start, and one of pause after the first failure."""
    strategy = {"backoffBaseSeconds": 1, "backoffLimitCount": retries}
    return {"timeout": f"{within}s", "requeuingStrategy": strategy}


def test_a_failed_start_is_repeated_on_other_nodes(installation: Installation) -> None:
    """One of two free nodes is Ready, but its kubelet does not respond: no pod starts or ends on it."""
    with installation.workspace(128) as workspace:
        workspace.job("filler", PodSetManifest(14, gpus=8))
        workspace.until_state("filler", "Running")
        # Pods of an earlier test would never end on a node whose kubelet does not respond.
        workspace.until(
            lambda: len(workspace.client.get("/api/v1/pods")["items"]) == 14, "14 pods in all"
        )
        bad = min(
            set(installation.cluster.nodes.names())
            - {str(p.node) for p in workspace.running("filler")}
        )
        workspace.client.patch(
            f"/api/v1/nodes/{bad}", {"metadata": {"labels": {KUBELET: "stopped"}}}
        )
        try:
            with configured(workspace, waitForPodsReady=starting(within=4)):
                workspace.gang("PyTorchJob", "train", 2)
                until_reason(workspace, "train", "Evicting", "PodsReadyTimeout")
                (late,) = evictions(workspace, "train")
                assert late["reason"]["details"]["cause"] == "WaitForStart"
            restart_in_test_faults(workspace)
            with configured(workspace, waitForPodsReady=starting(within=300)):
                remove(workspace, "filler")
                installation.cluster.nodes.cordon(bad)
                installation.cluster.nodes.restore(bad)
                workspace.until(
                    lambda: workspace.state("train") != "Evicting", "its pods are deleted"
                )
                restart_in_test_faults(workspace)
                workspace.until_state("train", "Running")
        finally:
            installation.cluster.nodes.restore(bad)
            installation.cluster.nodes.uncordon(bad)
        nodes = {p.node for p in workspace.running("train")}
        assert len(nodes - {bad}) == 2
        assert [line["attempt"] for line in starts(workspace, "train")] == [1, 2]
        assert [line["toState"] for line in workspace.history("train")].count("Backoff") == 1


def test_a_gang_that_never_starts_is_deactivated(installation: Installation) -> None:
    pods = PodSetManifest(1, gpus=8, annotations={"kwok.queuectl.dev/start-seconds": "3600"})
    with (
        installation.workspace(32) as workspace,
        configured(workspace, waitForPodsReady=starting(within=3, retries=1)),
    ):
        workspace.submit(
            m.pytorchjob("never", workspace.namespace, "main", master=pods, worker=pods)
        )
        workspace.until(lambda: evictions(workspace, "never"), "the first start has failed")
        restart_in_test_faults(workspace)
        until_reason(workspace, "never", "Deactivated", "RequeuingLimitExceeded")
        restart_in_test_faults(workspace)
        until_empty(workspace, "never")
        run_command(workspace, "never", "activate")
        workspace.until(lambda: workspace.workload("never").get("attempt") == 3, "a third start")
        late = [line["reason"]["code"] for line in evictions(workspace, "never")]
        assert late[-2:] == ["PodsReadyTimeout", "PodsReadyTimeout"]


def test_a_gang_is_pending_until_its_namespace_has_quota(installation: Installation) -> None:
    with installation.workspace(128) as workspace:
        workspace.client.apply(resource_quota(workspace, 16))
        workspace.gang("Job", "first", 2)
        workspace.until_state("first", "Running")
        workspace.gang("PyTorchJob", "second", 2)
        waits = until_reason(workspace, "second", "Pending", "ResourceQuotaExceeded")
        assert waits["reason"]["details"]["resourceQuota"] == "team"
        restart_in_test_faults(workspace)
        workspace.gang("Job", "third", 2)
        until_reason(workspace, "third", "Pending", "ResourceQuotaExceeded")
        assert not workspace.pods("second"), "nothing of it was started"
        workspace.client.apply(resource_quota(workspace, 32))
        restart_in_test_faults(workspace)
        workspace.until_state("second", "Running")
        until_reason(workspace, "third", "Pending", "ResourceQuotaExceeded")
        remove(workspace, "first")  # what it used is given back by the quota's own controller
        workspace.until_state("third", "Running")
        assert [len(starts(workspace, name)) for name in ("second", "third")] == [1, 1]


def resource_quota(workspace: Workspace, gpus: int) -> Document:
    """A ResourceQuota of the workspace's namespace."""
    meta = {"name": "team", "namespace": workspace.namespace}
    spec = {"hard": {f"requests.{GPU}": str(gpus)}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec}
