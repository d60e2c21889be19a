"""The panels of the cluster's efficiency show the figures of the report, in a real Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from deploy.grafana.dashboards.utilization import UTILIZATION
from queuectl.domain.usage_reports import PARTS, GpuParts
from queuectl.localcluster.prometheus import Prometheus
from queuectl.telemetry.fleet import FleetMetrics

pytestmark = pytest.mark.system

TITLE, PANELS = UTILIZATION.rows[0]
GPUS = GpuParts(*map(Fraction, (96, 40, 4, 12, 24, 16)))
PATIENCE = 15.0  # seconds


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Prometheus]:
    """It scrapes a process that exports these parts."""
    registry = CollectorRegistry()
    FleetMetrics(registry).parts(GPUS)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    job = {
        "job_name": "queuectl",
        "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}],
    }
    try:
        with Prometheus.start([job], scrape_seconds=0.2) as scraping:
            yield scraping
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def shown(prometheus: Prometheus, title: str) -> dict[str, float]:
    """The values of a panel by legend, once there are any."""
    [panel] = [panel for panel in PANELS if panel.title == title]
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = {
            one["metric"].get("part", query.legend): float(one["value"][1])
            for query in panel.queries
            for one in prometheus.query(query.expr)
        }
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{title}: no data")


@pytest.mark.parametrize(
    ("title", "value"),
    [
        ("Efficiency (%)", GPUS.efficiency),
        ("Highest efficiency (%)", GPUS.highest_efficiency),
        ("Total GPUs", float(GPUS.total)),
        ("Effective GPUs", float(GPUS.effective)),
        ("Wasted GPUs", float(GPUS.wasted)),
        ("Unknown GPUs", float(GPUS.unknown)),
    ],
)
def test_a_number_is_that_of_the_report(prometheus: Prometheus, title: str, value: float) -> None:
    assert list(shown(prometheus, title).values()) == [pytest.approx(value, abs=1e-9)]


def test_the_parts_of_all_gpus_are_shown_apart(prometheus: Prometheus) -> None:
    parts = {part: getattr(GPUS, part) for part in PARTS}
    assert shown(prometheus, "All GPUs by part") == parts


def test_the_range_of_the_efficiency_is_shown_over_time(prometheus: Prometheus) -> None:
    ends = {"efficiency": GPUS.efficiency, "highest": GPUS.highest_efficiency}
    assert shown(prometheus, "Efficiency over time (%)") == pytest.approx(ends)
