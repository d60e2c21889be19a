"""The lists by which `make test` orders its tests name files and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.longest import ELSEWHERE, LONGEST, seconds, shares
from tests.system import own_groups
from tests.system.groups import GROUPS, group_of

TESTS = Path(__file__).parents[1]


def test_the_long_files_exist() -> None:
    assert [name for name in LONGEST if not (TESTS / name).is_file()] == []


def test_workers_share_out_all_files_of_the_arguments_and_none_twice() -> None:
    arguments = [str(TESTS / "control"), str(TESTS / "planner")]
    own = shares(arguments, 4)
    files = [file for share in own for file in share]
    assert sorted(files) == sorted(
        str(file) for path in arguments for file in Path(path).rglob("test_*.py")
    )
    loads = [sum(seconds(Path(file)) for file in share) for share in own]
    assert max(loads) - min(loads) <= max(LONGEST.values())


def test_folders_that_are_not_collected_have_only_tests_of_other_targets() -> None:
    marks = re.compile(
        r"^pytestmark = (\[[^]]*?)?pytest\.mark\.(system|kinds|operations|real|image)\b",
        re.MULTILINE,
    )
    files = [file for folder in ELSEWHERE for file in (TESTS / folder).rglob("test_*.py")]
    assert len(files) > len(ELSEWHERE)
    assert [file.name for file in files if not marks.search(file.read_text())] == []


def test_tests_of_one_file_stay_together() -> None:
    arguments = ["a/test_a.py::test_1", "a/test_b.py", "a/test_a.py::test_2[x::y]"]
    own = shares(arguments, 3)
    assert sorted(own) == [
        [],
        ["a/test_a.py::test_1", "a/test_a.py::test_2[x::y]"],
        ["a/test_b.py"],
    ]


@pytest.mark.parametrize("name", [name for group in GROUPS for name in group])
def test_a_file_of_a_group_exists(name: str) -> None:
    room = "system/" if name.startswith("docs/") else ""
    assert (TESTS / room / f"{name}.py").is_file()


def test_each_worker_of_test_system_has_one_long_group_and_no_group_is_divided() -> None:
    folders = ("system", "cluster", "utilization")
    own = own_groups.shares([str(TESTS / folder) for folder in folders], 4)
    files = [file for share in own for file in share]
    assert len(files) == len(set(files))
    assert {file for file in files if "docs" in Path(file).parts} == set()
    assert len(files) == sum(
        "docs" not in file.parts for name in folders for file in (TESTS / name).rglob("test_*.py")
    )
    groups = [{group_of(file) for file in share} for share in own]
    assert len(set[str]().union(*groups)) == sum(map(len, groups))
    long = {group_of(f"{name}.py") for name in own_groups.SECONDS}
    assert [len(long & each) for each in groups] == [1, 1, 1, 1]
