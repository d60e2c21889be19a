"""The labels of the series of this cluster, in a Prometheus that has the metrics of several clusters."""

from __future__ import annotations

import re
from typing import Any

import pytest

from queuectl.control.settings import Settings, UtilizationSettings
from queuectl.control.sources import container_source, health_source, trust, use_source
from queuectl.domain.errors import BadInput
from queuectl.domain.node_health import NodeHealthRules
from queuectl.telemetry.signal.prometheus_api import PrometheusApi
from queuectl.telemetry.signal.trust import QUERIED, Trust

SETTING = "QUEUECTL_UTILIZATION__SERIES_LABELS"
NOW, WINDOW = 10_000.0, 600.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries of all sources that reach the server, which has no series."""
    queries: list[str] = []

    async def ask(_: PrometheusApi, query: str, at: float) -> list[Any]:
        queries.append(query)
        return []

    monkeypatch.setattr(PrometheusApi, "ask", ask)
    return queries


async def ask_everything(utilization: UtilizationSettings) -> None:
    """Each source asks once; the one of GPU utilization for both pairs of labels of pods."""
    settings = Settings(prometheus_url="http://p", utilization=utilization)
    use, health = use_source(settings), health_source(settings)
    containers = container_source(settings)
    assert use is not None
    assert health is not None
    assert containers is not None
    await use.sample(WINDOW, NOW, {("team", "train-0")})
    await health.faults(NodeHealthRules(), NOW)
    await health.clocks(WINDOW, NOW)
    await containers.containers(WINDOW, NOW)
    await use.close()
    await health.close()
    await containers.close()


@pytest.mark.parametrize("rules", ["auto", "on", "off"])
async def test_each_query_reads_series_with_these_labels_only(asked: list[str], rules: Any) -> None:
    await ask_everything(
        UtilizationSettings(
            vendor="nvidia,amd,intel", series_labels="cluster=prod-1", recording_rules=rules
        )
    )
    selectors = [selector for query in asked for selector in re.findall(r"{.*?}", query)]
    assert len(selectors) > 50
    assert [each for each in selectors if 'cluster="prod-1"' not in each] == []
    assert any('job!~"nvidia-dcgm' in each for each in selectors)
    assert any("container!=" in each for each in selectors)


@pytest.mark.parametrize("rules", ["on", "off"])
async def test_labels_that_queries_set_themselves_are_refused(asked: list[str], rules: Any) -> None:
    await ask_everything(UtilizationSettings(vendor="nvidia,amd,intel", recording_rules=rules))
    matched = {
        label
        for query in asked
        for selector in re.findall(r"{(.*?)}", query)
        for label in re.findall(r"(\w+)(?:=~|!~|!=|=)", selector)
    }
    grouped = {
        label
        for query in asked
        for labels in re.findall(r"\b(?:by|on) \((.*?)\)", query)
        for label in re.split(r",\s*", labels)
    }
    assert matched | grouped <= QUERIED
    for label in matched | grouped:
        with pytest.raises(BadInput, match=f"{SETTING}: '{label}=x' .* the queries set '{label}'"):
            trust(UtilizationSettings(series_labels=f"{label}=x"), "nvidia")


@pytest.mark.parametrize(
    ("given", "selector"),
    [
        ("", 'job=~"a"'),
        (" cluster = prod-1, region=eu ,", 'job=~"a",cluster="prod-1",region="eu"'),
        ("_c1=a=b.*", 'job=~"a",_c1="a=b.*"'),
        ("cluster=größer als 1", 'job=~"a",cluster="größer als 1"'),
        (r'cluster=a\d"} or {', r'job=~"a",cluster="a\\d\"} or {"'),
    ],
)
def test_each_value_is_matched_as_it_is(given: str, selector: str) -> None:
    asked = UtilizationSettings(trusted_jobs="a", series_labels=given)
    assert trust(asked, "nvidia").selector == selector


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("prod-1", "'prod-1' is not a label and its value"),
        ("=prod-1", "'=prod-1' is not a label and its value"),
        ("a b=c", "'a b=c' is not a label and its value"),
        ("cluster!=prod-1", "'cluster!=prod-1' is not a label and its value"),
        ("1a=b", "'1a=b' is not a label and its value"),
        ("cluster=a\nb", "is not a label and its value"),
        ("cluster=\udcff", "is not a label and its value"),
        ("cluster", "'cluster' has no plain value"),
        ("cluster=", "'cluster=' has no plain value"),
        ("cluster=~prod.*", "only equality is supported"),
        ('cluster="prod-1"', "without quotes"),
        ("cluster=a,cluster=b", "the label 'cluster' is there twice"),
    ],
)
def test_what_is_not_a_label_with_a_value_is_refused_by_the_name_of_the_setting(
    given: str, says: str
) -> None:
    with pytest.raises(BadInput, match=f"{SETTING}: .*{re.escape(says)}"):
        trust(UtilizationSettings(series_labels=given), "nvidia")


def test_the_labels_are_shown_with_the_trusted_jobs() -> None:
    labels = (("cluster", "prod-1"), ("region", "eu"))
    assert str(Trust(("a",), labels=labels)) == "scrape jobs a with cluster=prod-1,region=eu"
