"""``queuectl simulate`` from files to output."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.simulate import simulate_command
from tests.simulate.cases import setting, trace
from tests.traces.clusters import virtual_clusters

app = typer.Typer()
app.command()(simulate_command)

FIGURES = {
    "jobs",
    "finished",
    "skipped",
    "neverFit",
    "meanWaitSeconds",
    "p50WaitSeconds",
    "p99WaitSeconds",
    "meanCompletionSeconds",
    "makespanSeconds",
    "gpuHours",
    "allocation",
    "evictions",
    "lostGpuSeconds",
    "multiNode",
}
OF_CLUSTER = {"utilization", "fragmentation", "fairness", "bySize", "overTime"}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed = {"apiVersion": "v1", "kind": "List", "items": virtual_clusters({"a": 1, "b": 2})}
    Path("cluster.json").write_text(json.dumps(listed))
    jobs = ["0,3600,1,8,a", "10,20,2,8,b", "10,20,1,1,a", "20,5,1,1,unknown", "20,5,9,8,b"]
    Path("trace.csv").write_text(trace(*jobs))


def run(*arguments: str) -> Any:
    given = ("-f", "cluster.json", "--trace", "trace.csv", *arguments)
    return CliRunner().invoke(app, given)


def printed(*arguments: str) -> Any:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("placement", ["planner", "best-fit"])
def test_the_json_has_the_figures_of_all_jobs_and_of_each_queue(placement: str) -> None:
    document = printed("--placement", placement)
    queues = document.pop("byQueue")
    assert document.keys() == FIGURES | OF_CLUSTER
    assert queues.keys() == {"default/a", "default/b"}
    assert all(figures.keys() == FIGURES for figures in queues.values())
    assert document["multiNode"] == {"jobs": 1, "meanWaitSeconds": 0, "p99WaitSeconds": 0}
    assert (document["jobs"], document["finished"]) == (5, 3)
    assert (document["skipped"], document["neverFit"]) == (1, 1)
    assert document["meanWaitSeconds"] == pytest.approx(3590 / 3, abs=0.001)
    assert (document["p50WaitSeconds"], document["p99WaitSeconds"]) == (0, 3590)
    assert document["makespanSeconds"] == 3620
    held = 8 * 3600 + 16 * 20 + 20
    assert document["gpuHours"] == round(held / 3600, 3)
    assert document["allocation"] == round(held / (24 * 3620), 6)
    assert queues["default/b"]["allocation"] == 1


def test_jobs_that_are_left_out_are_warned_of() -> None:
    result = run()
    assert result.exit_code == 0
    unknown = "LocalQueue default/unknown does not exist: 1 job skipped"
    assert f"warning: trace.csv: line 5: {unknown}" in result.stderr
    larger = "9 pods × 8 nvidia.com/gpu never fit in LocalQueue default/b: 1 job"
    assert f"warning: trace.csv: line 6: {larger}" in result.stderr


def test_documents_without_effect_are_shown_with_their_reasons() -> None:
    documents = json.loads(Path("cluster.json").read_text())
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    documents["items"].insert(0, service)
    Path("cluster.json").write_text(json.dumps(documents))
    shown = "v1 cluster.json: document 1, item 1 (Service/web)"
    assert f"ignored: {shown}: objects of kind Service are not read" in run().stderr


def test_the_reference_rule_does_not_know_backfill() -> None:
    documents = json.loads(Path("cluster.json").read_text())
    for document in documents["items"]:
        if document["kind"] == "ClusterQueue":
            document["spec"]["queueingStrategy"] = "Backfill"
    Path("cluster.json").write_text(json.dumps(documents))
    failed = run("--placement", "best-fit").exception
    assert isinstance(failed, CommandFailed)
    assert str(failed) == "ClusterQueue a: Backfill needs the planner: --placement planner"
    assert printed("--placement", "best-fit", "--strategy", "StrictFIFO")["finished"] == 3
    assert printed()["finished"] == 3


def test_budgets_count_from_the_start_of_the_trace() -> None:
    """No month pays for the jobs of its queue."""
    spec = {"clusterQueue": "a", "gpuHoursPerMonth": 0}
    head = {"apiVersion": "queuectl.dev/v1", "kind": "Budget", "metadata": {"name": "b"}}
    Path("budget.json").write_text(json.dumps(head | {"spec": spec}))
    month = (
        *("-f", "budget.json"),
        *("--strategy", "BestEffortFIFO", "--start", "2026-11-30T23:59:59Z"),
    )
    result = run(*month, "-o", "json")
    assert json.loads(result.stdout)["finished"] == 1
    assert "2 jobs did not start in the year after the last event" in result.stderr
    assert "usage ledger" not in result.stderr
    assert "use --start" not in result.stderr
    assert "use --start" in run("-f", "budget.json").stderr
    unused = run("-f", "budget.json", "--placement", "best-fit", "--strategy", "StrictFIFO")
    assert "best-fit does not apply Budgets and Reservations" in unused.stderr


def test_several_strategies_are_side_by_side() -> None:
    orders = ("--strategy", "StrictFIFO", "--strategy", "SJF", "--placement", "best-fit")
    assert list(printed(*orders)) == ["StrictFIFO", "SJF"]
    table = run(*orders).stdout
    assert "StrictFIFO" in table
    assert "Mean wait by queue" in table
    page = run(*orders, "-o", "html").stdout
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 3


def test_csv_has_a_line_for_each_policy_and_each_of_its_queues_and_sizes() -> None:
    document = printed("--strategy", "StrictFIFO")
    text = run("--strategy", "StrictFIFO", "--strategy", "SJF", "-o", "csv").stdout
    lines = list(csv.DictReader(io.StringIO(text)))
    assert {line["policy"] for line in lines} == {"StrictFIFO", "SJF"}
    first = [line for line in lines if line["policy"] == "StrictFIFO"]
    names = [(line["queue"], line["gpus"]) for line in first]
    assert names == [
        ("", ""),
        ("default/a", ""),
        ("default/b", ""),
        ("", "1"),
        ("", "5-8"),
        ("", "9-16"),
    ]
    assert float(first[0]["meanWaitSeconds"]) == document["meanWaitSeconds"]
    assert float(first[0]["fragmentation"]) == document["fragmentation"]
    assert (
        float(first[1]["multiNode_jobs"]) == document["byQueue"]["default/a"]["multiNode"]["jobs"]
    )
    assert float(first[4]["meanWaitSeconds"]) == document["bySize"]["5-8"]["meanWaitSeconds"]


def test_csv_over_time_has_a_line_for_each_interval() -> None:
    over_time = printed()["overTime"]
    lines = list(csv.DictReader(io.StringIO(run("-o", "csv-over-time").stdout)))
    assert [float(line["allocatedGpus"]) for line in lines] == over_time["allocatedGpus"]
    assert [float(line["untilSeconds"]) for line in lines] == over_time["untilSeconds"]


@pytest.mark.parametrize(
    "options",
    [
        ("-o", "table"),
        ("-o", "html"),
        ("-o", "csv"),
        ("-o", "csv-over-time"),
        ("-o", "json", "--strategy", "Backfill"),
        ("-o", "json", "--strategy", "Backfill", "--durations", "learned"),
    ],
)
def test_two_runs_give_the_same_bytes(options: tuple[str, ...]) -> None:
    Path("use.csv").write_text("percentile,all\n0,0\n50,30\n100,100\n")
    first, second = (run(*options, "--utilization", "use.csv", "--seed", "7") for _ in range(2))
    assert first.stdout == second.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trace", "trace.csv"), "-f or --live is required"),
        (("-f", "cluster.json"), "either --trace or --history is required"),
        (
            ("-f", "cluster.json", "--trace", "trace.csv", "--history", "30d"),
            "either --trace or --history is required",
        ),
    ],
)
def test_nodes_and_jobs_are_needed_from_one_source(
    arguments: tuple[str, ...], message: str
) -> None:
    failed = CliRunner().invoke(app, arguments).exception
    assert isinstance(failed, CommandFailed)
    assert (failed.code, str(failed)) == (Exit.BAD_INPUT, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--strategy", "SJF", "--durations", "unknown"), "--strategy SJF: needs the run times"),
        (("--strategy", "SJF", "--durations", "learned"), "--strategy SJF: needs the run times"),
        (("--events", "none.csv"), "none.csv: No such file"),
        (("--events", "events.csv"), "--events: Node x is not in the input"),
        (("--trace", "classes.csv"), "classes.csv: line 2: priority: 'high' is neither"),
    ],
)
def test_wrong_input_is_refused(arguments: tuple[str, ...], message: str) -> None:
    Path("events.csv").write_text("0,x,down\n")
    Path("classes.csv").write_text(trace("0,1,1,1,a,high", more="priority"))
    failed = run(*arguments).exception
    assert isinstance(failed, CommandFailed)
    assert failed.code is Exit.BAD_INPUT
    assert str(failed).startswith(message)


def test_events_that_affect_no_job_are_named() -> None:
    given, without = (
        setting({"a": 1}, trace("0,1,1,8,a"), events="0,a-000,down\n", topology=topology)
        for topology in (True, False)
    )
    assert list(given.warnings()) == []
    (text,) = without.warnings()
    assert text.startswith(
        "--events: no event affects jobs in ResourceFlavors without a Topology ("
    )
