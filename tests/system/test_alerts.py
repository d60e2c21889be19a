"""Alert rules on a real promtool: each fires in the story that it is for, and not in the one beside it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from queuectl.localcluster import build
from queuectl.localcluster.progress import Silent
from queuectl.localcluster.prometheus import check_rules
from queuectl.localcluster.versions import PROMETHEUS
from tests.support.metricnames import ROOT

pytestmark = pytest.mark.system

RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.yaml"))
STORIES = Path(__file__).parent / "prometheus" / "alerts.yaml"


@pytest.fixture(scope="module")
def promtool() -> Path:
    return build.ensure(Silent(), units=[PROMETHEUS]).programs["promtool"]


def run(promtool: Path, *arguments: str) -> None:
    done = subprocess.run(
        [promtool, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_well_formed() -> None:
    assert check_rules(*RULES).count("SUCCESS") == len(RULES)


def test_every_story_ends_as_told(promtool: Path) -> None:
    run(promtool, "test", "rules", str(STORIES))


def test_every_alert_fires_in_some_story() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    stories = yaml.safe_load(STORIES.read_text())["tests"]
    told = [test for story in stories for test in story["alert_rule_test"]]
    assert {test["alertname"] for test in told if test.get("exp_alerts")} == alerts
