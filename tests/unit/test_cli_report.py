"""``queuectl report`` against a running API: a table that fits a terminal, and complete CSV and JSON."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from queuectl.api.budgets import BudgetStatusView
from queuectl.api.routes.shadow import ShadowGangView
from queuectl.api.schemas import View
from queuectl.cli.main import run
from queuectl.cli.report import _emit_csv, _lines, _titles
from queuectl.domain.accounting import (
    HOUR,
    AccountingTerms,
    FlavorGpus,
    Free,
    Mark,
    Subject,
    UsagePhase,
)
from queuectl.domain.folding import Fold
from queuectl.domain.usage_reports import ReportKind
from queuectl.domain.utilization import GangUse, UseState
from tests.api.serving import serving
from tests.doubles.store import MemoryStore
from tests.support.samples import all_along

Call = Callable[..., tuple[int, str, str]]
NOW = float(int(time.time() // HOUR) * HOUR - HOUR)


def subject(number: int) -> Subject:
    labels = (("team", "nlp"), ("project", "p,1"))[: number + 1]
    return Subject(
        f"u{number}", "PyTorchJob", "a-rather-long-namespace", f"train-large-model-{number}", "research-and-development",
        "large-cluster-queue", user=("ann", "")[number], labels=labels,
    )  # fmt: skip


async def fill(store: MemoryStore) -> None:
    """Two gangs that hold 1,000 GPUs each for an hour; one of them was measured."""
    fold = Fold(NOW, NOW + HOUR, AccountingTerms({}, {"spot": 2.0}))
    look = GangUse("u0", 1, UseState.ACTIVE, NOW, NOW + HOUR, 0.5, 1.0, "")
    for number in (0, 1):
        held = (FlavorGpus("h100", ("spot", "")[number], 1000),)
        who = subject(number)
        marks = [Mark(who.uid, NOW, NOW, UsagePhase.HOLDS, 1, 1000, held, who)]
        fold.workload(None, marks, all_along(look, NOW) if number == 0 else ())
    await store.usage.keep(
        Fold(NOW, NOW, AccountingTerms()), over=None, until=NOW, marks=(), epoch=0, free={}
    )
    free = {"h100": Free(4000, 2000, 12.5, 8, 4)}
    await store.usage.keep(fold, over=NOW, until=NOW + HOUR, marks=(), epoch=0, free=free)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    store = MemoryStore()
    asyncio.run(fill(store))
    with serving(store) as address:
        yield address


@pytest.fixture
def report(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("QUEUECTL_SERVER", server)
        monkeypatch.setattr("sys.argv", ["queuectl", "report", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


def test_the_table_has_a_total_and_its_period(report: Call) -> None:
    code, out, _ = report("usage", "--by", "user", "--since", "12h")
    assert code == 0
    head, _, titles, *lines = (line.rstrip() for line in out.splitlines())
    assert head.startswith("usage by user, ")
    assert "complete until" in head
    assert titles.split() == [
        "USER",
        "WORKLOADS",
        "ALLOCATED",
        "USED",
        "IDLE",
        "STUCK",
        "UNKNOWN",
        "EFFICIENCY",
    ]
    assert [line.split() for line in lines] == [
        ["(none)", "1", "1,000.0", "0.0", "0.0", "0.0", "1,000.0", "-"],
        ["ann", "1", "1,000.0", "500.0", "0.0", "0.0", "0.0", "50%"],
        ["total", "2", "2,000.0", "500.0", "0.0", "0.0", "1,000.0", "50%"],
    ]


@pytest.mark.parametrize("kind", ["usage", "cost", "waits"])
def test_a_total_names_no_number_of_workloads_that_can_have_several_rows(
    report: Call, kind: str
) -> None:
    hourly = report(kind, "--by", "queue,hour")[1].splitlines()
    assert hourly[2] == "no total of workloads: one can be in several rows"
    assert hourly[-1].split()[:2] == ["total", "-"]
    whole = report(kind, "--by", "queue")[1].splitlines()
    assert not any("no total" in line for line in whole)
    assert whole[-1].split()[:2] == ["total", "2"]


@pytest.mark.parametrize("kind", ["usage", "cost", "waste", "waits"])
@pytest.mark.parametrize(
    "by", ["queue", "clusterqueue", "flavor", "label:team", "hour", "cohort,hour"]
)
def test_tables_fit_a_terminal(report: Call, kind: str, by: str) -> None:
    code, out, _ = report(kind, "--by", by)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 125


def test_a_row_of_one_hour_begins_with_the_hour(report: Call) -> None:
    _, out, _ = report("usage", "--by", "user,hour")
    titles, first = (line.split() for line in out.splitlines()[3:5])
    assert titles[:2] == ["HOUR", "USER"]
    assert f"{first[0]} {first[1]}" == datetime.fromtimestamp(NOW, UTC).strftime("%Y-%m-%d %H:%M")


def test_waste_ends_with_the_free_gpus(report: Call) -> None:
    _, out, _ = report("waste", "--by", "flavor")
    assert out.splitlines()[-1].split() == ["h100", "4,000.0", "2,000.0", "12.5", "4.0", "8.0"]


@pytest.mark.parametrize("kind", ["usage", "cost", "waits"])
@pytest.mark.parametrize(
    "by", ["queue", "user,hour", "hour", "label:team", "flavor,hour", "clusterqueue"]
)
def test_csv_without_rows_has_the_same_header(report: Call, kind: str, by: str) -> None:
    filled = report(kind, "--by", by, "-o", "csv")[1].splitlines()[0]
    _, out, _ = report(kind, "--by", by, "-o", "csv", "--since", "2000h", "--until", "1000h")
    assert out == f"{filled}\n"


def test_csv_of_workloads_without_rows_has_a_header(report: Call) -> None:
    filled = report("usage", "--by", "workload", "-o", "csv")[1].splitlines()[0]
    _, out, _ = report("usage", "--by", "workload", "-n", "nowhere", "-o", "csv")
    labels = {"label_project", "label_team"}
    assert out.strip().split(",") == [each for each in filled.split(",") if each not in labels]


@pytest.mark.parametrize(
    ("kind", "view"), [(ReportKind.BUDGETS, BudgetStatusView), (ReportKind.SHADOW, ShadowGangView)]
)
def test_csv_of_budgets_and_gangs_without_rows_has_all_their_fields(
    kind: ReportKind, view: type[View]
) -> None:
    fields = [field.alias for field in view.model_fields.values()]
    assert [*_titles(kind, None, {})] == fields


def test_the_top_ups_of_a_budget_are_one_cell_of_its_csv(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = [{"name": "b-1", "gpuHours": 2.5, "by": None}, {"name": "b-2", "gpuHours": 1.0}]
    body = {"items": [{"name": "b", "topUps": made}, {"name": "c", "topUps": []}]}
    _emit_csv(_lines(ReportKind.BUDGETS, body), ())
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["topUps"], second["topUps"]) == ("b-1 2.5, b-2 1.0", "")


def test_csv_carries_names_labels_and_figures(report: Call) -> None:
    code, out, _ = report("cost", "--by", "workload", "-o", "csv")
    assert code == 0
    first, second = csv.DictReader(io.StringIO(out))
    assert first["name"] == "train-large-model-0"
    assert (first["label_team"], first["label_project"]) == ("nlp", "")
    assert (first["cost"], first["wastedCost"]) == ("2000.0", "1000.0")
    assert (second["label_project"], second["unpricedGpuHours"]) == ("p,1", "1000.0")


def test_json_is_the_answer_of_the_server(report: Call) -> None:
    _, out, _ = report("waste", "--by", "workload", "-o", "json")
    body = json.loads(out)
    assert [item["group"]["kind"] for item in body["items"]] == ["PyTorchJob"] * 2
    assert body["fleet"][0]["strandedGpus"] == 8.0


def test_hours_without_usage_are_reported_as_empty(report: Call) -> None:
    code, out, err = report("waits", "--since", "120d", "--until", "2000h")
    assert (code, len(out.splitlines())) == (0, 2)
    assert "no usage" in err


def test_a_namespace_selects_its_workloads(report: Call) -> None:
    _, out, _ = report("usage", "-n", "a-rather-long-namespace", "--by", "namespace")
    assert out.splitlines()[-1].split()[:3] == ["total", "2", "2,000.0"]
    _, out, err = report("waste", "-n", "other")
    assert (len(out.splitlines()), "no usage" in err) == (2, True)


def test_a_time_is_checked_before_the_connection(
    report: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuectl.cli.report.connect", None)
    code, _, err = report("waits", "--since", "last week")
    assert (code, "--since: 'last week'" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("usage", "--by", "team"), "label:KEY"),
        (("usage", "--since", "yesterday"), "--since: 'yesterday'"),
        (("usage", "--since", "9" * 400 + "d"), "--since: "),
        (("usage", "--until", "last week"), "--until: 'last week'"),
        (("efficiency", "-n", "team-a"), "efficiency: --namespace does not apply"),
        (("budgets", "-n", "team-a"), "budgets: --namespace does not apply"),
        (("usage", "--since", "1h", "--until", "2h"), "later than since"),
    ],
)
def test_a_wrong_option_is_an_error_with_its_values(
    report: Call, arguments: tuple[str, ...], word: str
) -> None:
    code, _, err = report(*arguments)
    assert code == 2
    assert word in err
