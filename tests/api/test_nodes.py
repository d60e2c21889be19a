"""Nodes, domains and the cluster map over REST: the gangs on each node, without those that the caller may not see."""

from __future__ import annotations

from dataclasses import replace

import httpx2
import pytest
from fastapi import FastAPI

from queuectl.api.app import create_app
from queuectl.api.cluster_maps import ClusterMapView
from queuectl.cli.columns import NODE_COLUMNS
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.identity import Caller, Right
from queuectl.domain.mig import MigGeometry, MigPhase, MigReconfiguration
from queuectl.domain.redaction import ANOTHER_TEAM
from queuectl.domain.snapshot import Admitted
from queuectl.domain.utilization import GangUse, UseState
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import talking_to
from tests.api.support import FixedHealth, FixedLookout
from tests.doubles.store import MemoryStore
from tests.planner.build import gang, holding, node, podset, world
from tests.support.counted import map_of

NODES = [replace(node(f"n{i:02}", f"r{i // 4}", gpu=8), unschedulable=i == 11) for i in range(12)]


def of(namespace: str, uid: str, where: dict[str, int]) -> Admitted:
    workload = replace(gang(uid, podset(count=sum(where.values()), gpu=4)), namespace=namespace)
    return holding(workload, where)


GANGS = [of("team", "mine", {"n00": 2, "n01": 1}), of("other", "theirs", {"n01": 1, "n05": 1})]
USES = {"mine": GangUse("mine", 1, UseState.ACTIVE, 0.0, 0.0, 0.456, 1.0, "")}
FLOOR = map_of(world(NODES, [], GANGS), USES)


