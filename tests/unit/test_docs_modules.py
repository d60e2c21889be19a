"""The explanation pages name modules by their paths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ["/" + path.relative_to(ROOT).as_posix() for path in ROOT.glob("queuectl/**/*.py")]
MODULES += ["/" + path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/*.py")]


@pytest.mark.parametrize("page", ["architecture", "planner"])
def test_each_module_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / "explanation" / f"{page}.md").read_text()
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    assert len(named) > 20
    assert [
        name for name in sorted(named) if not any(m.endswith("/" + name) for m in MODULES)
    ] == []


def test_the_page_for_contributors_names_each_folder_of_tests() -> None:
    text = (ROOT / "docs" / "contributing.md").read_text()
    table = text.partition("| folder | tests |")[2].partition("\n\n")[0]
    folders = {path.parent.name for path in ROOT.glob("tests/*/__init__.py")}
    assert folders | {"fixtures"} == set(re.findall(r"`tests/(\w+)`", table))
