"""docs/reference/kinds.md has each kind of queuectl, and the last results of `make test-kinds`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from queuectl.objects.kinds import KINDS
from tests.kinds import record
from tests.kinds.entries import ENTRIES
from tests.kinds.entry import FEATURES

MATRIX = Path(record.__file__).with_name("test_matrix.py")
RESULTS = json.loads(record.RESULTS.read_text())


def test_each_kind_is_in_the_matrix() -> None:
    of_pods = {"array", "Pod", "PodGroup", "Deployment", "StatefulSet", "LeaderWorkerSet"}
    assert {entry.kind for entry in ENTRIES} == {*KINDS} | of_pods


def test_each_feature_has_a_test_unless_no_kind_has_it() -> None:
    tested = {*re.findall(r'@feature\("([a-z]+)"\)', MATRIX.read_text())}
    assert tested == {feature for features in record.cells().values() for feature in features}
    assert tested <= {*FEATURES}


def test_the_page_has_the_last_results_of_each_kind() -> None:
    assert record.PAGE.read_text() == record.page(RESULTS)
    ran = {kind: {*run["cells"]} for kind, run in RESULTS.items()}
    assert ran == record.cells()
    failed = [kind for kind, run in RESULTS.items() if {*run["cells"].values()} != {"passed"}]
    assert failed == []


def test_the_tests_of_a_kind_are_those_with_its_whole_name() -> None:
    """`make test-kinds KIND=Job` selects no test of a PyTorchJob."""
    named = {
        "entry": ENTRIES[0],
        "kind": "PyTorchJob",
        "owner": "Job",
    }
    params: list[dict[str, object]] = [{}, *({name: value} for name, value in named.items())]
    tests = [SimpleNamespace(callspec=SimpleNamespace(params=one)) for one in params]
    found = [record.kind_of(cast("pytest.Item", one)) for one in tests]
    assert found == ["", "Job", "PyTorchJob", ""]
