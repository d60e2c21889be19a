"""Commands on workloads: each is stored once, refused when it does not apply, and never executed by the API itself."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request

from queuectl.api import problems
from queuectl.api.access import Guard, set_caller
from queuectl.api.app import create_app
from queuectl.api.job_efficiency import JobEfficiencies
from queuectl.api.reading import CurrentConfiguration
from queuectl.api.routes import workloads
from queuectl.db.ports import Commit
from queuectl.domain.commands import EVICTING, Action, Answer, Command
from queuectl.domain.identity import Caller, Right
from queuectl.domain.job_usage import NO_SOURCES
from queuectl.domain.plan import Cost
from queuectl.domain.what_if import Preview
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import AnyStore, commit, talking_to
from tests.api.support import (
    LIVES,
    LOCAL_QUEUE,
    FixedDiagnoser,
    FixedHealth,
    job,
    live_through,
)

NAMED = "/api/v1/namespaces/team-a/workloads"
UID = "/api/v1/workloads/uid-job-"
pytestmark = pytest.mark.usefixtures("ledger")

# Workload, action, body.
SENSIBLE: list[tuple[str, str, dict[str, Any] | None]] = [
    ("pending", "hold", {"by": "alice"}),
    ("running", "hold", None),
    ("held", "hold", None),
    ("held", "release", {}),
    ("backoff", "requeue", None),
    ("running", "requeue", None),
    ("running", "deactivate", None),
    ("deactivated", "activate", None),
    ("leaving", "activate", None),
    ("running", "priority", {"priority": 70, "by": "alice"}),
    ("pending", "priority", {"priority": None}),
    ("running", "preempt", {"by": "alice", "why": "the demo is at noon"}),
    ("starting", "preempt", None),
]
SENSELESS = [
    ("pending", "release"),
    ("pending", "requeue"),
    ("held", "activate"),
    ("deactivated", "hold"),
    ("finished", "hold"),
    ("finished", "priority"),
    ("pending", "preempt"),
    ("evicting", "preempt"),
    ("running", "move"),
    ("leaving", "move"),
    ("finished", "move"),
]
LATER = "2126-11-20T21:30:00Z"


@pytest.mark.parametrize(("name", "action", "body"), SENSIBLE)
async def test_a_command_is_stored_and_changes_nothing_by_itself(
    api: httpx2.AsyncClient, store: AnyStore, name: str, action: str, body: dict[str, Any] | None
) -> None:
    before = await store.get_workload(f"uid-job-{name}")
    answer = await api.post(f"{NAMED}/{name}/{action}", json=body)
    assert answer.status_code == 202, answer.text
    (kept,) = await store.commands()
    assert (kept.uid, kept.action) == (f"uid-job-{name}", action)
    assert kept.priority == (body or {}).get("priority")
    assert kept.by == (body or {}).get("by", "unauthenticated caller")
    assert answer.json() | {"at": "", "requestId": ""} == {
        "id": kept.id,
        "uid": kept.uid,
        "workload": f"team-a/{name}",
        "action": action,
        "priority": kept.priority,
        "until": None,
        "queue": None,
        "check": None,
        "checkState": None,
        "by": kept.by,
        "why": (body or {}).get("why", ""),
        "requestId": "",
        "at": "",
        "state": "Waiting",
        "outcome": None,
    }
    assert answer.headers["Location"] == f"/api/v1/commands/{kept.id}"
    assert await store.get_workload(f"uid-job-{name}") == before


@pytest.mark.parametrize(("name", "action"), SENSELESS)
async def test_a_command_that_does_not_apply_is_a_conflict(
    api: httpx2.AsyncClient, store: AnyStore, name: str, action: str
) -> None:
    body = {"priority": {"priority": 1}, "move": {"queue": "other"}}.get(action)
    answer = await api.post(f"{UID}{name}/{action}", json=body)
    assert answer.status_code == 409
    assert answer.json()["type"].endswith("/not-in-this-state")
    assert f"team-a/{name}" in answer.json()["detail"]
    assert await store.commands() == ()


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
@pytest.mark.parametrize("action", sorted(EVICTING))
async def test_a_command_for_another_attempt_is_a_conflict(
    api: httpx2.AsyncClient, store: AnyStore, action: Action, query: str
) -> None:
    entry = await store.get_workload("uid-job-running")
    assert entry is not None
    address = f"{UID}running/{action}{query}"
    answer = await api.post(address, json={"attempt": entry.attempt - 1})
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (
        409,
        "not-in-this-state",
    )
    assert answer.json()["detail"] == "team-a/running has started in the meantime"
    assert await store.commands() == ()
    assert (await api.post(address, json={"attempt": entry.attempt})).is_success


async def test_the_same_request_again_is_the_same_command(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    key = {"Idempotency-Key": "release-1"}
    first = await api.post(f"{NAMED}/held/release", headers=key)
    second = await api.post(f"{NAMED}/held/release", headers=key)
    assert first.json() == second.json()
    assert len(await store.commands()) == 1
    other = await api.post(f"{NAMED}/held/hold", headers=key)
    assert (other.status_code, other.json()["title"]) == (
        422,
        "The request id was used for another request",
    )


async def test_a_repetition_is_answered_even_when_the_state_has_moved_on(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    key = {"Idempotency-Key": "requeue-1"}
    first = await api.post(f"{NAMED}/running/requeue", headers=key)
    (command,) = await store.commands()
    epoch = await store.take_over("test", 0)
    await store.commit(Commit([], answers=[Answer(command.id, "done")]), epoch=epoch, cycle=1)
    again = await api.post(f"{NAMED}/running/requeue", headers=key)
    assert again.json() == first.json() | {"state": "Done", "outcome": "done"}
    assert await store.commands() == (), "it is not asked for twice"


async def test_commands_that_are_not_executed_yet_count(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    """A hold and a release at once: when the release arrives, the gang is not yet held."""
    await api.post(f"{NAMED}/pending/hold")
    answer = await api.post(f"{NAMED}/pending/release")
    assert answer.status_code == 202
    assert [one.action for one in await store.commands_of("uid-job-pending")] == ["hold", "release"]


@pytest.mark.parametrize(
    ("action", "extra", "field"),
    [
        ("priority", {}, "priority"),
        ("priority", {"json": {}}, "priority"),
        ("priority", {"json": {"priority": "high"}}, "priority"),
        ("priority", {"json": {"priority": 1 << 40}}, "priority"),
        ("priority", {"json": {"priority": 1, "until": "2026-01-01T00:00:00Z"}}, "until"),
        ("priority", {"json": {"priority": 1, "until": "2126-01-01T00:00:00"}}, "until"),
        ("priority", {"json": {"priority": None, "until": LATER}}, "until"),
        ("move", {}, "queue"),
        ("move", {"json": {"queue": "No/Name"}}, "queue"),
        ("move", {"json": {"queue": "nowhere"}}, "queue"),
        ("hold", {"json": {"by": ""}}, "by"),
        ("hold", {"json": {"why": "x" * 501}}, "why"),
        ("release", {"params": {"dry_run": "perhaps"}}, "dry_run"),
        ("release", {"json": {"until": LATER}}, "until"),
        ("hold", {"json": {"because": "I say so"}}, "because"),
        ("hold", {"headers": {"Idempotency-Key": "a b"}}, "Idempotency-Key"),
    ],
)
async def test_a_malformed_command_is_refused_with_its_field(
    api: httpx2.AsyncClient, store: AnyStore, action: str, extra: dict[str, Any], field: str
) -> None:
    answer = await api.post(f"{NAMED}/pending/{action}", **extra)
    assert answer.status_code == 422
    if extra:
        assert field.lower() in answer.json()["errors"][0]["field"].lower()
    assert await store.commands() == ()


async def test_a_command_on_an_unknown_workload_is_not_found(api: httpx2.AsyncClient) -> None:
    for path in (f"{UID}nobody/hold", f"{NAMED}/nobody/hold"):
        assert (await api.post(path)).status_code == 404
    assert "hold" not in LIVES
    assert (await api.post(f"{NAMED}/pending/evaporate")).status_code == 404


# -- a priority for a time, a move


async def test_a_priority_has_an_end(api: httpx2.AsyncClient, store: AnyStore) -> None:
    body = {"priority": 70, "until": "2126-11-20T23:30:00+02:00"}
    answer = await api.post(f"{NAMED}/running/priority", json=body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["until"] == LATER
    (kept,) = await store.commands()
    assert kept.until == 4_950_883_800.0


async def test_a_workload_moves_only_to_a_local_queue_of_its_own_namespace(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    elsewhere = {**LOCAL_QUEUE, "metadata": {"name": "other", "namespace": "team-b"}}
    await store.put_config(elsewhere)
    refused = await api.post(f"{NAMED}/pending/move", json={"queue": "other"})
    assert refused.status_code == 422
    assert "does not exist in namespace team-a" in refused.json()["detail"]
    await store.put_config({**LOCAL_QUEUE, "metadata": {"name": "other", "namespace": "team-a"}})
    answer = await api.post(f"{NAMED}/pending/move", json={"queue": "other"})
    assert (answer.status_code, answer.json()["queue"]) == (202, "other")
    (kept,) = await store.commands()
    assert (kept.action, kept.queue) == ("move", "other")


# -- results of commands


async def test_results_of_commands_are_listed_by_id_and_by_workload(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    for action in ("hold", "requeue", "deactivate"):
        await api.post(f"{NAMED}/running/{action}")
    hold, requeue, _ = await store.commands_of("uid-job-running")
    epoch = await store.take_over("test", 0)
    answers = [Answer(hold.id, "done"), Answer(requeue.id, "it was so already")]
    await store.commit(Commit([], answers=answers), epoch=epoch, cycle=1)
    answer = (await api.get(f"{NAMED}/running/commands")).json()
    assert [(c["state"], c["outcome"]) for c in answer["items"]] == [
        ("Done", "done"),
        ("Refused", "it was so already"),
        ("Waiting", None),
    ]
    assert answer["nextAfter"] is None
    for one in answer["items"]:
        assert (await api.get(f"/api/v1/commands/{one['id']}")).json() == one
    page = (await api.get(f"{UID}running/commands", params={"limit": 2})).json()
    assert (len(page["items"]), page["nextAfter"]) == (2, requeue.id)
    rest = (await api.get(f"{UID}running/commands", params={"after": requeue.id})).json()
    assert [c["action"] for c in rest["items"]] == ["deactivate"]


LIST = "/api/v1/commands"


@pytest.mark.parametrize(
    ("query", "actions"),
    [
        ("", "deactivate requeue hold"),
        ("state=Waiting", "deactivate"),
        ("state=Done&state=Refused", "requeue hold"),
        ("workload=team-a/running", "requeue hold"),
        ("workload=team-a/nobody", ""),
        ("namespace=team-a", "deactivate requeue hold"),
        ("namespace=team-b", ""),
        ("namespace=team-b&workload=team-a/running", ""),
        ("by=alice", "hold"),
        ("by=nobody", ""),
    ],
)
async def test_all_commands_are_listed_newest_first_with_the_fields_of_each(
    api: httpx2.AsyncClient, store: AnyStore, query: str, actions: str
) -> None:
    for name, action, by in (
        ("running", "hold", "alice"),
        ("running", "requeue", "bob"),
        ("pending", "deactivate", "bob"),
    ):
        await api.post(f"{NAMED}/{name}/{action}", json={"by": by})
    hold, requeue = await store.commands_of("uid-job-running")
    epoch = await store.take_over("test", 0)
    answers = [Answer(hold.id, "done"), Answer(requeue.id, "it was so already")]
    await store.commit(Commit([], answers=answers), epoch=epoch, cycle=1)
    answer = (await api.get(f"{LIST}?{query}")).json()
    assert [c["action"] for c in answer["items"]] == actions.split()
    assert answer["nextBefore"] is None
    for one in answer["items"]:
        assert (await api.get(f"{LIST}/{one['id']}")).json() == one


async def test_the_next_page_of_commands_begins_after_the_last_one(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    for number in range(5):
        await store.add_command(Command(0, "gone", Action.HOLD, "alice", f"r{number}", 1.0))
    seen: list[str] = []
    before = None
    while True:
        more: dict[str, int] = {"before": before} if before is not None else {}
        page = (await api.get(LIST, params={"limit": 2, **more})).json()
        seen += [one["requestId"] for one in page["items"]]
        assert all(one["workload"] is None for one in page["items"]), "its row was deleted"
        if (before := page["nextBefore"]) is None:
            break
    assert seen == ["r4", "r3", "r2", "r1", "r0"]


@pytest.mark.parametrize(
    "query",
    ["state=done", "workload=running", "workload=a/b/c", "workload=%00/x", "by=%00", "before=0"],
)
async def test_a_wrong_filter_of_commands_is_refused(api: httpx2.AsyncClient, query: str) -> None:
    assert (await api.get(f"{LIST}?{query}")).status_code == 422


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/commands/99", 404),
        ("/api/v1/commands/0", 422),
        ("/api/v1/commands/last", 422),
        (f"/api/v1/commands/{1 << 63}", 422),
        (f"{NAMED}/nobody/commands", 404),
    ],
)
async def test_an_unknown_command_is_not_found(
    api: httpx2.AsyncClient, path: str, status: int
) -> None:
    assert (await api.get(path)).status_code == status


# -- previews


CHANGES = {
    "hold": "it is evicted and then held until it is released",
    "requeue": "it is evicted, and queues again",
    "preempt": "it is evicted, and queues again",
    "deactivate": "it is evicted and then deactivated until it is activated",
}


@pytest.mark.parametrize("action", CHANGES)
async def test_a_dry_run_shows_lost_work_and_later_starts_and_stores_nothing(
    store: AnyStore, health: FixedHealth, metrics: MetricsRecorder, action: str
) -> None:
    diagnoser = FixedDiagnoser()
    starts = ("uid-job-pending", "uid-unheard-of")
    preview = Preview(Cost(0, 7260, Fraction(32)), 30.0, starts)
    diagnoser.previews["uid-job-running", Action(action)] = preview
    async with talking_to(create_app(store, health, metrics.registry, diagnoser)) as api:
        answer = await api.post(f"{NAMED}/running/{action}", params={"dry_run": "true"})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "uid": "uid-job-running",
        "workload": "team-a/running",
        "action": action,
        "change": CHANGES[action],
        "evicts": True,
        "pods": 4,
        "gpus": 32,
        "lostGpuSeconds": 7260,
        "noticeSeconds": 30.0,
        "starts": [
            {"uid": "uid-job-pending", "workload": "team-a/pending"},
            {"uid": "uid-unheard-of", "workload": "uid-unheard-of"},
        ],
    }
    assert await store.commands() == ()


async def test_a_dry_run_on_a_pending_gang_costs_nothing(
    store: AnyStore, health: FixedHealth, metrics: MetricsRecorder
) -> None:
    diagnoser = FixedDiagnoser()
    diagnoser.previews["uid-job-pending", Action.HOLD] = Preview(None, 0.0)
    async with talking_to(create_app(store, health, metrics.registry, diagnoser)) as api:
        preview = (await api.post(f"{NAMED}/pending/hold", params={"dry_run": "true"})).json()
    costs = {preview[k] for k in ("pods", "gpus", "lostGpuSeconds", "noticeSeconds", "evicts")}
    assert (costs, preview["starts"]) == ({0}, [])


async def test_a_process_without_a_snapshot_answers_from_the_ledger(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    preview = (await api.post(f"{NAMED}/running/preempt", params={"dry_run": "true"})).json()
    assert (preview["pods"], preview["gpus"], preview["starts"]) == (4, None, None)
    refused = await api.post(f"{NAMED}/pending/preempt", params={"dry_run": "true"})
    assert refused.status_code == 409
    assert await store.commands() == ()


# -- rights


class Known:
    """The verbs and resources that each caller has a right to, in one namespace."""

    def __init__(self, *rights: str, namespace: str | None = "team-a") -> None:
        """``namespace``: None = in all of them."""
        self.rights = {"get workloads", *rights}
        self.namespace = namespace

    async def may(self, caller: Caller, right: Right) -> bool:
        here = self.namespace in (None, right.namespace)
        return here and f"{right.verb} {right.resource}" in self.rights


def guarded(store: AnyStore, rights: Known, name: str = "bob") -> FastAPI:
    """The routes of workloads, for a caller with these rights."""
    app = FastAPI()
    problems.install(app)
    efficiencies = JobEfficiencies(store, CurrentConfiguration(store), None, NO_SOURCES)
    workloads.add_routes(app.router, Guard(rights), store, efficiencies)

    @app.middleware("http")
    async def is_bob(request: Request, go_on: Any) -> Any:
        set_caller(request.scope, Caller(name))
        return await go_on(request)

    return app


async def test_each_action_needs_its_own_right_and_the_history_names_the_caller(
    store: AnyStore,
) -> None:
    async with talking_to(guarded(store, Known("create workloads/hold"))) as api:
        for action in Action:
            more: dict[str, dict[str, Any]] = {
                "priority": {"priority": 1},
                "move": {"queue": "default"},
            }
            body = {"by": "alice", **more.get(action, {})}
            answer = await api.post(f"{NAMED}/held/{action}", json=body)
            if action is Action.HOLD:
                assert (answer.status_code, answer.json()["by"]) == (202, "bob")
            else:
                assert answer.status_code == 403, action
                assert f"create workloads/{action} held" in answer.json()["detail"]
        assert len(await store.commands()) == 1
        dry = await api.post(f"{NAMED}/running/preempt", params={"dry_run": "true"})
        assert dry.status_code == 403, "a dry run needs the right to the command"


async def test_an_idempotency_key_belongs_to_its_caller(store: AnyStore) -> None:
    key = {"Idempotency-Key": "hold-1"}
    commands = []
    for name in ("bob", "system:serviceaccount:team-a:robot", "bob"):
        async with talking_to(guarded(store, Known("create workloads/hold"), name)) as api:
            answer = await api.post(f"{NAMED}/running/hold", headers=key)
            assert (answer.status_code, answer.json()["requestId"]) == (202, "hold-1")
            commands.append((answer.json()["id"], answer.json()["by"]))
    first, second, again = commands
    assert first == again
    assert first[0] != second[0]


async def test_a_command_is_shown_to_callers_that_may_see_its_workload(store: AnyStore) -> None:
    other = live_through(job("secret", namespace="team-b"))
    await commit(store, other)
    for uid in ("uid-job-held", "uid-job-secret"):
        await store.add_command(Command(0, uid, Action.HOLD, "alice", uid, 1.0))
    mine, theirs = await store.commands()
    async with talking_to(guarded(store, Known())) as api:
        assert (await api.get(f"/api/v1/commands/{mine.id}")).status_code == 200
        hidden = await api.get(f"/api/v1/commands/{theirs.id}")
        none = await api.get("/api/v1/commands/99")
    assert hidden.status_code == none.status_code == 404
    assert hidden.json()["title"] == none.json()["title"]


@pytest.mark.parametrize(
    ("rights", "query", "expected"),
    [
        (Known("list workloads"), "", ["held"]),
        (Known("list workloads", namespace=None), "", ["gone", "secret", "held"]),
        (Known("list workloads"), "?namespace=team-a", ["held"]),
        (Known("list workloads"), "?workload=team-a/held", ["held"]),
        (Known("list workloads"), "?namespace=team-b", None),
        (Known("list workloads"), "?workload=team-b/secret", None),
        (Known("list workloads"), "?namespace=team-a&workload=team-b/secret", []),
        (Known(), "", []),
    ],
)
async def test_the_list_of_commands_has_the_workloads_that_the_caller_may_list(
    store: AnyStore, rights: Known, query: str, expected: list[str] | None
) -> None:
    await commit(store, live_through(job("secret", namespace="team-b")))
    for uid in ("uid-job-held", "uid-job-secret", "uid-job-gone"):
        await store.add_command(Command(0, uid, Action.HOLD, "alice", uid, 1.0))
    async with talking_to(guarded(store, rights)) as api:
        answer = await api.get(f"{LIST}{query}")
    if expected is None:
        assert answer.status_code == 403
    else:
        assert [c["uid"].removeprefix("uid-job-") for c in answer.json()["items"]] == expected
