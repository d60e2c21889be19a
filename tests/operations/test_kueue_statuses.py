"""A leader writes the statuses of Kueue's objects on Kueue's CRDs, with the rights of the chart, and leaves them to a real Kueue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.review import KUEUE_DEPLOYMENT, KUEUE_LEASE, KUEUE_WEBHOOKS, active_kueue
from queuectl.domain.containment import Containment
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import DocumentKey
from queuectl.localcluster import ClusterSpec, LocalCluster
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.progress import LineProgress
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.configuration.status_wire import ObjectStatus
from queuectl.ownership.follower import ObjectFollower
from queuectl.ownership.source import KubernetesObjects
from queuectl.ownership.status_form import QueuesNow, QueueUse
from queuectl.ownership.status_forms import FORMS
from queuectl.ownership.status_writer import StatusWriter, WriteRate
from tests.bench.kueue.peer import Kueue, jobs_alone
from tests.doubles.store import MemoryStore
from tests.support import followed as f
from tests.support.chart import documents
from tests.support.real_kueue import definitions, kueue_folder

pytestmark = pytest.mark.operations

FORM = FORMS[Owner.KUEUE]
KINDS = FOLLOWED[Owner.KUEUE]
VALUES = {"image": {"repository": "queuectl"}, "configuration": {"owner": "kueue"}}
QUEUES = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"
LOCALS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/localqueues"
COHORT = "/apis/kueue.x-k8s.io/v1beta2/cohorts/all"
FAIR = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Configuration",
    "metadata": {"name": "default"},
    "fairSharing": {},
}
GATES = {"VisibilityOnDemand": False}
_RBAC = {"apiVersion": "rbac.authorization.k8s.io/v1"}
_NAMED = {"metadata": {"name": "election", "namespace": "kueue-system"}}
ELECTION: list[f.Object] = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}},
    {
        **_RBAC,
        **_NAMED,
        "kind": "Role",
        "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}],
    },
    {
        **_RBAC,
        **_NAMED,
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "election"},
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": "kueue-controller-manager",
                "namespace": "kueue-system",
            }
        ],
    },
]
"""The right of a manager to hold its lease."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    spec = ClusterSpec(nodes=(), operators=(), controllers=False, fsync=False)
    with LocalCluster.start(spec, progress=LineProgress()) as made:
        made.client.apply(*definitions())
        wait_until(lambda: all(made.client.exists(k.path("v1beta2")) for k in KINDS), "CRDs", 60.0)
        rights = [
            one
            for one in documents(VALUES)
            if one["metadata"]["name"] == "queuectl-configuration-owner"
        ]
        namespace = rights[1]["subjects"][0]["namespace"]
        made.client.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "queuectl", "namespace": namespace},
            },
            *rights,
        )
        yield made


