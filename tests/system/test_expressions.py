"""promtool evaluates queries of panels and of the documentation on given series."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from deploy.grafana.dashboards.__main__ import BOARDS
from tests.support.metricnames import ROOT
from tests.support.promtool import promtool

pytestmark = pytest.mark.system

Samples = Mapping[str, float]
"""Values by labels, in the notation of Prometheus."""

ALL: Final = "{}"  # no labels: a sum over all series
CHOSEN: Final = {"$cluster_queue": ".*", "$resource": "nvidia.com/gpu"}
OF_TWO_FLAVORS: Final = {
    'queuectl_cluster_gpus{part="effective"}': "60x9",
    'queuectl_cluster_gpus{part="fragmented"}': "4x9",
    'queuectl_cluster_gpus{part="unallocated"}': "28x9",
    'queuectl_cluster_gpus{part="unhealthy"}': "8x9",
    'queuectl_fleet_free_gpus{flavor="any"}': "32x9",
    'queuectl_fleet_fragmented_gpus{flavor="any"}': "5x9",
    'queuectl_fleet_fragmented_inside_nodes_gpus{flavor="any"}': "2x9",
    'queuectl_fleet_stranded_gpus{flavor="any"}': "1x9",
    'queuectl_fleet_free_gpus{flavor="h100"}': "32x9",
    'queuectl_fleet_fragmented_gpus{flavor="h100"}': "4x9",
    'queuectl_fleet_fragmented_inside_nodes_gpus{flavor="h100"}': "3x9",
    'queuectl_fleet_stranded_gpus{flavor="h100"}': "0x9",
}
"""Two flavors select all nodes."""
WARMING_UP: Final = {
    'queuectl_utilization_busy_gpus{cluster_queue="a"}': "6x9",
    'queuectl_utilization_gpus{cluster_queue="a",status="Active"}': "8x9",
    'queuectl_utilization_gpus{cluster_queue="a",status="Unknown"}': "16x9",
    'queuectl_utilization_gpus{cluster_queue="a",status="Warmup"}': "64x9",
}


def evaluate(
    folder: Path, series: Mapping[str, str], expected: Mapping[str, Samples], at: str = "5m"
) -> None:
    """Compare the samples of expressions. A series has one value a minute."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": at,
                "exp_samples": [{"labels": of, "value": value} for of, value in samples.items()],
            }
            for expr, samples in expected.items()
        ],
    }
    file = folder / "expressions.yaml"
    file.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))
    code, output = promtool("test", "rules", file)
    assert code == 0, output


@pytest.mark.parametrize(
    ("uid", "title", "series", "values"),
    [
        pytest.param(
            "queuectl-overview",
            "Fragmentation (GPUs)",
            OF_TWO_FLAVORS,
            [
                {ALL: 32},
                {ALL: 4},
                {'{flavor="any"}': 2, '{flavor="h100"}': 3},
                {'{flavor="any"}': 1, '{flavor="h100"}': 0},
            ],
            id="a GPU of two flavors is free once",
        ),
        pytest.param(
            "queuectl-utilization",
            "Utilization (%)",
            WARMING_UP,
            [{ALL: 0.75}],
            id="gangs that warm up have no utilization",
        ),
        pytest.param(
            "queuectl-utilization",
            "Utilization by ClusterQueue (%)",
            WARMING_UP,
            [{'{cluster_queue="a"}': 0.75}],
            id="gangs that warm up have no utilization in their ClusterQueue",
        ),
    ],
)
def test_a_panel_shows(
    tmp_path: Path, uid: str, title: str, series: Mapping[str, str], values: list[Samples]
) -> None:
    """``values``: of each query of the panel."""
    [panel] = [p for board in BOARDS if board.uid == uid for p in board.panels if p.title == title]
    exprs = [query.expr for query in panel.queries]
    for variable, chosen in CHOSEN.items():
        exprs = [expr.replace(variable, chosen) for expr in exprs]
    evaluate(tmp_path, series, dict(zip(exprs, values, strict=True)))


def test_the_documented_efficiency_of_a_week_weighs_each_leader_by_its_time(tmp_path: Path) -> None:
    """The first one leads for ten hours, the second one for one hour."""
    page = (ROOT / "docs" / "how-to" / "reports.md").read_text()
    [expr] = [line.strip() for line in page.splitlines() if "[7d" in line]
    series = {
        'queuectl_cluster_gpus{instance="a",part="effective"}': "80x599 stale",
        'queuectl_cluster_gpus{instance="a",part="unallocated"}': "20x599 stale",
        'queuectl_cluster_gpus{instance="b",part="effective"}': "_x600 20x60",
        'queuectl_cluster_gpus{instance="b",part="unallocated"}': "_x600 80x60",
    }
    evaluate(tmp_path, series, {expr: {ALL: (80 * 600 + 20 * 60) / (100 * 660)}}, at="659m")
