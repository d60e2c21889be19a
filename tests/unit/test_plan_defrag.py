"""``queuectl plan --defrag``: the gangs that would migrate, their new nodes, and the messages when no migration helps or an argument is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from typer.testing import CliRunner

from queuectl.cli.plan import plan_command
from tests.support.pages import PAGES

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "docs" / "examples" / "fragmented.yaml").read_text()
FULLER = EXAMPLE.replace('nvidia.com/gpu: "4"', 'nvidia.com/gpu: "5"')
SCHEMA = json.loads((ROOT / "docs" / "reference" / "plan-schema.json").read_text())

app = typer.Typer()
app.command()(plan_command)


def run(text: str, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["-f", "-", *arguments], input=text)


def printed(text: str, *arguments: str) -> dict[str, Any]:
    result = run(text, "-o", "json", *arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


@pytest.mark.parametrize("named", [(), ("team-a/pretrain",)], ids=["the first", "by name"])
def test_the_moves_are_who_from_where_to_where_for_whom_at_what_price(
    named: tuple[str, ...],
) -> None:
    (move,) = printed(EXAMPLE, "--defrag", *named)["moves"]
    assert (move["workload"], move["for"]) == ("team-a/tune-2", "team-a/pretrain")
    assert [p["nodes"] for p in move["from"]] == [{"gpu-2": 1}]
    assert [p["nodes"] for p in move["to"]] == [{"gpu-1": 1}]
    # Two minutes of 4 GPUs since its checkpoint, and the restart.
    assert move["cost"] == {"priority": 0, "lostWork": 4 * 120 + 60, "gpus": 4}
    assert move["proof"] == "optimal"


def test_the_gang_waits_for_the_place_it_will_have() -> None:
    (waits,) = printed(EXAMPLE, "--defrag")["pending"]
    assert waits["reasons"][0]["code"] == "WaitingForPreemptedWorkloads"
    assert waits["reasons"][0]["details"]["victims"] == ["team-a/tune-2"]
    assert [p["nodes"] for p in waits["podSets"]] == [{"gpu-2": 1}]


def test_without_the_option_a_queue_with_defragmentation_in_dry_run_suggests_it() -> None:
    document = printed(EXAMPLE)
    assert "moves" not in document
    (waits,) = document["pending"]
    (way,) = [way for way in waits["suggestedFixes"] if way["code"] == "MoveOthers"]
    text = "migrate 1 gang (540 GPU-seconds of lost work): team-a/tune-2"
    assert (way["message"], way["least"]) == (text, True)


def test_unasked_a_queue_that_executes_moves() -> None:
    document = printed(EXAMPLE.replace("defragment: Plan", "defragment: Execute"))
    assert [m["workload"] for m in document["moves"]] == ["team-a/tune-2"]


def test_no_migration_helps_and_that_is_proved() -> None:
    document = printed(FULLER, "--defrag")
    assert (document["moves"], document["proof"]) == ([], "optimal")
    assert "no migration of running gangs makes room" in run(FULLER, "--defrag").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("team-a/pretrain",), "a gang is an argument of --defrag"),
        (("--defrag", "team-a/nobody"), "no pending workload has this name"),
        (("--defrag", "team-a/tune-1"), "no pending workload has this name"),
    ],
)
def test_a_question_that_makes_no_sense_is_bad_input(
    arguments: tuple[str, ...], message: str
) -> None:
    result = run(EXAMPLE, *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_the_page_on_defragmentation_shows_the_output() -> None:
    """Except for the padding of the table."""
    page = [" ".join(line.split()) for line in PAGES["defragment.md"].read_text().splitlines()]
    printed = [*run(EXAMPLE).stdout.splitlines(), *run(EXAMPLE, "--defrag").stdout.splitlines()]
    printed += run(FULLER, "--defrag").stdout.splitlines()[-2:]
    for line in filter(None, printed):
        assert " ".join(line.split()) in page
