"""``queuectl plan`` from files to output: golden documents, the schema, exit statuses.

After a wanted change of the output: ``UPDATE_GOLDEN=1 uv run pytest tests/unit/test_plan_command.py``, then read the diff.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from typer.testing import CliRunner

from queuectl.cli.plan import plan_command
from queuectl.domain.plan import Eviction, Plan
from queuectl.domain.reasons import Code
from queuectl.objects.documents import read_documents
from queuectl.objects.files.plans import plan_document
from queuectl.offline.inputs import read_snapshot
from queuectl.planner import plan

ROOT = Path(__file__).parent.parent.parent
PLANS = ROOT / "tests" / "fixtures" / "plan"
CASES = sorted((PLANS / "cases").glob("*.yaml"))
SCHEMA = json.loads((ROOT / "docs" / "reference" / "plan-schema.json").read_text())

app = typer.Typer()
app.command()(plan_command)


def run(*arguments: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def printed(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    result = run(*arguments, "-o", "json", stdin=stdin)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


@pytest.fixture(autouse=True)
def _in_fixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages contain file names, so they must not depend on the path of the repository."""
    monkeypatch.chdir(PLANS)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.stem)
def test_a_case_gives_its_golden_document(case: Path) -> None:
    document = printed("-f", "cluster.yaml", "-f", f"cases/{case.name}")
    del document["stats"]  # numbers about the search, which may get better
    golden = case.with_suffix(".json")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    assert document == json.loads(golden.read_text())


NIGHT = """
apiVersion: queuectl.dev/v1
kind: QuotaOverride
metadata: {name: night}
spec:
  clusterQueue: team-a
  flavor: h100
  resource: nvidia.com/gpu
  nominalQuota: 0
  from: "2026-01-31T20:00:00Z"
  until: "2026-02-01T06:00:00Z"
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: team-a, labels: {queuectl.dev/queue-name: main}}
spec:
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: train, resources: {limits: {nvidia.com/gpu: 8}}}
"""


@pytest.mark.parametrize(
    ("now", "starts"),
    [
        ("2026-01-31T19:59:59Z", True),
        ("2026-01-31T20:00:00Z", False),
        ("2026-02-01T06:00:00Z", True),
    ],
)
def test_quota_for_a_time_is_that_of_the_time_of_the_plan(now: str, starts: bool) -> None:
    document = printed("-f", "cluster.yaml", "-f", "-", "--now", now, stdin=NIGHT)
    assert [gang["workload"] for gang in document["admitted"]] == ["team-a/train"] * starts
    assert len(document["pending"]) == (not starts)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.stem)
def test_the_same_input_gives_the_same_bytes(case: Path) -> None:
    arguments = ("-f", "cluster.yaml", "-f", f"cases/{case.name}", "-o", "json")
    first = run(*arguments).stdout
    assert first
    assert run(*arguments).stdout == first


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.stem)
def test_the_table_names_every_workload_and_its_main_reason(case: Path) -> None:
    arguments = ("-f", "cluster.yaml", "-f", f"cases/{case.name}")
    table = run(*arguments).stdout
    document = printed(*arguments)
    for part in ("admitted", "preempted", "pending"):
        for gang in document[part]:
            assert gang["workload"] in table
    for gang in document["pending"]:
        assert gang["reasons"][0]["code"] in table


def test_a_gang_that_waits_for_its_victims_shows_where_it_will_run() -> None:
    (gang,) = printed("-f", "cluster.yaml", "-f", "cases/preemption.yaml")["pending"]
    assert gang["reasons"][0]["code"] == "WaitingForPreemptedWorkloads"
    assert gang["podSets"][0]["nodes"] == {"r2-a": 1, "r2-b": 1}


def _reservation(name: str, **spec: Any) -> str:
    times = {"from": "2027-03-01T08:00:00Z", "until": "2027-03-01T20:00:00Z"}
    kind = {"apiVersion": "queuectl.dev/v1", "kind": "Reservation", "metadata": {"name": name}}
    return json.dumps(kind | {"spec": times | spec}) + "\n---\n"


def _of_pods(count: int) -> dict[str, Any]:
    capacity = {"pods": count, "requests": {"nvidia.com/gpu": 8}, "flavor": "h100"}
    return {"clusterQueue": "team-a", "capacity": capacity}


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        (_of_pods(2), "r1-a, r1-b"),
        (_of_pods(5), "no placement exists, even if all nodes were empty"),
        ({"nodes": ["r2-a", "r2-b"]}, "r2-a, r2-b"),
        ({"nodes": ["r2-a", "typo"]}, "node typo does not exist"),
    ],
)
def test_the_table_has_the_nodes_of_a_reservation_or_the_reason_for_none(
    spec: dict[str, Any], nodes: str
) -> None:
    result = run("-f", "cluster.yaml", "-f", "-", stdin=_reservation("training-run", **spec))
    line = next(line for line in result.stdout.splitlines() if "training-run" in line)
    assert line.rstrip().split(maxsplit=3)[3] == nodes