class Leader:
    """Follows the objects and writes their statuses, under the account and the rights of queuectl."""

    def __init__(self, api: Api) -> None:
        self.store = MemoryStore()
        self.source = KubernetesObjects(api, KINDS, Containment(time.time), FORM)
        self.writes: list[DocumentKey] = []
        self.entries: list[Entry] = []
        self.writer = StatusWriter(
            self, FORM, self._queues, time.time, WriteRate(), Containment(time.time)
        )

    # ---- ObjectSource, with a record of the writes

    @property
    def versions(self) -> Any:
        return self.source.versions

    async def watch(self, observer: Any) -> None:
        await self.source.watch(observer)

    async def doubt(self, plural: str) -> str:
        return await self.source.doubt(plural)

    async def other_writer(self) -> str:
        return await self.source.other_writer()

    async def write_status(self, key: DocumentKey, status: ObjectStatus) -> None:
        self.writes.append(key)
        await self.source.write_status(key, status)

    def _queues(self) -> QueuesNow:
        database = self.store.database
        stored = [*(one.document for one in database.documents.values()), FAIR]
        held = {("default", "team", "a", "gpu", "nvidia.com/gpu"): 4}
        use = QueueUse(list(self.entries), held)
        return QueuesNow(build(stored, database.revision), lambda _: {}, lambda: use)

    async def run(self) -> None:
        epoch = await self.store.take_over("leader", 0)
        follower = ObjectFollower(
            self,
            self.store,
            Owner.KUEUE,
            0.2,
            time.time,
            lambda _: None,
            epoch,
            self.writer.decided,
            FORM,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(follower.run())
            group.create_task(self.writer.run())


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - the API server has no event
            await asyncio.sleep(0.05)


def active(client: Client, path: str) -> tuple[str, str, int]:
    """Status, reason and generation of the condition."""
    conditions = client.get(path).get("status", {}).get("conditions", [])
    found = {
        one["type"]: (one["status"], one["reason"], one["observedGeneration"]) for one in conditions
    }
    return found.get("Active", ("", "", 0))


def create(client: Client, *bodies: f.Object) -> None:
    client.apply(*bodies)


async def test_a_real_kueue_has_its_statuses_to_itself_and_a_stopped_one_leaves_them_to_queuectl(
    cluster: LocalCluster,
) -> None:
    client = cluster.client
    account = cluster.kubeconfig_for_service_account("queuectl-system", "queuectl")
    a, b = (f.queue(name, 2, cohortName="all") for name in "ab")
    create(client, f.flavor("gpu"), f.cohort("all"), a, b, f.local_queue("default", "team", "a"))
    api = await Api.connect(Connection(account), watches=len(KINDS))
    leader = Leader(api)
    leader.entries = [
        Entry("u", "Job", "default", "g", State.RUNNING, queue="team", cluster_queue="a")
    ]
    task = asyncio.create_task(leader.run())
    try:
        await until(lambda: active(client, f"{QUEUES}/a")[0] == "True")
        await until(lambda: active(client, f"{LOCALS}/team")[0] == "True")
        status = client.get(f"{QUEUES}/a")["status"]
        assert status["admittedWorkloads"] == 1
        [used] = status["flavorsUsage"][0]["resources"]
        assert used == {"name": "nvidia.com/gpu", "total": "4", "borrowed": "2"}
        assert status["fairSharing"] == {"weightedShare": 500}, "2 of the 4 of the Cohort"
        await until(lambda: "status" in client.get(COHORT))
        assert client.get(COHORT)["status"] == {"fairSharing": {"weightedShare": 0}}

        create(client, *ELECTION)
        kueue = await asyncio.to_thread(
            Kueue.start, cluster, kueue_folder(), jobs_alone(GATES, leader_election=True)
        )
        try:
            await _left_to_kueue(client, api, leader)
        finally:
            await asyncio.to_thread(kueue.stop)
        await _taken_back(client, leader)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await api.close()


async def _left_to_kueue(client: Client, api: Api, leader: Leader) -> None:
    """While the real Kueue runs, queuectl writes nothing, whatever changes."""
    async with asyncio.timeout(120.0):  # a manager works when it holds its lease
        while not await active_kueue(api):  # noqa: ASYNC110 - the API server has no event
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.5)  # one batch
    before = len(leader.writes)
    client.patch(f"{QUEUES}/a", {"spec": {"stopPolicy": "Hold"}})
    await until(lambda: active(client, f"{QUEUES}/a")[:2] == ("False", "Stopped"))
    assert client.get(f"{QUEUES}/a")["status"]["admittedWorkloads"] == 0, "Kueue's own count"
    create(client, f.queue("c"))
    await until(lambda: active(client, f"{QUEUES}/c")[0] == "True")
    await asyncio.sleep(3.0)
    assert len(leader.writes) == before
    assert leader.store.database.documents.keys() >= {DocumentKey("ClusterQueue", "", "c")}


async def _taken_back(client: Client, leader: Leader) -> None:
    """A stopped Kueue whose webhooks are deleted leaves the statuses to queuectl, when its lease has ended."""
    before = len(leader.writes)
    for path in KUEUE_WEBHOOKS:
        client.delete(path.replace("kueue-", "", 1))  # as its manifests name them
    client.delete(KUEUE_LEASE)
    await until(lambda: client.get(f"{QUEUES}/a")["status"]["admittedWorkloads"] == 1, 60.0)
    assert len(leader.writes) > before
    assert active(client, f"{QUEUES}/a")[:2] == ("False", "Stopped")


async def test_each_sign_of_a_kueue_counts(cluster: LocalCluster) -> None:
    client = cluster.client
    account = cluster.kubeconfig_for_service_account("queuectl-system", "queuectl")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}
    client.apply(namespace)
    for path in (*KUEUE_WEBHOOKS, KUEUE_LEASE):
        client.delete(path, missing_ok=True)
    api = await Api.connect(Connection(account))
    try:
        assert await active_kueue(api) == ""
        container = {"name": "manager", "image": "kueue"}
        labels = {"app": "kueue"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
        deployments, _, name = KUEUE_DEPLOYMENT.rpartition("/")
        client.create(deployments, {"metadata": {"name": name}, "spec": spec})
        assert "replicas" in await active_kueue(api)
        client.patch(KUEUE_DEPLOYMENT, {"spec": {"replicas": 0}})
        assert await active_kueue(api) == ""
        leases, _, name = KUEUE_LEASE.rpartition("/")
        for renewed, counts in ((time.time(), True), (time.time() - 90, False)):
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(renewed))
            held = {"holderIdentity": "kueue-0", "renewTime": stamp, "leaseDurationSeconds": 15}
            client.create(leases, {"metadata": {"name": name}, "spec": held})
            assert ("kueue-0" in await active_kueue(api)) is counts
            client.delete(KUEUE_LEASE)
    finally:
        await api.close()