class Rights:
    """Nodes, and the workloads of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    async def may(self, caller: Caller, right: Right) -> bool:
        return right.resource == "nodes" or right.namespace == self.namespace


def app_of(cluster_map: ClusterMap | None) -> FastAPI:
    cluster_reader = FixedLookout(cluster_map)
    return create_app(
        MemoryStore(), FixedHealth(), MetricsRecorder().registry, cluster_reader=cluster_reader
    )


@pytest.fixture
def app() -> FastAPI:
    return app_of(FLOOR)


@pytest.fixture
def restricted(app: FastAPI) -> FastAPI:
    """For a caller that may only see the workloads of namespace ``team``."""
    app.state.guard._rights = Rights("team")
    return app


async def names(client: httpx2.AsyncClient, query: str) -> list[str]:
    answer = await client.get(f"/api/v1/nodes?{query}")
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in answer.json()["items"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [f"n{i:02}" for i in range(12)]),
        ("domain=rack%3Dr1", ["n04", "n05", "n06", "n07"]),
        ("domain=rack%3Dr1&domain=block%3Dother", []),
        ("free=5", [f"n{i:02}" for i in range(11) if i not in (0, 1, 5)]),
        ("schedulable=false", ["n11"]),
        ("schedulable=true&domain=rack%3Dr2", ["n08", "n09", "n10"]),
        ("free=4&domain=rack%3Dr1", ["n04", "n05", "n06", "n07"]),
        ("search=N1", ["n10", "n11"]),
        ("search=team%2Fmine", ["n00", "n01"]),
        ("search=theirs", ["n01", "n05"]),
    ],
)
async def test_filters_select(client: httpx2.AsyncClient, query: str, expected: list[str]) -> None:
    assert await names(client, query) == expected


async def test_pages_join_to_the_whole_list(client: httpx2.AsyncClient) -> None:
    found: list[str] = []
    cursor = ""
    while True:
        answer = await client.get(
            "/api/v1/nodes", params={"limit": 5} | ({"cursor": cursor} if cursor else {})
        )
        found += [item["name"] for item in answer.json()["items"]]
        cursor = answer.json()["nextCursor"]
        if cursor is None:
            break
    assert found == [f"n{i:02}" for i in range(12)]


@pytest.mark.parametrize("phase", [MigPhase.APPLYING, MigPhase.FAILED])
async def test_a_node_has_the_last_change_of_its_mig_configuration(phase: MigPhase) -> None:
    old, new = (MigGeometry(name, "H100", ()) for name in ("all-disabled", "all-1g.10gb"))
    change = MigReconfiguration(old, new, "mine", 1, 1e9, phase, 1e9)
    active = phase is MigPhase.APPLYING
    changed = replace(NODES[0], mig=change, unschedulable=active)
    app = app_of(map_of(world([changed, *NODES[1:]], [], GANGS), USES))
    async with talking_to(app) as client:
        body = (await client.get("/api/v1/nodes/n00")).json()
        other = (await client.get("/api/v1/nodes/n01")).json()
    assert body["migReconfiguration"] == {
        "fromConfig": "all-disabled",
        "toConfig": "all-1g.10gb",
        "phase": phase,
        "active": active,
        "since": "2001-09-09T01:46:40Z",
        "failures": 0,
    }
    assert other["migReconfiguration"] is None
    (status,) = (column for column in NODE_COLUMNS if column.title == "STATUS")
    assert status.cell(body) == ("Reconfiguring" if active else "Ready")


async def test_a_node_has_its_capacity_and_its_gangs(client: httpx2.AsyncClient) -> None:
    body = (await client.get("/api/v1/nodes/n01")).json()
    assert (body["gpus"], body["freeGpus"], body["domains"]) == (8, 0, {"block": "b", "rack": "r0"})
    assert body["capacity"]["nvidia.com/gpu"] == 8
    mine = {t["workload"]: t for t in body["tenants"]}["team/mine"]
    assert (mine["uid"], mine["pods"], mine["gpus"], mine["use"]) == ("mine", 1, 4, "Active")


@pytest.mark.usefixtures("restricted")
class TestOfATenant:
    async def test_hidden_gangs_are_anonymous_on_nodes(self, client: httpx2.AsyncClient) -> None:
        answer = await client.get("/api/v1/nodes/n01")
        tenants = answer.json()["tenants"]
        assert sorted(t["workload"] for t in tenants) == [ANOTHER_TEAM, "team/mine"]
        hidden = next(t for t in tenants if t["workload"] == ANOTHER_TEAM)
        shown = {"workload": ANOTHER_TEAM, "pods": hidden["pods"], "gpus": hidden["gpus"]}
        assert {name: value for name, value in hidden.items() if value} == shown
        assert "theirs" not in answer.text

    async def test_hidden_gangs_cannot_be_searched_for(self, client: httpx2.AsyncClient) -> None:
        assert await names(client, "search=theirs") == []
        assert await names(client, "search=mine") == ["n00", "n01"]

    async def test_hidden_gangs_are_one_entry_of_the_cluster_map(
        self, client: httpx2.AsyncClient
    ) -> None:
        answer = await client.get("/api/v1/clustermap")
        assert "theirs" not in answer.text
        workloads = answer.json()["workloads"]
        assert workloads["names"] == ["team/mine", ANOTHER_TEAM]
        assert workloads["gpus"] == [12, 8]
        assert [answer.json()["who"][i] for i in (0, 1, 5)] == [[0], [1, 0], [1]]

    async def test_each_access_scope_has_its_own_cluster_map_and_tag(
        self, client: httpx2.AsyncClient, app: FastAPI
    ) -> None:
        mine = await client.get("/api/v1/clustermap")
        app.state.guard._rights = Rights("other")
        theirs = await client.get(
            "/api/v1/clustermap", headers={"If-None-Match": mine.headers["ETag"]}
        )
        assert theirs.status_code == 200
        assert theirs.json()["workloads"]["names"] == ["other/theirs", ANOTHER_TEAM]


async def test_the_cluster_map_has_columns_of_equal_length(client: httpx2.AsyncClient) -> None:
    body = (await client.get("/api/v1/clustermap")).json()
    assert ClusterMapView.model_validate(body)
    columns = ("names", "gpus", "free", "status", "utilization", "who")
    assert {len(body[name]) for name in columns} == {12}
    assert {len(level["of"]) for level in body["levels"]} == {12}
    assert len({len(column) for column in body["workloads"].values()}) == 1
    assert body["utilization"][:3] == [0.46, 0.46, None]
    rack = body["levels"][1]
    assert [rack["domains"][of] for of in rack["of"]][:5] == [["b", "r0"]] * 4 + [["b", "r1"]]


async def test_an_unchanged_cluster_map_is_not_sent_again(client: httpx2.AsyncClient) -> None:
    first = await client.get("/api/v1/clustermap")
    again = await client.get("/api/v1/clustermap", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]


async def test_a_changed_cluster_map_has_another_tag() -> None:
    async with talking_to(app_of(FLOOR)) as client:
        before = (await client.get("/api/v1/clustermap")).headers["ETag"]
    fuller = map_of(world(NODES, [], [*GANGS, of("team", "new", {"n07": 1})]), USES)
    async with talking_to(app_of(fuller)) as client:
        answer = await client.get("/api/v1/clustermap", headers={"If-None-Match": before})
    assert answer.status_code == 200


async def test_domains_have_their_free_capacity(client: httpx2.AsyncClient) -> None:
    (topology,) = (await client.get("/api/v1/domains")).json()["items"]
    assert (topology["topology"], topology["levels"]) == ("gpus", ["block", "rack"])
    by_path = {tuple(d["path"]): d for d in topology["domains"]}
    assert list(by_path) == [("b",), ("b", "r0"), ("b", "r1"), ("b", "r2")]
    rack = by_path["b", "r0"]
    assert (rack["nodes"], rack["gpus"], rack["freeGpus"], rack["gangs"]) == (4, 32, 16, 2)
    assert rack["largestFree"] == {"node": "n02", "freeGpus": 8}
    assert rack["utilization"] == pytest.approx(0.456)


@pytest.mark.parametrize(
    ("path", "status", "problem"),
    [
        ("nodes/nowhere", 404, "not-found"),
        ("domains?topology=none", 404, "not-found"),
        ("nodes?cursor=%25", 422, "invalid-parameter"),
        ("nodes?domain=rack", 422, "invalid-parameter"),
        ("nodes?free=-1", 422, "invalid-parameter"),
    ],
)
async def test_a_wrong_parameter_is_a_problem(
    client: httpx2.AsyncClient, path: str, status: int, problem: str
) -> None:
    answer = await client.get(f"/api/v1/{path}")
    assert answer.status_code == status, answer.text
    assert answer.json()["type"].endswith(f"/{problem}")


@pytest.mark.parametrize("path", ["nodes", "nodes/n01", "domains", "clustermap"])
async def test_without_a_snapshot_the_answer_is_a_problem(path: str) -> None:
    async with talking_to(app_of(None)) as client:
        answer = await client.get(f"/api/v1/{path}")
    assert answer.status_code == 503
    assert answer.json()["type"].endswith("/not-known-yet")
    assert answer.headers["Retry-After"]