@pytest.mark.parametrize(
    ("options", "looked_into"), [((), 2), (("--explain", "1"), 1), (("--explain", "0"), 0)]
)
def test_as_many_pending_gangs_are_diagnosed_as_requested_in_queue_order(
    options: tuple[str, ...], looked_into: int
) -> None:
    document = printed("-f", "cluster.yaml", "-f", "cases/strict-order.yaml", *options)
    found = [bool(gang["conflict"]) for gang in document["pending"]]
    assert found == [True] * looked_into + [False] * (2 - looked_into)
    assert document["stats"]["diagnosed"] == looked_into


def test_the_table_shows_suggested_fixes_only_on_request() -> None:
    files = ("-f", "cluster.yaml", "-f", "cases/strict-order.yaml")
    assert "would let it start" not in run(*files).stdout
    (ways,) = [
        gang["suggestedFixes"]
        for gang in printed(*files)["pending"]
        if gang["workload"] == "team-a/large"
    ]
    asked = run(*files, "--explain", "1").stdout
    assert ways
    for way in ways:
        assert f"    - {way['message']}\n" in asked


def test_in_a_pipe_every_gang_has_one_line() -> None:
    arguments = ("-f", "cluster.yaml", "-f", "cases/gangs.yaml")
    lines = run(*arguments).stdout.splitlines()
    assert max(map(len, lines)) > 80
    for gang in printed(*arguments)["pending"]:
        (line,) = (line for line in lines if gang["workload"] in line.split())
        assert gang["reasons"][0]["message"] in line


def test_the_clock_can_be_fixed() -> None:
    def lost(*arguments: str) -> int:
        document = printed("-f", "cluster.yaml", "-f", "cases/preemption.yaml", *arguments)
        cost: int = document["preempted"][0]["cost"]["lostWork"]
        return cost

    later = lost("--now", "2026-08-22T11:00:00Z")
    assert later == lost("--now", "1787396400")
    assert later > lost()


def test_a_stream_can_be_read_from_stdin() -> None:
    stream = Path("cluster.yaml").read_text() + "---\n" + Path("cases/gangs.yaml").read_text()
    (gang,) = printed("-f", "-", stdin=stream)["admitted"]
    assert gang["workload"] == "team-a/fits"


def test_settings_can_be_in_their_own_file(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\nwaitForPodsReady: {blockAdmission: true}\n"
    )
    document = printed("-f", "cluster.yaml", "--config", str(settings))
    assert document["warnings"] == [
        f"{settings}: document 1 (Configuration/default): waitForPodsReady.blockAdmission: not supported"
    ]


BAD: dict[str, tuple[list[str], str]] = {
    "no such file": (["-f", "missing.yaml"], "error: missing.yaml: No such file or directory"),
    "no object": (["-f", "-"], "error: stdin: document 1: must be an object, not a string"),
    "a time after the calendar": (["-f", "cluster.yaml", "--now", "9" * 400], "error: --now: 9999999"),
    "no time": (["-f", "cluster.yaml", "--now", "noon"], "error: --now: 'noon' is not an RFC 3339 time"),
    "no settings": (
        ["-f", "cluster.yaml", "--config", "cases/repair.yaml"],
        "error: cases/repair.yaml: document 1 (Workload/half-lost): kind: kueue.x-k8s.io/v1beta2 Workload is not a Configuration",
    ),
    "given twice": (
        ["-f", "cluster.yaml", "-f", "cluster.yaml"],
        "error: cluster.yaml: document 1, item 1 (Node/r1-a): is given twice, first as cluster.yaml: document 1, item 1 (Node/r1-a)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_with_status_2_and_one_sentence(name: str) -> None:
    arguments, sentence = BAD[name]
    result = run(*arguments, stdin="hello")
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence)
    assert result.stdout == ""


def test_nothing_given_is_a_complete_answer(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    document = printed("-f", str(empty))
    assert document["admitted"] == document["pending"] == document["preempted"] == []


def test_a_plan_that_fails_its_verification_is_a_defect_not_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forgetful(snapshot: Any, *rest: Any) -> Plan:
        return replace(plan(snapshot, *rest), pending=())

    monkeypatch.setattr("queuectl.control.checked_plan.plan", forgetful)
    result = run("-f", "cluster.yaml", "-f", "cases/gangs.yaml", "-o", "json")
    assert result.exit_code == 1
    assert "internal error: the plan failed its verification: Partition" in result.stderr
    assert result.stdout == ""


def test_a_plan_that_was_cut_is_not_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "queuectl.control.checked_plan.plan", lambda *given: replace(plan(*given), cut=True)
    )
    result = run("-f", "cluster.yaml")
    assert result.exit_code == 1
    assert "the plan is incomplete" in result.stderr


def test_a_gang_evicted_for_a_reason_of_its_own_has_no_preemptor() -> None:
    text = Path("cluster.yaml").read_text() + "---\n" + Path("cases/repair.yaml").read_text()
    snapshot = read_snapshot(read_documents(text)).snapshot
    uid = snapshot.admitted[0].workload.uid
    decided = Plan(evicted=(Eviction(uid, Code.NODE_FAILURES, "its nodes are deleted"),))
    document = plan_document(snapshot, decided)
    jsonschema.validate(document, SCHEMA)
    assert document["preempted"] == [
        {
            "workload": "team-a/half-lost",
            "for": None,
            "reason": "NodeFailures",
            "cost": None,
            "proof": "optimal",
        }
    ]
