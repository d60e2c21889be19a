"""The pictures of the dashboards: the results that they show, and the visualizations that the page knows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.grafana.answers import Answers
from tests.support.pages import PAGES

ROOT = Path(__file__).parents[2]
BOARDS = sorted((ROOT / "deploy" / "chart" / "dashboards").glob("*.json"))
SCRIPT = (ROOT / "tests" / "grafana" / "panels.jsx").read_text()
each = pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)


def model(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Paths and parameters of the requests to a Prometheus that returns its own query as a label."""
    requests: list[tuple[str, dict[str, Any]]] = []

    def get(url: str, *, params: dict[str, Any], **_: Any) -> httpx2.Response:
        requests.append((url.rpartition("/")[2], params))
        result = [{"metric": {"query": params["query"]}}]
        return httpx2.Response(200, json={"status": "success", "data": {"result": result}})

    monkeypatch.setattr(httpx2, "get", get)
    return requests


@each
def test_each_query_has_its_own_result(path: Path, asked: list[tuple[str, dict[str, Any]]]) -> None:
    document = Answers("http://prometheus", 100.0, 460.0).document([model(path)])
    for panel in document["boards"][0]["panels"]:
        for target in panel.get("targets", []):
            (result,) = target["result"]
            chosen = target["expr"].replace("$resource", "nvidia.com/gpu")
            chosen = chosen.replace("$cluster_queue", ".*").replace("$__rate_interval", "20s")
            assert result["metric"]["query"] == chosen
            assert "$" not in panel["title"]
    instant = [parameters for kind, parameters in asked if kind == "query"]
    ranges = [parameters for kind, parameters in asked if kind == "query_range"]
    assert {parameters["time"] for parameters in instant} <= {460.0}
    assert {(one["start"], one["end"]) for one in ranges} == {(100.0, 460.0)}


@each
def test_the_page_knows_all_visualizations_and_transformations(path: Path) -> None:
    known = re.search(r"const VISUALIZATIONS = \{(.*?)\}", SCRIPT)
    assert known is not None
    panels = model(path)["panels"]
    assert {panel["type"] for panel in panels} <= {*re.findall(r"(\w+):", known[1]), "row"}
    used = {step["id"] for panel in panels for step in panel.get("transformations", [])}
    assert used <= {"merge", "filterFieldsByName", "organize"}


@each
def test_the_documentation_shows_a_small_picture_of_it(path: Path) -> None:
    name = path.stem.replace("queuectl-", "dashboard-") + ".png"
    assert (ROOT / "docs" / "images" / name).stat().st_size < 300_000
    assert f"(../images/{name})" in PAGES["grafana.md"].read_text()


def test_each_picture_of_the_dashboard_is_small_and_shown() -> None:
    pages = "\n".join(page.read_text() for page in PAGES.values())
    shown = set(re.findall(r"\(\.\./images/(ui-[\w-]+\.png)\)", pages))
    stored = {
        path.name: path.stat().st_size for path in (ROOT / "docs" / "images").glob("ui-*.png")
    }
    assert stored.keys() == shown
    assert max(stored.values()) < 200_000
