"""A plan that the verifier refuses is saved once, read over REST, and replayed to the same bytes by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

from queuectl.api.app import create_app
from queuectl.devices.reading import Selects
from queuectl.domain.ledger import State
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.files.plans import plan_document
from queuectl.planner.verify import KnownUse, PlanRule, PlanViolation, verify
from tests.api.support import FixedHealth
from tests.control.rig import Rig, gang, rig
from tests.support.cli import Result, queuectl_with


class Strict:
    """A verifier that refuses every plan with a start, until it is repaired."""

    def __init__(self) -> None:
        self.repaired = False
        self.refused: list[tuple[Snapshot, Plan]] = []

    def __call__(
        self, snapshot: Snapshot, plan: Plan, selects: Selects, known: KnownUse
    ) -> tuple[PlanViolation, ...]:
        if self.repaired or not plan.admitted:
            return verify(snapshot, plan, selects, known)
        self.refused.append((snapshot, plan))
        uid = plan.admitted[0].uid
        return (PlanViolation(PlanRule.WHOLE, uid, "train of team-a has 1 of 2 pods"),)


async def fetched(world: Rig, *paths: str) -> list[httpx2.Response]:
    app = create_app(world.store, FixedHealth(), world.metrics.registry)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return [await client.get(path) for path in paths]


@pytest.mark.sets_aside
async def test_a_refused_plan_is_saved_and_replayed_to_the_same_bytes(
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    strict = Strict()
    monkeypatch.setattr("queuectl.control.checked_plan.verify", strict)
    monkeypatch.setattr("queuectl.domain.containment.FIRST_SECONDS", 0.01)
    monkeypatch.setattr("queuectl.domain.containment.LONGEST_SECONDS", 0.01)
    monkeypatch.setattr("queuectl.control.leader.planning.RETRY_SECONDS", 0.01)
    with capture_logs() as logs:
        async with rig(database_url, 4) as world:
            uid = world.cluster.submit(gang("Job", "train", 2))

            async def saved() -> bool:
                return len(strict.refused) > 3 and bool(await world.store.refused_plans())

            await world.until(saved, "a refused plan is saved")
            listed, named, redacted, missing = await fetched(
                world,
                "/api/v1/refusedplans",
                "/api/v1/refusedplans/1?names=true",
                "/api/v1/refusedplans/1",
                "/api/v1/refusedplans/2",
            )
            strict.repaired = True
            await world.until_state(uid, State.RUNNING)
    assert "plan_refused" in {line["event"] for line in logs}
    [item] = listed.json()["items"]  # the same rule in the same place is saved once
    assert (item["id"], item["rules"], item["bytes"]) == (1, ["Whole"], len(named.content))
    assert missing.status_code == 404

    again = replayed(monkeypatch, capsys, tmp_path / "named.gz", named.content)
    expected = [plan_document(snapshot, plan) for snapshot, plan in strict.refused]
    assert again.out in [json.dumps(e, indent=2, ensure_ascii=False) + "\n" for e in expected]
    assert "the plan is identical" in again.err
    assert f"refused: Whole {uid} train of team-a has 1 of 2 pods" in again.err

    hidden = replayed(monkeypatch, capsys, tmp_path / "redacted.gz", redacted.content)
    assert "the plan is identical" in hidden.err
    assert shape(json.loads(hidden.out)) == shape(json.loads(again.out))
    for name in ("train", "team-a", uid):
        assert name not in hidden.out + hidden.err


def replayed(monkeypatch: pytest.MonkeyPatch, capsys: Any, file: Path, content: bytes) -> Result:
    file.write_bytes(content)
    arguments = ("plan", "--snapshot", str(file), "-o", "json", "--explain", "0")
    result = queuectl_with(monkeypatch, capsys, *arguments)
    assert result.code == 0
    return result


def shape(value: Any) -> Any:
    """A document without its names."""
    if isinstance(value, dict):
        return [shape(one) for one in value.values()]
    if isinstance(value, list):
        return [shape(one) for one in value]
    return "" if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "--snapshot", "nowhere.gz"), "nowhere.gz: No such file"),
        (("plan", "--snapshot", "{page}"), "no file of a refused plan"),
        (("plan", "--snapshot", "{page}", "-f", "-"), "--snapshot: excludes all other options"),
        (("plan",), "-f or --snapshot is required"),
    ],
    ids=["missing", "another file", "with files", "nothing"],
)
def test_the_error_names_the_reason_why_a_file_cannot_be_replayed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    result = queuectl_with(monkeypatch, capsys, *(a.format(page=__file__) for a in arguments))
    assert (result.code, message in result.err) == (2, True)
