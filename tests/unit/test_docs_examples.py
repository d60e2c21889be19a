"""docs/examples does what the pages say of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from queuectl.cli.plan import plan_command
from queuectl.demo.scenario import configuration
from queuectl.objects.configuration.queue_config import validate
from tests.support.codeblocks import transcript
from tests.support.pages import EXAMPLES, KIND_PAGES, PAGES

ROOT = Path(__file__).parents[2]
STATE = ("nodes.yaml", "queues.yaml")
KINDS = tuple(page.replace(".md", ".yaml") for page in KIND_PAGES)
"""Of other kinds."""

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


def output_of(page: str, command: str) -> list[str]:
    """The lines that a page shows as the output of a command."""
    shown = [each for each in transcript(PAGES[page].read_text()) if each.command == command]
    assert shown, f"{page} shows no such command"
    return [line.rstrip() for line in shown[0].output]


def test_the_plan_of_the_readme_prints_what_it_shows() -> None:
    command = "queuectl plan " + " ".join(f"-f docs/examples/{n}" for n in (*STATE, "job.yaml"))
    shown = [line.rstrip() for line in plan(*STATE, "job.yaml").splitlines()]
    assert shown == output_of("README.md", command)


def test_both_jobs_start_alongside_each_other_each_in_one_rack() -> None:
    document = planned(*STATE, "job.yaml", "pytorchjob.yaml")
    assert (document["pending"], document["warnings"], document["ignored"]) == ([], [], [])
    nodes = {
        gang["workload"]: {node for podset in gang["podSets"] for node in podset["nodes"]}
        for gang in document["admitted"]
    }
    assert sorted(nodes) == ["team-a/finetune", "team-a/train"]
    for used in nodes.values():
        assert len({node.partition("-")[0] for node in used}) == 1


@pytest.mark.parametrize("name", ["job.yaml", "pytorchjob.yaml", *KINDS])
def test_jobs_are_as_users_write_them(name: str) -> None:
    """The pages say that neither suspend nor gates need be written."""
    *_, document = documents(name)
    written = json.dumps(documents(name))
    assert "suspend" not in written
    assert "schedulingGates" not in written
    (gang,) = planned(*STATE, name)["admitted"]
    assert gang["workload"] == f"team-a/{document['metadata']['name']}"


def test_the_queues_are_those_of_the_demo() -> None:
    given, demo = documents("queues.yaml"), configuration()
    assert [validate(one)[0] for one in given] == [validate(one)[0] for one in demo]
    assert [one["apiVersion"] for one in given] == ["queuectl.dev/v1"] * len(demo)


def test_the_page_on_waiting_shows_the_output_of_plan() -> None:
    said = plan("waiting.yaml", options=("--explain", "3")).partition("lab/wide: ")
    shown = (ROOT / "docs" / "how-to" / "why.md").read_text()
    assert said[2]
    for line in (said[1] + said[2]).splitlines():
        assert f"\n{line}\n" in shown or not line.strip(), line


def assert_shows(shown: list[str], printed: str) -> None:
    """A page may cut a line short with an ellipsis, and leave out the rest of the output with one."""
    lines = [line.rstrip() for line in printed.rstrip().splitlines()]
    if shown[-1] == "…":
        shown, lines = shown[:-1], lines[: len(shown) - 1]
    assert len(shown) == len(lines)
    for said, line in zip(shown, lines, strict=True):
        assert line.startswith(said[:-1]) if said.endswith("…") else line == said


def test_the_page_on_cohorts_shows_how_two_teams_lend_to_each_other() -> None:
    command = "queuectl plan -f docs/examples/lending.yaml"
    assert_shows(output_of("share-quota.md", command), plan("lending.yaml"))
    rules = "--config docs/examples/fair.yaml"
    fair = plan("lending.yaml", options=tuple(rules.split()))
    assert_shows(output_of("share-quota.md", f"{command} {rules}"), fair)


def test_the_page_on_quota_shows_quota_that_follows_the_nodes(tmp_path: Path) -> None:
    job, nodes = tmp_path / "three.yaml", tmp_path / "nodes.yaml"
    job.write_text(re.sub(": 2$", ": 3", (EXAMPLES / "job.yaml").read_text(), flags=re.MULTILINE))
    files = "-f docs/examples/nodes.yaml -f docs/examples/follow-nodes.yaml -f three.yaml"
    shown = output_of("give-quota.md", f"queuectl plan {files}")
    assert_shows(shown, plan("nodes.yaml", "follow-nodes.yaml", options=("-f", str(job))))
    (state,) = documents("nodes.yaml")
    state["items"][-1]["spec"] = {"unschedulable": True}
    nodes.write_text(yaml.safe_dump(state))
    said = plan("follow-nodes.yaml", options=("-f", str(job), "-f", str(nodes)))
    assert "nominal quota 13" in said


@pytest.mark.parametrize("page", ["mig.md", "shared-gpus.md", "amd-intel.md"])
def test_the_pages_on_parts_of_gpus_and_vendors_show_the_plan(page: str) -> None:
    shown = output_of(page, "queuectl plan -f docs/examples/shared-gpus.yaml")
    assert_shows(shown, plan("shared-gpus.yaml"))


def test_the_page_on_numa_nodes_shows_the_plan() -> None:
    shown = output_of("numa.md", "queuectl plan -f docs/examples/numa.yaml")
    assert_shows(shown, plan("numa.yaml"))


def test_no_example_goes_untested() -> None:
    """Tests of tests/real run the folder training."""
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {
        *STATE, *KINDS, "job.yaml", "first-job.yaml", "pytorchjob.yaml", "kueue.yaml", "kueue-manager.yaml", "fragmented.yaml",
        "waiting.yaml", "lending.yaml", "fair.yaml", "follow-nodes.yaml",
        "gpu-operator.yaml", "shared-gpus.yaml", "mig.yaml", "numa.yaml", "pods.yaml", "deployment.yaml", "statefulset.yaml", "drain-cronjob.yaml", "opencost-pricing.csv",
        "trace.csv", "array.yaml", "elastic.yaml", "leaderworkerset.yaml",
        "rayservice.yaml", "appwrapper.yaml", "sparkapplication.yaml", "notebook.ipynb",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("page", "example"),
    [
        ("pods.md", "pods.yaml"),
        ("pods.md", "statefulset.yaml"),
        ("leaderworkerset.md", "leaderworkerset.yaml"),
        ("rayservice.md", "rayservice.yaml"),
        ("appwrapper.md", "appwrapper.yaml"),
        ("sparkapplication.md", "sparkapplication.yaml"),
    ],
)
def test_the_page_shows_the_plan_of_its_example(page: str, example: str) -> None:
    files = " ".join(f"-f docs/examples/{name}" for name in (*STATE, example))
    shown = output_of(page, f"queuectl plan {files}")
    assert [line.rstrip() for line in plan(*STATE, example).splitlines()] == shown


def test_the_pods_of_the_deployment_are_admitted_one_by_one() -> None:
    shown = plan(*STATE, "deployment.yaml")
    assert re.findall(r"team-a/serve-\d", shown) == ["team-a/serve-0", "team-a/serve-1"]


def test_the_example_of_an_elastic_job_starts_with_its_minimum_number_of_pods() -> None:
    (started,) = planned(*STATE, "elastic.yaml")["admitted"]
    assert started["workload"] == "team-a/elastic"
    assert sum(started["podSets"][0]["nodes"].values()) == 2


def test_the_example_of_an_array_starts_as_many_indexes_as_its_parallelism() -> None:
    admitted = planned(*STATE, "array.yaml")["admitted"]
    assert [one["workload"] for one in admitted] == [
        f"team-a/sweep_{number}" for number in range(4)
    ]
