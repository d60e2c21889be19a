"""``queuectl plan --mig``: the nodes to reconfigure, the gangs that migrate first, and the message when no reconfiguration helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import typer
from typer.testing import CliRunner

from queuectl.cli.plan import plan_command
from tests.support.pages import PAGES

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "docs" / "examples" / "mig.yaml").read_text()
FIXED = EXAMPLE.replace("  policy: {defragment: Plan}\n", "")
SCHEMA = json.loads((ROOT / "docs" / "reference" / "plan-schema.json").read_text())

app = typer.Typer()
app.command()(plan_command)


def run(text: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["-f", "-", *arguments], input=text)
    assert result.exit_code == 0, result.output
    return result.stdout


def printed(text: str, *arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(text, "-o", "json", *arguments))
    jsonschema.validate(document, SCHEMA)
    return document


def test_the_answer_names_nodes_configurations_and_gangs() -> None:
    (change,) = printed(EXAMPLE, "--mig")["mig"]
    assert change == {
        "for": "team-a/notebooks",
        "nodes": [{"node": "gpu-2", "from": "all-disabled", "to": "half-1g.10gb"}],
        "gangs": [{"workload": "team-a/tune-2", "lostGpuSeconds": 540, "nodes": ["gpu-1"]}],
        "least": False,
    }


def test_without_the_option_the_reconfiguration_is_a_suggested_fix() -> None:
    document = printed(EXAMPLE)
    assert "mig" not in document
    (pending,) = document["pending"]
    (fix,) = [fix for fix in pending["suggestedFixes"] if fix["code"] == "ReconfigureMIG"]
    text = "reconfigure MIG on 1 node: gpu-2 to half-1g.10gb, after the migration of 1 gang: team-a/tune-2"
    assert fix["message"] == text


def test_without_migrations_no_node_is_free() -> None:
    assert printed(FIXED, "--mig")["mig"] == []
    assert "no reconfiguration of MIG lets a pending gang start" in run(FIXED, "--mig")


def test_the_page_on_reconfiguration_shows_the_output() -> None:
    """Except for the padding of the table."""
    page = [" ".join(line.split()) for line in PAGES["reconfigure-mig.md"].read_text().splitlines()]
    for line in [*run(EXAMPLE, "--mig").splitlines(), *run(FIXED, "--mig").splitlines()[-2:]]:
        assert " ".join(line.split()) in page
