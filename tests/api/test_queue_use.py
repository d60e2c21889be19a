"""The use of queues and of nodes in one request each, for callers with few rights as well, and as the command line shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from fastapi import FastAPI

from queuectl.api.app import create_app
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.domain.identity import Right
from queuectl.domain.quantity import GPU
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.configuration.queue_config import build
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import commit
from tests.api.serving import serving
from tests.api.signed import ADMIN, NO_RIGHTS, asking, people
from tests.api.support import (
    LIVES,
    FixedClusterReader,
    FixedDiagnoser,
    FixedHealth,
    FixedLookout,
    job,
    live_through,
    running,
)
from tests.doubles.store import MemoryStore
from tests.planner.build import gang, holding, node, podset, world
from tests.support.cli import Cli, queuectl_with
from tests.support.counted import map_of

TENANT = "of-the-tenant"
PATH = "/api/v1/queueuse"


def queue(name: str, quota: int, cohort: str | None = "all") -> dict[str, Any]:
    resources = [{"name": GPU, "nominalQuota": quota}, {"name": "cpu", "nominalQuota": "1500m"}]
    group = {
        "coveredResources": [GPU, "cpu"],
        "flavors": [{"name": "h100", "resources": resources}],
    }
    spec = {"namespaceSelector": {}, "resourceGroups": [group]}
    return document("ClusterQueue", name, spec | ({"cohortName": cohort} if cohort else {}))


def document(kind: str, name: str, spec: dict[str, Any], **meta: str) -> dict[str, Any]:
    metadata = {"name": name, **meta}
    return {"apiVersion": "queuectl.dev/v1", "kind": kind, "metadata": metadata, "spec": spec}


DOCUMENTS = [
    queue("team-a", 64),
    queue("team-b", 128),
    {**queue("zoo", 0, None), "spec": {"namespaceSelector": {}, "stopPolicy": "Hold"}},
    document("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}),
    document("LocalQueue", "default", {"clusterQueue": "team-a"}, namespace="team-a"),
    document("LocalQueue", "main", {"clusterQueue": "team-b"}, namespace="team-b"),
]


def borrowing() -> Snapshot:
    """Gangs of team-a hold 96 GPUs, 32 of them from team-b."""
    before = running(("a", 1.0), ("b", 2.0), ("c", 3.0))
    return Snapshot(before.now, before.fleet, build(DOCUMENTS, 1), admitted=before.admitted)


async def stored() -> MemoryStore:
    store = MemoryStore()
    for each in DOCUMENTS:
        await store.put_config(each, None)
    for name, events in LIVES.items():
        await commit(store, live_through(job(name), *events))
    return store


def app_of(store: MemoryStore, *rights: Right) -> FastAPI:
    access = people()
    access.know(TENANT, "tenant", *rights)
    return create_app(
        store,
        FixedHealth(),
        MetricsRecorder().registry,
        cluster_reader=FixedClusterReader(borrowing(), store),
        authenticated=AuthenticationLayer(access, secure=True, open_paths=OpenPaths()),
    )


async def uses(app: FastAPI, token: str, **query: str) -> Any:
    async with asking(app, token) as client:
        answer = await client.get(PATH, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()["items"]


async def test_each_queue_has_its_use_its_quota_and_its_gangs() -> None:
    first, second, third = await uses(app_of(await stored()), ADMIN)
    assert first["gpus"] == {"quota": 64.0, "used": 96.0, "borrowed": 32.0}
    assert (first["name"], first["cohort"], first["stopPolicy"]) == ("team-a", "all", "None")
    unfinished = [name for name in LIVES if name not in ("finished", "deleted")]
    assert first["pending"] > 0
    assert first["running"] > 0
    assert first["pending"] + first["running"] + first["inactive"] <= len(unfinished)
    assert second["gpus"] == {"quota": 128.0, "used": 0.0, "borrowed": 0.0}
    assert (third["gpus"], third["stopPolicy"], third["resources"]) == (None, "Hold", None)


async def test_a_caller_of_one_namespace_sees_the_queues_it_uses_and_no_gang_of_others() -> None:
    store = await stored()
    (mine,) = await uses(app_of(store, Right("list", "workloads", "team-b")), TENANT)
    assert (mine["name"], mine["pending"], mine["running"]) == ("team-b", 0, 0)
    async with asking(app_of(store), NO_RIGHTS) as client:
        assert (await client.get(PATH)).status_code == 403
    app = app_of(store, Right("list", "workloads", "team-b"))
    async with asking(app, TENANT) as client:
        assert (await client.get(PATH, params={"cluster_queue": "team-a"})).status_code == 403
        assert (await client.get(PATH, params={"cluster_queue": "none"})).status_code == 403
    async with asking(app, ADMIN) as client:
        assert (await client.get(PATH, params={"cluster_queue": "none"})).status_code == 404


async def test_the_right_to_list_queues_is_enough_for_each_of_them() -> None:
    app = app_of(await stored(), Right("list", "clusterqueues"))
    (one,) = await uses(app, TENANT, cluster_queue="team-a")
    assert (one["name"], one["pending"], one["running"]) == ("team-a", 0, 0)


async def test_one_queue_has_each_flavor_and_resource() -> None:
    (one,) = await uses(app_of(await stored()), ADMIN, cluster_queue="team-a")
    assert one["resources"] == [
        {"flavor": "h100", "resource": GPU, "quota": "64", "used": "96", "borrowed": "32"},
        {"flavor": "h100", "resource": "cpu", "quota": "1500m", "used": "0", "borrowed": "0"},
    ]


class CountingStore(MemoryStore):
    """Counts the calls that reach the database."""

    calls = 0

    async def _reach(self) -> Any:
        self.calls += 1
        return await super()._reach()


async def test_a_thousand_queues_need_as_many_reads_as_one() -> None:
    calls = []
    for count in (1, 1000):
        store = CountingStore()
        for number in range(count):
            await store.put_config(queue(f"q-{number}", 8), None)
        app, store.calls = app_of(store), 0
        assert len(await uses(app, ADMIN)) == count
        calls.append(store.calls)
    assert calls[0] == calls[1]


@pytest.fixture
def queuectl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> Iterator[Cli]:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    nodes = [
        node("n1", gpu=8, labels={"gpu": "h100", "nvidia.com/gpu.product": "H100"}),
        node("n2", gpu=8, labels={"gpu": "h100", "nvidia.com/gpu.product": "H100"}, ready=False),
        node("plain", cpu=64),
    ]
    seen = world(nodes, [], [holding(gang("busy", podset(count=1, gpu=6)), {"n1": 1})])

    class Both(FixedClusterReader):
        async def cluster_map(self) -> Any:
            return await FixedLookout(map_of(seen, {})).cluster_map()

    store = MemoryStore()
    with serving(store, FixedDiagnoser(), cluster_reader=Both(borrowing(), store)) as address:
        monkeypatch.setenv("QUEUECTL_SERVER", address)

        (tmp_path / "queues.yaml").write_text(yaml.safe_dump_all(DOCUMENTS))
        monkeypatch.chdir(tmp_path)
        yield lambda *arguments: queuectl_with(monkeypatch, capsys, *arguments)


def test_the_tables_show_use_next_to_quota(queuectl: Cli) -> None:
    done = queuectl("apply", "-f", "queues.yaml")
    assert done.code == 0, done.err
    table = [line.split() for line in queuectl("get", "clusterqueues").out.splitlines()]
    assert table == [
        ["NAME", "GPUS", "PENDING", "RUNNING", "STOPPED", "COHORT"],
        ["team-a", "96/64", "(32", "borrowed)", "0", "0", "-", "all"],
        ["team-b", "0/128", "0", "0", "-", "all"],
        ["zoo", "-", "0", "0", "Hold", "-"],
    ]
    wide = queuectl("get", "cq", "team-a", "-o", "wide").out
    assert "h100: 64 nvidia.com/gpu, 1500m cpu" in wide
    assert queuectl("get", "cq", "nowhere").code == 3
    described = queuectl("describe", "clusterqueue", "team-a").out
    assert "- 96 of 64 nvidia.com/gpu of h100 (32 borrowed)\n" in described
    summary = [line.split() for line in queuectl("get", "nodes", "--summary").out.splitlines()]
    assert summary == [
        ["FLAVOR", "MODEL", "NODES", "GPUS", "USED", "FREE", "CORDONED", "DOWN"],
        ["-", "-", "1", "0", "0", "0", "0", "0"],
        ["h100", "H100", "2", "16", "6", "2", "0", "1"],
    ]
    for words in (("jobs", "--summary"), ("nodes", "--summary", "--free", "1")):
        assert queuectl("get", *words).code == 2
