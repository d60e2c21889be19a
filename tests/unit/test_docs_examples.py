"""docs/examples does what the pages say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from queuectl.cli.plan import plan_command
from queuectl.demo.scenario import configuration
from queuectl.objects.config import validate

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
STATE = ("nodes.yaml", "queues.yaml")

app = typer.Typer()
app.command()(plan_command)


def plan(*names: str, options: tuple[str, ...] = ()) -> str:
    files = [part for name in names for part in ("-f", f"docs/examples/{name}")]
    result = CliRunner().invoke(app, [*files, *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def planned(*names: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(plan(*names, options=("-o", "json")))
    return document


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def block_after(page: str, command: str) -> list[str]:
    """Lines of what a page shows as the output of a command, without what the table pads."""
    _, _, rest = (ROOT / page).read_text().partition(command + "\n")
    assert rest, f"{page} shows no such command"
    return [line.rstrip() for line in rest.split("```\n")[1].splitlines()]


def test_the_readmes_plan_prints_what_the_readme_shows() -> None:
    command = "queuectl plan " + " ".join(f"-f docs/examples/{n}" for n in (*STATE, "job.yaml"))
    shown = [line.rstrip() for line in plan(*STATE, "job.yaml").splitlines()]
    assert shown == block_after("README.md", command)


def test_both_jobs_start_beside_each_other_each_in_one_rack() -> None:
    document = planned(*STATE, "job.yaml", "pytorchjob.yaml")
    assert (document["pending"], document["warnings"], document["ignored"]) == ([], [], [])
    nodes = {
        gang["workload"]: {node for podset in gang["podSets"] for node in podset["nodes"]}
        for gang in document["admitted"]
    }
    assert sorted(nodes) == ["team-a/finetune", "team-a/train"]
    for used in nodes.values():
        assert len({node.partition("-")[0] for node in used}) == 1


@pytest.mark.parametrize("name", ["job.yaml", "pytorchjob.yaml"])
def test_jobs_are_as_users_write_them(name: str) -> None:
    """The pages say that neither suspend nor gates need be written."""
    (document,) = documents(name)
    written = json.dumps(document)
    assert "suspend" not in written
    assert "schedulingGates" not in written
    (gang,) = planned(*STATE, name)["admitted"]
    assert gang["workload"] == f"team-a/{document['metadata']['name']}"


def test_the_queues_are_those_of_the_demo() -> None:
    given, demo = documents("queues.yaml"), configuration()
    assert [validate(one)[0] for one in given] == [validate(one)[0] for one in demo]
    assert [one["apiVersion"] for one in given] == ["queuectl.dev/v1"] * len(demo)


def test_every_warning_about_the_queue_of_kueue_is_on_the_admins_page() -> None:
    page = (ROOT / "docs" / "admin.md").read_text()
    warnings = [warning for one in documents("kueue.yaml") for warning in validate(one)[1]]
    assert len(warnings) == 2
    for warning in warnings:
        assert f"    warning: {warning}\n" in page
    assert set(planned("queues.yaml", "kueue.yaml")["warnings"]) == {
        f"docs/examples/kueue.yaml: document {number} ({warning.replace(': ', '): ', 1)}"
        for warning in warnings
        for number, one in enumerate(documents("kueue.yaml"), 1)
        if warning.startswith(one["kind"] + "/")
    }


def test_the_page_on_waiting_shows_what_the_plan_says() -> None:
    said = plan("waiting.yaml", options=("--explain", "3")).partition("lab/wide: in its way")
    shown = (ROOT / "docs" / "why.md").read_text()
    for line in (said[1] + said[2]).splitlines():
        assert f"    {line}\n" in shown or not line.strip(), line


def test_no_example_goes_untested() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == {
        *STATE, "job.yaml", "pytorchjob.yaml", "kueue.yaml", "fragmented.yaml",
        "waiting.yaml",
    }  # fmt: skip
