"""The behavior of kube-scheduler and the claim controllers with pinned pods, on which queuectl relies.

No pod of these tests belongs to a queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from queuectl.demo.scenario import RUN_SECONDS
from queuectl.localcluster import nodes as d
from queuectl.localcluster.client import wait_until
from tests.system.claims import SECONDS, SinglePods, allocated, claim, devices, request, template
from tests.system.device_cluster import device_installation
from tests.system.installation import Installation

pytestmark = [pytest.mark.system, pytest.mark.gpus]
__all__ = ["device_installation"]

NODE, OTHER = "b0-r0-h0", "b0-r0-h1"


@pytest.fixture(scope="module")
def namespace(device_installation: Installation) -> Iterator[str]:
    with device_installation.cluster.namespace("facts") as name:
        for count in (1, 4, 8):
            spec = devices(request(count=count))
            device_installation.cluster.client.apply(template(f"gpus-{count}", name, spec))
        yield name


@pytest.fixture
def pods(device_installation: Installation, namespace: str) -> Iterator[SinglePods]:
    made = SinglePods(device_installation.cluster.client, namespace)
    yield made
    made.empty()


def test_a_gated_pod_has_its_claim_and_the_released_pod_gets_devices_of_its_node(
    pods: SinglePods,
) -> None:
    pods.create("one", "gpus-4")
    wait_until(lambda: bool(pods.claims_of("one")), "the claim exists", SECONDS)
    assert pods.devices_of("one") == []
    pods.release("one", OTHER)
    pods.until_running("one")
    assert pods.devices_of("one") == [f"{OTHER}/gpu-{i}" for i in range(4)]
    [made] = pods.claims_of("one")
    [reserved] = made["status"]["reservedFor"]
    assert reserved["uid"] == pods.get("one")["metadata"]["uid"]


def test_a_pod_that_does_not_fit_its_node_is_unschedulable_until_a_claim_of_the_node_is_released(
    pods: SinglePods,
) -> None:
    pods.start("first", NODE, "gpus-8")
    pods.create("second", "gpus-1")
    pods.release("second", NODE)
    pods.until_unschedulable("second")
    pods.delete("first")
    pods.until_running("second")


def test_the_claim_of_an_ended_pod_is_released_while_the_pod_exists(pods: SinglePods) -> None:
    pods.start("ended", NODE, "gpus-8", annotations={RUN_SECONDS: "0.1"})
    wait_until(lambda: pods.get("ended")["status"]["phase"] == "Succeeded", "it ends", SECONDS)
    wait_until(lambda: not pods.claims_of("ended"), "its claim is deleted", SECONDS)
    pods.start("next", NODE, "gpus-8")


@pytest.mark.parametrize(
    "name", [d.EXTENDED_RESOURCE, f"deviceclass.resource.kubernetes.io/{d.DRIVER}"]
)
def test_a_pod_with_an_extended_resource_gets_its_claim_when_it_is_bound(
    pods: SinglePods, name: str
) -> None:
    assert name not in pods.client.get(f"/api/v1/nodes/{NODE}")["status"]["allocatable"]
    pods.create("plain", resources={name: "3"})
    time.sleep(0.5)  # the claim of a template exists after a few milliseconds
    assert pods.claims_of("plain") == []
    pods.release("plain", NODE)
    pods.until_running("plain")
    assert len(pods.devices_of("plain")) == 3
    [made] = pods.claims_of("plain")
    assert (
        made["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true"
    )


def test_a_named_claim_holds_its_pods_on_one_node(pods: SinglePods) -> None:
    pods.client.apply(claim("shared", pods.namespace, devices(request(count=2))))
    pods.start("one", NODE, claims=["shared"])
    pods.start("two", NODE, claims=["shared"])
    pods.create("three", claims=["shared"])
    pods.release("three", OTHER)
    pods.until_unschedulable("three")
    [shared] = pods.claims()
    assert len(shared["status"]["reservedFor"]) == 2
    assert len(allocated(shared)) == 2


def test_a_named_claim_is_deallocated_after_its_last_pod(pods: SinglePods) -> None:
    pods.client.apply(claim("shared", pods.namespace, devices(request(count=8))))
    pods.start("one", NODE, claims=["shared"])
    pods.delete("one")
    wait_until(lambda: not allocated(pods.claims()[0]), "it is deallocated", SECONDS)
    pods.start("two", OTHER, claims=["shared"])


def test_a_pod_without_its_template_has_no_condition_and_an_event(pods: SinglePods) -> None:
    pods.create("lost", "missing")
    pods.release("lost", NODE)
    path = f"/apis/events.k8s.io/v1/namespaces/{pods.namespace}/events"

    def reasons() -> set[str]:
        return {one["reason"] for one in pods.client.get(path)["items"]}

    wait_until(lambda: "FailedResourceClaimCreation" in reasons(), "the Event", SECONDS)
    assert not pods.unschedulable("lost")


def test_an_incomplete_pool_is_not_used_and_the_complete_one_is(
    pods: SinglePods, device_installation: Installation
) -> None:
    driver = d.Driver(pods.client)
    old = pods.client.get(d.SLICES + f"/{NODE}-{d.DRIVER}-1-0")
    new = d.pool(NODE, d.gpus(8, "new"), generation=2, per_slice=4)
    driver.publish(new[:1])
    try:
        pods.create("one", "gpus-1")
        pods.release("one", NODE)
        pods.until_unschedulable("one")
        driver.publish(new[1:])
        pods.until_running("one")
    finally:
        driver.withdraw(new)
    assert old["spec"]["pool"]["generation"] == 1
    assert pods.running("one"), "devices that are no longer published stay allocated"


def test_taints_of_devices_keep_pods_away_and_end_them(pods: SinglePods) -> None:
    driver, [plain] = d.Driver(pods.client), d.pool(NODE, d.gpus(8, "H100"))
    pods.start("early", NODE, "gpus-1")

    def tainted(effect: str) -> Any:
        broken = [one | {"taints": [{"key": "broken", "effect": effect}]} for one in d.gpus(8, "")]
        return d.pool(NODE, broken)

    try:
        driver.publish(tainted("NoSchedule"))
        pods.create("late", "gpus-1")
        pods.release("late", NODE)
        pods.until_unschedulable("late")
        assert pods.running("early")
        driver.publish(tainted("NoExecute"))
        pods.until_gone("early")
    finally:
        driver.publish([plain])
    pods.until_running("late")
