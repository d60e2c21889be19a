"""RayServices in files: a plan contains the RayCluster that KubeRay would create, or those that it has created."""

from __future__ import annotations

from typing import Any

from queuectl.demo.scenario import PodSetManifest
from tests.support.rays import raycluster, rayservice, worker_group
from tests.unit.test_objects_snapshots import load

HEAD, WORKERS = PodSetManifest(1), PodSetManifest(2, gpus=1)


def service(**metadata: Any) -> dict[str, Any]:
    made = rayservice("chat", "team-a", HEAD, worker_group("workers", WORKERS))
    made["metadata"] |= metadata
    return made


def test_the_cluster_of_a_new_service_has_the_name_of_the_service() -> None:
    found = load(service())
    assert found.account.ignored == ()
    (gang,) = found.snapshot.pending
    assert (gang.workload.kind, gang.workload.name) == ("RayCluster", "chat")
    assert [(one.name, one.count) for one in gang.workload.podsets] == [("head", 1), ("workers", 2)]


def test_of_a_service_that_exists_its_clusters_count() -> None:
    owner = {"kind": "RayService", "name": "chat", "controller": True}
    cluster = raycluster(
        "chat-abcde", "team-a", HEAD, worker_group("workers", WORKERS), suspend=True
    )
    cluster["metadata"] |= {"ownerReferences": [owner]}
    found = load(service(uid="u"), cluster)
    assert [one.workload.name for one in found.snapshot.pending] == ["chat-abcde"]
