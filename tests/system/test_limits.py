"""Limits of namespaces and users, and drained queues, on a real control plane; ``queuectl plan -f`` predicts the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.quantity import GPU
from queuectl.localcluster.client import Client
from tests.system.actions import (
    apply,
    configured,
    kubectl,
    remove,
    restart_in_test_faults,
    stop_queue,
    until_reason,
)
from tests.system.installation import BLOCK, RACK, Installation, Workspace

pytestmark = [pytest.mark.system, pytest.mark.kills]
USER = "example.com/user"


def foretold(workspace: Workspace, *queues: Document) -> dict[str, Any]:
    """The result of ``plan -f`` for the output of kubectl, with these queues."""
    workspace.until(
        lambda: workspace.states() and all_settled(workspace), "no gang changes its state"
    )
    common = [m.topology("gpus", BLOCK, RACK), m.flavor("gpu", topology="gpus")]
    queues = (*common, m.local_queue(workspace.namespace, "main", workspace.namespace), *queues)
    listed = "jobs,pods,resourcequotas,limitranges,runtimeclasses"
    printed = [
        kubectl(workspace.installation, "get", "nodes", "-o", "json"),
        kubectl(workspace.installation, "get", listed, "-n", workspace.namespace, "-o", "json"),
        *map(json.dumps, queues),
    ]
    result = CliRunner().invoke(app, ["plan", "-f", "-", "-o", "json"], input="\n".join(printed))
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def all_settled(workspace: Workspace) -> bool:
    return all(one["state"] in ("Running", "Pending") for one in workspace.workloads().values())


def queue_of(workspace: Workspace, gpus: int) -> Document:
    return m.cluster_queue(workspace.namespace, "gpu", {GPU: gpus, "cpu": "1M"})


def main_reasons(planned: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Name to code and message of the main reason."""
    return {
        one["workload"].partition("/")[2]: (
            one["reasons"][0]["code"],
            one["reasons"][0]["message"],
        )
        for one in planned["pending"]
    }


def test_a_resource_quota_of_limits_delays_a_gang_until_it_fits(installation: Installation) -> None:
    with installation.workspace(128) as workspace:
        meta = {"name": "team", "namespace": workspace.namespace}
        hard = {"limits.cpu": "5"}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta}
        workspace.client.apply(quota | {"spec": {"hard": hard}})
        pods = PodSetManifest(2, gpus=8, cpu="2")
        workspace.job("first", pods)
        workspace.until_state("first", "Running")
        workspace.job("second", pods)
        waits = until_reason(workspace, "second", "Pending", "ResourceQuotaExceeded")
        assert waits["reason"]["details"]["resource"] == "limits.cpu"
        reason = (waits["reason"]["code"], waits["reason"]["message"])
        queue = queue_of(workspace, 128)
        assert main_reasons(foretold(workspace, queue)) == {"second": reason}
        restart_in_test_faults(workspace)
        remove(workspace, "first")
        workspace.until_state("second", "Running")
        assert workspace.workload("second")["attempt"] == 1


def test_a_limit_range_sets_defaults_and_delays_gangs_that_violate_it(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        meta = {"name": "team", "namespace": workspace.namespace}
        item = {"type": "Container", "max": {"cpu": "16"}, "defaultRequest": {"cpu": "8"}}
        limit_range = {"apiVersion": "v1", "kind": "LimitRange", "metadata": meta}
        workspace.client.apply(limit_range | {"spec": {"limits": [item]}})
        silent = m.job("silent", workspace.namespace, "main", PodSetManifest(2, gpus=8))
        (container,) = silent["spec"]["template"]["spec"]["containers"]
        container["resources"] = {"limits": {GPU: "8"}}
        workspace.submit(silent)
        workspace.until_state("silent", "Running")
        assert [pod.requests["cpu"] for pod in workspace.pods("silent")] == [8_000, 8_000]
        workspace.job("greedy", PodSetManifest(1, gpus=8, cpu="20"))
        waits = until_reason(workspace, "greedy", "Pending", "LimitRangeViolated")
        reason = (waits["reason"]["code"], waits["reason"]["message"])
        assert "is more than the max of cpu (16)" in reason[1]
        restart_in_test_faults(workspace)
        assert main_reasons(foretold(workspace, queue_of(workspace, 32))) == {"greedy": reason}
        workspace.client.delete(f"/api/v1/namespaces/{workspace.namespace}/limitranges/team")
        workspace.until_state("greedy", "Running")
        assert workspace.workload("silent")["attempt"] == 1


def test_a_gang_waits_for_its_runtime_class_and_is_planned_with_it(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        name = f"kata-{workspace.namespace}"
        document = m.job("train", workspace.namespace, "main", PodSetManifest(2, gpus=8, cpu="2"))
        document["spec"]["template"]["spec"]["runtimeClassName"] = name
        workspace.submit(document)
        waits = until_reason(workspace, "train", "Pending", "Misconfigured")
        reason = (waits["reason"]["code"], waits["reason"]["message"])
        assert f"runtimeClassName: RuntimeClass {name} does not exist" in reason[1]
        assert main_reasons(foretold(workspace, queue_of(workspace, 32))) == {"train": reason}
        toleration = {"key": "kata", "operator": "Exists", "effect": "NoSchedule"}
        runtime_class = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name},
            "handler": "kata",
            "overhead": {"podFixed": {"cpu": "3"}},
            "scheduling": {
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [toleration],
            },
        }
        workspace.client.apply(runtime_class)
        try:
            workspace.until_state("train", "Running")
            assert [pod.requests["cpu"] for pod in workspace.pods("train")] == [5_000, 5_000]
            assert workspace.workload("train")["attempt"] == 1
        finally:
            workspace.client.delete(f"/apis/node.k8s.io/v1/runtimeclasses/{name}")


