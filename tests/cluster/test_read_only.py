"""The client of shadow mode on a real API server: it lists what a plan needs, and sends no write but those of its lease."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from queuectl.cluster.adapter import LEASE
from queuectl.cluster.client import Api, Method, ReadOnlyApi
from queuectl.cluster.connection import Connection
from queuectl.cluster.read_only import ReadOnlyCluster, permits_lease
from queuectl.domain.errors import ClusterUnavailable, WriteRefused
from queuectl.domain.records import LeaderRecord
from queuectl.objects.kinds import KINDS
from tests.support.controlplane import ControlPlane

pytestmark = pytest.mark.system

NAMESPACE = "default"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[ReadOnlyApi]:
    """Under an identity that can do everything: only the client refuses."""
    connection = Connection(kubeconfig=control_plane.cluster.kubeconfig)
    opened = await ReadOnlyApi.open(connection, permits_lease(NAMESPACE))
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/namespaces/default/pods"),
        ("PATCH", "/api/v1/namespaces/default/pods/p"),
        ("DELETE", "/api/v1/namespaces/default/pods/p"),
        ("POST", "/api/v1/namespaces/default/pods/p/eviction"),
        ("PATCH", "/apis/batch/v1/namespaces/default/jobs/j"),
        ("POST", "/apis/events.k8s.io/v1/namespaces/default/events"),
        ("PATCH", "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads/w/status"),
        ("DELETE", f"{LEASES}/{LEASE}"),
        ("PATCH", f"{LEASES}/other"),
        ("PATCH", f"{LEASES}/{LEASE}/status"),
        ("POST", LEASES.replace(NAMESPACE, "kube-system")),
        ("PATCH", f"{LEASES.replace(NAMESPACE, 'kube-system')}/{LEASE}"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
    ],
)
async def test_each_other_write_is_refused_before_it_is_sent(
    api: ReadOnlyApi, method: Method, path: str
) -> None:
    with pytest.raises(WriteRefused, match="does not send it"):
        await api.request(method, path, body={})


async def test_the_lease_is_taken_and_renewed(api: ReadOnlyApi, admin: Api) -> None:
    cluster = ReadOnlyCluster(api, NAMESPACE)
    assert await cluster.read_leader() is None
    taken = await cluster.write_leader(LeaderRecord("me", 1, 0.0, 15.0, ""), None)
    renewed = await cluster.write_leader(LeaderRecord("me", 2, 5.0, 15.0, ""), taken)
    held = await cluster.read_leader()
    assert held is not None
    assert (held.holder, held.epoch, held.version) == ("me", 2, renewed.version)
    await admin.request("DELETE", f"{LEASES}/{LEASE}")


async def test_all_objects_are_listed_with_their_kinds(api: ReadOnlyApi) -> None:
    bodies = await ReadOnlyCluster(api, NAMESPACE, KINDS).objects()
    kinds = {(one["apiVersion"], one["kind"]) for one in bodies}
    assert ("v1", "Namespace") in kinds
    assert ("scheduling.k8s.io/v1", "PriorityClass") in kinds
    assert all(one["metadata"]["name"] for one in bodies)
    assert not any("managedFields" in one["metadata"] for one in bodies)


async def test_an_invalid_list_is_not_an_empty_cluster(
    api: ReadOnlyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def page_of_a_proxy(*_: object, **__: object) -> bytes:
        return b'{"items": 3}'

    monkeypatch.setattr(api, "request", page_of_a_proxy)
    with pytest.raises(ClusterUnavailable, match="not a list"):
        await ReadOnlyCluster(api, NAMESPACE).objects()
