"""Answers about a tenant's own gangs name no gang of another team, in sentences or in details."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from fastapi import FastAPI

from queuectl.api.access import redactor_for
from queuectl.db.ports import Commit
from queuectl.domain.commands import Action
from queuectl.domain.diagnosis import Diagnosis, Limit, Obstacle, Remedy, SuggestedFix
from queuectl.domain.events import Event, Evict, Refuse, Reserve
from queuectl.domain.identity import Right
from queuectl.domain.ledger import CycleDecision
from queuectl.domain.plan import Cost, Proof
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.redaction import ANOTHER_TEAM
from queuectl.domain.snapshot import PlannedStart
from queuectl.domain.what_if import Preview
from tests.api.conftest import commit
from tests.api.signed import ADMIN, asking, people, signed_app
from tests.api.support import LEASE, LIVES, FixedDiagnoser, job, live_through
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore

TENANT = "of-the-tenant"
"""Of team-b, alongside team-a whose gang is called secret."""
SECRET = "team-a/secret"
FACTS = {
    "behind": SECRET,
    "needs": 8,
    "policy": {SECRET: "it is not preemptible"},
    "gangs": [{"workload": SECRET, "gpus": 8}, {"workload": "team-b/mine", "gpus": 4}],
    "preemptor": "uid-secret",
    "victims": ["uid-secret"],
    "beneficiary": "uid-secret",
    "also": [{"code": "WaitingInOrder", "message": f"behind {SECRET}, which waits"}],
}
BEHIND = Reason(
    Code.WAITING_IN_ORDER, f"StrictFIFO: it waits behind {SECRET}, which is pending", FACTS
)
LEAVES = Reason(Code.PREEMPTED, f"preempted for {SECRET}; this loses 40 GPU-seconds of work", FACTS)
DIAGNOSIS = Diagnosis(
    "uid-job-waits",
    (Obstacle(Limit.ORDER, f"order: behind {SECRET} and team-b/mine", FACTS),),
    (SuggestedFix(Remedy.END_OTHERS, f"end 1 gang: {SECRET} (it is not preemptible)", FACTS, ()),),
)
PLANNED = PlannedStart(
    900.0, LEASE.placement, 900.0, awaits=(("uid-secret", 900.0), ("uid-gone", 800.0)), overruns=1
)
CYCLE = CycleDecision(
    at=1.0,
    revision=1,
    nodes=1,
    pending=1,
    running=1,
    started=0,
    gpus=0,
    evicted=1,
    moved=0,
    waiting=1,
    reasons={},
    proof=Proof.OPTIMAL,
    seconds=0.01,
    stats={},
)


STORE, DIAGNOSER, ACCESS = MemoryStore(), FixedDiagnoser(DIAGNOSIS), people()
APP = signed_app(STORE, ACCESS, DIAGNOSER)  # made once: it takes longer than a request


@pytest.fixture
async def app() -> FastAPI:
    """The reasons of the tenant's gangs ``waits``, ``reserved`` and ``evicted`` name ``secret``."""
    if not STORE.database.entries:
        await _fill(STORE, DIAGNOSER, ACCESS)
    return APP


async def _fill(store: MemoryStore, diagnoser: FixedDiagnoser, access: MemoryAccess) -> None:
    for resource in ("workloads", "decisions"):
        rights = [Right(verb, resource, "team-b") for verb in ("get", "list", "watch")]
        access.know(TENANT, "tenant", *rights, Right("create", "workloads/preempt", "team-b"))
    access.know(TENANT, "tenant", Right("get", "decisions"))
    secret = replace(job("secret"), uid="uid-secret")
    await commit(store, live_through(secret, *LIVES["running"]))
    lives: dict[str, tuple[Event, ...]] = {
        "waits": (Refuse(BEHIND),),
        "reserved": (Reserve(replace(LEASE, victims=("uid-secret", "uid-gone")), BEHIND),),
        "evicted": (*LIVES["running"], Evict(LEAVES)),
        "planned": (Refuse(BEHIND, PLANNED),),
        "runs": LIVES["running"],
    }
    for name, life in lives.items():
        await commit(store, live_through(job(name, namespace="team-b"), *life))
    cycle = live_through(job("decided", namespace="team-b"), Refuse(BEHIND))
    epoch = await store.take_over("test", 0)
    await store.commit(Commit(cycle[:1]), epoch=epoch, cycle=1)
    await store.commit(Commit(cycle[1:], decision=CYCLE), epoch=epoch, cycle=1)
    preview = Preview(Cost(0, 40, Fraction(32)), 0.0, ("uid-secret", "uid-job-waits"))
    diagnoser.previews["uid-job-runs", Action.PREEMPT] = preview


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("nothing is named", None),
        ("behind team-a/secret", f"behind {ANOTHER_TEAM}"),
        ("end team-a/a.b-c, team-b/x.", f"end {ANOTHER_TEAM}, team-b/x."),
        ("(team-a/x) and Job/team-a/y (8)", f"({ANOTHER_TEAM}) and Job/{ANOTHER_TEAM} (8)"),
        ("its own team-a/mine", None),
        ("team-a/mine2 is not", f"{ANOTHER_TEAM} is not"),
        ("64 nvidia.com/gpu of sub-team-a/x and team-a.io/x", None),
        ("LocalQueue team-a is stopped", None),
    ],
)
def test_names_are_masked_at_any_position(sentence: str, shown: str | None) -> None:
    redactor = redactor_for({"team-a", "team-b"}, {"team-b"}, own={"team-a/mine"})
    assert redactor.text(sentence) == (sentence if shown is None else shown)