@contextmanager
def engineers(installation: Installation, *names: str) -> Iterator[dict[str, Client]]:
    """Clients of people who may do anything to jobs and pods."""
    with ExitStack() as stack:
        clients = {
            name: installation.cluster.client_for_user(name, ["engineers"]) for name in names
        }
        for client in clients.values():
            stack.callback(client.close)
        yield clients


def test_a_user_holds_no_more_than_the_limit_and_others_start(installation: Installation) -> None:
    usage = {"usageHalfLifeTime": "1h", "usageSamplingInterval": "5m"}
    with (
        installation.workspace(64, strategy="StrictFIFO") as workspace,
        configured(workspace, admissionFairSharing=usage, queuectl={"userLabel": USER}),
        engineers(installation, "ann", "ben") as clients,
    ):
        queue = queue_of(workspace, 64)
        queue["spec"] |= {
            "queueingStrategy": "StrictFIFO",
            "policy": {"maxPerUser": {"nvidia.com/gpu": 16}},
        }
        apply(workspace, queue)

        def submit(user: str, name: str) -> None:
            document = m.job(name, workspace.namespace, "main", PodSetManifest(2, gpus=8))
            # Neither a label nor an annotation of the job overrides the user who created it.
            document["metadata"]["labels"][USER] = name
            document["metadata"]["annotations"] = {"queuectl.dev/submitted-by": name}
            path = workspace.client.path_of(document)
            clients[user].create(path.rsplit("/", 1)[0], document)
            workspace.made.append(path)

        submit("ann", "first")
        workspace.until_state("first", "Running")
        # Gangs that are created in one second and observed together have no order among them.
        submit("ann", "second")
        until_reason(workspace, "second", "Pending", "MaxPerUserExceeded")
        submit("ann", "third")
        until_reason(workspace, "third", "Pending", "WaitingInOrder")
        restart_in_test_faults(workspace)
        submit("ben", "other")
        workspace.until_state("other", "Running")
        waits = until_reason(workspace, "second", "Pending", "MaxPerUserExceeded")
        explained = workspace.rest.explain(workspace.namespace, "second")
        assert waits["reason"]["message"] in explained["message"]
        assert "needed for user ann in ClusterQueue" in explained["message"]
        assert not workspace.pods("second")
        remove(workspace, "first")
        restart_in_test_faults(workspace)
        workspace.until_state("second", "Running")
        until_reason(workspace, "third", "Pending", "MaxPerUserExceeded")


def test_plan_predicts_the_evictions_of_a_drained_queue(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        workspace.job("runs", PodSetManifest(2, gpus=8))
        workspace.until_state("runs", "Running")
        workspace.job("waits", PodSetManifest(4, gpus=8))
        until_reason(workspace, "waits", "Pending", "WaitingForQuota")
        assert foretold(workspace, queue_of(workspace, 32))["preempted"] == []
        stopped = queue_of(workspace, 32)
        stopped["spec"]["stopPolicy"] = "HoldAndDrain"
        planned = foretold(workspace, stopped)
        (out,) = planned["preempted"]
        stop_queue(workspace, 32, "HoldAndDrain")
        until_reason(workspace, "runs", "Pending", out["reason"])
        waits = until_reason(workspace, "waits", "Pending", "ClusterQueueStopped")
        reason = (waits["reason"]["code"], waits["reason"]["message"])
        assert main_reasons(planned) == {"waits": reason}
        assert out["workload"] == f"{workspace.namespace}/runs"
