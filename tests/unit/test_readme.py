"""The README is short, has its parts in order, and shows the recorded figures."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tests.support.chart_values import IMAGE
from tests.support.pages import README, ROOT

TEXT: Final = README.read_text()
RECORDED: Final = json.loads((ROOT / "tests" / "bench" / "recorded.json").read_text())


def span(runs: list[float], unit: str) -> str:
    """The fastest and the slowest run."""
    low, high = min(runs), max(runs)
    return f"{low:g} to {high:g} {unit}".strip() if low < high else f"{low:g} {unit}".strip()


def row(measured: dict[str, Any]) -> str:
    """The line of the table of figures."""
    cells = [span(measured[name], measured["unit"]) for name in ("kueue", "queuectl")]
    return f"| {measured['measurement']} | {cells[0]} | {cells[1]} |"


def test_the_figures_are_the_recorded_ones() -> None:
    shown = TEXT.partition("## Figures")[2].partition("\n## ")[0]
    rows = [line for line in shown.splitlines() if line.startswith("| ")][2:]
    assert rows == [row(measured) for measured in RECORDED if measured.get("readme", True)]


def test_the_chart_needs_no_other_value() -> None:
    """tests/system/test_chart.py renders the chart with this value alone."""
    [command] = re.findall(r"^(helm install .*)$", TEXT, re.MULTILINE)
    assert re.findall(r"--set (\S+?)=", command) == ["image.repository"]
    assert set(IMAGE) == {"image"}


def test_it_has_fewer_than_150_lines() -> None:
    assert len(TEXT.splitlines()) < 150


def test_its_parts_are_in_the_order_of_a_readers_questions() -> None:
    parts = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert parts == ["Try it", "Install", "Limits", "Compare", "Figures", "Documentation"]
    assert TEXT.index("![") < TEXT.index("## Try it")
