"""DeviceTaintRules on a real control plane: Kubernetes 1.36 with their feature gate, and 1.37, where they are on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import NodeSpec
from queuectl.localcluster import nodes as d
from queuectl.objects.kubernetes import resource_slices
from tests.support.shared_resource import SharedResource
from tests.system.actions import configured
from tests.system.claims import devices, request
from tests.system.device_cluster import DeviceWorkspace, device_workspace
from tests.system.installation import Installation, installed

pytestmark = [pytest.mark.system, pytest.mark.gpus, pytest.mark.timeout(600)]

NODES: Final = NodeSpec(racks_per_block=1, hosts_per_rack=4, gpus=0, devices=8)
FOR_AN_HOUR: Final = [
    {"key": "xid", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600}
]


def _older() -> AbstractContextManager[Installation]:
    return installed(
        NODES,
        operators=(),
        feature_gates=("DRADeviceTaintRules",),
        apis=(resource_slices.OLDER_VERSION,),
    )


def _newest() -> AbstractContextManager[Installation]:
    return installed(NODES, operators=(), kubernetes="1.37.2")


@pytest.fixture(
    scope="module",
    params=[(_older, resource_slices.OLDER_VERSION), (_newest, resource_slices.VERSION)],
    ids=["1.36", "1.37"],
)
def cluster(
    request: pytest.FixtureRequest, shared_resource: SharedResource
) -> tuple[Installation, str]:
    """A control plane, and the version of DeviceTaintRules that it serves."""
    build, version = request.param
    return shared_resource.get(build), version


@pytest.fixture
def workspace(cluster: tuple[Installation, str]) -> Iterator[DeviceWorkspace]:
    with device_workspace(cluster[0], quota=32) as one:
        patient = devices(request(count=8, tolerations=FOR_AN_HOUR))
        one.templates(eight=devices(request(count=8)), patient=patient)
        yield one


Rule = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def rule(cluster: tuple[Installation, str], workspace: DeviceWorkspace) -> Rule:
    """A DeviceTaintRule in a block."""
    return partial(_rule, workspace, cluster[1])


@contextmanager
def _rule(workspace: DeviceWorkspace, version: str, effect: str, **selector: str) -> Iterator[None]:
    document: Document = {
        "apiVersion": version,
        "kind": resource_slices.KIND,
        "metadata": {"name": "broken"},
        "spec": {
            "deviceSelector": {"driver": d.DRIVER, **selector},
            "taint": {"key": "xid", "value": "79", "effect": effect},
        },
    }
    client = workspace.base.client
    client.apply(document)
    try:
        yield
    finally:
        client.delete(client.path_of(document))


def explained(workspace: DeviceWorkspace, name: str) -> str:
    """The blocking constraints of a gang, as one text."""
    body: dict[str, Any] = workspace.base.rest.explain(workspace.base.namespace, name)
    return "; ".join(one["message"] for one in body["conflict"])


def test_a_device_of_a_rule_is_out_of_placement_and_named_until_the_rule_is_deleted(
    workspace: DeviceWorkspace, rule: Rule
) -> None:
    with rule("NoSchedule", pool="b0-r0-h0", device="gpu-3"):
        workspace.job("all", PodSetManifest(4), "eight")
        workspace.base.until_state("all", "Pending")
        evidence = (
            f"{d.DRIVER}/b0-r0-h0/gpu-3 on b0-r0-h0 (xid=79:NoSchedule (DeviceTaintRule broken))"
        )
        workspace.base.until(lambda: evidence in explained(workspace, "all"), "the evidence")
        assert workspace.base.state("all") == "Pending"
        workspace.job("three", PodSetManifest(3), "eight")
        workspace.base.until_state("three", "Running")
        assert "b0-r0-h0" not in workspace.devices("three")
        assert workspace.refused() == []
        workspace.base.empty()
        workspace.job("all", PodSetManifest(4), "eight")
        workspace.base.until_state("all", "Pending")
    workspace.base.until_state("all", "Running")
    assert workspace.refused() == []


def test_a_gang_gets_notice_before_kubernetes_deletes_its_pods(
    workspace: DeviceWorkspace, rule: Rule
) -> None:
    """Its claims tolerate the taint for an hour, and its queue drains unhealthy nodes."""
    base = workspace.base
    queue = m.cluster_queue(base.namespace, "gpu", {d.EXTENDED_RESOURCE: 32, "cpu": "1M"})
    queue["spec"]["policy"] = {"unhealthyNodes": "Drain"}
    base.rest.apply([queue])
    with configured(base, queuectl={"evictionGrace": "1h"}):
        workspace.job("train", PodSetManifest(2), "patient")
        base.until_state("train", "Running")
        path, [node, *_] = base.made[-1], workspace.devices("train")
        before = {pod.uid for pod in base.running("train")}
        with rule("NoExecute", pool=node, device="gpu-0"):

            def annotations() -> dict[str, str]:
                found: dict[str, str] = base.client.get(path)["metadata"].get("annotations", {})
                return found

            base.until(
                lambda: "queuectl.dev/preempt-requested" in annotations(), "the request to save"
            )
            reason = base.workload("train")["reason"]
            evidence = f"{node}: device {d.DRIVER}/{node}/gpu-0 has the taint xid=79:NoExecute (DeviceTaintRule broken)"
            assert reason["code"] == "NodeUnhealthy"
            assert reason["message"] == f"requeued from unhealthy nodes: {evidence}"
            assert {pod.uid for pod in base.running("train")} == before
            ready = {"metadata": {"annotations": {"queuectl.dev/preempt-ready": "true"}}}
            base.client.patch(path, ready)
            base.until(lambda: base.workload("train").get("attempt") == 2, "the next attempt")
            base.until_state("train", "Running")
            assert node not in workspace.devices("train")
            assert workspace.refused() == []
