"""The fuzzer finds each defect that the planner had, once the old behavior is back (:mod:`tests.fuzz.reverted`)."""

from __future__ import annotations

import pytest

from tests.fuzz.child import STAGES
from tests.fuzz.figures import Stage
from tests.fuzz.process import handled
from tests.fuzz.reverted import DEFECTS
from tests.fuzz.snapshots import Snapshots

RUN = {"snapshots": Snapshots()}
SHOWN = [(name, seed) for name, defect in DEFECTS.items() for seed in defect.seeds]


@pytest.mark.parametrize(("name", "seed"), SHOWN)
def test_the_fuzzer_finds_a_defect_that_is_put_back(name: str, seed: int) -> None:
    defect = DEFECTS[name]
    stage = Stage(defect.stage, RUN[defect.stage], STAGES[defect.stage])
    assert handled(stage, seed).defects == []
    with defect.back():
        assert handled(stage, seed).defects != [], defect.what
