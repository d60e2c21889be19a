"""What people ask of workloads: kept once each, refused when it makes no sense, never done by the API itself."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from queuectl.domain.commands import Answer
from tests.api.conftest import AnyStore
from tests.api.support import LIVES

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
]
SENSELESS = [
    ("pending", "release"),
    ("pending", "requeue"),
    ("held", "activate"),
    ("deactivated", "hold"),
    ("finished", "hold"),
    ("finished", "priority"),
]


@pytest.mark.parametrize(("name", "action", "body"), SENSIBLE)
async def test_a_command_is_kept_and_changes_nothing_itself(
    api: httpx2.AsyncClient, store: AnyStore, name: str, action: str, body: dict[str, Any] | None
) -> None:
    before = await store.get_workload(f"uid-job-{name}")
    answer = await api.post(f"{NAMED}/{name}/{action}", json=body)
    assert answer.status_code == 202, answer.text
    (kept,) = await store.commands()
    assert (kept.uid, kept.action) == (f"uid-job-{name}", action)
    assert kept.priority == (body or {}).get("priority")
    assert kept.by == (body or {}).get("by", "somebody at the REST API")
    assert answer.json() | {"at": "", "requestId": ""} == {
        "id": kept.id,
        "uid": kept.uid,
        "workload": f"team-a/{name}",
        "action": action,
        "priority": kept.priority,
        "by": kept.by,
        "requestId": "",
        "at": "",
    }
    assert await store.get_workload(f"uid-job-{name}") == before


@pytest.mark.parametrize(("name", "action"), SENSELESS)
async def test_what_makes_no_sense_is_a_conflict(
    api: httpx2.AsyncClient, store: AnyStore, name: str, action: str
) -> None:
    body = {"priority": 1} if action == "priority" else None
    answer = await api.post(f"{UID}{name}/{action}", json=body)
    assert answer.status_code == 409
    assert answer.json()["type"].endswith("/not-in-this-state")
    assert f"team-a/{name}" in answer.json()["detail"]
    assert await store.commands() == ()


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
        "The request id was used for something else",
    )


async def test_a_repetition_is_answered_even_when_the_state_has_moved_on(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    key = {"Idempotency-Key": "requeue-1"}
    first = await api.post(f"{NAMED}/running/requeue", headers=key)
    (command,) = await store.commands()
    epoch = await store.take_over("test", 0)
    await store.commit(
        [], epoch=epoch, revision=None, cycle=1, answers=[Answer(command.id, "done")]
    )
    again = await api.post(f"{NAMED}/running/requeue", headers=key)
    assert again.json() == first.json()
    assert await store.commands() == (), "it is not asked for twice"


async def test_commands_that_are_not_carried_out_yet_count(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    """A hold and a release at once: when the release comes, nobody holds it yet."""
    await api.post(f"{NAMED}/pending/hold")
    answer = await api.post(f"{NAMED}/pending/release")
    assert answer.status_code == 202
    assert [command.action for command in await store.commands()] == ["hold", "release"]


@pytest.mark.parametrize(
    ("action", "extra", "field"),
    [
        ("priority", {}, "priority"),
        ("priority", {"json": {}}, "priority"),
        ("priority", {"json": {"priority": "high"}}, "priority"),
        ("priority", {"json": {"priority": 1 << 40}}, "priority"),
        ("hold", {"json": {"by": ""}}, "by"),
        ("hold", {"json": {"because": "I say so"}}, "because"),
        ("hold", {"headers": {"Idempotency-Key": "a b"}}, "Idempotency-Key"),
    ],
)
async def test_what_cannot_be_read_is_refused_with_its_field(
    api: httpx2.AsyncClient, store: AnyStore, action: str, extra: dict[str, Any], field: str
) -> None:
    answer = await api.post(f"{NAMED}/pending/{action}", **extra)
    assert answer.status_code == 422
    if extra:
        assert field.lower() in answer.json()["errors"][0]["field"].lower()
    assert await store.commands() == ()


async def test_there_must_be_such_a_workload(api: httpx2.AsyncClient) -> None:
    for path in (f"{UID}nobody/hold", f"{NAMED}/nobody/hold"):
        assert (await api.post(path)).status_code == 404
    assert "hold" not in LIVES
    assert (await api.post(f"{NAMED}/pending/move")).status_code == 404
