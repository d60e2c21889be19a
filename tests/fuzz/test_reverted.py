"""The fuzzer finds each defect that the planner had, once the old behavior is back (:mod:`tests.fuzz.reverted`)."""

from __future__ import annotations

import pytest

from tests.fuzz.process import handled
from tests.fuzz.reverted import DEFECTS
from tests.fuzz.snapshots import Snapshots
from tests.support.examples import EXPLORING


@pytest.mark.seeds
@pytest.mark.parametrize("name", [*DEFECTS][:: 1 if EXPLORING else 5])
def test_the_fuzzer_finds_a_defect_that_is_put_back(name: str) -> None:
    """The same input shows none without the patch."""
    defect = DEFECTS[name]
    stage = Snapshots((defect.part,), defect.cycles)
    assert handled(stage, defect.seed).defects == []
    with defect.back():
        assert handled(stage, defect.seed).defects != [], defect.what
