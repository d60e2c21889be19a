"""Gangs whose pods claim devices of dynamic resource allocation, on a real control plane with kube-scheduler and its claim controller."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import nodes as d
from queuectl.localcluster.components import SCHEDULER
from tests.system.actions import apply, configured, restart_controller, until_refused
from tests.system.claims import claim, devices, request, using
from tests.system.device_cluster import DeviceWorkspace, device_installation, device_workspace
from tests.system.installation import RACK, Installation, Workspace

pytestmark = [pytest.mark.system, pytest.mark.gpus]
__all__ = ["device_installation"]

NODE = "b0-r0-h0"


@pytest.fixture
def workspace(device_installation: Installation) -> Iterator[DeviceWorkspace]:
    with device_workspace(device_installation) as one:
        one.templates(
            eight=devices(request(count=8)),
            four=devices(request(count=4)),
            one=devices(request(count=1)),
        )
        yield one


def reason(workspace: DeviceWorkspace, name: str) -> dict[str, Any]:
    found: dict[str, Any] = workspace.base.workload(name).get("reason", {})
    return found


def test_a_gang_of_eight_pods_of_eight_devices_starts_in_one_rack(
    workspace: DeviceWorkspace,
) -> None:
    workspace.job("train", PodSetManifest(8, required=RACK), "eight")
    workspace.base.until_state("train", "Running")
    held = workspace.devices("train")
    assert set(held.values()) == {8}
    assert len(held) == 8
    assert len({node.rsplit("-", 1)[0] for node in held}) == 1
    assert workspace.refused() == []


def test_pods_of_different_size_share_nodes(workspace: DeviceWorkspace) -> None:
    workspace.job("fours", PodSetManifest(16), "four")
    workspace.job("ones", PodSetManifest(64), "one")
    for name in ("fours", "ones"):
        workspace.base.until_state(name, "Running")
    workspace.job("late", PodSetManifest(1), "one")
    until_refused(workspace.base, "late")
    assert workspace.refused() == []


def test_a_preemptor_gets_the_devices_of_its_victim_which_runs_again(
    workspace: DeviceWorkspace,
) -> None:
    workspace.job("low", PodSetManifest(16), "eight", priority_class="low")
    workspace.base.until_state("low", "Running")
    workspace.job(
        "high", PodSetManifest(8, required=RACK), "eight", priority_class="high", seconds=2
    )
    workspace.base.until_state("high", "Finished")
    victim = workspace.base.until_state("low", "Running")
    assert (victim["evictions"], victim["attempt"]) == (1, 2)
    assert sum(workspace.devices("low").values()) == 128
    assert workspace.refused() == []


def test_claims_are_released_at_the_end_of_a_gang_and_the_next_gets_the_devices(
    workspace: DeviceWorkspace,
) -> None:
    for name in ("first", "second", "third"):
        workspace.job(name, PodSetManifest(16), "eight", seconds=1)
    for name in ("first", "second", "third"):
        workspace.base.until_state(name, "Finished")
    workspace.base.until(lambda: not workspace.claims(), "no claim is left")
    assert {workspace.base.workload(n)["attempt"] for n in ("first", "second", "third")} == {1}
    assert workspace.refused() == []


def test_a_job_with_an_extended_resource_of_a_device_class_runs_unchanged(
    workspace: DeviceWorkspace,
) -> None:
    workspace.job("plain", PodSetManifest(8, required=RACK), resources={d.EXTENDED_RESOURCE: "8"})
    workspace.base.until_state("plain", "Running")
    held = workspace.devices("plain")
    assert (set(held.values()), len(held)) == ({8}, 8)
    workspace.job("beside", PodSetManifest(8), "eight")
    workspace.base.until_state("beside", "Running")
    assert not set(held) & set(workspace.devices("beside"))
    assert workspace.refused() == []


def test_an_incomplete_pool_is_not_used_and_the_complete_one_is(
    workspace: DeviceWorkspace,
) -> None:
    old = [workspace.base.client.get(d.SLICES + f"/{NODE}-{d.DRIVER}-1-0")]
    new = workspace.pool(NODE, d.gpus(8, "newer"), generation=2)
    workspace.driver.publish(new[:1])
    try:
        workspace.job("all", PodSetManifest(16), "eight")
        until_refused(workspace.base, "all")
        workspace.driver.replace(old, new[1:])
        workspace.base.until_state("all", "Running")
        assert workspace.devices("all")[NODE] == 8
        assert workspace.refused() == []
    finally:
        workspace.base.empty()
        back = workspace.pool(NODE, d.gpus(8, "H100"), generation=3)
        workspace.driver.replace(new, d.pool(NODE, d.gpus(8, "H100"), generation=1))
        assert len(back) == 2


@contextmanager
def changed_pools(workspace: DeviceWorkspace, *nodes: str) -> Iterator[None]:
    """In the block, the pools of these nodes get other generations. Afterwards they are as before."""
    try:
        yield
    finally:
        workspace.base.empty()
        slices = workspace.base.client.get(d.SLICES)["items"]
        for node in nodes:
            first = d.pool(node, d.gpus(8, "H100"))
            kept = {one["metadata"]["name"] for one in first}
            own = [one for one in slices if one["spec"]["pool"]["name"] == node]
            others = [one for one in own if one["metadata"]["name"] not in kept]
            workspace.driver.replace(others, first)


def test_a_running_gang_keeps_its_devices_while_two_generations_of_its_pool_exist(
    workspace: DeviceWorkspace,
) -> None:
    base = workspace.base
    workspace.job("others", PodSetManifest(15), "eight")
    base.until_state("others", "Running")
    workspace.job("runs", PodSetManifest(1), "four")
    base.until_state("runs", "Running")
    [node] = workspace.devices("runs")
    with changed_pools(workspace, node):
        old, new = (
            d.pool(node, d.gpus(8, "H100")),
            workspace.pool(node, d.gpus(8, "H100"), generation=2),
        )
        workspace.driver.publish(new[:1])
        workspace.job("next", PodSetManifest(1), "four")
        until_refused(base, "next")
        workspace.driver.replace(old, new[1:])
        base.until_state("next", "Running")
        assert workspace.devices("next") == workspace.devices("runs") == {node: 4}
        assert (base.workload("runs")["attempt"], base.workload("runs")["evictions"]) == (1, 0)
        assert workspace.refused() == []


def test_gangs_start_on_a_node_whose_pool_changes_its_generation_in_the_middle(
    workspace: DeviceWorkspace,
) -> None:
    """Each gang needs all nodes. A pool can be incomplete when its pod is bound, which waits for the rest of the pool then."""
    base, names = workspace.base, [f"gang-{number}" for number in range(5)]
    with changed_pools(workspace, NODE):
        for name in names:
            workspace.job(name, PodSetManifest(16), "eight", seconds=1)
        old = d.pool(NODE, d.gpus(8, "H100"))
        for number in range(2, 60):
            new = workspace.pool(NODE, d.gpus(8, "H100"), generation=number)
            workspace.driver.publish(new[:1])
            time.sleep(0.2)  # until then the pool is incomplete, and gangs start
            workspace.driver.replace(old, new[1:])
            old = new
            time.sleep(0.3)  # the pool is complete in the meantime
            if all(base.state(name) == "Finished" for name in names):
                break
        for name in names:
            base.until_state(name, "Finished")
        assert {base.workload(name)["evictions"] for name in names} == {0}


def test_the_quota_of_a_queue_counts_devices(device_installation: Installation) -> None:
    with device_workspace(device_installation, quota=32) as workspace:
        workspace.templates(eight=devices(request(count=8)))
        workspace.job("first", PodSetManifest(4), "eight")
        workspace.base.until_state("first", "Running")
        workspace.job("second", PodSetManifest(1), resources={d.EXTENDED_RESOURCE: "1"})
        workspace.base.until(
            lambda: reason(workspace, "second").get("code") == "WaitingForQuota", "the reason"
        )


def test_a_gang_whose_template_does_not_exist_waits_for_it(workspace: DeviceWorkspace) -> None:
    workspace.job("early", PodSetManifest(2), "later")
    text = f"ResourceClaimTemplate {workspace.base.namespace}/later does not exist"
    workspace.base.until(lambda: reason(workspace, "early").get("message") == text, "the reason")
    workspace.templates(later=devices(request(count=2)))
    workspace.base.until_state("early", "Running")


@contextmanager
def tainted(workspace: DeviceWorkspace, node: str, effect: str, number: int = 8) -> Iterator[None]:
    """The first devices of a node have a taint, in a block."""
    sound = d.gpus(8, "H100")
    taints = [{"key": "xid", "effect": effect}]
    broken = [one | {"taints": taints} for one in sound[:number]]
    workspace.driver.publish(d.pool(node, [*broken, *sound[number:]]))
    try:
        yield
    finally:
        workspace.driver.publish(d.pool(node, sound))


@pytest.mark.parametrize("drains", [False, True])
def test_a_gang_whose_devices_are_tainted_runs_on_other_nodes_at_once(
    workspace: DeviceWorkspace, *, drains: bool
) -> None:
    """Kubernetes deletes a pod while the controller stops the gang; in each order the gang starts once more, without a back-off."""
    base = workspace.base
    queue = m.cluster_queue(base.namespace, "gpu", {d.EXTENDED_RESOURCE: 128, "cpu": "1M"})
    queue["spec"]["policy"] = {"unhealthyNodes": "Drain" if drains else "Stay"}
    base.rest.apply([queue])
    for number in range(3):
        name = f"train-{number}"
        workspace.job(name, PodSetManifest(2), "eight", retries=6)
        base.until_state(name, "Running")
        [node, *_] = workspace.devices(name)
        with tainted(workspace, node, "NoExecute"):
            base.until(partial(started, base, name, 2), "it starts again")
            base.until_state(name, "Running")
            assert node not in workspace.devices(name)
            assert sum(workspace.devices(name).values()) == 16
            assert base.workload(name)["evictions"] == 1
            assert "Backoff" not in {line["event"] for line in base.history(name)}
            base.empty()


def started(base: Workspace, name: str, attempt: int) -> bool:
    return bool(base.workload(name).get("attempt") == attempt)


def test_a_pod_whose_device_is_tainted_gets_another_device_of_its_node(
    workspace: DeviceWorkspace,
) -> None:
    workspace.job("train", PodSetManifest(2), "one", retries=6)
    workspace.base.until_state("train", "Running")
    [node, *_] = workspace.devices("train")
    before = {pod.uid for pod in workspace.base.running("train")}
    with tainted(workspace, node, "NoExecute", 1):
        workspace.base.until(
            lambda: (
                workspace.base.state("train") == "Running"
                and len({pod.uid for pod in workspace.base.running("train")} - before) > 0
            ),
            "a pod is replaced",
        )
        assert workspace.base.workload("train")["attempt"] == 1


def test_a_gang_whose_planned_devices_another_pod_takes_first_is_evicted_and_planned_again(
    workspace: DeviceWorkspace,
) -> None:
    base, cluster = workspace.base, workspace.base.installation.cluster
    workspace.job("others", PodSetManifest(14), "eight")
    workspace.job("last", PodSetManifest(1), "eight")
    base.until_state("others", "Running")
    base.until_state("last", "Running")
    everywhere = {one["spec"]["nodeName"] for one in base.client.get(d.SLICES)["items"]}
    other = workspace.devices("last")
    [free] = everywhere - set(workspace.devices("others")) - set(other)
    path = f"/api/v1/namespaces/{base.namespace}/pods"
    cluster.pause(SCHEDULER)
    try:
        base.client.create(path, unmanaged("first", free, "one"))
        workspace.job("late", PodSetManifest(1), "eight")
        base.until(lambda: any(pod.pin for pod in base.pods("late")), "its pod is released")
    finally:
        cluster.resume(SCHEDULER)
    base.until(lambda: base.workload("late").get("evictions") == 1, "it is evicted")
    assert "PinUnschedulable" in {line["event"] for line in base.history("late")}
    base.client.delete(
        f"/apis/batch/v1/namespaces/{base.namespace}/jobs/last", propagationPolicy="Background"
    )
    base.until_state("late", "Running")
    assert workspace.devices("late") == other
    assert base.workload("others")["evictions"] == 0
    base.client.delete(f"{path}/first")


def unmanaged(name: str, node: str, template: str) -> dict[str, Any]:
    """A pod of no queue, which only this node can take. It names the node by an affinity, so queuectl does not count it before it is bound."""
    rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "containers": [{"name": "main", "image": "registry.invalid/x:1"}],
    }
    metadata = {"name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": using(spec, template)}


def test_access_for_administration_needs_no_free_device_and_no_quota(
    workspace: DeviceWorkspace,
) -> None:
    base = workspace.base
    labels = {"resource.kubernetes.io/admin-access": "true"}
    base.client.patch(f"/api/v1/namespaces/{base.namespace}", {"metadata": {"labels": labels}})
    workspace.templates(watch=devices(request(count=8, adminAccess=True)))
    workspace.job("all", PodSetManifest(16), "eight")
    base.until_state("all", "Running")
    workspace.job("monitor", PodSetManifest(16), "watch")
    base.until_state("monitor", "Running")
    assert sum(workspace.devices("all").values()) == 128
    assert base.workload("monitor")["gpus"] == 0
    assert workspace.refused() == []


def test_pods_of_a_gang_share_a_named_claim_on_one_node(workspace: DeviceWorkspace) -> None:
    ours = claim("ours", workspace.base.namespace, devices(request(count=2)))
    workspace.base.client.apply(ours)
    workspace.job("sharing", PodSetManifest(4), claims=["ours"])
    workspace.base.until_state("sharing", "Running")
    [node] = {str(pod.node) for pod in workspace.base.running("sharing")}
    workspace.job("rest", PodSetManifest(15), "eight")
    workspace.base.until_state("rest", "Running")
    assert node not in workspace.devices("rest")
    workspace.job("beside", PodSetManifest(6), "one")
    workspace.base.until_state("beside", "Running")
    assert workspace.devices("beside") == {node: 6}


def test_the_resource_of_a_mapping_is_charged_for_the_devices_of_a_class(
    workspace: DeviceWorkspace,
) -> None:
    mapped = "example.com/accelerators"
    queue = workspace.base.namespace
    mapping = {"name": mapped, "deviceClassNames": [d.DRIVER]}
    with configured(workspace.base, resources={"deviceClassMappings": [mapping]}):
        apply(workspace.base, m.cluster_queue(queue, "gpu", {mapped: 12, "cpu": "1M"}))
        workspace.job("first", PodSetManifest(1), "eight")
        workspace.base.until_state("first", "Running")
        workspace.job("second", PodSetManifest(1), "eight")
        workspace.base.until(
            lambda: reason(workspace, "second").get("code") == "WaitingForQuota", "the reason"
        )
        assert mapped in reason(workspace, "second")["message"]
        workspace.job("third", PodSetManifest(1), "four")
        workspace.base.until_state("third", "Running")
        workspace.base.empty()


def test_a_controller_that_starts_again_keeps_gangs_with_devices_and_plans_alongside_them(
    workspace: DeviceWorkspace,
) -> None:
    workspace.job("runs", PodSetManifest(12), "eight")
    workspace.base.until_state("runs", "Running")
    held = workspace.devices("runs")
    workspace.job("waits", PodSetManifest(8, required=RACK), "eight")
    before = until_refused(workspace.base, "waits")
    restart_controller(workspace.base)
    workspace.base.installation.controller.wait_ready()
    workspace.job("beside", PodSetManifest(4), "eight")
    workspace.base.until_state("beside", "Running")
    assert workspace.devices("runs") == held
    assert not set(workspace.devices("beside")) & set(held)
    found = {name: workspace.base.workload(name) for name in ("runs", "beside")}
    assert {(one["attempt"], one["evictions"]) for one in found.values()} == {(1, 0)}
    assert until_refused(workspace.base, "waits") == before
    assert workspace.refused() == []
