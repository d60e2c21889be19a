"""The queries of every panel and every alert return data of a live cluster, in a real Prometheus."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from math import ceil
from typing import Final
from urllib.parse import urlsplit

import pytest
import yaml

from deploy.grafana.dashboards.__main__ import BOARDS
from queuectl.demo import scenario as m
from queuectl.domain.quantity import GPU
from queuectl.localcluster.client import get_plain
from queuectl.localcluster.prometheus import Prometheus
from queuectl.objects.keys import EXPECTED_DURATION, MAX_EXECUTION, PREFIX
from tests.support.metricnames import ROOT
from tests.system.actions import apply, configured, remove, run_command
from tests.system.installation import Workspace
from tests.system.measured import MeasuredInstallation, judged_quickly, playing
from tests.system.test_alerts import checked

pytestmark = pytest.mark.system

CHOSEN: Final = {"$cluster_queue": ".*", "$resource": GPU, "$__rate_interval": "10s"}
FAIRNESS: Final = {"usageHalfLifeTime": "1h", "usageSamplingInterval": "1s"}
SCRAPES: Final = 3.0  # seconds in which everything is scraped more than twice
PATIENCE: Final = 4  # times that what had no answer is asked again


@pytest.fixture(scope="module")
def prometheus(measured: MeasuredInstallation) -> Iterator[Prometheus]:
    """Scrapes queuectl as in production."""
    address = urlsplit(measured.installation.controller.metrics).netloc
    job = {"job_name": "queuectl", "static_configs": [{"targets": [address]}]}
    with Prometheus.start([job], scrape_seconds=0.5) as server:
        yield server


def configure(workspace: Workspace) -> None:
    """A queue with limits and a Budget that lends and borrows within a cohort of a cohort, and one to borrow from."""
    queue = judged_quickly(workspace.namespace, 16)
    row = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    row |= {"borrowingLimit": 16, "lendingLimit": 8}
    queue["spec"] |= {
        "cohortName": "team",
        "admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"},
    }
    lender = m.cluster_queue("lender", "gpu", {GPU: 16, "cpu": "1M"})
    lender["spec"]["cohortName"] = "team"
    team = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Cohort",
        "metadata": {"name": "team"},
        "spec": {"parentName": "company"},
    }
    budget = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Budget",
        "metadata": {"name": "team"},
        "spec": {"clusterQueue": workspace.namespace, "gpuHoursPerMonth": 1000},
    }
    apply(workspace, team, queue, lender, budget)


def live(measured: MeasuredInstallation, workspace: Workspace) -> None:
    """Something of everything: a finish, a preemption with a requeue, idle GPUs, an estimated start, a gang that waits."""
    short = m.job(
        "short", workspace.namespace, "main", playing("busy"), seconds=1, priority_class="high"
    )
    short["metadata"]["annotations"] |= {PREFIX + EXPECTED_DURATION: "60"}
    workspace.submit(short)
    workspace.until_state("short", "Finished")
    workspace.job("idle", playing("idle"), priority_class="low")
    workspace.until_state("idle", "Running")
    for_an_hour(workspace, "busy", "low")
    workspace.until_state("busy", "Running")
    workspace.until(lambda: measured.gangs(workspace.namespace).get("Idle") == 1.0, "an idle gang")
    for_an_hour(workspace, "urgent", "high")
    workspace.until_state("urgent", "Running")
    workspace.until(lambda: workspace.state("idle") == "Pending", "the idle one queues again")
    workspace.until(
        lambda: workspace.workload("idle").get("expectedStart"), "an estimate of its start"
    )
    remove(workspace, "busy")
    workspace.until_state("idle", "Running")
    run_command(workspace, "idle", "hold")


def for_an_hour(workspace: Workspace, name: str, priority_class: str) -> None:
    """A gang with a run time limit: gangs behind it get an estimated start."""
    pods = playing("busy")
    document = m.job(name, workspace.namespace, "main", pods, priority_class=priority_class)
    document["metadata"]["labels"][PREFIX + MAX_EXECUTION] = "3600"
    workspace.submit(document)


def panels() -> dict[str, str]:
    """Every query of every panel, by where it is."""
    return {
        f"{board.uid} / {panel.title} / {query.legend}": query.expr
        for board in BOARDS
        for panel in board.panels
        for query in panel.queries
    }


WITHOUT_SERIES = {
    "QueuectlGangWriteRefused",  # no write is refused here
    "QueuectlVisibilityUnavailable",  # a metric of kube-apiserver; the aggregated API is off
    "QueuectlConfigurationUnknown",  # the database owns the configuration
    "QueuectlConfigurationNotApplied",
    "QueuectlNotificationsDelayed",  # no receiver is configured
    "QueuectlNotificationsDropped",
}


def alerts() -> dict[str, str]:
    """The series that every alert compares, except those that do not exist here."""
    groups = yaml.safe_load((ROOT / "deploy" / "chart" / "rules" / "alerts.yaml").read_text())[
        "groups"
    ]
    return {
        rule["alert"]: re.sub(r"\s(==|!=|<=|>=|<|>)\s", r" \1 bool ", rule["expr"])
        for group in groups
        for rule in group["rules"]
        if rule["alert"] not in WITHOUT_SERIES
    }


def answered(prometheus: Prometheus, expr: str, at: float) -> bool:
    """Whether there is data as of a time; substitutes for missing series do not count.

    A subquery evaluates whole minutes of the clock, so it is evaluated as of the next one.
    """
    if ":1m]" in expr:
        at = ceil(at / 60.0) * 60.0
    for variable, chosen in CHOSEN.items():
        expr = expr.replace(variable, chosen)
    return bool(prometheus.query(expr.replace(" or vector(0)", ""), at))


def test_every_panel_and_every_alert_has_data(
    measured: MeasuredInstallation, prometheus: Prometheus
) -> None:
    asked = panels() | alerts()
    assert len(asked) > 100
    with (
        measured.installation.workspace(16) as workspace,
        configured(workspace, admissionFairSharing=FAIRNESS),
    ):
        configure(workspace)
        live(measured, workspace)
        for _ in range(PATIENCE):  # of a scrape that failed nothing is left for a moment
            time.sleep(SCRAPES)
            now = time.time()
            asked = {
                where: expr for where, expr in asked.items() if not answered(prometheus, expr, now)
            }
            if not asked:
                break
        assert not asked, "\n".join(f"{where}: {expr}" for where, expr in asked.items())


def test_promtool_has_no_findings_about_the_metrics_of_a_leader(
    measured: MeasuredInstallation,
) -> None:
    text = get_plain(f"{measured.installation.controller.metrics}/metrics").text
    assert "queuectl_leader 1" in text
    assert checked(text) == ""
