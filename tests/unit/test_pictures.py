"""Every committed dashboard can be drawn, and a picture shows what the panels' queries answered and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from deploy.grafana.preview import draw
from deploy.grafana.series import Series

ROOT = Path(__file__).parents[2]
BOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
LABELS = {"cluster_queue": "vision", "reason": "Preempted", "status": "Idle", "stage": "plan"}


@dataclass
class Told:
    """Answers every query with the same series, and notes what was asked."""

    values: tuple[float, ...] = (1.0, 4.0, 2.0)
    empty: bool = False
    since: float = 1000.0
    until: float = 1360.0
    asked_now: set[str] = field(default_factory=set)
    asked_range: set[str] = field(default_factory=set)

    def now(self, expr: str) -> list[Series]:
        self.asked_now.add(expr)
        return [] if self.empty else [Series(LABELS, [(self.until, self.values[-1])])]

    def over_time(self, expr: str) -> list[Series]:
        self.asked_range.add(expr)
        points = [(self.since + 120.0 * n, value) for n, value in enumerate(self.values)]
        return [] if self.empty else [Series(LABELS | {"le": le}, points) for le in ("1", "+Inf")]


def model(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def texts(figure: Figure) -> list[str]:
    figure.canvas.draw()
    own = [one.get_text() for one in figure.texts]
    return own + [one.get_text() for axes in figure.axes for one in axes.texts]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_panel_of_every_dashboard_is_drawn_from_its_own_queries(path: Path) -> None:
    board, told = model(path), Told()
    shown = texts(draw(board, told))
    assert {panel["title"] for panel in board["panels"]} <= set(shown)
    assert "No data" not in shown
    targets = [target for panel in board["panels"] for target in panel.get("targets", [])]
    assert told.asked_now == {t["expr"] for t in targets if t["instant"]}
    assert told.asked_range == {t["expr"] for t in targets if not t["instant"]}


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_what_was_not_answered_is_said_to_have_no_data(path: Path) -> None:
    board = model(path)
    shown = texts(draw(board, Told(empty=True)))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert shown.count("No data") == len(panels)


@pytest.mark.parametrize(
    ("unit", "value", "shown"),
    [
        ("percentunit", 0.701, "70.1 %"),
        ("s", 0.25, "250 ms"),
        ("s", 5400.0, "1.5 h"),
        ("bytes", 3.0 * 2**20, "3 MiB"),
        ("ops", 2.5, "2.5 /s"),
        ("short", 1234.0, "1,234"),
        ("short", 0.5, "0.5"),
    ],
)
def test_a_number_is_shown_in_its_unit(unit: str, value: float, shown: str) -> None:
    panel = {
        "type": "stat",
        "title": "One",
        "gridPos": {"x": 0, "y": 0, "w": 24, "h": 4},
        "fieldConfig": {"defaults": {"unit": unit}},
        "targets": [{"expr": "x", "legendFormat": ""}],
    }
    told = Told(values=(value,))
    assert shown in texts(draw({"title": "A board", "panels": [panel]}, told))


def test_no_line_is_drawn_over_a_gap() -> None:
    board = model(ROOT / "deploy" / "grafana" / "queuectl-overview.json")
    panel = next(p for p in board["panels"] if p["title"] == "Flow")
    panel["gridPos"] |= {"x": 0, "y": 0}

    class Gap(Told):
        def over_time(self, expr: str) -> list[Series]:
            return [Series(LABELS, [(1000.0, 1.0), (1010.0, 1.0), (1060.0, 1.0), (1070.0, 2.0)])]

    figure = draw({"title": "A board", "panels": [panel]}, Gap())
    for axes in figure.axes:
        for line in axes.lines:
            values: Any = line.get_ydata()
            assert [y == y for y in values] == [True, True, False, True, True]
    assert any(axes.lines for axes in figure.axes)


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_the_page_shows_a_picture_of_it_that_is_small(path: Path) -> None:
    name = path.stem.replace("queuectl-", "dashboard-") + ".png"
    assert (ROOT / "docs" / "images" / name).stat().st_size < 300_000
    assert f"(../images/{name})" in (ROOT / "docs" / "how-to" / "grafana.md").read_text()
