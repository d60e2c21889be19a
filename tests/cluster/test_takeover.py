"""The objects of a stopped Kueue, on a real API server: its Workloads are read, its suspended jobs can be started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.review import kueue_runs, probe_policies
from queuectl.cluster.server import confirm_absent
from queuectl.domain.errors import ClusterError
from queuectl.localcluster.testing import wait_until
from queuectl.objects.kinds import KINDS, path
from tests.cluster.kubernetes_world import KubernetesWorld
from tests.cluster.world import a_node, place, start, submitted
from tests.support.controlplane import SYSTEM_NAMESPACE, ControlPlane, restore_bindings
from tests.support.jobs import WITH_TRAINING_OPERATOR, batch_job, pytorch_job
from tests.support.kueue import of_kueue, workload

pytestmark = pytest.mark.system

POLICIES = "/apis/admissionregistration.k8s.io/v1"
BINDINGS = [
    f"{POLICIES}/mutatingadmissionpolicybindings/queuectl-kueue-queue-labels",
    *(
        f"{POLICIES}/{kind}admissionpolicybindings/queuectl-{jobs}-kueue"
        for kind in ("mutating", "validating")
        for jobs in (kind.plural for kind in KINDS.values())
    ),
]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def workloads_crd(version: str) -> dict[str, Any]:
    """The CRD of Workloads. That of Kueue is longer; the Workloads are the same."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "workloads.kueue.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://example.org/test"},
        },
        "spec": {
            "group": "kueue.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "workloads", "kind": "Workload", "listKind": "WorkloadList"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


@pytest.fixture(scope="module")
def without_kueue_keys(control_plane: ControlPlane) -> Iterator[None]:
    """The state without kueue-keys.yaml: the policies ignore Kueue's label."""
    for binding in BINDINGS:
        control_plane.cluster.client.delete(binding)
    try:
        asyncio.run(connected(control_plane.kubeconfig, until_label_ignored))
        yield
    finally:
        asyncio.run(connected(control_plane.cluster.kubeconfig, restore_bindings))


async def connected(kubeconfig: Path, action: Callable[[Api], Awaitable[None]]) -> None:
    api = await Api.connect(Connection(kubeconfig=kubeconfig))
    try:
        await action(api)
    finally:
        await api.close()


async def until_label_ignored(own: Api) -> None:
    """Wait until the policies ignore Kueue's label."""
    async with asyncio.timeout(20):
        while await probe_policies(  # noqa: ASYNC110 - of what the cluster does
            own, SYSTEM_NAMESPACE, kueue=False
        ):
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", ["Job", pytest.param("PyTorchJob", marks=pytest.mark.kinds)])
async def test_a_job_from_before_the_policies_is_started_gated_and_placed(
    without_kueue_keys: None, world: KubernetesWorld, kind: str
) -> None:
    """The API server accepts the patch that adds the gate to a template without it."""
    if kind == "Job":
        document = batch_job("left", namespace=world.namespace, pods=2)
    else:
        document = pytorch_job("left", namespace=world.namespace, workers=1)
    job = await submitted(world, of_kueue(document, "research", running=False))
    assert job.ungated
    pods = await start(world, job, 1)
    assert all(pod.gated for pod in pods)
    await place(world, pods, a_node(world))
    assert world.view.jobs[job.uid].ungated == ()


@pytest.mark.usefixtures("without_kueue_keys")
async def test_workloads_are_read_in_each_served_version(world: KubernetesWorld, own: Api) -> None:
    for version in ("v1beta1", "v1beta2"):
        await read_in(world, own, version)


async def read_in(world: KubernetesWorld, own: Api, version: str) -> None:
    """Serve Workloads of this version alone, and read one of a running Job."""
    name = f"runs-{version}"
    crd = f"{CRDS}/workloads.kueue.x-k8s.io"
    collection = f"/apis/kueue.x-k8s.io/{version}/namespaces/{world.namespace}/workloads"
    assert await world.cluster.read_admissions() == []
    document = of_kueue(batch_job(name, namespace=world.namespace), "research", running=True)
    uid = await world.submit(document)
    job = await asyncio.to_thread(world.admin.get, path(KINDS["Job"], world.namespace, name))
    left = workload(
        {**job, "apiVersion": "batch/v1", "kind": "Job"},
        {"main": 1},
        admitted="spot",
        hosts={"main": [("b0-r0-h0", 1)]},
        version=version,
    )
    left["metadata"].pop("finalizers")
    await asyncio.to_thread(world.admin.create, CRDS, workloads_crd(version))
    listed = f"/apis/kueue.x-k8s.io/{version}/workloads"
    try:
        await asyncio.to_thread(wait_until, lambda: world.admin.exists(listed), "the kind", 20.0)
        await asyncio.to_thread(world.admin.create, collection, left)
        [admission] = await world.cluster.read_admissions()
        assert (admission.uid, admission.kind, admission.cluster_queue) == (uid, "Job", "pool")
        podset = admission.podsets["main"]
        assert dict(podset.flavors) == {"nvidia.com/gpu": "spot"}
        assert podset.hosts == (("b0-r0-h0", 1),)
    finally:
        await asyncio.to_thread(world.admin.delete, crd)
        await asyncio.to_thread(wait_until, lambda: not world.admin.exists(crd), "its end", 20.0)
        await no_longer_served(own, listed)


async def no_longer_served(api: Api, path: str) -> None:
    """Wait until the discovery of the API server lacks the path."""
    async with asyncio.timeout(20.0):
        while True:
            try:
                return await confirm_absent(api, path)
            except ClusterError:
                await asyncio.sleep(0.05)


async def test_a_kueue_is_detected_by_its_webhooks(own: Api, world: KubernetesWorld) -> None:
    assert not await kueue_runs(own)
    kind = "ValidatingWebhookConfiguration"
    name = "kueue-validating-webhook-configuration"
    collection = f"{POLICIES}/{kind.lower()}s"
    body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind}
    await asyncio.to_thread(world.admin.create, collection, {**body, "metadata": {"name": name}})
    try:
        assert await kueue_runs(own)
    finally:
        await asyncio.to_thread(world.admin.delete, f"{collection}/{name}")


@pytest.mark.usefixtures("without_kueue_keys")
async def test_the_probe_requires_policies_for_kueues_label_only_if_the_label_counts(
    own: Api, admin: Api
) -> None:
    """The last test of this file, because it ends the state without the label."""
    missing = await probe_policies(own, SYSTEM_NAMESPACE, kueue=True)
    assert len(missing) == len(WITH_TRAINING_OPERATOR)
    assert all("apply deploy/optional/kueue-keys.yaml" in text for text in missing)
    await restore_bindings(admin)
    too_much = await probe_policies(own, SYSTEM_NAMESPACE, kueue=False)
    assert len(too_much) == len(WITH_TRAINING_OPERATOR)
    assert all("delete deploy/optional/kueue-keys.yaml" in text for text in too_much)
