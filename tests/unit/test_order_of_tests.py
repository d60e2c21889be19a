"""The lists by which `make test` orders its tests name files and tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.longest import LONGEST
from tests.system.groups import GROUPS

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("name", LONGEST)
def test_a_long_test_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert not test or f"def {test}(" in (TESTS / file).read_text()
    assert (TESTS / file).is_file()


@pytest.mark.parametrize("name", [name for group in GROUPS for name in group])
def test_a_file_of_a_group_exists(name: str) -> None:
    room = "system/" if name.startswith("docs/") else ""
    assert (TESTS / room / f"{name}.py").is_file()