async def test_text_that_only_resembles_a_name_is_kept(app: FastAPI) -> None:
    """The first part of an image is not a namespace."""
    text = "cannot pull pytorch/pytorch:2.9"
    waits = Refuse(Reason(Code.PODS_READY_TIMEOUT, text, {"cause": text}))
    await commit(STORE, live_through(job("image", namespace="team-b"), waits))
    for path in (f"{MINE}/image", "/api/v1/events?after=0&follow=false"):
        assert text in await shown(app, TENANT, path)


MINE = "/api/v1/namespaces/team-b/workloads"
READS = [
    "/api/v1/workloads?namespace=team-b",
    "/api/v1/workloads",
    f"{MINE}/waits",
    f"{MINE}/waits/explain",
    f"{MINE}/waits/history",
    f"{MINE}/reserved/explain",
    f"{MINE}/evicted",
    f"{MINE}/evicted/history",
    "/api/v1/workloads/uid-job-waits/explain",
    "/api/v1/events?namespace=team-b&after=0&follow=false",
    "/api/v1/events?after=0&follow=false",
    "/api/v1/decisions/1",
]


async def shown(app: FastAPI, token: str, path: str) -> str:
    async with asking(app, token) as client:
        answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.parametrize("path", READS)
async def test_a_tenant_sees_no_name_of_another_team(app: FastAPI, path: str) -> None:
    text = await shown(app, TENANT, path)
    assert "secret" not in text
    assert ANOTHER_TEAM in text


@pytest.mark.parametrize("path", READS)
async def test_a_caller_that_sees_all_workloads_sees_their_names(app: FastAPI, path: str) -> None:
    text = await shown(app, ADMIN, path)
    assert SECRET in text
    assert ANOTHER_TEAM not in text


async def test_an_answer_masks_only_the_names_of_other_teams(app: FastAPI) -> None:
    """A tenant's programs read the figures, and the names of its own gangs."""
    body = json.loads(await shown(app, TENANT, f"{MINE}/waits/explain"))
    assert body["message"] == f"StrictFIFO: it waits behind {ANOTHER_TEAM}, which is pending"
    masked = {
        "behind": ANOTHER_TEAM,
        "needs": 8,
        "policy": {ANOTHER_TEAM: "it is not preemptible"},
        "gangs": [{"workload": ANOTHER_TEAM, "gpus": 8}, {"workload": "team-b/mine", "gpus": 4}],
        "also": [{"code": "WaitingInOrder", "message": f"behind {ANOTHER_TEAM}, which waits"}],
    }
    (obstacle,), (way,) = body["conflict"], body["suggestedFixes"]
    assert body["details"] == obstacle["details"] == way["details"] == masked
    assert obstacle["message"] == f"order: behind {ANOTHER_TEAM} and team-b/mine"


async def test_victims_of_other_teams_have_neither_name_nor_uid(app: FastAPI) -> None:
    """A victim that no longer exists is hidden too: its namespace is unknown."""
    path = f"{MINE}/reserved/explain"
    theirs = json.loads(await shown(app, TENANT, path))["reservation"]
    assert (theirs["victims"], theirs["victimNames"]) == ([None, None], [ANOTHER_TEAM] * 2)
    all_of_it = json.loads(await shown(app, ADMIN, path))["reservation"]
    assert all_of_it["victims"] == ["uid-secret", "uid-gone"]
    assert all_of_it["victimNames"] == [SECRET, "uid-gone"]


@pytest.mark.parametrize("path", [f"{MINE}/planned", f"{MINE}/planned/explain"])
async def test_a_planned_start_names_only_gangs_that_the_caller_sees(
    app: FastAPI, path: str
) -> None:
    theirs = json.loads(await shown(app, TENANT, path))["plannedStart"]
    assert theirs["at"] == "1970-01-01T00:15:00Z"
    assert theirs["overruns"] == 1
    assert [each["workload"] for each in theirs["awaits"]] == [ANOTHER_TEAM] * 2
    all_of_it = json.loads(await shown(app, ADMIN, path))["plannedStart"]
    assert [each["workload"] for each in all_of_it["awaits"]] == [SECRET, "uid-gone"]
    assert all_of_it["podSets"] == theirs["podSets"]


@pytest.mark.parametrize(
    ("token", "first"),
    [
        (TENANT, {"uid": None, "workload": ANOTHER_TEAM}),
        (ADMIN, {"uid": "uid-secret", "workload": SECRET}),
    ],
)
async def test_gangs_that_could_start_after_a_preemption(
    app: FastAPI, token: str, first: object
) -> None:
    async with asking(app, token) as client:
        answer = await client.post(f"{MINE}/runs/preempt?dry_run=true")
    own = {"uid": "uid-job-waits", "workload": "team-b/waits"}
    assert answer.json()["starts"] == [first, own]
