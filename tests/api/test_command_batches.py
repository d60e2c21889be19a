"""One action on several workloads: each gets its own command or refusal, once, with the rights of the caller."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import httpx2
import pytest

from queuectl.api.app import create_app
from queuectl.api.command_batches import MOST_WORKLOADS
from queuectl.domain.commands import Action
from queuectl.domain.identity import Right
from queuectl.domain.plan import Cost
from queuectl.domain.what_if import Preview
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import AnyStore, talking_to
from tests.api.signed import asking, people, signed_app
from tests.api.support import FixedDiagnoser, FixedHealth
from tests.web.sample import make

BATCH = "/api/v1/commands"
UNSEEN = "it does not exist, or you are not allowed to see it"
pytestmark = pytest.mark.usefixtures("ledger")


def uid(name: str) -> str:
    return f"uid-job-{name}"


def batch(*names: str, **more: Any) -> dict[str, Any]:
    return {"workloads": [{"uid": uid(name)} for name in names], **more}


async def test_each_workload_gets_its_command_or_its_refusal(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    body = batch("pending", "running", "finished", "deactivated", why="the data is wrong")
    body["workloads"] += [{"uid": "unknown"}, {"uid": uid("starting"), "attempt": 7}]
    body["workloads"] += [{"uid": uid("held")}, {"uid": uid("pending")}]
    answer = await api.post(f"{BATCH}/hold", json=body)
    assert answer.status_code == 200, answer.text
    view = answer.json()
    assert {item["workload"]: item["refusal"] for item in view["items"]} == {
        "team-a/pending": None,
        "team-a/running": None,
        "team-a/finished": "team-a/finished is Finished",
        "team-a/deactivated": "team-a/deactivated is deactivated; activate it first",
        None: UNSEEN,
        "team-a/starting": "team-a/starting has started in the meantime",
        "team-a/held": None,
    }
    assert (view["accepted"], view["evicted"]) == (3, 1)
    kept = await store.commands()
    assert [(c.uid, c.action, c.why) for c in kept] == [
        (uid(name), Action.HOLD, "the data is wrong") for name in ("pending", "running", "held")
    ]
    commands = {item["uid"]: item["command"] for item in view["items"] if item["command"]}
    assert {c["id"] for c in commands.values()} == {c.id for c in kept}


async def test_a_batch_that_is_sent_twice_gives_one_command_to_each(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    key = {"Idempotency-Key": "batch-1"}
    first = await api.post(f"{BATCH}/release", json=batch("held"), headers=key)
    again = await api.post(f"{BATCH}/release", json=batch("held"), headers=key)
    assert again.json() == first.json()
    assert len(await store.commands()) == 1
    conflict = await api.post(f"{BATCH}/hold", json=batch("held"), headers=key)
    (item,) = conflict.json()["items"]
    assert item["command"] is None
    assert item["refusal"] == f"request batch-1:{uid('held')} was release of {uid('held')}"
    assert conflict.json()["accepted"] == 0


async def test_a_dry_run_sums_up_the_cost_and_stores_nothing(store: AnyStore) -> None:
    diagnoser = FixedDiagnoser()
    cost = Preview(Cost(1, 7200, Fraction(16)), 0.0)
    diagnoser.previews[uid("running"), Action.PREEMPT] = cost
    app = create_app(store, FixedHealth(), MetricsRecorder().registry, diagnoser)
    async with talking_to(app) as client:
        for names, lost in ((("running", "pending"), 7200), (("running", "starting"), None)):
            answer = await client.post(f"{BATCH}/hold?dry_run=true", json=batch(*names))
            view = answer.json()
            assert view["lostGpuSeconds"] == lost
            assert view["pods"] == sum(item["pods"] for item in view["items"]) > 0
            assert all(item["command"] is None for item in view["items"])
    assert await store.commands() == ()


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"workloads": []},
        {"workloads": {"uid": "a"}},
        {"workloads": [{"uid": "a/b"}]},
        {"workloads": [{"uid": "a", "attempt": -1}]},
        {"workloads": [{"uid": f"u{n}"} for n in range(MOST_WORKLOADS + 1)]},
        {"workloads": [{"uid": "a"}], "why": "x" * 501},
    ],
)
async def test_a_wrong_batch_is_refused_as_a_whole(
    api: httpx2.AsyncClient, store: AnyStore, body: Any
) -> None:
    answer = await api.post(f"{BATCH}/hold", json=body)
    assert answer.status_code == 422, answer.text
    assert await store.commands() == ()


async def test_actions_with_fields_of_their_own_have_no_batch(api: httpx2.AsyncClient) -> None:
    for action in ("priority", "move", "check", "delete"):
        assert (await api.post(f"{BATCH}/{action}", json=batch("held"))).status_code in (404, 405)


async def test_rights_are_checked_for_each_workload() -> None:
    sample, access = make(), people()
    vision = [e for e in sample.database.entries.values() if e.namespace == "team-vision"]
    speech = [e for e in sample.database.entries.values() if e.namespace == "team-speech"]
    hold = "workloads/hold"
    access.know("own", "own", Right("get", "workloads", "team-vision"), Right("create", hold, "team-vision"))  # fmt: skip
    access.know("sees", "sees", Right("get", "workloads"), Right("create", hold, "team-vision"))
    access.know("blind", "blind", Right("create", hold, "team-vision"))
    app = signed_app(sample.store, access)
    body = {"workloads": [{"uid": e.uid} for e in (vision[0], speech[0])]}
    unseen = UNSEEN
    for token, refusals in {
        "own": [None, unseen],
        "sees": [None, "you may not create workloads/hold in namespace team-speech"],
        "blind": [unseen, unseen],
    }.items():
        async with asking(app, token) as client:
            answer = await client.post(f"{BATCH}/hold", json=body)
            assert [item["refusal"] for item in answer.json()["items"]] == refusals
            assert (await client.post(f"{BATCH}/preempt", json=body)).status_code == 403
    kept = sample.database.commands.values()
    assert {(c.uid, c.by) for c in kept} == {(vision[0].uid, "own"), (vision[0].uid, "sees")}
    line = sample.database.audit[-1]
    assert sample.database.entries  # the audit names the workloads
    assert any(f"hold of 1 workload: {vision[0].ref}; 1 refused" in a.detail for a in sample.database.audit), line  # fmt: skip


async def test_only_an_administrator_releases_what_an_administrator_held() -> None:
    sample, access = make(), people()
    entry = next(e for e in sample.database.entries.values() if e.parked is not None)
    assert entry.parked is not None
    parked = replace(entry.parked, details={**entry.parked.details, "byAdmin": True})
    sample.database.entries[entry.uid] = replace(entry, parked=parked)
    rights = [Right("get", "workloads"), Right("create", "workloads/release", entry.namespace)]
    access.know("team", "team", *rights)
    async with asking(signed_app(sample.store, access), "team") as client:
        answer = await client.post(f"{BATCH}/release", json={"workloads": [{"uid": entry.uid}]})
    (item,) = answer.json()["items"]
    assert "an administrator has held" in item["refusal"]
    assert not sample.database.commands
