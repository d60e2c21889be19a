"""A leader follows objects on Kueue's CRDs, in their storage version, and through the removal of a definition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial

import pytest

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.reflector import Pace
from queuectl.domain.containment import Containment
from queuectl.localcluster import ClusterSpec, LocalCluster
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.progress import LineProgress
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.configuration.queue_config import build
from queuectl.ownership import source as sources
from queuectl.ownership.follower import ObjectFollower
from queuectl.ownership.source import KubernetesObjects
from queuectl.ownership.status_form import QueuesNow
from queuectl.ownership.status_forms import FORMS
from queuectl.ownership.status_writer import StatusWriter, WriteRate
from tests.doubles.store import MemoryStore
from tests.support import followed as f
from tests.support import polling
from tests.support.real_kueue import definitions

FORM = FORMS[Owner.KUEUE]
until = partial(polling.until, seconds=20.0)

pytestmark = pytest.mark.operations

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "kueue.x-k8s.io"
STORED = f"{GROUP}/v1beta1"
ABSENT = "topologies"
"""A kind whose definition this Kueue lacks."""


def define(client: Client, plural: str) -> None:
    """Define a kind as Kueue does, with the older version in storage, and a conversion webhook that does not exist."""
    kind = next(one for one in FOLLOWED[Owner.KUEUE] if one.plural == plural)
    made = next(one for one in definitions() if one["spec"]["names"]["plural"] == plural)
    for version in made["spec"]["versions"]:
        version["storage"] = version["name"] == "v1beta1"
    service = {"namespace": "kueue-system", "name": "kueue-webhook-service", "path": "/convert"}
    made["spec"]["conversion"] = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]},
    }
    client.create(CRDS, made)
    path = kind.path("v1beta1")
    wait_until(lambda: client.exists(path), path, 20.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start(ClusterSpec(nodes=(), fsync=False), progress=LineProgress()) as made:
        for kind in FOLLOWED[Owner.KUEUE]:
            if kind.plural != ABSENT:
                define(made.client, kind.plural)
        yield made


def path_of(body: f.Object) -> str:
    kind = next(one for one in FOLLOWED[Owner.KUEUE] if one.kind.kind == body["kind"])
    namespace = body["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{STORED}{scope}/{kind.plural}"


def create(client: Client, *bodies: f.Object) -> None:
    for body in bodies:
        client.create(path_of(body), {**body, "apiVersion": STORED})


def names(store: MemoryStore, kind: str) -> set[str]:
    return {key.name for key in store.database.documents if key.kind == kind}


async def test_objects_are_followed_through_edits_and_the_removal_of_their_definition(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "RECHECK_SECONDS", 1.0)
    client, store, kinds = cluster.client, MemoryStore(), FOLLOWED[Owner.KUEUE]
    queues = [f.queue(name) for name in "abcd"]
    local = f.local_queue("default", "team", "a")
    create(client, f.flavor("gpu"), f.cohort("all"), *queues, local)
    api = await Api.connect(Connection(cluster.kubeconfig), watches=len(kinds))
    objects = KubernetesObjects(
        api, kinds, Containment(time.time), FORM, Pace(ceiling=1.0), longest_pause=1.0
    )
    epoch = await store.take_over("leader", 0)
    writer = StatusWriter(objects, FORM, partial(queues_of, store), time.time, WriteRate())
    follower = ObjectFollower(
        objects, store, Owner.KUEUE, 0.2, time.time, lambda _: None, epoch, writer.decided, FORM
    )
    tasks = [asyncio.create_task(follower.run()), asyncio.create_task(writer.run())]
    try:
        await until(lambda: names(store, "LocalQueue") and store.database.followed.at)
        assert names(store, "ClusterQueue") == {"a", "b", "c", "d"}
        faults = {one.resource: one.fault for one in store.database.followed.sources if one.fault}
        assert faults.keys() == {f"{ABSENT}.{GROUP}"}
        assert "does not exist" in faults[f"{ABSENT}.{GROUP}"]
        versions = {one.version for one in store.database.followed.sources}
        assert versions == {"", "v1beta1"}

        await _statuses(client)
        await _edits(client, store)
        await _removal(client, store, local)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await api.close()


def queues_of(store: MemoryStore) -> QueuesNow:
    documents = [one.document for one in store.database.documents.values()]
    return QueuesNow(build(documents, store.database.revision), lambda _: {})


async def _statuses(client: Client) -> None:
    """Each status is written in the stored version, which has another name for a field of a LocalQueue."""
    queues = [f"{path_of(f.queue(name))}/{name}" for name in "abcd"]
    local = f"{path_of(f.local_queue('default', 'team', 'a'))}/team"

    def active(path: str) -> bool:
        conditions = client.get(path).get("status", {}).get("conditions", [])
        return [(one["type"], one["status"]) for one in conditions] == [("Active", "True")]

    await until(lambda: all(map(active, [*queues, local])))
    assert client.get(queues[0])["status"]["flavorsUsage"][0]["name"] == "gpu"
    assert client.get(local)["status"]["flavorUsage"][0]["name"] == "gpu"


async def _edits(client: Client, store: MemoryStore) -> None:
    """An edit acts in less than a second, a write of status has no effect, and a deletion acts."""
    queue = f"{path_of(f.queue('a'))}/a"
    before = store.database.revision
    for number in range(20):
        status = {"status": {"pendingWorkloads": number}}
        await asyncio.to_thread(client.patch, f"{queue}/status", status)
    metadata = {"metadata": {"labels": {"team": "x"}}}
    await asyncio.to_thread(client.patch, queue, metadata)
    await asyncio.sleep(0.5)
    assert store.database.revision == before
    await asyncio.to_thread(client.patch, queue, {"spec": f.queue("a", 16)["spec"]})
    await until(lambda: store.database.revision == before + 1)
    await asyncio.to_thread(client.delete, f"{path_of(f.queue('d'))}/d")
    await until(lambda: names(store, "ClusterQueue") == {"a", "b", "c"})


async def _removal(client: Client, store: MemoryStore, local: f.Object) -> None:
    """The removal of a definition deletes its objects, and no document. A new definition is followed again."""
    definition_path = f"{CRDS}/localqueues.{GROUP}"
    await asyncio.to_thread(client.delete, definition_path)

    def unknown() -> bool:
        sources_now = store.database.followed.sources
        return any(one.fault and "localqueues" in one.resource for one in sources_now)

    await until(unknown)
    await until(lambda: not client.exists(definition_path))
    await asyncio.sleep(2.0)
    assert names(store, "LocalQueue") == {"team"}
    assert unknown()
    await asyncio.to_thread(define, client, "localqueues")
    other = f.local_queue("default", "other", "a")
    await asyncio.to_thread(create, client, local, other)
    await until(lambda: names(store, "LocalQueue") == {"team", "other"})
    await until(lambda: not unknown())
