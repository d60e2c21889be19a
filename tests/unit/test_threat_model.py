"""docs/explanation/threat-model.md names for each threat the test of its prevention, or states why the risk is accepted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "threat-model.md"
HEADER = "| threat | prevention | test |"
ACCEPTED = "accepted: "
SECTIONS = (
    "Tenants and cluster users",
    "REST and dashboard callers",
    "Notifications",
    "Nodes and pods",
    "Metric sources",
    "Database and backups",
    "The leader's own identity",
    "The webhook of older servers",
    "Release chain",
)


class Line(NamedTuple):
    section: str
    threat: str
    prevention: str
    shown: str

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.shown) if not self.accepted else []

    @property
    def accepted(self) -> bool:
        return self.shown.startswith(ACCEPTED)


def lines() -> Iterator[Line]:
    section = ""
    for text in PAGE.read_text().partition("\n## Threats\n")[2].splitlines():
        if text.startswith("#"):
            section = text.lstrip("# ")
        elif text.startswith("| ") and text != HEADER and not text.startswith("| ---"):
            yield Line(section, *(cell.strip() for cell in text.strip("|").split(" | ")))


@cache
def collected(path: str) -> frozenset[str]:
    """Names of what pytest collects in a module; of those that are skipped or expected to fail, none."""
    tree = ast.parse((ROOT / path).read_text())
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name.startswith("Test")]
    found = [*tree.body, *(node for one in classes for node in one.body)]
    return frozenset(
        node.name
        for node in found
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any(re.search(r"mark\.(skip|xfail)\b", ast.unparse(d)) for d in node.decorator_list)
    )


LINES = list(lines())


def test_the_table_has_each_kind_of_attacker() -> None:
    found = {line.section for line in LINES}
    assert found == set(SECTIONS)
    assert PAGE.read_text().count(HEADER) == len(SECTIONS)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.threat)
def test_each_threat_has_a_test_or_is_accepted_with_a_reason(line: Line) -> None:
    assert line.prevention
    if line.accepted:
        assert line.prevention == "Nothing."
        assert len(line.shown.removeprefix(ACCEPTED)) > 40
        return
    assert line.tests
    assert re.sub(r"`[^`]+`|[, ]", "", line.shown) == ""
    for name in line.tests:
        path, _, function = name.partition("::")
        assert re.fullmatch(r"tests/(\w+/)*test_\w+\.py", path), name
        assert function in collected(path), name


def test_the_risks_that_are_not_covered_are_listed() -> None:
    text = PAGE.read_text().partition("\n## Not covered\n")[2]
    assert re.findall(r"^- .+", text, re.MULTILINE)
