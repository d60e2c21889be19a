"""Planning cycles over REST: their input, their decisions, and their steps."""

from __future__ import annotations

import httpx2
import pytest
from fastapi import FastAPI

from queuectl.db.ports import Commit
from queuectl.domain.events import Admit
from queuectl.domain.identity import Caller, Right
from queuectl.domain.ledger import CycleDecision
from queuectl.domain.plan import Proof
from tests.api.conftest import AnyStore
from tests.api.support import PLACED, job, live_through
from tests.doubles.store import MemoryStore


def decision(at: float = 1.0, started: int = 1) -> CycleDecision:
    return CycleDecision(
        at=at,
        revision=3,
        nodes=10,
        pending=5,
        running=4,
        started=started,
        gpus=started * 32,
        evicted=1,
        moved=0,
        waiting=4,
        reasons={"WaitingForQuota": 3, "WaitingForTopology": 1},
        proof=Proof.FEASIBLE,
        seconds=0.0125,
        stats={"solves": 2.0},
    )


async def cycles(store: AnyStore, count: int) -> None:
    """Two gangs a cycle, the second one of another namespace; an observation before each."""
    epoch = await store.take_over("test", 0)
    for n in range(1, count + 1):
        lives = [
            live_through(job(f"a{n}"), Admit(PLACED)),
            live_through(job(f"b{n}", namespace="team-b"), Admit(PLACED)),
        ]
        new = [life[0] for life in lives]
        await store.commit(Commit(new), epoch=epoch, cycle=n)
        started = [life[1] for life in lives]
        await store.commit(Commit(started, decision=decision(float(n), n)), epoch=epoch, cycle=n)


async def test_a_decision_has_its_input_and_its_changes(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    await cycles(store, 1)
    (item,) = (await api.get("/api/v1/decisions")).json()["items"]
    assert item.pop("id") > 0
    assert item == {
        "at": "1970-01-01T00:00:01Z",
        "epoch": 1,
        "cycle": 1,
        "revision": 3,
        "nodes": 10,
        "pending": 5,
        "running": 4,
        "started": 1,
        "gpusStarted": 32,
        "evicted": 1,
        "moved": 0,
        "waiting": 4,
        "reasons": {"WaitingForQuota": 3, "WaitingForTopology": 1},
        "proof": "feasible",
        "milliseconds": 12.5,
        "solver": {"solves": 2.0},
    }


async def test_a_decision_has_the_steps_of_its_plan_only(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    await cycles(store, 3)
    items = (await api.get("/api/v1/decisions")).json()["items"]
    assert [item["started"] for item in items] == [3, 2, 1]
    for item in items:
        body = (await api.get(f"/api/v1/decisions/{item['id']}")).json()
        n = item["cycle"]
        assert [(s["name"], s["toState"], s["cycle"]) for s in body["steps"]] == [
            (f"a{n}", "Starting", n),
            (f"b{n}", "Starting", n),
        ]
        assert body["nextAfter"] is None


async def test_pages_join_to_the_whole_list(api: httpx2.AsyncClient, store: AnyStore) -> None:
    await cycles(store, 5)
    found: list[int] = []
    query = ""
    while True:
        page = (await api.get(f"/api/v1/decisions?limit=2{query}")).json()
        found += [item["cycle"] for item in page["items"]]
        if page["nextBefore"] is None:
            break
        query = f"&before={page['nextBefore']}"
    assert found == [5, 4, 3, 2, 1]


class Rights:
    async def may(self, caller: Caller, right: Right) -> bool:
        return right.resource == "decisions" or right.namespace == "team-a"


async def test_steps_of_hidden_workloads_are_omitted(
    app: FastAPI,
    memory: MemoryStore,
    client: httpx2.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await cycles(memory, 1)
    monkeypatch.setattr(app.state.guard, "_rights", Rights())
    body = (await client.get("/api/v1/decisions/1")).json()
    assert [step["name"] for step in body["steps"]] == ["a1"]
    assert body["started"] == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [("decisions/7", 404), ("decisions/0", 422), ("decisions/x", 422), ("decisions?limit=0", 422)],
)
async def test_a_wrong_parameter_is_a_problem(
    client: httpx2.AsyncClient, path: str, status: int
) -> None:
    assert (await client.get(f"/api/v1/{path}")).status_code == status
