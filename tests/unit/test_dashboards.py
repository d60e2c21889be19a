"""The committed dashboards are those that the code makes, and use metrics that exist."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from deploy.grafana.dashboards.__main__ import BOARDS, rendered
from deploy.grafana.dashboards.board import WIDTH, Board, Unit
from tests.support.metricnames import ROOT, faults

ALERTS = ROOT / "deploy" / "chart" / "rules" / "alerts.yaml"
RUNBOOK = ROOT / "docs" / "how-to" / "runbook.md"
each = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@each
def test_what_is_committed_is_what_the_code_draws(board: Board) -> None:
    """After a change: `make dashboards`."""
    committed = (ROOT / "deploy" / "chart" / "dashboards" / f"{board.uid}.json").read_text()
    assert committed == rendered(board)


def test_nothing_else_is_committed() -> None:
    committed = {path.stem for path in (ROOT / "deploy" / "chart" / "dashboards").glob("*.json")}
    assert committed == {board.uid for board in BOARDS}


@each
def test_every_query_uses_metrics_and_labels_that_exist(board: Board) -> None:
    wrong = {query.expr: faults(query.expr) for panel in board.panels for query in panel.queries}
    assert not {expr: found for expr, found in wrong.items() if found}


@each
def test_each_panel_has_a_title_and_a_description_and_fits_the_grid(board: Board) -> None:
    for panel in board.panels:
        assert panel.title
        assert panel.text.endswith("."), panel.title
    for title, panels in board.rows:
        assert sum(panel.width for panel in panels) % WIDTH == 0, title


@each
def test_each_panel_has_a_unit(board: Board) -> None:
    for panel in board.panels:
        if panel.unit is Unit.RESOURCE:
            row = next(title for title, panels in board.rows if panel in panels)
            assert "$resource" in panel.title + row, panel.title


@each
def test_each_series_has_a_legend(board: Board) -> None:
    for panel in board.panels:
        legends = [query.legend for query in panel.queries]
        assert all(legends), panel.title
        assert len(set(legends)) == len(legends), panel.title


@each
def test_a_panel_without_data_states_why(board: Board) -> None:
    model = json.loads(rendered(board))
    for panel in model["panels"]:
        assert panel["type"] == "row" or panel["fieldConfig"]["defaults"]["noValue"]


@each
def test_the_columns_of_a_table_are_labels_or_legends(board: Board) -> None:
    for panel in board.panels:
        known = {query.legend for query in panel.queries} | {"instance", "version"}
        for query in panel.queries:
            known |= set(re.findall(r"\w+", "".join(re.findall(r"by \(([^)]*)\)", query.expr))))
        assert set(panel.columns) <= known


@each
def test_every_variable_that_is_used_is_offered(board: Board) -> None:
    model = json.loads(rendered(board))
    offered = {variable["name"] for variable in model["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(model)))
    assert used - {"__rate_interval"} == offered


def test_a_query_of_something_we_do_not_export_is_found() -> None:
    assert faults("rate(queuectl_admission_wait_time_seconds[5m])")
    assert faults("sum(queuectl_no_such_thing)")
    assert faults('queuectl_leader{cluster_queue="a"}')
    assert faults("sum by (flavor) (queuectl_pending_workloads)")
    assert not faults("sum by (le) (rate(queuectl_admission_wait_time_seconds_bucket[5m]))")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_uses_what_exists_and_has_a_section_in_the_runbook(
    rule: dict[str, Any],
) -> None:
    assert not faults(rule["expr"])
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    anchor = f"RUNBOOK_URL#{rule['alert'].lower()}"
    assert rule["annotations"]["runbook_url"] == anchor
    assert f"## {rule['alert']}\n" in RUNBOOK.read_text()
