"""promtool checks alerts and metrics: each alert fires in its own scenario and not in the other one; metrics have no findings."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from prometheus_client import generate_latest

from queuectl.localcluster.prometheus import check_rules
from tests.support.codeblocks import transcript
from tests.support.metricnames import ROOT
from tests.support.pages import PAGES
from tests.support.promtool import promtool
from tests.unit.test_telemetry_metrics import busy

pytestmark = pytest.mark.system

RULES = sorted((ROOT / "deploy" / "chart" / "rules").glob("*.yaml"))
ALERTS = ROOT / "deploy" / "chart" / "rules" / "alerts.yaml"
STORIES = Path(__file__).parent / "prometheus" / "alerts.yaml"


def run(*arguments: str) -> None:
    code, output = promtool(*arguments)
    assert code == 0, output


def test_the_rules_are_well_formed() -> None:
    assert check_rules(*RULES).count("SUCCESS") == len(RULES)


def installed(document: Path) -> str:
    """A file as the command of docs/how-to/monitor.md makes it of alerts.yaml."""
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    [command] = [s.command for s in transcript(page) if s.command.startswith("sed ")]
    program, script, file, into, made = shlex.split(command)
    assert (program, file, into, made) == (
        "sed",
        "deploy/chart/rules/alerts.yaml",
        ">",
        ALERTS.name,
    )
    return subprocess.run(
        ["sed", script, document], capture_output=True, text=True, check=True
    ).stdout


def test_every_alert_fires_with_the_url_of_its_runbook_section(tmp_path: Path) -> None:
    rules, stories = tmp_path / "rules.yaml", tmp_path / "stories.yaml"
    rules.write_text(installed(ALERTS))
    document = yaml.safe_load(installed(STORIES))
    stories.write_text(yaml.safe_dump(document | {"rule_files": [str(rules)]}))
    run("test", "rules", str(stories))
    for group in yaml.safe_load(rules.read_text())["groups"]:
        for rule in group["rules"]:
            url = urlsplit(rule["annotations"]["runbook_url"])
            assert (url.scheme, url.fragment) == ("https", rule["alert"].lower())
            assert url.hostname
            assert url.path.rstrip("/").rpartition("/")[2] + ".md" in PAGES


def checked(exposed: str) -> str:
    """The findings of `promtool check metrics`; empty without any."""
    code, output = promtool("check", "metrics", text=exposed)
    return output + (f"exit code {code}" if code else "")


def test_promtool_has_no_findings_about_the_metrics() -> None:
    assert checked(generate_latest(busy().registry).decode()) == ""


def test_promtool_reports_a_counter_without_the_suffix_total() -> None:
    wrong = "# HELP queuectl_starts Starts.\n# TYPE queuectl_starts counter\nqueuectl_starts 1\n"
    assert "_total" in checked(wrong)


def test_every_alert_fires_in_a_scenario() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    stories = yaml.safe_load(STORIES.read_text())["tests"]
    cases = [test for story in stories for test in story["alert_rule_test"]]
    assert {test["alertname"] for test in cases if test.get("exp_alerts")} == alerts
